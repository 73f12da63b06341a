# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory that a node's kernel allocated and lost, as kmemleak of the debug kernel finds it."""

import re

KMEMLEAK = "/sys/kernel/debug/kmemleak"

# It looks at what is older than five seconds, and reports what a second scan finds unchanged. What was reported once
# is cleared, so that it is not the next module's.
SCAN = f"sleep 5; for n in 1 2; do echo scan >{KMEMLEAK} || exit; done; cat {KMEMLEAK}; echo clear >{KMEMLEAK}"

# Linux 7.2's UVERBS_METHOD_GET_CONTEXT frees a context that the driver refused, but not the context's reference to the process
# (no rdma_restrack_put()). It is found when nothing points at the process any more, which may be many tests later. Its
# setup_hw_port_stats(), which is inlined, forgets what it has allocated if the driver cannot read the counters of a device that it registers.
NOT_OURS = re.compile(r"\b(copy_process|prepare_creds|__x64_sys_setgroups|alloc_task_exec_state|ib_setup_port_attrs)\+")


def scan(node):
    """kmemleak's report: one block with a stack trace for each lost object."""
    report = node.run(SCAN, timeout=60).out.strip()
    return re.split(r"^(?=unreferenced object)", report, flags=re.MULTILINE) if report else []

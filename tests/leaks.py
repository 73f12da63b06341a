# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory that a node's kernel allocated and lost, as kmemleak of the debug kernel finds it."""

import re

KMEMLEAK = "/sys/kernel/debug/kmemleak"

# It looks at what is older than five seconds, and reports what a second scan finds unchanged. What was reported once
# is cleared, so that it is not the next module's.
SCAN = f"sleep 5; for n in 1 2; do echo scan >{KMEMLEAK} || exit; done; cat {KMEMLEAK}; echo clear >{KMEMLEAK}"


def scan(node):
    """kmemleak's report: one block with a stack trace for each lost object."""
    report = node.run(SCAN, timeout=60).out.strip()
    return re.split(r"^(?=unreferenced object)", report, flags=re.MULTILINE) if report else []

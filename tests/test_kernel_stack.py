# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the driver leaves of the kernel's stack, as the kernel's stack tracer measures it."""

import contextlib

import pytest

from test_lifecycle import back_to_work
from test_nupactl import NUPACTL
from verbs import remote, sge
from waiting import DEBUG_KERNEL

# A stack is 16 KiB. System calls begin up to 1 KiB below its end, wherever that is, and below the driver the kernel may free memory to have some.
MOST = 9 << 10

TRACING = "/sys/kernel/tracing"
SWITCH = "/proc/sys/kernel/stack_tracer_enabled"


@contextlib.contextmanager
def deepest(node):
    """Yields what holds the deepest stack of a node meanwhile, at the end: the calls with what each takes, and bytes down to the last one of the driver, but for
    those that are left out at random."""
    found = {}
    node.run(f"echo 0 >{TRACING}/stack_max_size && echo 1 >{SWITCH}")
    try:
        yield found
        found["calls"] = node.run(f"cat {TRACING}/stack_trace").out
        calls = [line.split(maxsplit=3) for line in found["calls"].splitlines() if line.strip()[:1].isdigit()]
        last = next((int(depth) for _, depth, _, call in calls if "[nupa_" in call), 0)
        found["size"] = last - sum(int(size) for _, _, size, call in calls if call.startswith("do_syscall_64+"))
    finally:
        node.run(f"echo 0 >{SWITCH}")


@pytest.mark.skipif(DEBUG_KERNEL, reason="its stacks are larger, and so is all that lies there")
def test_the_stack_suffices(pair, rdma, saw):
    """When the driver is bound or loaded, which makes the network and the RDMA device that ports' kernel clients take at once, and for what programs do."""
    one, two = pair
    device, driver = one.device(), one.driver_directory()
    with deepest(one) as found:
        one.run(f"echo {device} >{driver}/unbind", timeout=60)
        one.run(f"echo {device} >{driver}/bind", timeout=60)
        one.run("nupa-down", timeout=60)
        one.up()
        back_to_work(one, two)
        a, b = rdma.rc(one, two)
        inbox = b.region(4096, 1)
        local = a.region(4096, 2)
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(inbox))
        a.done("RDMA_WRITE")
        for what in ("status", "peers", "stats", "qp", "mr", "queues"):
            one.run(f"{NUPACTL} {what}")
    assert 0 < found["size"] <= MOST, f"{found['size']} bytes\n{found['calls']}"
    saw(f"{found['size']} bytes at most")

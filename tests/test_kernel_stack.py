# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the driver leaves of the kernel's stack, as the kernel's stack tracer measures it."""

import contextlib
import pathlib
import subprocess

import pytest

from modes import short_on
from test_lifecycle import back_to_work
from test_nupactl import NUPACTL
from verbs import remote, sge
from waiting import DEBUG_KERNEL

# A stack is 16 KiB. System calls begin up to 1 KiB below its end, wherever that is, and below the driver the kernel may free memory to have some.
MOST = 9 << 10

TRACING = "/sys/kernel/tracing"
SWITCH = "/proc/sys/kernel/stack_tracer_enabled"
FILTER = f"{TRACING}/stack_trace_filter"
MODULES = pathlib.Path(__file__).resolve().parent.parent / "build" / "modules"


def called_by_driver():
    """Names of all functions that our modules call: of the kernel, of other modules, and of each other."""
    text = subprocess.run(["nm", "-u", *MODULES.glob("nupa_*.ko")], capture_output=True, text=True, check=True).stdout
    return {name for kind, name in (line.split() for line in text.splitlines() if line.startswith(" "))}


def trace_calls_of_driver(node):
    """Has a node's stack tracer look at stacks where our modules call others.

    Other functions would change nothing of what is counted. For all of them the tracer changes tens of thousands of places in the kernel's text, which takes
    an emulated processor many seconds. Compiled Rust has no such places itself. Functions of our modules are forgotten when these are unloaded.
    """
    names = "\n".join(called_by_driver())
    # Behind the name of a function there may be that of its module. Numbers of lines are taken at once, and names take a search each.
    found = node.run(f"cut -d' ' -f1 {TRACING}/available_filter_functions | grep -nxF '{names}' | tee /run/found && cut -d: -f1 /run/found >/run/traced"
                     f" && cat /run/traced >{FILTER}").out.split()
    assert {"mutex_lock", "ib_register_device"} <= {line.partition(":")[2] for line in found}, found


@contextlib.contextmanager
def deepest(node):
    """Yields what holds the deepest stack of a node meanwhile, at the end: the calls with what each takes, and bytes down to the last one of the driver, but for
    those that are left out at random."""
    found = {}
    try:
        trace_calls_of_driver(node)
        node.run(f"echo 0 >{TRACING}/stack_max_size && echo 1 >{SWITCH}")
        yield found
        found["calls"] = node.run(f"cat {TRACING}/stack_trace").out
        calls = [line.split(maxsplit=3) for line in found["calls"].splitlines() if line.strip()[:1].isdigit()]
        last = next((int(depth) for _, depth, _, call in calls if "[nupa_" in call), 0)
        found["size"] = last - sum(int(size) for _, _, size, call in calls if call.startswith("do_syscall_64+"))
    finally:
        node.run(f"echo 0 >{SWITCH}; echo >{FILTER}")


@short_on("ivshmem")
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

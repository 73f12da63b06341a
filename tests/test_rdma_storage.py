# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A user of verbs in the kernel: NVMe over RDMA, which does fast registration, SEND with invalidation, WRITE, READ."""

import contextlib
import re

import pytest

from kernel_log import complaint
from modes import emulator_only
from waiting import DEBUG_KERNEL, wait_until

SERVE = """set -e
modprobe -a nvmet nvmet-rdma
modprobe brd rd_nr=1 rd_size=32768
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/nvmet
mkdir subsystems/test subsystems/test/namespaces/1 ports/1
echo 1 >subsystems/test/attr_allow_any_host
printf /dev/ram0 >subsystems/test/namespaces/1/device_path
echo 1 >subsystems/test/namespaces/1/enable
cd ports/1
echo rdma >addr_trtype; echo ipv4 >addr_adrfam; echo ADDRESS >addr_traddr; echo 4420 >addr_trsvcid
ln -s /sys/kernel/config/nvmet/subsystems/test subsystems/test
"""
STOP_SERVING = """cd /sys/kernel/config/nvmet
rm -f ports/1/subsystems/test; rmdir ports/1
echo 0 >subsystems/test/namespaces/1/enable
rmdir subsystems/test/namespaces/1 subsystems/test
modprobe -r nvmet-rdma nvmet brd
"""
CONNECT = ("modprobe nvme-rdma && echo transport=rdma,traddr=ADDRESS,trsvcid=4420,nqn=test,nr_io_queues=1,"
           "queue_size=32,reconnect_delay=1OPTIONS >/dev/nvme-fabrics")
STATE = "cat /sys/class/nvme/nvme0/state"
WRITE = "dd if=/dev/urandom of=/run/written bs=1M count=8 status=none && " \
        "dd if=/run/written of=/dev/nvme0n1 bs=256k oflag=direct status=none"
COMPARE = "dd if=/dev/nvme0n1 of=/run/read bs=64k count=128 iflag=direct status=none && cmp /run/written /run/read"


# A report of lockdep's, from its first line to the end of its trace.
LOCKDEP = re.compile(r"^[^\n]*WARNING: possible circular locking dependency.*?</TASK>", re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def locks_of_others(node):
    """Linux 7.2 takes two locks in both orders: nvmet_config_sem before a connection's where a port is taken away, and after it where
    the connection manager's handler executes a command that came early. Lockdep says so once, and is off until the node starts again."""
    mark = node.log.position()
    yield
    said = node.log.since(mark)
    report = LOCKDEP.search(said)
    if DEBUG_KERNEL and report and "(nvmet_config_sem)" in report[0] and "nupa" not in report[0]:
        besides = complaint((said[:report.start()] + said[report.end():]).splitlines())
        assert not besides, "\n".join(besides)
        node.log.checked = node.log.position()
        node.stop()


@contextlib.contextmanager
def disk_of_another(one, two, options=""):
    """Node `one` has node `two`'s disk as nvme0n1; `options` are more options of the connection."""
    with locks_of_others(two):
        two.run(SERVE.replace("ADDRESS", two.ip))
        try:
            one.run(CONNECT.replace("ADDRESS", two.ip).replace("OPTIONS", options))
            wait_until("the disk", lambda: one.run("test -b /dev/nvme0n1", check=False).code == 0)
            yield one
            one.run("for each in /sys/class/nvme/nvme*/delete_controller; do [ ! -e $each ] || echo 1 >$each; done; "
                    "modprobe -r nvme-rdma && rm -f /run/written /run/read", timeout=60)
        finally:
            two.run(STOP_SERVING, timeout=60)


@pytest.fixture
def disk(settled, request):
    """Node 1 with node 2's disk; a parameter has more options of the connection."""
    with disk_of_another(*settled, getattr(request, "param", "")) as one:
        yield one


def test_disk_of_another_node(disk, saw):
    """What is written is read again; the queue pairs go without a trace when the disk does."""
    for _ in range(3):
        disk.run(WRITE)
        disk.run(COMPARE)
    assert "comm [rdma_cm]" in disk.run("rdma resource show qp").out
    saw("8 MiB written and read three times")


TRACED = "/sys/kernel/tracing"
TRACE = f"""mountpoint -q {TRACED} || mount -t tracefs none {TRACED}
cd {TRACED}
echo 'ib_cq_completion_softirq ib_cq_completion_workqueue' >set_ftrace_filter
echo 1 >options/func_stack_trace
echo function >current_tracer
"""
STOP_TRACING = f"cd {TRACED}; cat trace; echo nop >current_tracer; echo 0 >options/func_stack_trace; echo >set_ftrace_filter"


def callers(trace):
    """Who called the completion handlers of the RDMA core, the nearest first, up to an interrupt."""
    for text in trace.split("<stack trace>")[1:]:
        names = re.findall(r"^ => (\S+)", text, re.MULTILINE)
        yield names[:next((at for at, name in enumerate(names) if name.startswith("asm_")), None)]


@emulator_only
@pytest.mark.skipif(DEBUG_KERNEL, reason="the debug kernel has no function tracer")
def test_handlers_are_not_called_by_those_who_post(disk, saw):
    """What a lost controller does not complete is told from an interrupt of its own, not within a call of the user's, who may hold locks that
    the handler takes (the kernel's Documentation/infiniband/core_locking.rst)."""
    disk.run(WRITE)
    reading = disk.spawn("dd if=/dev/nvme0n1 of=/dev/null bs=64k iflag=direct status=none")
    disk.run(TRACE)
    try:
        disk.run(f"echo 1 >{disk.device_directory()}/reset", timeout=20)
        wait_until("the disk to be connected again", lambda: disk.run(STATE).out.strip() == "live", 40)
    finally:
        found = list(callers(disk.run(STOP_TRACING).out))
    assert reading.wait(60).code == 0
    late = [names for names in found if any("irq_work_run" in name for name in names)]
    within = [names for names in found if any("post_send" in name or "post_recv" in name or "modify_qp" in name for name in names)]
    assert late and not within, f"{len(late)} late ones of {len(found)}; within calls: {within[:3]}"
    saw(f"{len(found)} calls, {len(late)} of them late, none within a call of the user's")


@emulator_only
def test_disk_survives_a_reset(disk, saw):
    """Requests that a reset of the controller swallows are flushed at once, so that the driver above connects again."""
    disk.run(WRITE)
    reading = disk.spawn("dd if=/dev/nvme0n1 of=/dev/null bs=64k iflag=direct status=none")
    disk.run(f"echo 1 >{disk.device_directory()}/reset", timeout=20)
    wait_until("the disk to be connected again", lambda: disk.run(STATE).out.strip() == "live", 40)
    assert reading.wait(60).code == 0
    disk.run(COMPARE)
    saw("connected again, nothing lost")


@emulator_only
@pytest.mark.parametrize("disk", [",nr_poll_queues=1"], ids=["polled"], indirect=True)
def test_polled_queues_and_a_reset(disk, saw):
    """Queues that their user polls (IB_POLL_DIRECT) never asked for an event and get none, but are drained as others are."""
    disk.run(WRITE)
    mark = disk.log.position()
    disk.run(f"echo 1 >{disk.device_directory()}/reset", timeout=20)
    # The new device comes when nobody has anything of the old one. Draining a queue takes NVMe 0.1 s; where that is too long for it to
    # leave by itself the RDMA core has it give the disk up.
    wait_until("the new RDMA device", lambda: "nupa_rdma0: node 1" in disk.log.since(mark), 40)
    wait_until("the disk to be connected again, or gone",
               lambda: disk.run(f"{STATE} 2>/dev/null || echo gone").out.strip() in ("live", "gone"), 40)
    saw("drained, a new device after that")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What one user takes of the device, others still have: doorbell pages, and what the rdma controller of cgroups limits."""

import errno
import time

import pytest

from modes import long, only
from test_cleared import ONE, OTHER, program_of
from test_rdma_cm import converse
from test_rdma_storage import COMPARE, WRITE, disk_of_another
from verbs import ALL_ACCESS, DEVICE, Side, connect, install, remote, sge
from waiting import wait_until

pytestmark = pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_rdma0")

CONTEXTS = 300
# Bytes that their rings may lock.
LOCKED = 8 << 20
GROUPS = "/run/nupa-test-cgroups"
GROUP = f"{GROUPS}/test"
MAKE_GROUP = f"""set -e
mkdir -p {GROUPS}
mount -t cgroup2 none {GROUPS}
echo +rdma >{GROUPS}/cgroup.subtree_control
mkdir {GROUP}
"""


def others_work(rdma, one, two):
    """Another user's queues on node 1, its rping to node 2, and a disk of node 2 for the kernel."""
    a, b = (Side(program_of(OTHER, rdma, one)) for _ in range(2))
    connect(a, b)
    local, far = a.region(10000, 1), b.region(10000, 2)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
    a.done("RDMA_WRITE")
    b.check(far, [[0, 1, 0, 10000]])
    install(two)
    user = f"setpriv --reuid {OTHER} --clear-groups --no-new-privs"
    converse(two, one, f"rping -s -a {two.ip} -V -C 10 -S 4000", f"{user} rping -c -a {two.ip} -V -C 10 -S 4000")
    with disk_of_another(one, two) as node:
        node.run(WRITE)
        node.run(COMPARE)


@long
def test_contexts_of_one_process(settled, rdma, saw):
    """A process that opens the device very often takes nothing that others need, and no more pages than its queues fill."""
    hog = program_of(ONE, rdma, settled[0], LOCKED, device=None)
    assert hog.contexts(DEVICE, CONTEXTS, wait=120) == [CONTEXTS, 0]
    others_work(rdma, *settled)
    saw(f"{CONTEXTS} contexts with a queue each; another user's queues, rping and nvme-rdma work")


@long
def test_contexts_of_many_processes(settled, rdma, saw):
    """A user's processes share one bound, which leaves enough to others."""
    hog = program_of(ONE, rdma, settled[0], LOCKED, device=None)
    made, refused = hog.processes(DEVICE, CONTEXTS, wait=300)
    assert 200 <= made < CONTEXTS and refused == [errno.EDQUOT], (made, refused)
    others_work(rdma, *settled)
    renamed = program_of(ONE, rdma, settled[0], LOCKED, device=None)
    renamed.enter_user_namespace()
    settled[0].run(f"echo '0 300000 100' >/proc/{renamed.pid()}/uid_map")
    renamed.set_user(5)
    assert renamed.contexts(DEVICE, 1) == [0, errno.EDQUOT]
    hog.end(kill=True)
    wait_until("pages to be free again", lambda: renamed.contexts(DEVICE, 1) == [1, 0], 10)
    saw(f"{made} of {CONTEXTS} processes have a queue; another user's queues, rping and nvme-rdma work")


def first_share(total):
    """What the first user gets who takes all it can: half of what is not the kernel's."""
    return (total - total // 16) // 2


@long
@pytest.mark.parametrize("kind, limit", [("window", "max_mr"), ("domain", "max_pd")])
def test_objects_of_one_user(settled, rdma, saw, kind, limit):
    """A user that makes all memory windows or protection domains it can leaves as many to others."""
    hog = program_of(ONE, rdma, settled[0])
    total = hog.device()[limit]
    start = time.monotonic()
    made, code = hog.objects_until_refused(kind, total, wait=300)
    took = time.monotonic() - start
    others_work(rdma, *settled)
    assert (made, code) == (first_share(total), errno.EDQUOT)
    again = program_of(ONE, rdma, settled[0])
    if kind == "window":
        # Regions count with them.
        pd = again.pd()
        assert again.fails("region", pd, again.buffer(4096), ALL_ACCESS) == errno.EDQUOT
    assert again.objects_until_refused(kind, 1) == [0, errno.EDQUOT]
    hog.end(kill=True)
    assert again.objects_until_refused(kind, 1) == [1, 0]
    saw(f"{made} of {total} in {took:.0f} s, then EDQUOT; another user's queues, rping and nvme-rdma work")


@only("pcie", why="about nupa_rdma alone, which is the same above whatever is below")
def test_doorbell_pages_are_one_process_s(settled, rdma, saw):
    """Pages that queues of several contexts are on are not for who has the file of one: a child, or another process."""
    program = program_of(ONE, rdma, settled[0])
    program.cq(16)
    assert program.child_maps() == [0, errno.EACCES]
    saw("a child inherits none and may map none")


@only("pcie", why="about the RDMA core, which counts objects of all devices")
def test_limits_of_a_cgroup(settled, rdma, saw):
    """rdma.max bounds how often the processes of a group open the device, and what they make; what goes is free again."""
    node = settled[0]
    program = rdma.program(node, device=None)
    node.run(MAKE_GROUP)
    try:
        node.run(f"echo {program.pid()} >{GROUP}/cgroup.procs")
        node.run(f"echo '{DEVICE} hca_handle=1 hca_object=4' >{GROUP}/rdma.max")
        program.open(DEVICE)
        assert program.contexts(DEVICE, 1) == [0, errno.EAGAIN]
        pd, cq = program.pd(), program.cq(16)
        program.qp(pd, cq)
        buffer = program.buffer(4096)
        region = program.region(pd, buffer, ALL_ACCESS)
        more = {"cq": (16,), "qp": (pd, cq), "region": (pd, buffer, ALL_ACCESS), "pd": ()}
        refused = {method: program.fails(method, *arguments) for method, arguments in more.items()}
        assert set(refused.values()) == {errno.EAGAIN}, refused
        program.destroy(region)
        program.cq(16)
        node.run(f"grep '{DEVICE} hca_handle=1 hca_object=4' {GROUP}/rdma.current")
        program.end()
        node.run(f"grep '{DEVICE} hca_handle=0 hca_object=0' {GROUP}/rdma.current")
    finally:
        if not program.ended:
            program.end(kill=True)
        node.run(f"rmdir {GROUP}; umount {GROUPS}")
    saw("one context and four objects, then EAGAIN; a queue in place of a region; nothing is charged at the end")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs that give the kernel other bytes than the provider would: errnos for them, and nothing for anybody else."""

import errno

import pytest

from modes import only
from test_rdma_processes import none_left
from verbs import DEVICE, install, remote, sge

pytestmark = [pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about what nupa_rdma0 is told"),
              only("pcie", why="nupa_rdma checks what programs tell it, whatever is below")]

FILE = "$(ls -d /sys/class/infiniband_verbs/*/ibdev | while read f; do [ $(cat $f) = nupa_rdma0 ] && basename $(dirname $f); done)"
STORM = f"cd /nupa/tests/guest && python3 -B udata.py /dev/infiniband/{FILE}"
# What a verb may say of a request that is wrong in itself, too large, or about what is not there, by its name in Python.
HONEST = {"EINVAL", "EFAULT", "ENOTSUP", "ENOENT", "EBUSY", "ENOMEM", "ENOSPC", "EPERM", "EACCES", "EHOSTUNREACH",
          "ENETUNREACH", "EMSGSIZE", "EPROTONOSUPPORT", "ENOTTY", "ENODATA", "EBADF", "E2BIG", "ENODEV", "EOVERFLOW",
          "ERANGE"}
# Commands that must have been right in part, or the storm never comes further than the first check.
REACHED = {"ALLOC_PD", "CREATE_CQ", "CREATE_QP", "CREATE_SRQ", "REG_MR", "ALLOC_MW", "MODIFY_QP", "DESTROY_QP", "DEREG_MR",
           "POST_SEND", "POST_RECV"}

# What is wrong, the driver's part of CREATE_CQ for 16 entries, and what must come of it. A ring is an address and a
# logarithm; {area} is memory.
REQUESTS = [
    ("nothing", "b''", errno.EINVAL),
    ("too little", "p('<Q', area)", errno.EINVAL),
    ("a ring of 64 entries", "p('<QB7x', area, 6)", 0),
    ("zeroes behind it", "p('<QB7x16x', area, 6)", 0),
    ("something behind it", "p('<QB7xQQ', area, 6, 0, 1)", errno.EOPNOTSUPP),
    ("something reserved", "p('<QB6xB', area, 6, 1)", errno.EINVAL),
    ("a ring at no page's start", "p('<QB7x', area + 64, 6)", errno.EINVAL),
    ("no ring", "p('<QB7x', 0, 6)", errno.EINVAL),
    ("fewer entries than asked for", "p('<QB7x', area, 3)", errno.EINVAL),
    ("more entries than there can be", "p('<QB7x', area, 31)", errno.EINVAL),
    ("a size that no integer holds", "p('<QB7x', area, 255)", errno.EINVAL),
    ("a ring where nothing is", "p('<QB7x', 4096, 6)", errno.EFAULT),
    ("a ring in the kernel", "p('<QB7x', 0xffff888000000000, 6)", errno.EFAULT),
    ("a ring across the end of addresses", "p('<QB7x', 2**64 - 4096, 8)", errno.EINVAL),
]


def test_requests(settled, saw):
    """Each wrong request for a completion queue has its errno, and right ones are served."""
    node = settled[0]
    install(node)
    lines = "\n".join(f"attempt({part})" for _, part, _ in REQUESTS)
    found = node.run(f"""cd /nupa/tests/guest && python3 -B -c "
import sys, struct, udata
caller = udata.Caller('/dev/infiniband/' + sys.argv[1], 1)
caller.prepare()
p, area = struct.pack, caller.area
def attempt(own):
    try:
        caller.command(udata.CREATE_CQ, p('<QIIiI', 1, 16, 0, -1, 0), own)
        print(0)
    except OSError as error:
        print(error.errno)
{lines}
" {FILE}""").out.split()
    wrong = [f"{what}: {got}, not {wanted}" for (what, _, wanted), got in zip(REQUESTS, map(int, found)) if got != wanted]
    assert len(found) == len(REQUESTS) and not wrong, wrong
    saw(f"{len(REQUESTS)} requests, each with its errno")


@pytest.mark.parametrize("seed", [1, 2])
def test_any_bytes(settled, rdma, saw, seed):
    """Thousands of commands with wrong bytes: an errno each, while others on the node work and keep what is theirs."""
    one, two = settled
    a, b = rdma.rc(one, two)
    local, far = a.region(100000, 1), b.region(100000, 2)
    kept = a.region(100000, 3)
    storm = one.spawn(f"{STORM} {seed} 5000")
    while storm.running():
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        a.done("RDMA_WRITE")
    result = storm.wait(120)
    assert result.code == 0, str(result)
    ends = result.json()
    strange = {name: set(found) - HONEST - {"ok"} for name, found in ends.items()}
    assert not any(strange.values()), {name: words for name, words in strange.items() if words}
    never = [name for name in REACHED if not ends.get(name, {}).get("ok") or len(ends[name]) < 2]
    assert not never, f"never served, or never refused: {never} in {ends}"
    b.check(far, [[0, 1, 0, 100000]])
    a.check(kept)
    for side in (a, b):
        side.program.end()
    none_left(one)
    served = sum(found.get("ok", 0) for found in ends.values())
    saw(f"{sum(sum(found.values()) for found in ends.values())} commands, {served} served")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs that give the kernel other bytes than the provider would: errnos for them, and nothing for anybody else."""

import errno

import pytest

from guest.udata import FILL
from modes import long, only
from test_rdma_device import gid_index
from test_rdma_processes import none_left
from verbs import DEVICE, gid_of, install, remote, sge

pytestmark = [pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about what nupa_rdma0 is told"),
              only("pcie", why="nupa_rdma checks what programs tell it, whatever is below")]

FILE = "$(ls -d /sys/class/infiniband_verbs/*/ibdev | while read f; do [ $(cat $f) = nupa_rdma0 ] && basename $(dirname $f); done)"
STORM = f"cd /nupa/tests/guest && python3 -B udata.py /dev/infiniband/{FILE}"
# What a verb may say of a request that is wrong in itself, too large, or about what is not there, by its name in Python.
HONEST = {"EINVAL", "EFAULT", "ENOTSUP", "ENOENT", "EBUSY", "ENOMEM", "ENOSPC", "EPERM", "EACCES", "EHOSTUNREACH",
          "ENETUNREACH", "EMSGSIZE", "EPROTONOSUPPORT", "ENOTTY", "ENODATA", "EBADF", "E2BIG", "ENODEV", "EOVERFLOW",
          "ERANGE"}
# Commands that must have been right in part, or the storm never comes further than the first check.
REACHED = {"ALLOC_PD", "CREATE_CQ", "CREATE_QP", "CREATE_SRQ", "REG_MR", "ALLOC_MW", "MODIFY_QP", "DESTROY_QP", "DEREG_MR"}
# Commands that the device does not have, whatever is in them: processes post and poll by themselves.
ABSENT = {"POST_SEND", "POST_RECV", "POST_SRQ_RECV", "POLL_CQ", "REQ_NOTIFY_CQ"}

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


# Kicks and polls by methods of the driver's own (include/uapi/rdma/nupa-abi.h): what is asked, and what must come of it. `qp` has
# a receive queue, `shared` takes entries from `srq`. Objects of the RDMA core: 3 completion queue, 4 queue pair, 5 shared receive queue.
METHODS = [
    ("the send queue", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 4, 1))", 0),
    ("the receive queue", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 4, 2))", 0),
    ("both", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 8, 3))", 0),
    ("a receive queue that there is not", "caller.method(4, OWN, (OWN, 0, shared), (OWN + 1, 4, 2))", errno.EINVAL),
    ("the send queue of a pair with a shared receive queue", "caller.method(4, OWN, (OWN, 0, shared), (OWN + 1, 4, 1))", 0),
    ("no queue", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 4, 0))", errno.EINVAL),
    ("the peer, of a pair that is not connected", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 4, 4))", 0),
    ("the event of a pair that has no rings", "caller.method(4, OWN, (OWN, 0, shared), (OWN + 1, 4, 8))", 0),
    ("a queue of a later version", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 4, 17))", errno.EINVAL),
    ("half a number", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 2, 1))", errno.EINVAL),
    ("a number that is too long", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 64, 1))", errno.EINVAL),
    ("no number", "caller.method(4, OWN, (OWN, 0, qp))", errno.EINVAL),
    ("no queue pair", "caller.method(4, OWN, (OWN + 1, 4, 1))", errno.EINVAL),
    ("a queue pair twice", "caller.method(4, OWN, (OWN, 0, qp), (OWN, 0, qp), (OWN + 1, 4, 1))", errno.EINVAL),
    ("a handle with a length", "caller.method(4, OWN, (OWN, 8, qp), (OWN + 1, 4, 1))", errno.EINVAL),
    ("an attribute of a later version", "caller.method(4, OWN, (OWN, 0, qp), (OWN + 1, 4, 1), (OWN + 2, 4, 1))",
     errno.EPROTONOSUPPORT),
    ("a completion queue for a queue pair", "caller.method(4, OWN, (OWN, 0, cq), (OWN + 1, 4, 1))", errno.EINVAL),
    ("another process' queue pair", "caller.method(4, OWN, (OWN, 0, others), (OWN + 1, 4, 1))", errno.ENOENT),
    ("a shared receive queue", "caller.method(5, OWN, (OWN, 0, srq))", 0),
    ("a queue pair for a shared receive queue", "caller.method(5, OWN, (OWN, 0, qp))", errno.EINVAL),
    ("a completion queue", "caller.method(3, OWN, (OWN, 0, cq))", 0),
    ("a domain for a completion queue", "caller.method(3, OWN, (OWN, 0, caller.pick('pd')))", errno.EINVAL),
    ("no completion queue", "caller.method(3, OWN)", errno.EINVAL),
    ("a key without a queue pair", "caller.method(14, 0, (0, 0, 0), (1, 8, 0), (2, 4, 0), (OWN, 8, caller.area), (OWN + 3, 4, 7),"
     " (OWN + 4, 16, caller.area + 64))", errno.EINVAL),
    ("the region of a peer, of a pair that is not connected", "caller.method(14, 0, (0, 0, 0), (1, 8, 0), (2, 4, 0),"
     " (OWN, 8, caller.area), (OWN + 2, 0, qp), (OWN + 3, 4, 7), (OWN + 4, 16, caller.area + 64))", errno.EINVAL),
    ("the clock", "caller.method(0, OWN, (OWN, 8, caller.area))", 0),
    ("half a clock", "caller.method(0, OWN, (OWN, 4, caller.area))", errno.EINVAL),
    ("a clock for nobody", "caller.method(0, OWN, (OWN, 8, 0))", errno.EFAULT),
    ("no clock", "caller.method(0, OWN)", errno.EINVAL),
    ("a method of a later version", "caller.method(3, OWN + 1, (OWN, 0, cq))", errno.EPROTONOSUPPORT),
    ("POST_SEND of nothing", "caller.command(udata.POST_SEND, p('<IIII', qp, 0, 0, 64))", errno.EOPNOTSUPP),
    ("POST_RECV of nothing", "caller.command(udata.POST_RECV, p('<IIII', qp, 0, 0, 64))", errno.EOPNOTSUPP),
    ("POST_SRQ_RECV of nothing", "caller.command(udata.POST_SRQ_RECV, p('<IIII', srq, 0, 0, 64))", errno.EOPNOTSUPP),
    ("POLL_CQ", "caller.command(udata.POLL_CQ, p('<II', cq, 1))", errno.EOPNOTSUPP),
]


def test_methods(settled, saw):
    """Kicks and polls by ioctl are served, also where they are not needed; wrong ones have their errno, and the kicks of before
    are no more."""
    node = settled[0]
    install(node)
    lines = "\n".join(f"attempt(lambda: {call})" for _, call, _ in METHODS)
    found = node.run(f"""cd /nupa/tests/guest && python3 -B -c "
import os, struct, sys, udata
p, OWN = struct.pack, 1 << 12
device = '/dev/infiniband/' + sys.argv[1]
caller, other = udata.Caller(device, 1), udata.Caller(device, 2)
for each in (caller, other):
    each.prepare()
pd, cq, qp = map(caller.pick, ('pd', 'cq', 'qp'))
srq = caller.created(udata.CREATE_SRQ, p('<QIIII', 1, pd, 16, 1, 0), caller.right(udata.CREATE_SRQ))
pair = p('<Q9I4B', 1, pd, cq, cq, srq, 16, 0, 1, 0, 0, 0, 2, 1, 0)
shared = caller.created(udata.CREATE_QP, pair, caller.right(udata.CREATE_QP))
# Numbers are given anew in each context: one that this one does not have.
while (others := other.created(udata.ALLOC_PD, b'')) <= shared: pass
others = other.created(udata.CREATE_QP, p('<Q9I4B', 1, *map(other.pick, ('pd', 'cq', 'cq')), 0, 16, 16, 1, 1, 0, 0, 2, 0, 0),
                       other.right(udata.CREATE_QP))
def attempt(call):
    try:
        call()
        print(0)
    except OSError as error:
        print(error.errno)
{lines}
" {FILE}""").out.split()
    wrong = [f"{what}: {got}, not {wanted}" for (what, _, wanted), got in zip(METHODS, map(int, found)) if got != wanted]
    assert len(found) == len(METHODS) and not wrong, wrong
    saw(f"{len(METHODS)} requests, each with its errno")


# Commands with an answer: bytes of the core's part of that and of the driver's, and where the latter is reserved.
ANSWERS = [
    ("GET_CONTEXT", 8, 24, [(14, 16), (20, 24)]),
    ("ALLOC_PD", 4, 0, []),
    ("CREATE_CQ", 8, 32, [(20, 24), (28, 32)]),
    ("RESIZE_CQ", 8, 0, []),
    ("CREATE_QP", 32, 24, [(20, 24)]),
    ("CREATE_SRQ", 16, 32, [(20, 24), (28, 32)]),
    ("REG_MR", 12, 0, []),
    ("ALLOC_MW", 8, 0, []),
    ("CREATE_AH", 4, 8, [(4, 8)]),
]
# Bytes that there may be room for beside what an answer needs.
SPARE = 64


@only("pcie", "ivshmem", why="where doorbell pages are the controller's, and where they are the kernel's")
def test_answers(settled, saw):
    """Answers are what the interface says, zero where that says nothing, and end where the room for them ends."""
    one, two = settled
    install(one)
    asked = [(name, core, own, reserved, room) for name, core, own, reserved in ANSWERS
             for room in (core + own + SPARE, core + own, core + min(own, 4))]
    found = answers_of(one, gid_of(two.ip), gid_index(one), [(name, room) for name, *_, room in asked])
    for (name, core, own, reserved, room), text in zip(asked, found, strict=True):
        answer = bytes.fromhex(text)
        drivers, spare = answer[core:core + own], answer[core + own:room]
        assert set(answer[room:]) == {FILL}, f"{name} writes past {room} bytes: {text}"
        assert len(set(spare)) < 2 and set(spare) <= {0, FILL}, f"{name} says more than it has to: {text}"
        if room >= core + own:
            assert not own or drivers[0] != FILL, f"{name} does not answer: {text}"
            assert not any(any(drivers[start:end]) for start, end in reserved), f"{name}: not zero at {reserved}: {text}"
    saw(f"{len(asked)} answers to {len(ANSWERS)} commands")


def answers_of(node, gid, gid_index, asked):
    """What memory holds after each of these commands with such room for the answer; each command anew in three contexts."""
    lines = "\n".join(f"ask(callers[{number % 3}], udata.{name}, {room})" for number, (name, room) in enumerate(asked))
    return node.run(f"""cd /nupa/tests/guest && python3 -B -c "
import struct, sys, udata
p = struct.pack
callers = [udata.Caller('/dev/infiniband/' + sys.argv[1], 1) for _ in range(3)]
route = p('<16sIBBBx', bytes.fromhex('{gid.replace(":", "")}'), 0, {gid_index}, 64, 0)
def ask(caller, number, room):
    pd, area = caller.pick('pd'), caller.area
    cores = {{udata.REG_MR: p('<QQQII', area, 4096, area, pd, 1),
             udata.CREATE_AH: p('<QII', 1, pd, 0) + route + p('<HBBBBBx', 0, 0, 0, 0, 1, 1)}}
    core = cores[number] if number in cores else caller.core(number)
    print(caller.answered(number, core, caller.right(number), room)[:256].hex())
{lines}
" {FILE}""").out.split()


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=long)])
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
    served = [name for name in ABSENT if ends.get(name, {}).get("ok")]
    assert not served, f"served: {served} in {ends}"
    b.check(far, [[0, 1, 0, 100000]])
    a.check(kept)
    for side in (a, b):
        side.program.end()
    none_left(one)
    served = sum(found.get("ok", 0) for found in ends.values())
    saw(f"{sum(sum(found.values()) for found in ends.values())} commands, {served} served")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What must fail: the right error on both sides, and no byte written anywhere."""

import errno

import pytest

from guest.pattern import pattern
from modes import long, short_on
from verbs import ALL_ACCESS, DEVICE, Side, VerbFailed, connect, remote, sge
from waiting import wait_until

# Providers answer a request that they cannot take with one of these.
REJECTED = (errno.EINVAL, errno.ENOMEM)


@pytest.fixture
def ends(settled, rdma):
    return rdma.rc(*settled)


def request(opcode):
    """What a request of this kind needs besides its element and its target."""
    return {"ATOMIC_CMP_AND_SWP": {"compare": 1, "swap": 2}, "ATOMIC_FETCH_AND_ADD": {"add": 3}}.get(opcode, {})


def refused(a, b, local, far, opcode, target, status="REM_ACCESS_ERR"):
    """Posts what the target must refuse; both queue pairs fail, and nothing changes in either buffer."""
    length = 8 if opcode.startswith("ATOMIC") else 1000
    a.post_send(opcode, wr_id=7, sges=[sge(local, 0, length)], remote=target, **request(opcode))
    assert a.failed(status)["wr_id"] == 7
    assert a.state() == "ERR", "the requester's queue pair goes on"
    assert b.program.async_event(5) == ("QP_ACCESS_ERR" if status == "REM_ACCESS_ERR" else "QP_REQ_ERR")
    assert b.state() == "ERR", "the target's queue pair goes on"
    a.check(local)
    b.check(far)


# The two atomics differ in what they do with the word, not in how it is found.
OPCODES = ["RDMA_WRITE", "RDMA_READ", "ATOMIC_CMP_AND_SWP", pytest.param("ATOMIC_FETCH_AND_ADD", marks=long)]
RIGHT = {"RDMA_WRITE": "REMOTE_WRITE", "RDMA_READ": "REMOTE_READ"}


@pytest.mark.parametrize("opcode", OPCODES)
def test_wrong_key(ends, saw, opcode):
    a, b = ends
    local, far = a.region(1000, 1), b.region(1000, 2)
    refused(a, b, local, far, opcode, [far.address, far.rkey ^ 0x5500])
    saw("remote access error, both ends in error, nothing written")


@pytest.mark.parametrize("opcode", OPCODES)
def test_key_of_a_closed_region(ends, saw, opcode):
    a, b = ends
    local, far, old = a.region(1000, 1), b.region(1000, 2), b.region(1000, 3)
    b.program.destroy(old)
    refused(a, b, local, far, opcode, remote(old))
    saw("remote access error")


@pytest.mark.parametrize("opcode", OPCODES)
def test_out_of_range(settled, rdma, saw, opcode):
    """One byte before, one byte behind, far away, and past the end of the address space."""
    length = 8 if opcode.startswith("ATOMIC") else 1000
    beyond = 8 if opcode.startswith("ATOMIC") else 1
    for start in (-beyond, 2000 - length + beyond, 1 << 40, None):
        a, b = rdma.rc(*settled)
        local, far = a.region(1000, 1), b.region(2000, 2)
        target = remote(far, start) if start is not None else [(1 << 64) - 8, far.rkey]
        refused(a, b, local, far, opcode, target)
    saw("four ranges refused")


@pytest.mark.parametrize("opcode", OPCODES)
def test_missing_right(settled, rdma, saw, opcode):
    """The right is missing on the region, then on the queue pair."""
    missing = RIGHT.get(opcode, "REMOTE_ATOMIC")
    some = "|".join(right for right in ALL_ACCESS.split("|") if right != missing)
    a, b = rdma.rc(*settled)
    refused(a, b, a.region(1000, 1), far := b.region(1000, 2, access=some), opcode, remote(far))
    a, b = rdma.rc(*settled, access=some)
    refused(a, b, a.region(1000, 1), far := b.region(1000, 2), opcode, remote(far))
    saw(f"refused without {missing}")


@short_on("pcie")
def test_region_of_another_domain(ends, saw):
    """A region of the same program, but of another protection domain than the queue pair's."""
    a, b = ends
    local, buffer = a.region(1000, 1), b.program.buffer(1000, 2)
    foreign = b.program.region(b.program.pd(), buffer, ALL_ACCESS)
    foreign.buffer, foreign.size = buffer, 1000
    refused(a, b, local, foreign, "RDMA_WRITE", remote(foreign))
    saw("remote access error")


@short_on("pcie")
@pytest.mark.parametrize("opcode", ["ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"])
def test_misaligned_atomic(ends, saw, opcode):
    a, b = ends
    local, far = a.region(8, 1), b.region(1000, 2)
    a.post_send(opcode, sges=[sge(local)], remote=remote(far, 12), **request(opcode))
    a.failed("REM_INV_REQ_ERR")
    a.check(local)
    b.check(far)
    saw("invalid request, nothing written")


LOCAL = ["key", "range", "right"]


@short_on("pcie")
@pytest.mark.parametrize("fault", LOCAL)
def test_local_memory_of_a_request(settled, rdma, saw, fault):
    """A bad element fails at the requester; the target does not notice, even if a good element comes first."""
    for opcode in ("RDMA_WRITE", "SEND", "RDMA_READ"):
        if fault == "right" and opcode != "RDMA_READ":
            continue  # reading needs no right
        a, b = rdma.rc(*settled, send_sges=2)
        local, far = a.region(1000, 1, access="REMOTE_READ" if fault == "right" else ALL_ACCESS), b.region(3000, 2)
        good = a.region(500, 3)
        b.post_recv([sge(far)])
        bad = {"key": [local.address, 1000, local.lkey ^ 0x3300], "range": sge(local, 1, 1000), "right": sge(local)}[fault]
        a.post_send(opcode, sges=[sge(good), bad], remote=remote(far))
        a.failed("LOC_PROT_ERR")
        assert a.state() == "ERR"
        b.quiet()
        for side, region in ((a, local), (b, far)):
            side.check(region)
        assert b.state() == "RTS", "the target fails for an error of the requester"
    saw("local protection error, target undisturbed")


@short_on("pcie")
@pytest.mark.parametrize("fault", LOCAL)
def test_local_memory_of_a_receive(ends, saw, fault):
    """A bad element of a receive: the receiver sees its error, the sender that the target failed."""
    a, b = ends
    local, far = a.region(500, 1), b.region(1000, 2, access="REMOTE_READ" if fault == "right" else ALL_ACCESS)
    bad = {"key": [far.address, 1000, far.lkey ^ 0x3300], "range": sge(far, 600, 1000), "right": sge(far)}[fault]
    b.post_recv([bad], wr_id=5)
    a.post_send("SEND", sges=[sge(local)])
    a.failed("REM_OP_ERR")
    assert b.failed("LOC_PROT_ERR")["wr_id"] == 5
    assert (a.state(), b.state()) == ("ERR", "ERR")
    b.check(far)
    saw("remote operation error at the sender, protection error at the receiver")


def test_message_longer_than_its_buffer(ends, saw):
    a, b = ends
    local, far = a.region(1001, 1), b.region(2000, 2)
    b.post_recv([sge(far, 0, 1000)])
    a.post_send("SEND", sges=[sge(local)])
    a.failed("REM_INV_REQ_ERR")
    b.failed("LOC_LEN_ERR")
    assert (a.state(), b.state()) == ("ERR", "ERR")
    difference = b.program.check(far.buffer, [])
    assert difference is None, f"bytes were written: {difference}"
    saw("invalid request at the sender, length error at the receiver")


@short_on("pcie")
def test_too_many_elements(ends, saw):
    a, b = ends
    local = a.region(100, 1)
    most = a.program.device()["max_sge"]
    assert a.program.fails("post_send", a.qp, "SEND", sges=[sge(local, 0, 1)] * 2) in REJECTED
    assert a.program.fails("post_recv", a.qp, [sge(local, 0, 1)] * 2) in REJECTED
    assert a.program.fails("qp", a.pd, a.cq, send_sges=most + 1) in REJECTED
    assert a.program.fails("qp", a.pd, a.cq, recv_sges=most + 1) in REJECTED
    saw(f"refused at once; the device takes {most}")


@short_on("pcie")
def test_too_much_inline(settled, rdma, saw):
    a, b = rdma.rc(*settled, inline=64)
    limit = a.qp.max_inline
    assert limit >= 64
    local, far = a.region(limit + 1, 1), b.region(limit + 1, 2)
    assert a.program.fails("post_send", a.qp, "RDMA_WRITE", flags="INLINE|SIGNALED", sges=[sge(local)],
                           remote=remote(far)) in REJECTED
    a.post_send("RDMA_WRITE", flags="INLINE|SIGNALED", sges=[sge(local, 0, limit)], remote=remote(far))
    a.done("RDMA_WRITE")
    b.check(far, [[0, 1, 0, limit]])
    assert a.program.fails("qp", a.pd, a.cq, inline=1 << 20) in REJECTED
    saw(f"{limit} bytes go, one more is refused at once")


@short_on("pcie")
def test_full_queues(settled, rdma, saw):
    """A queue takes what was asked for and then says ENOMEM; once there is room it goes on."""
    a, b = rdma.rc(*settled, sends=16, recvs=16, rts={"rnr_retry": 7})
    local, far = a.region(10, 1), b.region(10, 2)
    limit = a.qp.max_sends
    for posted in range(limit + 1):
        try:
            a.post_send("SEND", sges=[sge(local)], wr_id=posted)
        except VerbFailed as failure:
            assert failure.errno == errno.ENOMEM
            break
    assert 16 <= posted <= limit, f"{posted} sends of {limit} were taken"
    for number in range(posted):
        b.post_recv([sge(far)], wr_id=number)
        assert b.done("RECV")["wr_id"] == number
    assert [found["wr_id"] for found in a.poll(posted)] == list(range(posted))
    b.post_recv([sge(far)])
    a.post_send("SEND", sges=[sge(local)])
    a.done("SEND")
    saw(f"{posted} sends wait, then ENOMEM")


@short_on("pcie")
@pytest.mark.parametrize("state", ["RESET", "INIT"])
def test_send_in_wrong_state(settled, rdma, saw, state):
    """Nothing is sent before RTS: the request is refused at once, or forgotten with the state."""
    a, b = rdma.rc(*settled)
    local, far = a.region(100, 1), b.region(100, 2)
    a.program.to_state(a.qp, "RESET")
    if state == "INIT":
        a.program.to_init(a.qp)
    try:
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        said = "taken, not executed"
    except VerbFailed as failure:
        assert failure.errno == errno.EINVAL
        said = "refused at once"
    a.quiet()
    b.check(far)
    saw(said)


@short_on("pcie")
def test_forbidden_transitions(settled, rdma, saw):
    a = rdma.rc(*settled)[0]
    fresh = a.program.qp(a.pd, a.cq)
    for state in ("RTR", "RTS", "SQD"):
        assert a.program.fails("to_state", fresh, state) == errno.EINVAL
    assert a.program.state(fresh) == "RESET"
    assert a.program.fails("to_state", a.qp, "RTR") == errno.EINVAL
    assert a.state() == "RTS"
    saw("EINVAL, states unchanged")


def test_error_state_flushes(ends, saw):
    """Everything posted before and after completes with a flush error, in order."""
    a, b = ends
    local = a.region(10, 1)
    a.post_recv([sge(local)], wr_id=100, count=5)
    a.program.to_state(a.qp, "ERR")
    a.post_recv([sge(local)], wr_id=105)
    a.post_send("SEND", sges=[sge(local)], wr_id=200, count=3)
    found = a.poll(9)
    assert {wc["status"] for wc in found} == {"WR_FLUSH_ERR"}, found
    numbers = [wc["wr_id"] for wc in found]
    assert [n for n in numbers if n < 200] == list(range(100, 106)) and [n for n in numbers if n >= 200] == [200, 201, 202]
    saw("6 receives and 3 sends flushed in order")


# The longer ones do not fit into a ring of a pool, so that the bad one is refused before all of it was sent.
@pytest.mark.parametrize("length", [100, 4 << 20])
def test_failed_request_flushes_the_rest(ends, saw, length):
    """Of a row of requests those before the bad one are done, those behind it are flushed, not executed."""
    a, b = ends
    local, far = a.region(length, 1), b.region(5 * length, 2)
    for number in range(5):
        target = [far.address + length * number, far.rkey ^ (0x5500 if number == 2 else 0)]
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=target, wr_id=number)
    found = [(wc["wr_id"], wc["status"]) for wc in a.poll(5)]
    assert found == [(0, "SUCCESS"), (1, "SUCCESS"), (2, "REM_ACCESS_ERR"), (3, "WR_FLUSH_ERR"), (4, "WR_FLUSH_ERR")]
    b.check(far, [[0, 1, 0, length], [length, 1, 0, length]])
    saw("two done, one failed, two flushed")


def waits(node):
    """How often a request of a node has waited for a receive buffer."""
    return int(node.run(f"cat /sys/class/infiniband/{DEVICE}/ports/1/hw_counters/tx_rnr_waits").out)


def test_receiver_not_ready(settled, rdma, saw):
    """Without a retry it fails at once; with endless retries it waits for the buffer."""
    a, b = rdma.rc(*settled, rts={"rnr_retry": 0})
    local, far = a.region(100, 1), b.region(100, 2)
    before = waits(settled[0])
    a.post_send("SEND", sges=[sge(local)])
    a.failed("RNR_RETRY_EXC_ERR")
    assert waits(settled[0]) == before, "it has waited"
    assert b.state() == "RTS"
    a, b = rdma.rc(*settled, rts={"rnr_retry": 7})
    local, far = a.region(100, 1), b.region(100, 2)
    a.post_send("SEND", sges=[sge(local)])
    a.quiet(1)
    b.post_recv([sge(far)])
    b.done("RECV")
    a.done("SEND")
    b.check(far, [[0, 1, 0, 100]])
    saw("failed without retries, waited a second with endless ones")


def test_the_receiver_says_how_long_to_wait(settled, rdma, saw):
    """Two sends retry as often, one to a receiver that asks for a long time between retries, then one to a receiver that asks for a short
    one: the second is given up first. The senders' own timers, which are the other way round, are not for them."""
    long, short, retries = 0, 1, 2  # 655.36 ms, 0.01 ms
    a, b = (Side(rdma.program(node)) for node in settled)
    local = a.region(100, 1)
    connect(a, b, rts={"rnr_retry": retries}, rnr_timers=(short, long))
    assert [side.program.rnr(side.qp) for side in (a, b)] == [[retries, short], [retries, long]]
    first = a.qp
    for side in (a, b):
        side.qp = side.another_qp()
    connect(a, b, rts={"rnr_retry": retries}, rnr_timers=(long, short))
    a.program.post_send(first, "SEND", wr_id=1, sges=[sge(local)])
    a.program.post_send(a.qp, "SEND", wr_id=2, sges=[sge(local)])
    found = [(wc["wr_id"], wc["status"]) for wc in a.poll(2)]
    assert found == [(2, "RNR_RETRY_EXC_ERR"), (1, "RNR_RETRY_EXC_ERR")]
    assert (a.state(), b.state()) == ("ERR", "RTS")
    saw("the send to the receiver with the short timer failed first")


@short_on("pcie")
def test_no_reads_without_resources(settled, rdma, saw):
    """A connection made for no outstanding READs and atomics refuses them."""
    a, b = rdma.rc(*settled, rd_atomic=0, rts={"rd_atomic": 0})
    local, far = a.region(100, 1), b.region(100, 2)
    a.post_send("RDMA_READ", sges=[sge(local)], remote=remote(far))
    (found,) = a.poll()
    assert found["status"] in ("LOC_QP_OP_ERR", "REM_INV_REQ_ERR"), found
    a.check(local)
    saw(found["status"])


def test_peer_destroys_its_queue_pair(ends, saw):
    a, b = ends
    local = a.region(100, 1)
    b.program.destroy(b.qp)
    a.post_send("SEND", sges=[sge(local)])
    a.failed("RETRY_EXC_ERR")
    assert a.state() == "ERR"
    saw("retry exceeded")


@short_on("pcie")
def test_completion_queue_overflow(settled, rdma, saw):
    """More completions than a queue holds: an event, not a crash, and the device goes on."""
    a, b = rdma.rc(*settled, entries=4, sends=1000)
    local, far = a.region(100, 1), b.region(100, 2)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far), count=1000)
    events = [a.program.async_event(5) for _ in range(2)]
    assert set(events) == {"CQ_ERR", "QP_FATAL"}, events
    a, b = rdma.rc(*settled)
    a.post_send("RDMA_WRITE", sges=[sge(a.region(100, 3))], remote=remote(b.region(100, 2)))
    a.done("RDMA_WRITE")
    saw("CQ_ERR; new queues work")


@short_on("pcie")
def test_overruns_that_are_ignored(settled, rdma, saw):
    """A queue whose maker asks for that overwrites completions, and nothing fails."""
    a, b = rdma.rc(*settled, entries=4, sends=1000, overrun=True)
    local, far, last = a.region(100, 1), b.region(100, 2), b.region(100, 3)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far), count=999)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(last))
    wait_until("the last write", lambda: b.program.load(last.buffer, 0, 100) == pattern(1, 100).hex(), 10)
    assert a.program.async_event(0.2) is None and a.state() == "RTS"
    saw("1000 completions into 64 entries")

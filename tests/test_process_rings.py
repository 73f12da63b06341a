# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Short messages that go from program to program, past the engines (Documentation/process-rings.md)."""

import copy
import errno

import pytest

from modes import POOLS, long, only
from verbs import DEVICE, Side, connect, remote, sge
from waiting import wait_until

pytestmark = only(*POOLS, why="process rings are memory of a pool whose hosts are coherent")

SHORT = 100
LONG = 5000
BATCH = 16
# A ring is there before so many messages of a queue pair have gone through the engine.
BEFORE = 64
# `make test-long` has the tests of RDMA that `make test` has with "mixed" as well.
BOTH_WAYS = pytest.mark.parametrize("mode", ["1", pytest.param("mixed", marks=long)])
SHARED_OR_NOT = pytest.mark.parametrize("shared", [0, 64], ids=["own", "shared"])


def queue_pairs(node):
    """The queue pairs of programs, with what the driver tells of them."""
    found = node.run("rdma -dd -j resource show qp").json()
    return [queue for queue in found if queue["ifname"] == DEVICE and "pid" in queue]


def taken_and_counted(node):
    """Requests that the node's engine has taken off send queues, of which each here has one block; and all that succeeded, whichever way they went: those too by
    which the receiver's engine is told to take what is in a ring."""
    found = queue_pairs(node)
    return tuple(sum(queue[name] for queue in found) for name in ("drv_sq_index", "drv_requests"))


def requests(node):
    """Requests that the node's engine has taken off send queues."""
    return taken_and_counted(node)[0]


def connected(rdma, pair, mode="1", **options):
    """Two connected queue pairs of programs whose environment says which messages go past the engine."""
    programs = [rdma.program(node, device=None) for node in pair]
    for program in programs:
        program.environ("NUPA_PROCESS_RINGS", mode)
        program.open(DEVICE)
    sides = [Side(program, **options) for program in programs]
    connect(*sides)
    return sides


def transfer(sender, receiver, source, target, first, sizes, extended=False):
    """Sends messages of these sizes, one batch at a time; each goes to a place of its own, in the order of their numbers. Returns the places:
    entries of a shared receive queue are used in any order."""
    places = []
    step = source.size // len(sizes)
    for start in range(0, len(sizes), BATCH):
        batch = range(start, min(start + BATCH, len(sizes)))
        for number in batch:
            receiver.post_recv([sge(target, number * step, step)], wr_id=first + number)
        for number in batch:
            sender.post_send("SEND", sges=[sge(source, number * step, sizes[number])], wr_id=first + number,
                             extended=extended)
        for side, opcode in ((receiver, "RECV"), (sender, "SEND")):
            found = [(done["wr_id"], done["opcode"], done["status"]) for done in side.poll(len(batch))]
            if opcode == "RECV" and receiver.srq is not None:
                places += [done[0] - first for done in found]
                found.sort()
            assert found == [(first + number, opcode, "SUCCESS") for number in batch], found
    return places or range(len(sizes))


def compare(receiver, source, target, sizes, places=None):
    """Fails unless each message is in its place: that of its number, or the one that `transfer` says."""
    step = source.size // len(sizes)
    for number, (size, place) in enumerate(zip(sizes, places or range(len(sizes)))):
        wanted = source.program.load(source.buffer, number * step, size)
        assert receiver.program.load(target.buffer, place * step, size) == wanted, f"message {number} of {size} bytes"


def regions(a, b, count, step=SHORT):
    source, target = a.region(count * step, 1), b.region(count * step, 2)
    source.program = a.program
    return source, target


@pytest.mark.parametrize("extended, shared", [
    pytest.param(False, 0, id="list-own", marks=long), pytest.param(False, 64, id="list-shared"),
    pytest.param(True, 0, id="pieces-own", marks=long), pytest.param(True, 64, id="pieces-shared", marks=long)])
def test_short_messages_go_past_the_engines(pair, rdma, saw, extended, shared):
    """All bytes arrive, in order and both ways, and most of them without a request of the engine's."""
    options = {"extended": True, "operations": "WITH_SEND"} if extended else {}
    a, b = connected(rdma, pair, "", shared=shared, **options)
    count = 6 * BATCH
    sizes = [1 + number % SHORT for number in range(count)]
    before = [requests(node) for node in pair]
    for sender, receiver in ((a, b), (b, a)):
        source, target = regions(sender, receiver, count)
        places = transfer(sender, receiver, source, target, 0, sizes, extended)
        compare(receiver, source, target, sizes, places)
    grown = [requests(node) - old for node, old in zip(pair, before)]
    assert all(BATCH <= requested <= BEFORE for requested in grown), grown
    saw(f"{count} messages each way, {grown} by way of the engines")


@pytest.mark.parametrize("mode, events", [pytest.param("0", False, id="off", marks=long), pytest.param("polled", True, id="events")])
def test_none_go_past_the_engines_where_none_should(pair, rdma, mode, events):
    """Where the environment says so: for all, or where programs may wait for events."""
    a, b = connected(rdma, pair, mode, events=events)
    count = 8 * BATCH
    source, target = regions(a, b, count)
    before = requests(pair[0])
    transfer(a, b, source, target, 0, [SHORT] * count)
    compare(b, source, target, [SHORT] * count)
    assert requests(pair[0]) - before == count


@pytest.mark.parametrize("shared", [0, pytest.param(64, marks=long)], ids=["own", "shared"])
@BOTH_WAYS
def test_messages_of_both_ways_keep_their_order(pair, rdma, saw, mode, shared):
    """Long messages, which the engines move, lie between short ones, and writes with immediate data take their receive buffers."""
    a, b = connected(rdma, pair, mode, shared=shared)
    count = 10 * BATCH
    sizes = [(SHORT, 1, LONG, 40, 41, 2000, 2024, 2025)[number % 8] for number in range(count)]
    source, target = regions(a, b, count, LONG)
    before = requests(pair[0])
    places = transfer(a, b, source, target, 0, sizes)
    compare(b, source, target, sizes, places)
    grown = requests(pair[0]) - before
    assert count // 4 <= grown < count, grown
    saw(f"{count} messages, {grown} by way of the engine")
    far = b.region(SHORT, 3)
    for number in range(BATCH):
        b.post_recv([sge(target, 0, SHORT)], wr_id=2 * number)
        b.post_recv([sge(target, SHORT, SHORT)], wr_id=2 * number + 1)
        a.post_send("SEND", sges=[sge(source, 0, SHORT)])
        a.post_send("RDMA_WRITE_WITH_IMM", sges=[sge(source, 0, 8)], remote=[far.address, far.rkey], imm=number)
    found = b.poll(2 * BATCH)
    assert [done["opcode"] for done in found] == ["RECV", "RECV_RDMA_WITH_IMM"] * BATCH, found
    used = [done["wr_id"] for done in found]
    assert (sorted(used) if shared else used) == list(range(2 * BATCH)), used
    a.poll(2 * BATCH)


def warm(a, b, count=BEFORE):
    """Sends messages until both sides have a ring."""
    for sender, receiver in ((a, b), (b, a)):
        source, target = sender.region(SHORT, 1), receiver.region(SHORT, 2)
        for _ in range(0, count, BATCH):
            receiver.post_recv([sge(target)], count=BATCH)
            sender.post_send("SEND", sges=[sge(source)], count=BATCH)
            for side in (receiver, sender):
                assert {done["status"] for done in side.poll(BATCH)} == {"SUCCESS"}
        received, sent = (side.program.load(part.buffer, 0, SHORT) for side, part in ((receiver, target), (sender, source)))
        assert received == sent


@pytest.mark.parametrize("shared", [pytest.param(0, marks=long), 64], ids=["own", "shared"])
def test_who_waits_for_an_event_gets_it(pair, rdma, saw, shared):
    """A program that sleeps is woken by each message, and one that polls again needs no event."""
    a, b = connected(rdma, pair, events=True, shared=shared)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
        b.program.arm(b.cq)
        b.quiet(0)
        a.post_send("SEND", sges=[sge(source, number * SHORT, SHORT)], wr_id=number)
        assert b.program.await_event(b.channel, b.cq, 5), f"no event for message {number}"
        b.done("RECV", number)
        a.done("SEND", number)
    compare(b, source, target, [SHORT] * BATCH)
    before = requests(pair[0])
    warm(a, b)
    grown = requests(pair[0]) - before
    assert grown < BATCH, grown
    saw(f"{BATCH} events, then {grown} of {BEFORE} messages by way of the engine")


@SHARED_OR_NOT
def test_messages_wait_for_receive_buffers(pair, rdma, shared):
    """With no receive buffer, messages wait as ever, and go on in order."""
    a, b = connected(rdma, pair, shared=shared)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        a.post_send("SEND", sges=[sge(source, number * SHORT, SHORT)], wr_id=number)
    a.quiet()
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
    assert [done["wr_id"] for done in b.poll(BATCH)] == list(range(BATCH))
    assert [done["wr_id"] for done in a.poll(BATCH)] == list(range(BATCH))
    compare(b, source, target, [SHORT] * BATCH)


def test_a_message_that_is_too_long_fails_both_sides(pair, rdma):
    a, b = connected(rdma, pair)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    b.post_recv([sge(target, 0, SHORT - 1)])
    a.post_send("SEND", sges=[sge(source, 0, SHORT)])
    b.failed("LOC_LEN_ERR")
    a.failed("REM_INV_REQ_ERR")


def test_what_was_sent_before_an_error_is_received(pair, rdma):
    """Messages that were acknowledged are there when the receiver goes to the error state before it has polled; what is left is flushed."""
    a, b = connected(rdma, pair)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
    for number in range(BATCH // 2):
        a.post_send("SEND", sges=[sge(source, number * SHORT, SHORT)], wr_id=number)
    assert [done["status"] for done in a.poll(BATCH // 2)] == ["SUCCESS"] * (BATCH // 2)
    b.program.to_state(b.qp, "ERR")
    found = [(done["wr_id"], done["status"]) for done in b.poll(BATCH)]
    assert found == [(number, "SUCCESS" if number < BATCH // 2 else "WR_FLUSH_ERR") for number in range(BATCH)], found
    compare(b, source, target, [SHORT] * (BATCH // 2) + [0] * (BATCH // 2))
    # Nothing more goes there.
    a.post_send("SEND", sges=[sge(source, 0, SHORT)])
    assert a.poll(1, 30)[0]["status"] == "RETRY_EXC_ERR"


@SHARED_OR_NOT
def test_a_receiver_that_its_engine_fails_gets_no_more(pair, rdma, shared):
    """The ring of a queue pair that failed is closed before its program hears of that, which need not poll for it."""
    a, b = connected(rdma, pair, shared=shared)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
    # There is no such key; the requester's own queue pair fails.
    address, length, key = sge(target, 0, SHORT)
    b.post_send("RDMA_WRITE", sges=[[address, length, key ^ 0xFFFFFF]], remote=[source.address, source.rkey])
    assert b.program.async_event(5) == "QP_FATAL"
    if shared:
        assert b.program.async_event(5) == "QP_LAST_WQE_REACHED"
    for number in range(2):
        a.post_send("SEND", sges=[sge(source, 0, SHORT)], wr_id=number)
    assert [done["status"] for done in a.poll(2, 30)] == ["RETRY_EXC_ERR", "WR_FLUSH_ERR"]
    b.failed("LOC_PROT_ERR")


@SHARED_OR_NOT
def test_a_killed_receiver_is_noticed(pair, rdma, saw, shared):
    """What is sent to a program that was killed fails, and all memory of the rings is free again."""
    a, b = connected(rdma, pair, shared=shared)
    warm(a, b)
    source, target = regions(a, b, BATCH)
    for number in range(BATCH):
        b.post_recv([sge(target, number * SHORT, SHORT)], wr_id=number)
    b.program.end(kill=True)
    statuses = []
    for _ in range(BATCH + 1):
        a.post_send("SEND", sges=[sge(source, 0, SHORT)])
        statuses.append(a.poll(1, 30)[0]["status"])
        if statuses[-1] != "SUCCESS":
            break
    assert statuses[-1] == "RETRY_EXC_ERR", statuses
    saw(f"{len(statuses) - 1} messages after the kill before the error")


def free_again(rdma, pair, total):
    """Fails unless all device memory comes back."""
    for node in pair:
        program = rdma.program(node)
        program.device_memory(total, wait=60)
        program.end()


@pytest.mark.parametrize("kill", [pytest.param(False, id="closed", marks=long), pytest.param(True, id="killed")])
def test_rings_do_not_leak(pair, rdma, saw, kill):
    """Once both programs of a connection have ended, all device memory is free."""
    total = rdma.program(pair[1]).device()["max_dm_size"]
    for _ in range(3):
        a, b = connected(rdma, pair)
        warm(a, b, 3 * BATCH)
        for node in pair:
            program = rdma.program(node)
            assert program.fails("device_memory", total) == errno.ENOMEM, "no ring"
            program.end()
        for side in (a, b):
            side.program.end(kill=kill)
        free_again(rdma, pair, total)
    saw(f"all {total} bytes after 3 connections with rings")


def writes(sender, receiver, source, far, numbers, wait=True):
    """Writes short pieces of different lengths, each to its place. Waits for each, or for none."""
    for number in numbers:
        length = 1 + number % SHORT
        sender.post_send("RDMA_WRITE", sges=[sge(source, number * SHORT, length)], remote=[far.address + number * SHORT, far.rkey], wr_id=number)
        if wait:
            sender.done("RDMA_WRITE", wr_id=number)


def compare_writes(receiver, source, far, numbers):
    for number in numbers:
        length = 1 + number % SHORT
        wanted, found = (part.program.load(part.buffer, number * SHORT, length) for part in (source, far))
        assert found == wanted, f"{receiver.program.node.name}: write {number} of {length} bytes"


def test_short_writes_go_past_the_engines_while_their_receiver_polls(pair, rdma, saw):
    """All bytes arrive, and most of them without a request of the engines'. When the program polls no more, or has died, the engines take over."""
    a, b = connected(rdma, pair, "")
    warm(a, b)
    count = 8 * BATCH
    (source, far), target = regions(a, b, count), b.region(SHORT, 3)
    far.program = b.program
    b.post_recv([sge(target)], wr_id=1)
    before = sum(map(requests, pair))
    b.program.begin("poll", b.cq, 1, 60.0)
    writes(a, b, source, far, range(count))
    past = count - (sum(map(requests, pair)) - before)
    a.post_send("SEND", sges=[sge(source, 0, SHORT)])
    assert [done["wr_id"] for done in b.program.result(80)] == [1]
    a.done("SEND")
    compare_writes(b, source, far, range(count))
    assert past > BATCH, f"{past} of {count}"
    # Nobody polls there.
    far.program.fill(far.buffer, 2)
    writes(a, b, source, far, range(count))
    compare_writes(b, source, far, range(count))
    saw(f"{past} of {count} writes past the engines while the program polled")
    b.program.begin("poll", b.cq, 1, 60.0)
    writes(a, b, source, far, range(count))
    b.program.end(kill=True)
    writes(a, b, source, far, [0], wait=False)
    a.failed("RETRY_EXC_ERR")


def writes_past_engines(a, b, source, far, pair):
    """Writes while the receiver's program polls, until one goes past the engines: those that follow do, too."""
    b.program.begin("poll", b.cq, 1, 2.0)
    for _ in range(20):
        before = sum(map(requests, pair))
        writes(a, b, source, far, [0])
        if sum(map(requests, pair)) == before:
            break
    else:
        raise AssertionError("no write went past the engines")


def test_writes_that_nobody_waits_for_arrive(pair, rdma):
    """Neither program polls once they are posted."""
    a, b = connected(rdma, pair, "")
    warm(a, b)
    source, far = regions(a, b, BATCH)
    far.program = b.program
    for _ in range(3):
        # It polls, and stops polling with WRITEs under way or not.
        writes_past_engines(a, b, source, far, pair)
        b.program.result()
        far.program.fill(far.buffer, 2)
        writes(a, b, source, far, range(BATCH), wait=False)
        last = BATCH - 1
        wanted = a.program.load(source.buffer, last * SHORT, 1 + last)
        wait_until("the last write", lambda: b.program.load(far.buffer, last * SHORT, 1 + last) == wanted)
        compare_writes(b, source, far, range(BATCH))
        assert {done["status"] for done in a.poll(BATCH)} == {"SUCCESS"}


def test_writes_are_there_when_their_queue_pair_is_drained(pair, rdma, saw):
    """Nobody polls. After the change to the SQD state they have arrived and are complete."""
    a, b = connected(rdma, pair, "")
    warm(a, b)
    source, far = regions(a, b, BATCH)
    far.program = b.program
    told = 0
    for _ in range(10):
        writes_past_engines(a, b, source, far, pair)
        b.program.result()
        far.program.fill(far.buffer, 2)
        taken, counted = taken_and_counted(pair[0])
        found = a.program.write_and_drain(a.qp, a.cq, sge(source, 0, SHORT), remote(far), BATCH)
        arrived = b.program.load(far.buffer, 0, SHORT) == a.program.load(source.buffer, 0, SHORT)
        # What is posted now waits.
        a.post_send("RDMA_WRITE", sges=[sge(source, 0, SHORT)], remote=remote(far), wr_id=BATCH)
        late = a.program.poll(a.cq, BATCH, 0.2)
        a.program.to_state(a.qp, "RTS")
        rest = late + a.poll(BATCH + 1 - len(found) - len(late))
        assert [(done["wr_id"], done["status"]) for done in found + rest] == [(number, "SUCCESS") for number in range(BATCH + 1)]
        # Where the receiver's engine has been quicker there is nothing that it is told, or some writes have come by way of the engines. These may be complete later.
        if taken_and_counted(pair[0]) == (taken + 2, counted + BATCH + 2):
            assert arrived and len(found) == BATCH and not late, f"{len(found)} complete, then {len(late)}"
            told += 1
        if told == 3:
            break
    saw(f"told the receiver's engine {told} times")
    assert told, "the receiver's engine was not told of any"


@long
@BOTH_WAYS
def test_what_follows_writes_finds_them_there(pair, rdma, mode):
    """Messages and reads behind short writes, while the receiver's program polls now and then."""
    a, b = connected(rdma, pair, mode)
    warm(a, b)
    source, far = regions(a, b, BATCH)
    back, target = a.region(SHORT, 3), b.region(SHORT, 4)
    far.program = b.program
    for number in range(6 * BATCH):
        text = f"{number:016x}"
        a.program.store(source.buffer, 0, text)
        b.post_recv([sge(target)], wr_id=number)
        if number % 3:
            b.program.begin("poll", b.cq, 1, 10.0)
            if number % 12 == 1:
                # So that it has polled for a while when they come.
                writes(a, b, source, far, [BATCH - 1] * 4)
        a.post_send("RDMA_WRITE", sges=[sge(source, 0, 8)], remote=[far.address, far.rkey], wr_id=1)
        a.post_send("RDMA_READ", sges=[sge(back, 0, 8)], remote=[far.address, far.rkey], wr_id=2)
        a.post_send("SEND", sges=[sge(source, 0, 8)], wr_id=3)
        found = b.program.result() if number % 3 else b.poll()
        assert [done["wr_id"] for done in found] == [number]
        assert b.program.load(far.buffer, 0, 8) == text, "the message came before the write"
        assert [done["wr_id"] for done in a.poll(3)] == [1, 2, 3]
        assert a.program.load(back.buffer, 0, 8) == text, "the read came before the write"


def test_a_write_with_a_wrong_key_fails_as_ever(pair, rdma):
    a, b = connected(rdma, pair, "")
    warm(a, b)
    source, far = regions(a, b, BATCH)
    far.program = b.program
    writes_past_engines(a, b, source, far, pair)
    writes(a, b, source, far, range(BATCH))
    a.post_send("RDMA_WRITE", sges=[sge(source, 0, 8)], remote=[far.address, far.rkey ^ 1], wr_id=100)
    writes(a, b, source, far, [0], wait=False)
    statuses = [(done["wr_id"], done["status"]) for done in a.poll(2, 20)]
    assert statuses == [(100, "REM_ACCESS_ERR"), (0, "WR_FLUSH_ERR")], statuses
    b.program.result()
    compare_writes(b, source, far, range(1, BATCH))


def server_of(program, count):
    """Sides of one program that share receive buffers and a completion queue."""
    first = Side(program, shared=64, events=True)
    sides = [first, *(copy.copy(first) for _ in range(count - 1))]
    for side in sides[1:]:
        side.qp = first.another_qp()
    return sides


@long
@BOTH_WAYS
def test_queue_pairs_share_receive_buffers(pair, rdma, saw, mode):
    """Each message of several clients is in a buffer of its own, and each client's come in order, whichever way they take."""
    near, far = pair
    server = rdma.program(far, device=None)
    clients = [rdma.program(near, device=None) for _ in range(2)]
    for program in (server, *clients):
        program.environ("NUPA_PROCESS_RINGS", mode)
        program.open(DEVICE)
    ends = server_of(server, len(clients))
    clients = [Side(program) for program in clients]
    for client, end in zip(clients, ends):
        connect(client, end)
    sizes = [SHORT, 1, LONG, 41, 2024, 2025, 0, SHORT]
    sources = [client.region(len(sizes) * LONG, 1 + number) for number, client in enumerate(clients)]
    target = ends[0].region(2 * BATCH * LONG, 9)
    wanted = [[client.program.load(source.buffer, place * LONG, size) for place, size in enumerate(sizes)]
              for client, source in zip(clients, sources)]
    for buffer in range(2 * BATCH):
        ends[0].post_recv([sge(target, buffer * LONG, LONG)], wr_id=buffer)
    before = requests(near)
    of_pair = {end.qp.qpn: number for number, end in enumerate(ends)}
    rounds, next_of = 20, [0] * len(clients)
    for number in range(rounds):
        for client, source in zip(clients, sources):
            for place, size in enumerate(sizes):
                imm = number * len(sizes) + place
                client.post_send("SEND_WITH_IMM", sges=[sge(source, place * LONG, size)], imm=imm, wr_id=imm)
        for done in ends[0].poll(len(clients) * len(sizes)):
            of = of_pair[done["qpn"]]
            assert (done["status"], done["imm"]) == ("SUCCESS", next_of[of]), done
            place = next_of[of] % len(sizes)
            next_of[of] += 1
            got = server.load(target.buffer, done["wr_id"] * LONG, sizes[place])
            assert got == wanted[of][place], f"client {of}: message {done['imm']}"
            ends[0].post_recv([sge(target, done["wr_id"] * LONG, LONG)], wr_id=done["wr_id"])
        for client in clients:
            assert {done["status"] for done in client.poll(len(sizes))} == {"SUCCESS"}
    sent, grown = rounds * len(sizes) * len(clients), requests(near) - before
    assert sent // 4 <= grown < sent, grown
    saw(f"{sent} messages of {len(clients)} clients, {grown} by way of the engine")


def test_messages_past_the_engine_pass_the_limit(pair, rdma):
    """The event of a shared receive queue's limit comes once, whoever takes the buffer."""
    a, b = connected(rdma, pair, shared=64)
    warm(a, b)
    source, target = regions(a, b, 1)
    b.post_recv([sge(target)], count=4)
    b.program.limit(b.srq, 3)
    for left in (3, 2, 1):
        a.post_send("SEND", sges=[sge(source)])
        b.done("RECV")
        a.done("SEND")
        expected = "SRQ_LIMIT_REACHED" if left == 2 else None
        assert b.program.async_event(5 if expected else 0.3) == expected, f"{left} left"
    assert b.program.srq_state(b.srq)["limit"] == 0, "the limit is armed still"

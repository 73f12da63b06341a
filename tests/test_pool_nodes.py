# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Nodes of a pool: they die in the middle of whatever they do and come back, are four, find a pool that is none."""

import re
import time

import pytest

import traffic
from guest.pattern import pattern
from modes import POOLS, long, only
from test_rdma_datagrams import GRH, QKEY
from verbs import Side, connect, gid_of, remote, sge
from waiting import PATIENCE, wait_until

pytestmark = only(*POOLS, why="about pools; test_faults and test_rdma_lifecycle have what the switch's nodes do")

SIZE = 20000
SLOTS = 16
# Between what lies next to each other, so that a byte too much is noticed.
GAP = 24
DATAGRAM = 1500
# Seconds after which a node without a heartbeat is dead (Documentation/pool.md), and some to find out.
NOTICED = 2 + 4


class Transfers:
    """Every kind of transfer between programs on two nodes: `asker` starts requests, `server` is what they go to.

    Seeds of buffers: 1 what the asker sends, 2 what it reads, 3 and on what is overwritten.
    """

    def __init__(self, rdma, asker, server):
        self.asker, self.server = (Side(rdma.program(node), entries=4096) for node in (asker, server))
        self.asked, self.served, self.targets = {}, {}, {}
        for name in ("SEND", "RDMA_WRITE", "RDMA_READ", "ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"):
            self.connected(name)
        self.datagrams()

    @staticmethod
    def described(side, size, seed, header=0):
        """The side's queue pair with slots of its own."""
        stride = header + size + GAP
        region = side.region(SLOTS * stride, seed)
        return {"qp": side.qp, "buffer": region.buffer, "address": region.address, "lkey": region.lkey,
                "slots": SLOTS, "stride": stride, "header": header, "size": size}

    def connected(self, name):
        """Adds a kind that has a connection."""
        for side in (self.asker, self.server):
            side.qp = side.another_qp()
        connect(self.asker, self.server, rts={"rnr_retry": 7})
        size = 8 if "ATOMIC" in name else SIZE
        asked = self.asked[name] = self.described(self.asker, size, 3 if name == "RDMA_READ" else 1)
        if name == "SEND":
            self.served[name] = self.described(self.server, size, 4) | {"seed": 1}
            # All slots of a sender hold the same.
            self.same(self.asker, asked)
            return
        target = self.targets[name] = self.server.region(size + GAP, 2)
        asked["remote"], asked["seed"] = remote(target), 2
        if "ATOMIC" in name:
            # Far from the end of numbers, and from each other.
            asked["start"], asked["step"] = 1 << 40, 3
            self.server.program.store(target.buffer, 0, (1 << 40).to_bytes(8, "little").hex())
        if name == "RDMA_WRITE":
            self.same(self.asker, asked)

    def datagrams(self):
        for side in (self.asker, self.server):
            side.qp = side.another_qp(kind="UD")
            side.program.to_init(side.qp, qkey=QKEY)
            side.program.to_rtr(side.qp)
            side.program.to_rts(side.qp)
        ours, theirs = (side.program.node.ip for side in (self.asker, self.server))
        handle = self.asker.program.address(self.asker.pd, gid_of(theirs), self.asker.program.gid(ours)[0])
        asked = self.asked["DATAGRAM"] = self.described(self.asker, DATAGRAM, 1)
        self.same(self.asker, asked)
        asked["handle"] = [handle, self.server.qp.qpn, QKEY]
        self.served["DATAGRAM"] = self.described(self.server, DATAGRAM, 4, header=GRH) | {"seed": 1}

    @staticmethod
    def same(side, kind):
        """Fills all slots with the same bytes."""
        text = pattern(1, kind["size"]).hex()
        for slot in range(SLOTS):
            side.program.store(kind["buffer"], slot * kind["stride"], text)

    def begin(self):
        """Starts all of it."""
        self.server.program.begin("serve", self.server.cq, self.served, idle=NOTICED * PATIENCE)
        self.asker.program.begin("mix", self.asker.cq, self.asked, limit=60 * PATIENCE)

    def asker_ended(self):
        """What the asker found: nothing wrong, all kinds had moved, and all connections have failed."""
        found = self.asker.program.result(90)
        assert not found["wrong"], found["wrong"]
        assert not found["waiting"], f"never completed: {found}"
        assert all(found["counts"].values()), f"not every kind moved: {found}"
        failed = set(found["ends"].values())
        assert failed <= {"RETRY_EXC_ERR", "WR_FLUSH_ERR", "REM_ACCESS_ERR"}, found
        assert set(found["ends"]) >= set(self.asked) - {"DATAGRAM"}, f"connections that did not fail: {found}"
        return found["counts"]

    def server_ended(self):
        """What the server found, in messages and in what was written to its memory."""
        found = self.server.program.result(90)
        assert not found["wrong"], found["wrong"]
        assert all(found["counts"].values()), f"not every kind came: {found}"
        assert set(found["ends"]) - {"DATAGRAM"} == {"SEND"}, f"the connection did not fail: {found}"
        self.server.check(self.targets["RDMA_WRITE"], [[0, 1, 0, SIZE]])
        self.server.check(self.targets["RDMA_READ"])
        counts = dict(found["counts"])
        for name in ("ATOMIC_FETCH_AND_ADD", "ATOMIC_CMP_AND_SWP"):
            target, asked = self.targets[name], self.asked[name]
            text = self.server.program.load(target.buffer, 0, 8)
            done, rest = divmod(int.from_bytes(bytes.fromhex(text), "little") - asked["start"], asked["step"])
            assert rest == 0 and done > 0, f"{name}: {text} is there"
            self.server.check(target, [[0, text]])
            counts[name] = done
        return counts


def works(fabric, rdma, one, two, keeps_links=True):
    """Bytes both ways in packets, and each operation once over a new connection, compared.

    Where links do not stay, because another one may be wanted, a datagram can be lost, and nobody sends it again.
    """
    one.await_ping(two.ip)
    for source, target in ((one, two), (two, one)):
        traffic.tcp(source, target.ip, size=2 << 20)
        if keeps_links:
            traffic.udp(source, target.ip, count=20)
        wait_until("GIDs", lambda: [rdma.program(node).gid() for node in (one, two)], 10)
        a, b = rdma.rc(source, target)
        local, far, inbox = a.region(SIZE, 11), b.region(SIZE, 12), b.region(SIZE, 13)
        b.post_recv([sge(inbox)])
        a.post_send("SEND", sges=[sge(local)])
        a.done("SEND")
        b.done("RECV", byte_len=SIZE)
        b.check(inbox, [[0, 11, 0, SIZE]])
        a.post_send("RDMA_WRITE", sges=[sge(local, 0, SIZE // 2)], remote=remote(far))
        a.done("RDMA_WRITE")
        b.check(far, [[0, 11, 0, SIZE // 2]])
        a.post_send("RDMA_READ", sges=[sge(local)], remote=remote(far))
        a.done("RDMA_READ")
        a.check(local, [[SIZE // 2, 12, SIZE // 2, SIZE // 2]])


def boot_of(node):
    return node.read("/proc/sys/kernel/random/boot_id")


@long
@pytest.mark.parametrize("victim", ["server", "asker"])
def test_node_dies_in_the_middle(pair, fabric, rdma, saw, victim):
    """kill -9 of one side's node under TCP, UDP, SEND, WRITE, READ, atomics and datagrams at the same time.

    The other side learns of it in seconds, has no wrong byte, is not started anew, and works with the node when it is
    back.
    """
    one, two = pair
    boot = boot_of(one)
    asker, server = (one, two) if victim == "server" else (two, one)
    transfers = Transfers(rdma, asker, server)
    loads = [traffic.start(asker, server.ip, 60, timeout=NOTICED),
             asker.spawn(f"{traffic.NETCHECK} udp --to {traffic.endpoint(server.ip)} --count 1000000 --seed 5 --max 9000 "
                         f"--timeout {NOTICED}")]
    transfers.begin()
    time.sleep(3 * PATIENCE)
    assert all(load.running() for load in loads), "the load ended by itself"
    start = time.monotonic()
    two.kill()
    counts = transfers.asker_ended() if victim == "server" else transfers.server_ended()
    took = time.monotonic() - start
    assert took < 2 * NOTICED * PATIENCE, f"noticed after {took:.1f} s"
    for load in loads:
        if victim == "server":
            traffic.interrupted(load)
        else:
            load.abandon()
    # What the survivor's own server of verified traffic found, it would have said.
    assert "corrupt" not in one.run("cat /run/netcheck.log", check=False).out
    assert one.carrier(), "the survivor lost its carrier"
    rdma.kill_all()
    start = time.monotonic()
    fabric.ensure(2)
    works(fabric, rdma, one, two)
    assert boot_of(one) == boot
    moved = ", ".join(f"{count} {name}" for name, count in counts.items())
    saw(f"{moved}; over {took:.1f} s after the end; works again {time.monotonic() - start:.0f} s after it")


@long
def test_pool_outlives_restarts(pair, fabric, rdma, saw):
    """A node that dies again and again finds its place again; one that leaves in order is missed at once."""
    one, two = pair
    boot = boot_of(one)
    for _ in range(2):
        two.kill()
        fabric.ensure(2)
    load = traffic.start(one, two.ip, 60, timeout=3)
    start = time.monotonic()
    two.run("nupa-down", timeout=30)
    wait_until("node 1 to miss node 2", lambda: one.pings(two.ip, 1, deadline=1) == 0, NOTICED)
    took = time.monotonic() - start
    traffic.interrupted(load)
    two.up()
    works(fabric, rdma, one, two)
    assert boot_of(one) == boot
    saw(f"killed twice, unloaded once, missed {took:.1f} s after that")


@long
def test_four_nodes(fabric, rdma, saw):
    """All write to all and send packets in a ring at the same time; one dies, and the rest does not notice."""
    nodes = fabric.ensure(1, 2, 3, 4)
    ends = []
    for source in nodes:
        for target in nodes:
            if source is not target:
                a, b = rdma.rc(source, target)
                ends.append((a, b, a.region(100000, len(ends)), b.region(100000, 50)))
    loads = [traffic.start(nodes[n], nodes[(n + 1) % 4].ip, 5, seed=n) for n in range(4)]
    for a, _, local, far in ends:
        a.program.begin("write_often", a.qp, a.cq, sge(local), remote(far), 20)
    for a, *_ in ends:
        a.program.result(60)
    for number, (_, b, _, far) in enumerate(ends):
        b.check(far, [[0, number, 0, 100000]])
    moved = sum(report["sent"] + report["received"] for report in map(traffic.survived, loads))

    last = nodes[3]
    staying = [end for end in ends if last not in (end[0].program.node, end[1].program.node)]
    load = traffic.start(nodes[0], nodes[1].ip, 2 * NOTICED)
    for a, b, local, far in staying:
        b.program.fill(far.buffer, 51)
        a.program.begin("write_often", a.qp, a.cq, sge(local), remote(far), 200)
    last.kill()
    for a, *_ in staying:
        a.program.result(60)
    for number, (_, b, _, far) in enumerate(ends):
        if last not in (ends[number][0].program.node, b.program.node):
            b.check(far, [[0, number, 0, 100000]])
    moved += traffic.survived(load)["sent"]
    rdma.kill_all()
    fabric.ensure(4)
    for node in nodes[:3]:
        works(fabric, rdma, node, last)
    saw(f"12 connections, {moved} verified bytes; node 4 killed and back")


def cpu_time(node):
    """Seconds of CPU that a node has taken from its host: all threads of the emulator, those that have ended, too."""
    # As clock_getcpuclockid() does it.
    return time.clock_gettime(~node.pid << 3 | 2)


def least_shares(nodes, looks):
    """For each node, the smallest part of a CPU that it took in so many looks of two seconds."""
    shares = []
    for _ in range(looks):
        before, start = [cpu_time(node) for node in nodes], time.monotonic()
        time.sleep(2)
        passed = time.monotonic() - start
        shares.append([(cpu_time(node) - used) / passed for node, used in zip(nodes, before)])
    return [min(of_node) for of_node in zip(*shares)]


@long
@pytest.mark.alone
def test_idle_nodes_sleep(settled, saw):
    """A driver that has nothing to do for others or itself uses at most 2 % of a CPU.

    That is what a node uses more with it than without. Of several looks the least tells: for half a minute after nupanet0 has
    come the nodes' kernels still send something from time to time.
    """
    loaded = least_shares(settled, 12)
    for node in settled:
        node.run("nupa-down")
    unloaded = least_shares(settled, 4)
    for node in settled:
        node.up()
    shares = [more - less for more, less in zip(loaded, unloaded)]
    assert max(shares) <= 0.02, f"{shares} of a CPU: {loaded} with, {unloaded} without"
    saw(", ".join(f"{share:.2%}" for share in shares))


def test_heartbeat_that_stands_still(trio, saw):
    """A node whose heartbeat stops is dead for the others in seconds, which go on with each other, and comes back when it goes on."""
    one, two, three = trio
    # A driver that has reset nothing yet: it does so at once then, and only later after pauses.
    two.run("nupa-down", timeout=60)
    two.up()
    for node in (one, three):
        node.await_ping(two.ip)
    mark = two.log.position()
    files = "/sys/kernel/debug/nupa_pool-*/heartbeat"
    two.run(f"echo stop >$(echo {files})")
    try:
        start = time.monotonic()
        wait_until("node 1 to miss node 2", lambda: one.pings(two.ip, 1, deadline=1) == 0, NOTICED + 4)
        took = time.monotonic() - start
        traffic.tcp(one, three.ip, size=1 << 20)
        assert one.carrier()
        said = wait_until("node 2 to say what became of it", lambda: re.search(r"controller stopped: .*", two.log.since(mark)), 30)
    finally:
        two.run(f"echo go >$(echo {files})")
    # Who is refused again and again comes back after pauses.
    for node in (one, three):
        node.await_ping(two.ip, 60)
    traffic.tcp(one, two.ip, size=1 << 20)
    saw(f"missed after {took:.1f} s; node 2: {said[0]}")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What runs between two nodes while something happens to them. Each load compares its bytes.

A load is begun, and ended after the event. It has to go on through events that do not cut its kind; the others may end it, but not with a
wrong byte. `end` returns (bytes that were moved and compared, operations).
"""

import contextlib

import traffic
from nodes import CommandFailed, NodeGone
from test_pool_nodes import SIZE, Transfers
from test_rdma_storage import COMPARE, WRITE, disk_of_another
from verbs import VerbFailed
from waiting import PATIENCE, wait_until

# Bytes of an atomic.
WORD = 8
# Statuses with which requests may end when the other side, or the device, has gone.
ENDS = {"RETRY_EXC_ERR", "WR_FLUSH_ERR", "REM_ACCESS_ERR"}


class Load:
    """Base of all: `kind` is what events cut, `source` and `target` are nodes."""

    kind = "tcp"

    def __init__(self, stage, source, target, seconds):
        self.stage, self.source, self.target, self.seconds = stage, source, target, seconds

    def __str__(self):
        return f"{type(self).__name__} {self.source.number}>{self.target.number}"

    def end(self, cut):
        if not cut:
            return self.ended()
        try:
            return self.may_have_ended()
        except (NodeGone, CommandFailed):
            # A node that was started anew cannot tell what ran on it before.
            if {self.source.number, self.target.number}.isdisjoint(self.stage.started_anew):
                raise
            return 0, 0


class Tcp(Load):
    """Chunks both ways over one connection."""

    def begin(self):
        self.load = traffic.start(self.source, self.target.ip, self.seconds, seed=self.stage.random.randrange(1, 1 << 31), timeout=30 * PATIENCE)

    def ended(self):
        report = traffic.survived(self.load, self.seconds + 90)
        return report["sent"] + report["received"], 1

    def may_have_ended(self):
        traffic.interrupted(self.load, self.seconds + 90)
        return 0, 1


class Udp(Load):
    """Datagrams of all sizes, each answered."""

    kind = "udp"
    COUNT = 2000

    def begin(self):
        self.load = self.source.spawn(f"{traffic.NETCHECK} udp --to {self.target.ip}:5300 --count {self.COUNT} "
                                      f"{traffic.options(self.stage.random.randrange(1, 1 << 31), 65507)}")

    def ended(self):
        report = traffic.survived(self.load, 120)
        assert report["datagrams"] == self.COUNT, report
        return report.get("sent", 0) + report.get("received", 0), self.COUNT

    def may_have_ended(self):
        traffic.interrupted(self.load, 120)
        return 0, 0


class Namespaces(Load):
    """A connection between network namespaces, each with a macvlan of its node's interface."""

    NET = "soak"
    SET_UP = ("ip netns add {net} && ip link add {net} link nupanet0 type macvlan mode bridge && ip link set {net} netns {net} && "
              "ip -n {net} link set lo up && ip -n {net} link set {net} up && ip -n {net} address add 10.79.0.{number}/24 dev {net}")

    def begin(self):
        for node in (self.source, self.target):
            node.run(self.SET_UP.format(net=self.NET, number=node.number))
        inside = f"ip netns exec {self.NET}"
        # Each has a copy of all mounts. With the checkout's, a node that sleeps could not take its file server away.
        program = f"{inside} sh -c 'umount -l /nupa; exec \"$0\" \"$@\"' {traffic.NETCHECK}"
        self.server = self.target.spawn(f"{program} serve")
        self.target.run(f"for i in $(seq {100 * PATIENCE}); do {inside} ss -Hltn 'sport = :5300' | grep -q . && exit 0; sleep 0.1; done; exit 1")
        self.load = self.source.spawn(f"{program} tcp --to 10.79.0.{self.target.number}:5300 --seconds {self.seconds} "
                                      f"--seed 1 --timeout {30 * PATIENCE}")
        wait_until("the connection of the namespaces", lambda: self.source.run(f"{inside} ss -Htn state established 'dport = :5300'").out.strip())

    def ended(self):
        report = traffic.survived(self.load, self.seconds + 60)
        self.remove()
        return report["sent"] + report["received"], 1

    def may_have_ended(self):
        traffic.interrupted(self.load, self.seconds + 60)
        self.remove()
        return 0, 0

    # The kernel ends a namespace when it gets to it, and its interface answers until then: that is removed first, if the event has left it.
    REMOVE = ("[ ! -e /run/netns/{net} ] || {{ ip netns pids {net} | xargs -r kill -9; "
              "ip -n {net} link del {net} 2>/dev/null; ip netns del {net}; }}")

    def remove(self):
        for node in (self.source, self.target):
            node.run(self.REMOVE.format(net=self.NET))
        self.server.abandon()


class Verbs(Load):
    """SEND, WRITE, READ, both atomics and datagrams at the same time."""

    kind = "verbs"

    def begin(self):
        self.transfers = Transfers(self.stage.rdma, self.source, self.target)
        self.transfers.server.program.begin("serve", self.transfers.server.cq, self.transfers.served, idle=6 * PATIENCE)
        self.transfers.asker.program.begin("mix", self.transfers.asker.cq, self.transfers.asked, limit=self.seconds)

    def ended(self):
        found = self.transfers.asker.program.result(self.seconds + 60)
        assert not found["wrong"] and not found["ends"] and all(found["counts"].values()), found
        served = self.transfers.server.program.result(60)
        assert not served["wrong"] and all(served["counts"].values()), served
        self.transfers.server.check(self.transfers.targets["RDMA_WRITE"], [[0, 1, 0, SIZE]])
        self.transfers.server.check(self.transfers.targets["RDMA_READ"])
        return self.counted(found["counts"])

    def may_have_ended(self):
        counts = {}
        for side in (self.transfers.asker, self.transfers.server):
            try:
                found = side.program.result(self.seconds + 60)
            except VerbFailed as failed:
                assert failed.errno is not None, failed  # its device is gone
                continue
            assert not found["wrong"], found
            assert set(found["ends"].values()) <= ENDS, found
            counts = counts or found["counts"]
        return self.counted(counts)

    @staticmethod
    def counted(counts):
        """(Bytes, operations) of these counts; datagrams may have been dropped."""
        counts = {name: count for name, count in counts.items() if name != "DATAGRAM"}
        return sum(count * (WORD if "ATOMIC" in name else SIZE) for name, count in counts.items()), sum(counts.values())


class ConnectionManager(Load):
    """rping, which checks its bytes, again and again."""

    kind = "cm"
    TIMES, PINGS = 5, 20
    END = "/run/soak.rping.end"

    def begin(self):
        # A server takes one client, and ends with it; also one that it could not serve.
        self.target.run(f"rm -f {self.END}")
        self.server = self.target.spawn(f"until [ -e {self.END} ]; do timeout {60 * PATIENCE} rping -s -V -C {self.PINGS} -a {self.target.ip} || sleep 0.1; done")
        self.load = self.source.spawn(
            f"for i in $(seq {self.TIMES}); do for try in 1 2 3 4 5 6 7 8 9 10; do timeout {60 * PATIENCE} rping -c -V -C {self.PINGS} -a {self.target.ip} "
            "&& continue 2; sleep 0.5; done; exit 1; done")

    def ended(self):
        done = self.load.wait(120)
        self.end_server()
        assert done.code == 0, f"rping failed:\n{done}"
        return 0, self.TIMES * self.PINGS

    def may_have_ended(self):
        self.load.wait(300)
        self.end_server()
        return 0, 0

    def end_server(self):
        self.target.run(f"touch {self.END}; pkill -x rping", check=False)
        self.server.wait(60)


class Disk(Load):
    """NVMe over RDMA: what is written is read again for as long as it takes."""

    kind = "disk"
    BYTES = 8 << 20

    def begin(self):
        self.open = contextlib.ExitStack()
        node = self.open.enter_context(disk_of_another(self.source, self.target))
        node.run(WRITE)
        self.load = node.spawn(f"end=$(($(date +%s) + {self.seconds})); n=0; while [ $(date +%s) -lt $end ]; do {COMPARE} || exit 1; "
                               "n=$((n + 1)); done; echo $n")

    def ended(self):
        done = self.load.wait(self.seconds + 120)
        assert done.code == 0, f"the disk failed:\n{done}"
        self.open.close()
        return self.BYTES * (1 + int(done.out)), 1 + int(done.out)


LOADS = (Tcp, Udp, Namespaces, Verbs, ConnectionManager, Disk)

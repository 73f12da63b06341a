# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A hostile host (userspace/hostile), in a pool or behind a controller: others go on with each other, and it can come back."""

import json
import subprocess

import traffic
from modes import EVERYTHING, POOLS, long, long_but_on, only
from nodes import TOP, CommandFailed
from test_hostile import SECONDS, SEED, Victims
from test_nupactl import NUPACTL, told
from test_pool_nodes import works
from verbs import VerbFailed, gid_of, remote, sge
from waiting import PATIENCE

PROGRAM = TOP / "build" / "bin" / "nupa-hostile"
SIZE = 20000
# What they must have done, or the test is about nothing.
WRITTEN = ("random bytes", "link words", "entries", "payload", "slots", "epochs", "grants", "exports", "holds", "shown", "freed")
DONE = ("ring words", "descriptors", "doorbells", "push slots", "trapped pages", "frames", "states", "commands", "registers")

pytestmark = only(*POOLS, why="about the memory of a pool")


class Mad:
    """The program, on the host: a member of the pool, or a node's driver. `still`: the node in whose place it is, which stands still meanwhile."""

    def __init__(self, what, *options, seed=SEED, seconds=SECONDS, still=None):
        self.seed, self.seconds, self.still = seed, seconds, still
        command = [PROGRAM, what, "--seed", seed, "--seconds", seconds, *options]
        try:
            if still:
                still.stand_still()
            self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        except BaseException:
            # Else it might stand still for good.
            if still:
                still.stop()
            raise

    def report(self, reached=()):
        """What it says that it did; fails if that is too little."""
        out, _ = self.process.communicate(timeout=self.seconds + 60 * PATIENCE)
        assert self.process.returncode == 0, f"seed {self.seed}: {out}"
        report = json.loads(out.splitlines()[-1])
        never = [name for name in reached if not report["classes"].get(name, {}).get("ok")]
        assert not never, f"seed {self.seed}: never done: {never} in {report}"
        return report

    def end(self):
        self.process.kill()
        self.process.wait()
        if self.still and self.still.alive():
            try:
                self.still.go_on()
            except (OSError, CommandFailed):
                self.still.stop()
                raise


def mad_member(fabric, mad, victims, *options, beside_driver=False, **known):
    """A member of the pool that writes anything.

    It spares the word by which a member has others start anew. A driver that goes on in its place reads what it has written, takes
    the others for those who broke the rules, and does just that; so there is none but for a test that spares nothing.
    """
    if not beside_driver:
        known["still"] = mad
    node, *spared = [told(each, "status")[0]["node"] for each in (mad, *victims)]
    spared = [word for each in spared for word in ("--victim", each)]
    return Mad("peer", "--pool", fabric.run_dir / "pool", "--node", node, *spared, *options, **known)


def mad_driver(fabric, *options, **known):
    """A driver in the place of node 3's, which is stopped."""
    fabric.nodes[3].stop()
    return Mad("driver", "--socket", fabric.run_dir / "node3.sock", *options, **known)


class Others:
    """Two nodes that transfer all the time, and compare it."""

    def __init__(self, rdma, one, two):
        self.pairs = [Victims(rdma, one, two), Victims(rdma, two, one)]
        self.load = traffic.start(one, two.ip, SECONDS)

    def targets(self):
        """Their queue pairs and regions, for one who has been told all numbers: the connections are not its own all the same."""
        nodes = {pair.b.program.node: told(pair.b.program.node, "status")[0]["node"] for pair in self.pairs}
        return [word for pair in self.pairs for word in (
            "--target", f"{nodes[pair.b.program.node]}:{pair.b.qp.qpn}:{pair.far.rkey}:{pair.far.address}")]

    def ends(self):
        """How their programs ended, right or wrong. All of them must."""
        found = []
        for side in [side for pair in self.pairs for side in (pair.a, pair.b)]:
            try:
                side.program.result(SECONDS + 120)
                found.append("right")
            except VerbFailed:
                found.append("wrong")
        self.load.wait(SECONDS + 120)
        return found

    def result(self):
        """What they did, in words."""
        found = [each.result() for each in self.pairs]
        sent = traffic.survived(self.load)["sent"]
        return (f"{sent} verified bytes, rounds {[rounds for rounds, _ in found]}, the slowest transfer took "
                f"{max(longest for _, longest in found) * 1000:.0f} ms")


def known_to(rdma, member, victims):
    """Connections of the member to the victims, which it has written on: so its lies can be about true ones. Regions of the victims that nobody
    has a key of."""
    private = []
    for victim in victims:
        a, b = rdma.rc(member, victim)
        local, far = a.region(SIZE, 1), b.region(SIZE, 2)
        private.append((b, b.region(SIZE, 3)))
        a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        a.done("RDMA_WRITE")
    return private


@long_but_on("cxl")
def test_others_go_on(trio, fabric, rdma, saw):
    """All transfers between two others are right while it lies to both, and it comes back with a driver that is loaded anew."""
    one, two, three = trio
    private = known_to(rdma, three, (one, two))
    others, mad = Others(rdma, one, two), mad_member(fabric, three, (one, two))
    try:
        found, report = others.result(), mad.report(WRITTEN)
    finally:
        try:
            mad.end()
        finally:
            if mad.process.returncode:
                # It has left nothing, and what it holds would be kept from the next test.
                rdma.kill_all()
                new_pool(fabric)
    for side, region in private:
        side.check(region)
    links, entries = report["links"], report["entries"]
    assert links["made"] and links["refused"] and entries["taken"], f"seed {SEED}: the victims looked at nothing: {report}"
    rdma.kill_all()
    three.run("nupa-down", timeout=60)
    three.up()
    works(fabric, rdma, three, one)
    works(fabric, rdma, two, three)
    saw(f"seed {SEED}: {report['operations']} writes, links {links}, entries {entries}; others: {found}")


def new_pool(fabric):
    """Has the three nodes' memory be a pool again, whatever is there: one of another version perhaps, or none at all."""
    host, *_ = fabric.bare(1, 2, 3)
    device = host.run("nupa-pool device").out.strip()
    if fabric.mode == "cxl":
        host.run("nupa-pool device_dax", timeout=60)
    host.run(f"{NUPACTL} pool discard {device} --force --yes", timeout=60, check=False)
    host.run(f"{NUPACTL} pool format {device} --yes", timeout=60)


@long
def test_nothing_is_spared(trio, fabric, rdma, saw):
    """Wrong bytes and lost connections are what a pool does not protect from. But no node faults or hangs, and a new pool works."""
    one, two, three = trio
    others, mad = Others(rdma, one, two), mad_member(fabric, three, (one, two), "--everything", beside_driver=True)
    try:
        report = mad.report(WRITTEN)
        ends = others.ends()
    finally:
        mad.end()
        rdma.kill_all()
        new_pool(fabric)
    one, two, three = fabric.ensure(1, 2, 3)
    works(fabric, rdma, one, two)
    saw(f"seed {SEED}: {report['operations']} writes; programs of others ended {', '.join(ends)}; works in a new pool")


@only("pcie", why="about the driver of a controller")
def test_others_go_on_beside_a_driver(pair, fabric, rdma, saw):
    """The same beside a host whose driver does what it likes with its controller, which another host can have afterwards."""
    one, two = pair
    others = Others(rdma, one, two)
    peers = [word for node in pair for word in ("--peer", gid_of(node.ip))]
    mad = mad_driver(fabric, *peers, *others.targets())
    try:
        found, report = others.result(), mad.report(DONE)
    finally:
        mad.end()
    assert report["completions"] and report["aimed"], report
    if EVERYTHING:
        rdma.kill_all()
        works(fabric, rdma, *fabric.ensure(3, 1))
    saw(f"seed {SEED}: {report['operations']} operations in {report['lives']} lives; others: {found}")

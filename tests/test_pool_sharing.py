# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Device memory that programs on two nodes map: plain shared memory, a region on both, and nobody else's while one has it."""

import errno

import pytest

from guest.pattern import pattern
from modes import POOLS, long_but_on, only
from verbs import DEVICE, build_share_library

pytestmark = only(*POOLS, why="nodes share memory on pools only; test_rdma_memory says what others answer")

MIB = 1 << 20
PAGE = 4096
COUNTS = 100_000
# Completion statuses of libibverbs.
SUCCESS, REMOTE_ACCESS = 0, 10


@pytest.fixture(scope="module", autouse=True)
def library():
    build_share_library()


class Sharer:
    """A program that shares; `number` is that of its queue pair."""

    def __init__(self, rdma, node, user=None):
        self.program = rdma.program(node, device=None if user else DEVICE)
        if user:
            self.program.become_user(user, 1 << 20)
            self.program.open(DEVICE)
        self.number = self.program.share_open(DEVICE)

    def __getattr__(self, name):
        return getattr(self.program, f"share_{name}")

    def check(self, piece, seed, **place):
        difference = self.program.share_check(piece, seed, **place)
        assert difference is None, f"{self.program.node.name}: {difference}"


@pytest.fixture
def sharers(settled, rdma):
    return [Sharer(rdma, node) for node in settled]


def test_both_nodes_load_and_store_the_same_bytes(sharers, saw):
    one, two = sharers
    piece = one.alloc(MIB)
    one.fill(piece, 1)
    handle = one.export(piece)
    assert one.export(piece) == handle and len(handle) == 64
    other = two.take(handle)
    assert other.size == MIB
    two.check(other, 1)
    two.fill(other, 2, offset=MIB // 2)
    one.check(piece, 1, size=MIB // 2)
    one.check(piece, 2, offset=MIB // 2)
    # Verbs see the same.
    assert two.load(other, 77, 1000) == pattern(1, 1077)[77:].hex()
    two.store(other, MIB - 5, "0102030405")
    assert one.load(piece, MIB - 5, 5) == "0102030405"
    assert two.program.fails("share_store", other, MIB - 4, "0102030405") == errno.EFAULT
    # On the owner's node, by the handle that the importer passes on.
    own = one.take(two.export(other))
    one.store(own, 0, "aabb")
    assert two.load(other, 0, 2) == one.load(piece, 0, 2) == "aabb"
    saw("1 MiB each way, by plain stores and by verbs")


def test_a_counter_of_both_nodes_is_exact(sharers, settled, saw):
    """Atomic instructions of programs on two nodes. QEMU emulates those of nodes with more than one CPU by real ones."""
    assert all(node.cpus > 1 for node in settled)
    one, two = sharers
    piece = one.alloc(PAGE)
    one.store(piece, 0, bytes(PAGE).hex())
    other = two.take(one.export(piece))
    for sharer, memory in ((one, piece), (two, other)):
        sharer.program.begin("share_count", memory.id, COUNTS)
    for sharer in sharers:
        sharer.program.result(60)
    assert [one.word(piece), two.word(other)] == [2 * COUNTS] * 2
    saw(f"{2 * COUNTS} counted")


def test_an_import_is_a_region(sharers, saw):
    """Written to and read from by the owner's node, and a source and target of requests itself."""
    one, two = sharers
    for sharer, peer in ((one, two), (two, one)):
        index, _ = sharer.program.gid()
        _, gid = peer.program.gid()
        sharer.connect(peer.number, gid, index)
    shared, private = one.alloc(MIB), one.alloc(MIB)
    other = two.take(one.export(shared))
    near, far = one.register(private), two.register(other)
    one.fill(private, 1)
    one.fill(shared, 2)
    assert one.transfer("WRITE", near, 100, 300_000, far.key, 5000) == SUCCESS
    one.check(shared, 2, size=5000)
    assert one.load(shared, 5000, 300_000) == pattern(1, 300_100)[100:].hex()
    two.fill(other, 3)
    assert one.transfer("READ", near, 0, MIB, far.key, 0) == SUCCESS
    one.check(private, 3)
    # Now the importer asks.
    one.fill(private, 4)
    assert two.transfer("READ", far, 0, MIB, near.key, 0) == SUCCESS
    one.check(shared, 4)
    one.fill(shared, 5)
    assert two.transfer("WRITE", far, 0, MIB, near.key, 0) == SUCCESS
    one.check(private, 5)
    assert two.program.fails("share_free", other) == errno.EBUSY
    assert one.transfer("WRITE", near, 0, 2, far.key, MIB - 1) == REMOTE_ACCESS
    two.deregister(far)
    two.free(other)
    saw("both ways, 1 MiB, bounded")


def test_handles_that_name_nothing(sharers, saw):
    one, two = sharers
    piece = one.alloc(3 * PAGE - 1)
    handle = bytes.fromhex(one.export(piece))

    def refused(place, value=None):
        changed = bytearray(handle)
        changed[place] = changed[place] ^ 1 if value is None else value
        return two.program.fails("share_take", changed.hex())

    # Secret, fabric, length, epoch, node, index.
    found = [refused(place) for place in (0, 7, 8, 16, 24)] + [refused(28, 200), refused(30, 99), refused(31, 255)]
    assert found == [errno.ENOENT] * 2 + [errno.EINVAL, errno.ENOENT, errno.ESTALE, errno.EINVAL] + [errno.ENOENT] * 2
    other = two.take(handle.hex())
    assert other.size == 3 * PAGE - 1
    one.free(piece)
    assert two.program.fails("share_take", handle.hex()) == errno.ENOENT
    saw("wrong secret, other fabric, wrong length, freed")


def take_all(sharer, seed):
    """Takes all device memory that the node has to give, in pieces, fills it, and returns how much it was."""
    size, taken = MIB, 0
    while size >= PAGE:
        try:
            piece = sharer.alloc(size)
        except AssertionError as failure:
            assert failure.errno == errno.ENOMEM, failure
            size //= 16
            continue
        left = sharer.left(piece)
        assert left is None, f"it was somebody's before: {left}"
        sharer.fill(piece, seed)
        taken += size
    return taken


@long_but_on("cxl")
def test_memory_outlives_its_owner(sharers, settled, rdma, saw):
    """What is imported stays the importer's when its owner dies, and is free again when the importer is gone."""
    one, two = sharers
    total = one.program.device()["max_dm_size"]
    piece = one.alloc(MIB)
    one.fill(piece, 1)
    handle = one.export(piece)
    other = two.take(handle)
    one.program.end(kill=True)
    assert two.program.fails("share_take", handle) == errno.ENOENT
    greedy = Sharer(rdma, settled[0])
    assert take_all(greedy, 9) == total - MIB
    two.check(other, 1)
    two.fill(other, 2)
    greedy.program.end()
    assert Sharer(rdma, settled[0]).program.fails("share_alloc", total) == errno.ENOMEM
    two.check(other, 2)
    two.program.end(kill=True)
    last = Sharer(rdma, settled[0])
    assert last.alloc(total).size == total
    saw(f"{total >> 10} KiB, of which 1 MiB was the importer's until it was killed")


@long_but_on("cxl")
def test_what_an_importer_leaves_is_not_the_next_owners(settled, rdma, saw):
    """A program of another node writes to memory that its owner has freed; who gets that memory in the end finds zeroes."""
    one, two = settled
    owner, importer = Sharer(rdma, one, user=65534), Sharer(rdma, two, user=65534)
    total = owner.program.device()["max_dm_size"]
    piece = owner.alloc(MIB)
    other = importer.take(owner.export(piece))
    owner.free(piece)
    importer.fill(other, 7)
    # Root, who may have all of it.
    greedy = Sharer(rdma, one)
    assert take_all(greedy, 8) == total - MIB
    importer.check(other, 7)
    greedy.program.end()
    importer.program.end(kill=True)
    # The lowest memory is given away first, and that is what the importer had.
    stranger = Sharer(rdma, one, user=65533)
    left = stranger.left(stranger.alloc(MIB))
    assert left is None, left
    assert take_all(Sharer(rdma, one), 9) == total - MIB
    saw(f"{total - MIB >> 10} KiB, and {MIB >> 10} KiB more when the importer was gone")


def test_freed_memory_counts_while_it_is_held(settled, rdma, saw):
    """A user cannot have more than half of the memory by freeing what another program of it has imported."""
    owner, importer = (Sharer(rdma, node, user=65534) for node in settled)
    half = owner.program.device()["max_dm_size"] // 2 // PAGE * PAGE
    piece = owner.alloc(half)
    importer.take(owner.export(piece))
    owner.free(piece)
    assert owner.program.fails("share_alloc", 2 * PAGE) == errno.ENOMEM
    importer.program.end(kill=True)
    owner.alloc(half)
    saw(f"{half >> 10} KiB that another program holds, and no more until that is gone")


@only("ivshmem", why="about nupa_rdma and tables that all pools have")
def test_a_user_takes_half_of_exports_and_imports(settled, rdma, saw):
    """The node's tables have 256 lines each."""
    one, two = settled
    hog, importer = Sharer(rdma, one, user=65534), Sharer(rdma, two, user=65534)
    handles, refused = hog.exports(PAGE, 300)
    pieces, refused_import = importer.takes(handles[0], 300)
    found = [len(handles), refused, len(pieces), refused_import]
    other, other_importer = Sharer(rdma, one, user=65533), Sharer(rdma, two, user=65533)
    piece = other.alloc(PAGE)
    other.fill(piece, 3)
    other_importer.check(other_importer.take(other.export(piece)), 3)
    assert found == [128, errno.EDQUOT] * 2
    # What is free again can be had again.
    importer.free(pieces[5])
    assert len(importer.takes(handles[1], 2)[0]) == 1
    hog.program.end(kill=True)
    again = Sharer(rdma, one, user=65534)
    again.export(again.alloc(PAGE))
    saw("128 of each, then EDQUOT; another user exports and imports")


@long_but_on("cxl")
def test_a_node_that_was_reset_exports_nothing(fabric, rdma, saw):
    """The importer keeps what it has, and gets nothing more by an old handle."""
    nodes = fabric.ensure(1, 2)
    one, two = [Sharer(rdma, node) for node in nodes]
    pieces = [one.alloc(PAGE) for _ in range(2)]
    one.fill(pieces[0], 1)
    handles = [one.export(piece) for piece in pieces]
    other = two.take(handles[0])
    one.program.end()
    nodes[0].run("nupa-down; nupa-up", timeout=60)
    nodes[1].await_ping(nodes[0].ip)
    assert [two.program.fails("share_take", handle) for handle in handles] == [errno.ESTALE] * 2
    greedy = Sharer(rdma, nodes[0])
    assert take_all(greedy, 9) == greedy.program.device()["max_dm_size"] - PAGE
    two.check(other, 1)
    saw("ESTALE; the bytes stay")


@only("pcie", why="about what controllers answer")
def test_memory_of_a_controller_is_not_shared(sharers, saw):
    one, _ = sharers
    piece = one.alloc(PAGE)
    one.fill(piece, 1)
    assert one.load(piece, 0, PAGE) == pattern(1, PAGE).hex()
    anything = bytes(16) + PAGE.to_bytes(8, "little") + bytes(8)
    found = [one.program.fails("share_export", piece), one.program.fails("share_take", anything.hex())]
    assert found == [errno.EOPNOTSUPP] * 2
    saw("mapped; EOPNOTSUPP to export and import")

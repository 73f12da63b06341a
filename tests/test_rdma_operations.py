# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Each operation of a connection with random sizes, alignments and splits; both buffers against a model, byte for byte."""

import random

import pytest

from guest.pattern import pattern
from modes import long_but_on, only
from test_rdma_device import gid_index
from verbs import DEVICE, Side, connect, install, remote, serve, sge

MAX_SGES = 16
LARGEST = 8 << 20
# Sizes around what engines get wrong, before the random ones.
EDGES = [0, 1, 4095, 4096, 4097, 65536]
RANDOM_SIZES = 14


def sizes(seed):
    """Edges, some sizes of every magnitude, and the largest."""
    choose = random.Random(seed)
    return EDGES + [int(2 ** choose.uniform(1, 22)) for _ in range(RANDOM_SIZES)] + [LARGEST]


def split(choose, total, most=MAX_SGES):
    """Cuts a message into pieces at random places of a buffer: ([(offset, length)], size of the buffer)."""
    cuts = sorted(choose.randrange(total + 1) for _ in range(choose.randrange(most)))
    lengths = [end - start for start, end in zip([0, *cuts], [*cuts, total])]
    pieces, at = [], 0
    for length in lengths:
        at += choose.randrange(300)
        pieces.append((at, length))
        at += length
    return pieces, at + choose.randrange(1, 300)


def elements(region, pieces):
    return [sge(region, offset, length) for offset, length in pieces]


def gathered(seed, pieces, offset):
    """Patches of a target that gets these pieces of a pattern one after the other from an offset on."""
    patches = []
    for start, length in pieces:
        patches.append([offset, seed, start, length])
        offset += length
    return patches


def scattered(seed, offset, pieces):
    """Patches of a target that gets a stretch of a pattern in pieces."""
    patches = []
    for start, length in pieces:
        patches.append([start, seed, offset, length])
        offset += length
    return patches


def overlay(source, source_pieces, target_pieces):
    """Patches of a target that gets pieces of a pattern in pieces cut elsewhere; it may be longer than the message."""
    sources = [list(piece) for piece in source_pieces if piece[1]]
    patches = []
    for offset, room in target_pieces:
        while room and sources:
            start, length = sources[0]
            part = min(room, length)
            patches.append([offset, source, start, part])
            offset, room = offset + part, room - part
            sources[0] = [start + part, length - part]
            if not sources[0][1]:
                sources.pop(0)
    return patches


@pytest.fixture
def ends(settled, rdma):
    """Two connected sides that take as many elements as the device does."""
    return rdma.rc(*settled, send_sges=MAX_SGES, recv_sges=MAX_SGES)


def write_all(a, b, imm=None):
    """Writes of all sizes from one side to the other; returns how many."""
    choose = random.Random(1)
    for number, size in enumerate(sizes(11)):
        pieces, room = split(choose, size)
        local = a.region(room, 2 * number)
        offset = choose.randrange(5000)
        far = b.region(offset + size + choose.randrange(1, 300), 2 * number + 1)
        if imm is not None:
            b.post_recv(wr_id=number)
        a.post_send("RDMA_WRITE" if imm is None else "RDMA_WRITE_WITH_IMM", wr_id=number, sges=elements(local, pieces),
                    remote=remote(far, offset), imm=imm or 0)
        a.done("RDMA_WRITE", wr_id=number)
        if imm is not None:
            b.done("RECV_RDMA_WITH_IMM", wr_id=number, imm=imm, byte_len=size)
        a.check(local)
        b.check(far, gathered(2 * number, pieces, offset))
    b.quiet()
    return number + 1


@pytest.mark.parametrize("imm", [pytest.param(None, id="plain"), pytest.param(0x12345678, id="imm", marks=long_but_on("pcie"))])
def test_write(ends, saw, imm):
    count = write_all(*ends, imm)
    saw(f"{count} writes of 0 B to {LARGEST >> 20} MB in up to {MAX_SGES} pieces, both buffers right")


def test_read(ends, saw):
    a, b = ends
    choose = random.Random(2)
    for number, size in enumerate(sizes(12)):
        pieces, room = split(choose, size)
        local = a.region(room, 2 * number)
        offset = choose.randrange(5000)
        far = b.region(offset + size + choose.randrange(1, 300), 2 * number + 1)
        a.post_send("RDMA_READ", wr_id=number, sges=elements(local, pieces), remote=remote(far, offset))
        a.done("RDMA_READ", wr_id=number)
        a.check(local, scattered(2 * number + 1, offset, pieces))
        b.check(far)
    b.quiet()
    saw(f"{number + 1} reads of 0 B to {LARGEST >> 20} MB into up to {MAX_SGES} pieces, both buffers right")


@pytest.mark.parametrize("imm", [pytest.param(None, id="plain"), pytest.param(0xFEDCBA98, id="imm", marks=long_but_on("pcie"))])
def test_send(ends, saw, imm):
    """The receiver's pieces are cut elsewhere than the sender's, and have room for more than comes."""
    a, b = ends
    choose = random.Random(3)
    for number, size in enumerate(sizes(13)):
        pieces, room = split(choose, size)
        local = a.region(room, 2 * number)
        places, space = split(choose, size + choose.randrange(200))
        far = b.region(space, 2 * number + 1)
        b.post_recv(elements(far, places), wr_id=number + 1000)
        a.post_send("SEND" if imm is None else "SEND_WITH_IMM", wr_id=number, sges=elements(local, pieces), imm=imm or 0)
        a.done("SEND", wr_id=number)
        b.done("RECV", wr_id=number + 1000, byte_len=size, **({} if imm is None else {"imm": imm}))
        a.check(local)
        b.check(far, overlay(2 * number, pieces, places))
    saw(f"{number + 1} sends of 0 B to {LARGEST >> 20} MB, pieces cut differently on both sides, all right")


def word(seed, offset):
    """The 64-bit word of a pattern at an offset."""
    return int.from_bytes(pattern(seed, 8, offset), "little")


def as_bytes(value):
    return (value % (1 << 64)).to_bytes(8, "little").hex()


@pytest.mark.parametrize("operation", ["compare-equal", "compare-different", "fetch-add"])
def test_atomics(ends, saw, operation):
    a, b = ends
    choose = random.Random(operation)
    local, far = a.region(300, 1), b.region(5000, 2)
    local_patches, far_patches = [], []
    for number in range(12):
        # The result may lie anywhere, the target on a multiple of eight; no place is used twice.
        place, target = 16 * number + choose.randrange(8), 8 * (40 * number + choose.randrange(40))
        old, new = word(2, target), choose.getrandbits(64)
        request = dict(wr_id=number, sges=[sge(local, place, 8)], remote=remote(far, target))
        if operation == "fetch-add":
            a.post_send("ATOMIC_FETCH_AND_ADD", add=new, **request)
            far_patches.append([target, as_bytes(old + new)])
        else:
            equal = operation == "compare-equal"
            a.post_send("ATOMIC_CMP_AND_SWP", compare=old if equal else old ^ 1 << choose.randrange(64), swap=new, **request)
            far_patches += [[target, as_bytes(new)]] if equal else []
        local_patches.append([place, as_bytes(old)])
        a.done("FETCH_ADD" if operation == "fetch-add" else "COMP_SWAP", wr_id=number)
    a.check(local, local_patches)
    b.check(far, far_patches)
    saw("12 operations, old values and results right")


def test_loopback(settled, rdma, saw):
    """Two programs of one node reach each other as those of two nodes do."""
    one, _ = settled
    count = write_all(*rdma.rc(one, one, send_sges=MAX_SGES))
    saw(f"{count} writes between two programs of one node")


def write_both_ways(a, b):
    for source, target in ((a, b), (b, a)):
        local, far = source.region(10_000, 1), target.region(10_000, 2)
        source.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far))
        source.done("RDMA_WRITE")
        target.check(far, [[0, 1, 0, 10_000]])


@only("pcie", "ivshmem", why="of the two kinds of pools one will do")
def test_packet_sequence_numbers(settled, rdma, saw):
    """Ends that begin with different numbers work if each was told the other's; what a target was not told is refused."""
    for psns in ((0xFFFFFF, 0), (0x5A17E0, 0xC0FFEE)):
        a, b = (Side(rdma.program(node)) for node in settled)
        connect(a, b, psns=psns)
        write_both_ways(a, b)
    a, b = (Side(rdma.program(node)) for node in settled)
    connect(a, b, psns=(7, 9), told=(8, 9))
    local, far = a.region(10_000, 1), b.region(10_000, 2)
    b.post_send("RDMA_READ", sges=[sge(far)], remote=remote(local))
    b.done("RDMA_READ")
    b.check(far, [[0, 1, 0, 10_000]])
    other = b.region(10_000, 3)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(other))
    a.failed("RETRY_EXC_ERR")
    assert a.state() == "ERR"
    b.check(other)
    saw("two pairs of numbers; another one than the target was told is refused")


@only("ivshmem", why="elsewhere a store to a page is the kick")
def test_kicks_are_ioctls(settled, saw):
    """Where no store can reach the engine a program kicks and polls by ioctl, and the kernel serves that."""
    one, two = settled
    for node in settled:
        install(node)
    count = 200
    command = f"ibv_rc_pingpong -d {DEVICE} -g {gid_index(two)} -n {count}"
    serve(two, command, 18515)
    one.run(f"strace -f -y -e trace=ioctl,write -o /run/calls {command} {two.ip}", timeout=60)
    calls = [line for line in one.run("grep uverbs /run/calls; rm -f /run/calls").out.splitlines() if "ioctl(" in line]
    failed = [line for line in calls if not line.endswith("= 0")]
    # Each message is a kick, or is waited for, or both; the rest is what making objects takes.
    assert len(calls) > count and len(failed) < 20, f"{len(calls)} calls, failed: {failed[:20]}"
    saw(f"{len(calls)} ioctls for {count} messages and as many answers")

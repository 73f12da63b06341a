# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory that somebody gets holds nothing of whoever had it before: device memory, doorbell pages, received frames."""

import errno

import pytest

from modes import only
from verbs import DEVICE, VerbFailed
from waiting import wait_until

PAGE = 4096
# Two ordinary users.
ONE, OTHER = 65534, 65533
SECRET = 77


def program_of(user, rdma, node, locked=1 << 20, device=DEVICE):
    """A program of a user, which may lock so much memory and has opened the device unless that is None."""
    program = rdma.program(node, device=None)
    program.become_user(user, locked)
    if device:
        program.open(device)
    return program


def largest_piece(program):
    """The largest piece of device memory, halved again and again, that the program can have; and its bytes."""
    size = program.device()["max_dm_size"]
    while size >= PAGE:
        try:
            return program.device_memory(size), size
        except VerbFailed as failure:
            assert failure.errno == errno.ENOMEM, failure
            size = size // 2 // PAGE * PAGE
    raise AssertionError("no device memory")


@pytest.mark.parametrize("ending", ["frees it", "is killed"])
def test_device_memory_of_another_user(settled, rdma, saw, ending):
    """What a user leaves in device memory is not there for the next one."""
    first = program_of(ONE, rdma, settled[0])
    memory, size = largest_piece(first)
    first.device_fill(memory, size, SECRET)
    if ending == "frees it":
        first.destroy(memory)
    else:
        first.end(kill=True)
    second = program_of(OTHER, rdma, settled[0])
    memory, again = largest_piece(second)
    assert again == size
    left = second.device_left(memory, size)
    assert left is None, left
    saw(f"{size >> 10} KiB, all zero")


def test_doorbell_page_of_another_user(settled, rdma, saw):
    """A process finds nothing in its doorbell page of who had it before."""
    before = program_of(ONE, rdma, settled[0])
    before.cq(16)
    assert before.fill_doorbell_pages(0xA5) == 1
    before.end()
    after = program_of(OTHER, rdma, settled[0])
    after.cq(16)
    assert after.used_doorbell_words() == [[{}, False]]
    saw("4096 bytes written by one user, none of them there for the next")


@only("pcie", why="test_pool_sharing looks at what a node of a pool gets after a reset")
def test_device_memory_after_a_reset(pair, rdma, saw):
    """What was in device memory before the driver went is not there for who gets it from the next one."""
    first = program_of(ONE, rdma, pair[0])
    memory, size = largest_piece(first)
    first.device_fill(memory, size, SECRET)
    first.end(kill=True)
    pair[0].run("nupa-down; nupa-up", timeout=60)
    second = program_of(OTHER, rdma, pair[0])
    memory, again = largest_piece(second)
    assert again == size
    left = second.device_left(memory, size)
    assert left is None, left
    saw(f"{size >> 10} KiB, all zero")


# Frames of a kind of their own, each sent when the one before was answered; the first are as long as can be, and many enough to have
# filled every receive buffer.
SEND = """
import socket, sys
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5))
raw.bind(("nupanet0", 0x88b5))
raw.settimeout(10)
header = bytes.fromhex(sys.argv[1].replace(":", "")) + raw.getsockname()[4] + bytes.fromhex("88b5")
for payload in [b"S" * 9000] * COUNT + [bytes(length) for length in LENGTHS]:
    raw.send(header + payload)
    raw.recv(1 << 16)
"""
RECEIVE = """
import socket
raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5))
raw.bind(("nupanet0", 0x88b5))
open("/run/receives", "w").close()
wanted, room, found = LENGTHS, bytearray(1 << 16), []
raw.settimeout(20)
long = 0
while len(found) < len(wanted):
    try:
        length = raw.recv_into(room, 0, socket.MSG_TRUNC)
    except TimeoutError:
        break
    if room[14] == ord("S"):
        long += 1
    else:
        found.append(length - 14)
        assert not any(room[14:length]), f"a frame of {length} bytes holds another's"
    raw.send(room[6:12] + raw.getsockname()[4] + bytes.fromhex("88b5") + bytes(60))
assert (found, long) == (wanted, COUNT), f"{long} long frames, then {found}"
"""
COUNT = 1000
# From less than what is copied at once to several pages.
LENGTHS = [28, 45, 46, 47, 113, 114, 115, 500, 2000, 4070, 4082, 4083, 8100]


def test_frames_end_where_they_end(settled, saw):
    """Short frames in buffers that long ones were in: a packet socket gets the bytes that were sent, and none more."""
    one, two = settled
    mac = two.run("cat /sys/class/net/nupanet0/address").out.strip()
    for name, text, node in (("send", SEND, one), ("receive", RECEIVE, two)):
        node.run(f"cat >/run/{name}.py", stdin=text.replace("LENGTHS", repr(LENGTHS)).replace("COUNT", repr(COUNT)))
    receiver = two.spawn("rm -f /run/receives; python3 /run/receive.py")
    wait_until("the receiver", lambda: two.run("test -e /run/receives", check=False).code == 0, 30)
    sent = one.run(f"python3 /run/send.py {mac}", timeout=60, check=False)
    received = receiver.wait(60)
    assert (sent.code, received.code) == (0, 0), f"{sent}\n{received}"
    saw(f"{len(LENGTHS)} frames of {LENGTHS[0]} to {LENGTHS[-1]} bytes after {COUNT} of 9000")

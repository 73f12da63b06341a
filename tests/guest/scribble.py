# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program that writes what it likes into the process rings that it has mapped, and one that has to live with such a peer."""

import contextlib
import ctypes
import random
import struct
import time
from collections import Counter

from pyverbs.pyverbs_error import PyverbsError

# As in drivers/proto/process_ring.rs.
CONTROL_SIZE = 4096
LINE_SIZE = 64
LINES = 256
RING_SIZE = CONTROL_SIZE + LINES * LINE_SIZE
STATE = 0
SECRET = 8
TAKEN = 68
RECEIVED = 72
TAKER = 128
# Offset in the control page and size of each word that somebody reads.
WORDS = ((STATE, 4), (4, 4), (SECRET, 8), (64, 4), (TAKEN, 4), (RECEIVED, 4), (76, 4), (TAKER, 8), (192, 8), (200, 8), (256, 8), (264, 8))
ENTRY = struct.Struct("<QIIIB3x")
TARGET = struct.Struct("<QII")
ENTRY_WRITE = 4
WORD = {4: ctypes.c_uint32, 8: ctypes.c_uint64}
# In a second, a slow machine writes too little for anybody to find it.
LEAST = 400


def ring_mappings():
    """Where the process has rings mapped: its own, and those of its peers."""
    with open("/proc/self/maps") as file:
        found = [line.split()[0].split("-") for line in file if "/dev/infiniband/" in line]
    places = [(int(start, 16), int(end, 16)) for start, end in found]
    return [start for start, end in places if end - start == RING_SIZE]


class Ring:
    """A ring that is mapped here, and what is written into it."""

    def __init__(self, start, target, numbers):
        self.start, self.target, self.numbers = start, target, numbers
        self.secret = self.word(SECRET, 8).value

    def word(self, offset, size):
        return WORD[size].from_address(self.start + offset)

    def any_value(self, old):
        """What a word may be that is wrong: near what it was, at an end of what there is, or anything."""
        return self.numbers.choice((0, 1, 2, 3, 9, 13, old ^ 1, old + self.numbers.randrange(-300, 300), 1 << 31, (1 << 32) - 1, (1 << 64) - 1,
                                    self.numbers.getrandbits(64)))

    def write_word(self):
        word = self.word(*self.numbers.choice(WORDS))
        word.value = self.any_value(word.value)

    def write_anywhere(self):
        size = self.numbers.choice((4, 8))
        self.word(self.numbers.randrange(0, RING_SIZE, size), size).value = self.numbers.getrandbits(64)

    def write_entry(self):
        """One that is taken for an entry if its turn comes soon, of a SEND or a WRITE; most of it is right, or nothing of it."""
        index = self.word(TAKEN, 4).value + self.numbers.randrange(4)
        target = self.target if self.numbers.random() < 0.5 else (self.numbers.getrandbits(64), self.numbers.getrandbits(32))
        flags = self.numbers.choice((0, 1, ENTRY_WRITE, ENTRY_WRITE, self.numbers.getrandbits(8)))
        length = self.numbers.choice((0, 8, 16, 24, 40, 100, 2024, self.numbers.getrandbits(32)))
        message = self.word(RECEIVED, 4).value + self.numbers.choice((0, 1, -1, 300, self.numbers.getrandbits(32)))
        head = ENTRY.pack(self.secret ^ (index & 0xFFFFFFFF), length, message & 0xFFFFFFFF, 0, flags)
        line = (head + TARGET.pack(*target, 0)).ljust(LINE_SIZE, b"\x55")
        place = self.start + CONTROL_SIZE + index % LINES * LINE_SIZE
        # The stamp comes last, as from who means it.
        ctypes.memmove(place + 8, line[8:], LINE_SIZE - 8)
        ctypes.c_uint64.from_address(place).value = int.from_bytes(line[:8], "little")

    def reopen(self):
        """So that more is sent and taken after nonsense has closed the ring."""
        self.word(STATE, 4).value = 1 | self.numbers.choice((0, 8))
        self.word(SECRET, 8).value = self.secret
        self.word(TAKER, 8).value = 0


class Scribble:
    """Part of a program; `objects` and the single steps are the program's."""

    def ring_count(self):
        return len(ring_mappings())

    def scribble(self, receive_queue, cq, element, target, kinds, seconds):
        """Writes nonsense of these kinds into all rings for so long, LEAST times at least, and receives what comes meanwhile. `target`: address and
        key of memory of the peer's. Returns how often it wrote."""
        numbers = random.Random(kinds)
        rings = [Ring(start, target, numbers) for start in ring_mappings()]
        steps = [*(getattr(Ring, f"write_{kind}") for kind in kinds.split()), Ring.reopen]
        count, end = 0, time.monotonic() + seconds
        while time.monotonic() < end or count < LEAST:
            for step in numbers.choices(steps, k=8):
                step(numbers.choice(rings))
                count += 1
            with contextlib.suppress(PyverbsError):
                self.post_recv(receive_queue, [element], count=4)
            self.poll_once(self.objects[cq], 16)
        return count

    def endure(self, receive_queue, qp, cq, source, target, remote, seconds):
        """Sends, writes and receives for so long, LEAST times at least, whatever comes of it. Returns how many completions of each kind it had."""
        queue, ends, end = self.objects[cq], Counter(), time.monotonic() + seconds
        number = 0
        while time.monotonic() < end or number < LEAST:
            number += 1
            # Its queues may be full.
            with contextlib.suppress(PyverbsError):
                self.post_recv(receive_queue, [target])
            with contextlib.suppress(PyverbsError):
                if number % 2:
                    self.post_send(qp, "RDMA_WRITE", sges=[source], remote=remote)
                else:
                    self.post_send(qp, "SEND", sges=[source])
            for found in self.poll_once(queue, 16):
                # Those that failed tell nothing but that.
                ends[f"{found['opcode']} SUCCESS" if found["status"] == "SUCCESS" else found["status"]] += 1
        return ends

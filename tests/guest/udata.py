# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program that speaks to the kernel past libibverbs: verbs commands that are right but for some bytes, with any bytes
as the driver's own part, and requests of the newer interface that are hardly right at all.

usage: udata.py DEVICE SEED COUNT [EACH]

Prints a JSON object: how often each command ended in which way. Each EACH commands a new process goes on, and the kernel
has to tidy up after the one before.
"""

import collections
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import struct
import sys

PAGE = 4096
AREA = 64 * PAGE
# What is where an answer goes.
FILL = 0xA5
RDMA_VERBS_IOCTL = 0xC0181B01
UHW_IN, UHW_OUT = 0x1000, 0x1001
# UVERBS_OBJECT_DEVICE, UVERBS_METHOD_GET_CONTEXT (include/uapi/rdma/ib_user_ioctl_cmds.h).
SECOND_CONTEXT = (0, 3)

# Numbers of commands (include/uapi/rdma/ib_user_verbs.h).
GET_CONTEXT, QUERY_DEVICE, QUERY_PORT, ALLOC_PD, DEALLOC_PD, CREATE_AH = range(6)
DESTROY_AH, REG_MR, REREG_MR, DEREG_MR, ALLOC_MW, DEALLOC_MW = 8, 9, 11, 13, 14, 16
CREATE_CQ, RESIZE_CQ, DESTROY_CQ, POLL_CQ, REQ_NOTIFY_CQ = 18, 19, 20, 21, 23
CREATE_QP, QUERY_QP, MODIFY_QP, DESTROY_QP, POST_SEND, POST_RECV = 24, 25, 26, 27, 28, 29
CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ, DESTROY_SRQ, POST_SRQ_RECV = 32, 33, 34, 35, 36

KINDS = ("pd", "cq", "qp", "srq", "mr", "mw", "ah")
CREATES = {ALLOC_PD: "pd", CREATE_CQ: "cq", CREATE_QP: "qp", CREATE_SRQ: "srq", REG_MR: "mr", ALLOC_MW: "mw",
           CREATE_AH: "ah"}
DESTROYS = {DEALLOC_PD: "pd", DESTROY_CQ: "cq", DESTROY_QP: "qp", DESTROY_SRQ: "srq", DEREG_MR: "mr",
            DEALLOC_MW: "mw", DESTROY_AH: "ah"}
NAMES = {number: name for name, number in list(globals().items()) if name.isupper() and isinstance(number, int)
         and name.split("_")[0] in ("GET", "QUERY", "ALLOC", "DEALLOC", "CREATE", "DESTROY", "REG", "REREG", "DEREG",
                                    "RESIZE", "POLL", "REQ", "MODIFY", "POST")}


class Caller:
    """One context, spoken to in bytes."""

    def __init__(self, device, seed):
        self.random = random.Random(seed)
        self.file = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        self.memory = mmap.mmap(-1, AREA)
        self.area = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.response = mmap.mmap(-1, PAGE)
        self.answer = ctypes.addressof(ctypes.c_char.from_buffer(self.response))
        self.handles = {kind: [] for kind in KINDS}

    def command(self, number, core, own=b"", answers=True, room=PAGE):
        """A command of the older interface; `core` follows the address of the response if there is one."""
        body = (struct.pack("<Q", self.answer) if answers else b"") + core + own
        body += bytes(-len(body) % 4)
        os.write(self.file, struct.pack("<IHH", number, (8 + len(body)) // 4, room // 4) + body)
        return self.response[:PAGE]

    def answered(self, number, core, own, room):
        """What a command leaves in memory that was full of FILL, of which it is told to use so many bytes."""
        self.response[:] = bytes([FILL]) * PAGE
        found = self.command(number, core, own, room=room)
        if number in CREATES:
            self.handles[CREATES[number]].append(struct.unpack_from("<I", found)[0])
        return found

    def method(self, kind, number, *attributes):
        """A method of an object of the newer interface; an attribute is (number, length, value or address)."""
        body = b"".join(struct.pack("<HHHHQ", number, length, 1, 0, data) for number, length, data in attributes)
        fcntl.ioctl(self.file, RDMA_VERBS_IOCTL,
                    bytearray(struct.pack("<HHHHQII", 24 + len(body), kind, number, len(attributes), 0, 0, 0) + body))

    def created(self, number, core, own=b""):
        """The handle of what a command makes."""
        (handle,) = struct.unpack_from("<I", self.command(number, core, own))
        self.handles[CREATES[number]].append(handle)
        return handle

    # Commands that are right.

    def core(self, number):
        """The core's part of a command, right as far as there is what it names."""
        pick = self.pick
        small = self.random.choice((1, 4, 16, 64))
        match number:
            case n if n in (GET_CONTEXT, QUERY_DEVICE, ALLOC_PD):
                return b""
            case n if n in DESTROYS:
                handle = struct.pack("<I", pick(DESTROYS[n]))
                return handle + bytes(4) if n in (DESTROY_CQ, DESTROY_QP, DESTROY_SRQ) else handle
            case 2:  # QUERY_PORT
                return struct.pack("<B7x", 1)
            case 5:  # CREATE_AH
                route = struct.pack("<16sIBBBx", os.urandom(16), 0, self.random.randrange(4), 64, 0)
                return struct.pack("<QII", 1, pick("pd"), 0) + route + struct.pack("<HBBBBBx", 0, 0, 0, 0, 1, 1)
            case 9:  # REG_MR
                start = self.area + PAGE * self.random.randrange(60)
                return struct.pack("<QQQII", start, PAGE, start, pick("pd"), self.random.randrange(16))
            case 11:  # REREG_MR
                start = self.area + PAGE * self.random.randrange(60)
                return struct.pack("<IIQQQII", pick("mr"), self.random.randrange(1, 8), start, PAGE, start, pick("pd"), 1)
            case 14:  # ALLOC_MW
                return struct.pack("<IB3x", pick("pd"), 2)
            case 18:  # CREATE_CQ
                return struct.pack("<QIIiI", 1, small, 0, -1, 0)
            case 19:  # RESIZE_CQ
                return struct.pack("<II", pick("cq"), small)
            case 21:  # POLL_CQ
                return struct.pack("<II", pick("cq"), 1)
            case 23:  # REQ_NOTIFY_CQ
                return struct.pack("<II", pick("cq"), 0)
            case 24:  # CREATE_QP
                kind = self.random.choice((2, 2, 4))
                shared = self.random.random() < 0.3 and bool(self.handles["srq"])
                return struct.pack("<Q9I4B", 1, pick("pd"), pick("cq"), pick("cq"), pick("srq"), small, small, 1, 1, 0,
                                   0, kind, shared, 0)
            case 25:  # QUERY_QP
                return struct.pack("<II", pick("qp"), 1)
            case 26:  # MODIFY_QP
                state, mask = self.random.choice(((1, 0x39), (6, 1), (0, 1)))
                return bytes(64) + struct.pack("<7I2H14B2x", pick("qp"), mask, *[0] * 7, state, *[0] * 7, 1, *[0] * 4, 0)
            case n if n in (POST_SEND, POST_RECV, POST_SRQ_RECV):
                # One request, or none. Processes post by themselves, so there are no such commands.
                requests = self.random.randrange(2)
                return struct.pack("<IIII", pick("srq" if n == POST_SRQ_RECV else "qp"), requests, 0, 64)
            case 32:  # CREATE_SRQ
                return struct.pack("<QIIII", 1, pick("pd"), small, 1, 0)
            case 33:  # MODIFY_SRQ
                return struct.pack("<IIII", pick("srq"), 2, 0, self.random.randrange(4))
            case 34:  # QUERY_SRQ
                return struct.pack("<II", pick("srq"), 0)
        raise ValueError(number)

    def pick(self, kind):
        """A handle of something that is there, or else of anything."""
        return self.random.choice(self.handles[kind] or [self.random.randrange(20)])

    def address(self):
        """Where a ring may be said to be: mostly in memory, at the start of a page."""
        return self.random.choice((self.area, self.area + PAGE * self.random.randrange(64), self.area, self.area + 64, 0,
                                   PAGE, (1 << 64) - PAGE, 0xFFFF888000000000, self.random.getrandbits(64)))

    def logarithm(self):
        return self.random.choice((4, 6, 6, 7, 0, 12, 31, 63, 255, self.random.randrange(256)))

    def right(self, number):
        """The driver's part as the provider would have it: rings of 128 entries."""
        start = self.area + PAGE * self.random.randrange(32)
        queue = struct.pack("<QB7x", start, 7)
        return {CREATE_CQ: queue, RESIZE_CQ: queue, CREATE_SRQ: struct.pack("<QBB6x", start, 7, 6),
                CREATE_QP: struct.pack("<QQBBB5x", start, start + 8 * PAGE, 7, 7, 6)}.get(number, b"")

    def own(self, number):
        """The driver's part: right, like what it expects, or anything."""
        if number in CREATES and self.random.random() < 0.5:
            return self.right(number)
        shapes = {CREATE_CQ: lambda: struct.pack("<QB7x", self.address(), self.logarithm()),
                  CREATE_QP: lambda: struct.pack("<QQBBB5x", self.address(), self.address(), self.logarithm(),
                                                 self.logarithm(), self.random.choice((5, 6, 9, 4, 200))),
                  CREATE_SRQ: lambda: struct.pack("<QBB6x", self.address(), self.logarithm(),
                                                  self.random.choice((5, 6, 9, 4, 200)))}
        # Not the driver's, but what these end with: a request of 64 bytes.
        for posts in (POST_SEND, POST_RECV, POST_SRQ_RECV):
            shapes[posts] = lambda: self.random.choice(
                (b"", struct.pack("<QIIII40x", 1, 0, self.random.randrange(12), 2, 0)))
        part = shapes[number]() if number in shapes and self.random.random() < 0.85 else b""
        match self.random.randrange(10):
            case 0:
                part += bytes(4 * self.random.randrange(8))
            case 1:
                part += self.random.randbytes(4 * self.random.randrange(1, 20))
            case 2:
                part = part[:4 * self.random.randrange(6)]
            case 3:
                part = spoiled(self.random, part)
        return part

    def any_command(self):
        """A command that is right but for some bytes; its name."""
        number = self.random.choice(COMMANDS)
        core, own = self.core(number), self.own(number)
        if self.random.random() < 0.15:
            core = spoiled(self.random, core)
        answers = number not in WITHOUT_ANSWER
        room = self.random.choice((PAGE, PAGE, PAGE, 64, 8, 0))
        body = (struct.pack("<Q", self.random.choice((self.answer,) * 8 + (0, PAGE)) if answers else 0)[:8 * answers])
        body += core + own
        body += bytes(-len(body) % 4)
        self.response[:8] = bytes(8)
        try:
            os.write(self.file, struct.pack("<IHH", number, (8 + len(body)) // 4, room // 4) + body)
        except OSError as error:
            return NAMES[number], errno.errorcode.get(error.errno, str(error.errno))
        if number in CREATES and room == PAGE and self.response[:8] != bytes(8):
            self.handles[CREATES[number]].append(struct.unpack_from("<I", self.response)[0])
        return NAMES[number], "ok"

    def any_request(self):
        """A request of the newer interface, of any object, with any attributes; its name."""
        draw = self.random
        attributes = b""
        count = draw.randrange(8)
        for _ in range(count):
            identity = draw.choice((draw.randrange(16), draw.randrange(16), UHW_IN, UHW_OUT, 0x1000 + draw.randrange(4)))
            length = draw.choice((0, 4, 8, 8, 16, 24, 64, draw.randrange(1 << 16)))
            data = draw.choice((draw.randrange(20), self.area, self.answer, self.address(), draw.getrandbits(64)))
            attributes += struct.pack("<HHHHQ", identity, length, draw.choice((0, 1, 1)), 0, data)
        size = 24 + len(attributes)
        called = draw.randrange(22), draw.randrange(10)
        # Refusing a second context by this interface, the core keeps a reference to the task that asked
        # (uverbs_std_types_device.c frees it without rdma_restrack_put, up to 7.2 at least).
        while called == SECOND_CONTEXT:
            called = draw.randrange(22), draw.randrange(10)
        header = struct.pack("<HHHHQII", size, *called, count, 0, draw.choice(DRIVER_IDS), 0)
        buffer = bytearray(header + attributes)
        try:
            fcntl.ioctl(self.file, RDMA_VERBS_IOCTL, buffer)
        except OSError as error:
            return "ioctl", errno.errorcode.get(error.errno, str(error.errno))
        return "ioctl", "ok"

    def prepare(self):
        """Makes a context and one of each object that others need."""
        self.command(GET_CONTEXT, b"")
        self.created(ALLOC_PD, b"")
        ring = struct.pack("<QB7x", self.area, 6)
        self.created(CREATE_CQ, struct.pack("<QIIiI", 1, 16, 0, -1, 0), ring)
        rings = struct.pack("<QQBBB5x", self.area + 8 * PAGE, self.area + 16 * PAGE, 6, 6, 6)
        self.created(CREATE_QP, struct.pack("<Q9I4B", 1, self.pick("pd"), self.pick("cq"), self.pick("cq"), 0, 16, 16, 1,
                                            1, 0, 0, 2, 0, 0), rings)


COMMANDS = sorted(NAMES)
# What has no response to write: their bytes begin with the handle.
WITHOUT_ANSWER = {DEALLOC_PD, DESTROY_AH, DEREG_MR, DEALLOC_MW, MODIFY_QP, REQ_NOTIFY_CQ, MODIFY_SRQ}
# Drivers that the interface has no number for have 0.
DRIVER_IDS = (0, 0, 0, 1)


def spoiled(draw, part):
    """Bytes with one or two changed."""
    part = bytearray(part)
    for _ in range(draw.randrange(1, 3) if part else 0):
        part[draw.randrange(len(part))] = draw.choice((0, 1, 0x80, 0xFF, draw.randrange(256)))
    return bytes(part)


def storm(device, seed, count):
    """So many commands by one process; counts of (command, end)."""
    caller = Caller(device, seed)
    caller.prepare()
    ends = collections.Counter()
    for _ in range(count):
        ends[caller.any_command() if caller.random.random() < 0.7 else caller.any_request()] += 1
    return ends


def main(device, seed, count, each=250):
    ends = collections.Counter()
    for part in range(count // each):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            found = storm(device, seed * 1000 + part, each)
            os.write(writing, json.dumps([[*key, value] for key, value in found.items()]).encode())
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as file:
            for name, end, value in json.loads(file.read()):
                ends[name, end] += value
        os.waitpid(child, 0)
    table = collections.defaultdict(dict)
    for (name, end), value in sorted(ends.items()):
        table[name][end] = value
    print(json.dumps(table))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))

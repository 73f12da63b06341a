# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A node without a guest: a vfio-user client that enables its controller and then does nothing.

Messages as in QEMU's docs/interop/vfio-user.rst; registers as in drivers/proto/regs.rs.
"""

import fcntl
import os
import socket
import struct

HEADER = struct.Struct("<HHIII")  # message id, command, size, flags, errno
VERSION, DMA_MAP, REGION_READ, REGION_WRITE = 1, 2, 9, 10
BAR0, CONFIG = 0, 7
PCI_COMMAND, MEMORY_AND_MASTER = 0x04, 0x0006
REG_STATUS, REG_CONTROL, REG_ADMIN_SQ, REG_ADMIN_CQ, REG_ADMIN_SIZE = 0x10, 0x14, 0x40, 0x48, 0x50
STATUS_READY, CONTROL_ENABLE = 1, 1
RING_BYTES = 4096
RING_IOVA = 0x10000


class IdlePeer:
    """Joins the fabric as the node of a socket when made, leaves it when closed."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(10)
        self.socket.connect(str(path))
        self.call(VERSION, struct.pack("<HH", 0, 1) + b'{"capabilities":{}}\0')
        # Sealed as QEMU's are: the switch touches no memory that could shrink under it.
        memory = os.memfd_create("idle-peer", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, 2 * RING_BYTES)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        self.call(DMA_MAP, struct.pack("<IIQQQ", 32, 3, 0, RING_IOVA, 2 * RING_BYTES), [memory])
        os.close(memory)
        self.write(CONFIG, PCI_COMMAND, struct.pack("<H", MEMORY_AND_MASTER))
        self.write(BAR0, REG_ADMIN_SQ, struct.pack("<Q", RING_IOVA))
        self.write(BAR0, REG_ADMIN_CQ, struct.pack("<Q", RING_IOVA + RING_BYTES))
        self.write(BAR0, REG_ADMIN_SIZE, struct.pack("<I", 4))
        self.write(BAR0, REG_CONTROL, struct.pack("<I", CONTROL_ENABLE))
        status = struct.unpack("<I", self.read(BAR0, REG_STATUS, 4))[0]
        assert status & STATUS_READY, f"the controller of {path} has status {status:#x} after it was enabled"

    def receive(self, size):
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the switch closed the connection"
            data += more
        return data

    def call(self, command, body, descriptors=()):
        """Sends a request and returns the body of its reply."""
        message = HEADER.pack(1, command, HEADER.size + len(body), 0, 0) + body
        socket.send_fds(self.socket, [message], list(descriptors))
        _, _, size, _, error = HEADER.unpack(self.receive(HEADER.size))
        reply = self.receive(size - HEADER.size)
        assert error == 0, f"vfio-user command {command}: {os.strerror(error)}"
        return reply

    def write(self, region, offset, data):
        self.call(REGION_WRITE, struct.pack("<QII", offset, region, len(data)) + data)

    def read(self, region, offset, size):
        return self.call(REGION_READ, struct.pack("<QII", offset, region, size))[16:]

    def close(self):
        self.socket.close()

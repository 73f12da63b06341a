# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Sends a file by TCP as programs do that want no copy of it, as scripts/clients starts it on a node:

  send_work.py zerocopy|uring|uring-zerocopy FILE ADDRESS PORT

Ends when the kernel has said of each piece that it needs the memory no more. Prints how many of them it had to copy nevertheless.
"""

import ctypes
import errno
import select
import socket
import struct
import sys

PIECE = 60000
PATIENCE = 60
# Numbers of Linux that Python has no names for.
SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
IP_RECVERR, SO_EE_ORIGIN_ZEROCOPY, SO_EE_CODE_ZEROCOPY_COPIED = 11, 5, 1
IORING_CQE_F_MORE, IORING_CQE_F_NOTIF, IORING_SEND_ZC_REPORT_USAGE = 1 << 1, 1 << 3, 1 << 3


def told(stream):
    """What the socket's error queue has: how many sends are done with, and of those how many were copied."""
    done = copied = 0
    while True:
        try:
            _, notes, _, _ = stream.recvmsg(0, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return done, copied
        for level, kind, data in notes:
            error, origin, _, code, first, last = struct.unpack("=IBBBxII", data[:16])
            if (level, kind, error, origin) != (socket.SOL_IP, IP_RECVERR, 0, SO_EE_ORIGIN_ZEROCOPY):
                sys.exit(f"the error queue has something else: error {error}, origin {origin}")
            done += last - first + 1
            copied += last - first + 1 if code & SO_EE_CODE_ZEROCOPY_COPIED else 0


def by_messages(stream, memory):
    """MSG_ZEROCOPY."""
    stream.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    poll = select.poll()
    poll.register(stream, 0)
    sent = done = copied = at = 0
    while at < len(memory) or done < sent:
        if at < len(memory):
            try:
                at += stream.send(memory[at : at + PIECE], MSG_ZEROCOPY)
                sent += 1
            except OSError as full:  # too many pieces are on their way
                if full.errno != errno.ENOBUFS:
                    raise
        elif not poll.poll(PATIENCE * 1000):
            sys.exit(f"the kernel did not say of {sent - done} pieces of {sent} that they are sent")
        more, also = told(stream)
        done, copied = done + more, copied + also
    return sent, copied


class Completion(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64), ("result", ctypes.c_int32), ("flags", ctypes.c_uint32)]


class Ring:
    """An io_uring, by liburing."""

    def __init__(self):
        self.library = ctypes.CDLL("liburing-ffi.so.2", use_errno=True)
        self.library.io_uring_get_sqe.restype = ctypes.c_void_p
        self.ring = ctypes.create_string_buffer(4096)
        made = self.library.io_uring_queue_init(8, self.ring, 0)
        if made:
            sys.exit(f"io_uring_queue_init: {errno.errorcode.get(-made, made)}")

    def send(self, stream, address, length, zerocopy):
        """Sends and waits for it; returns how many bytes went and whether they were copied."""
        entry = ctypes.c_void_p(self.library.io_uring_get_sqe(self.ring))
        where = ctypes.c_void_p(address), ctypes.c_size_t(length), socket.MSG_WAITALL
        if zerocopy:
            self.library.io_uring_prep_send_zc(entry, stream.fileno(), *where, IORING_SEND_ZC_REPORT_USAGE)
        else:
            self.library.io_uring_prep_send(entry, stream.fileno(), *where)
        if self.library.io_uring_submit(self.ring) != 1:
            sys.exit("io_uring_submit did not take the entry")
        result, flags = self.completion()
        if result < 0:
            sys.exit(f"a send: {errno.errorcode.get(-result, result)}")
        copied = not zerocopy
        if flags & IORING_CQE_F_MORE:
            usage, flags = self.completion()
            if not flags & IORING_CQE_F_NOTIF:
                sys.exit("the second completion of a send is no notification")
            copied = usage < 0
        return result, copied

    def completion(self):
        found = ctypes.POINTER(Completion)()
        waited = self.library.io_uring_wait_cqe(self.ring, ctypes.byref(found))
        if waited:
            sys.exit(f"io_uring_wait_cqe: {errno.errorcode.get(-waited, waited)}")
        result, flags = found.contents.result, found.contents.flags
        self.library.io_uring_cqe_seen(self.ring, found)
        return result, flags


def by_ring(stream, memory, zerocopy):
    ring = Ring()
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    sent = copied = at = 0
    while at < len(memory):
        went, once_more = ring.send(stream, start + at, min(PIECE, len(memory) - at), zerocopy)
        at, sent, copied = at + went, sent + 1, copied + once_more
    return sent, copied


def main(how, file, address, port):
    with open(file, "rb") as source:
        memory = memoryview(bytearray(source.read()))
    with socket.create_connection((address, int(port)), timeout=PATIENCE) as stream:
        stream.setblocking(True)
        sent, copied = by_messages(stream, memory) if how == "zerocopy" else by_ring(stream, memory, how == "uring-zerocopy")
    print(f"{sent} pieces sent, {copied} of them copied", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

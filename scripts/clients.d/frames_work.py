# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Ethernet frames sent and received past the kernel's protocols, as scripts/clients starts it on two nodes:

  frames_work.py echo-packet INTERFACE        sends frames back by AF_PACKET
  frames_work.py echo-xdp INTERFACE           sends frames back by AF_XDP, in the kernel's generic mode
  frames_work.py ask INTERFACE ADDRESS MTU    sends frames of all sizes to that Ethernet address, and compares what comes back
"""

import ctypes
import mmap
import select
import signal
import socket
import sys

# For experiments in one's own network (IEEE 802).
PROTOCOL = 0x88B5
ETHERNET, LEAST = 14, 60
PATIENCE = 20
FRAME, FRAMES = 4096, 64
XDP_FLAGS_SKB_MODE, XDP_COPY = 1 << 1, 1 << 1


def packets(interface):
    """A socket that gets and sends whole frames of the protocol."""
    found = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(PROTOCOL))
    found.bind((interface, PROTOCOL))
    return found


def reply(frame):
    """The frame, sent back to where it came from."""
    return frame[6:12] + frame[:6] + frame[12:]


def echo_packets(interface):
    with packets(interface) as there:
        print("ready", flush=True)
        while True:
            there.send(reply(there.recv(65536)))


class Descriptor(ctypes.Structure):
    _fields_ = [("address", ctypes.c_uint64), ("length", ctypes.c_uint32), ("options", ctypes.c_uint32)]


class Ring(ctypes.Structure):
    """A ring of libxdp (xdp/xsk.h), either way."""

    _fields_ = [("cached_produced", ctypes.c_uint32), ("cached_consumed", ctypes.c_uint32), ("mask", ctypes.c_uint32), ("size", ctypes.c_uint32),
                ("produced", ctypes.POINTER(ctypes.c_uint32)), ("consumed", ctypes.POINTER(ctypes.c_uint32)),
                ("entries", ctypes.c_void_p), ("flags", ctypes.POINTER(ctypes.c_uint32))]

    def put(self, kind, entry):
        at = self.produced[0]
        ctypes.cast(self.entries, ctypes.POINTER(kind))[at & self.mask] = entry
        self.produced[0] = (at + 1) & 0xFFFFFFFF

    def take(self, kind):
        """The next entry, or None."""
        at = self.consumed[0]
        if at == self.produced[0]:
            return None
        size = ctypes.sizeof(kind)
        found = kind.from_buffer_copy(ctypes.string_at(self.entries + (at & self.mask) * size, size))
        self.consumed[0] = (at + 1) & 0xFFFFFFFF
        return found


class SocketConfig(ctypes.Structure):
    _fields_ = [("rx", ctypes.c_uint32), ("tx", ctypes.c_uint32), ("libxdp_flags", ctypes.c_uint32), ("xdp_flags", ctypes.c_uint32),
                ("bind_flags", ctypes.c_uint16)]


class Xdp:
    """A socket of AF_XDP by libxdp, on queue 0. The first half of its frames is for what comes, the other for what goes."""

    def __init__(self, interface):
        self.library = ctypes.CDLL("libxdp.so.1")
        self.memory = mmap.mmap(-1, FRAME * FRAMES)
        self.area, self.socket = ctypes.c_void_p(), ctypes.c_void_p()
        self.free, self.sent, self.came, self.going = Ring(), Ring(), Ring(), Ring()
        start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(self.memory)))
        self.must("xsk_umem__create", ctypes.byref(self.area), start, ctypes.c_uint64(FRAME * FRAMES), ctypes.byref(self.free), ctypes.byref(self.sent), None)
        for place in range(FRAMES // 2):
            self.free.put(ctypes.c_uint64, place * FRAME)
        config = SocketConfig(2048, 2048, 0, XDP_FLAGS_SKB_MODE, XDP_COPY)
        self.must("xsk_socket__create", ctypes.byref(self.socket), interface.encode(), 0, self.area, ctypes.byref(self.came), ctypes.byref(self.going),
                  ctypes.byref(config))
        self.descriptor = self.library.xsk_socket__fd(self.socket)
        self.next = 0

    def must(self, name, *arguments):
        failed = getattr(self.library, name)(*arguments)
        if failed:
            sys.exit(f"{name}: error {failed}")

    def close(self):
        """Takes the program off the interface, which would stay there otherwise."""
        self.library.xsk_socket__delete(self.socket)
        self.library.xsk_umem__delete(self.area)

    def receive(self):
        """The next frame, waited for."""
        while (found := self.came.take(Descriptor)) is None:
            select.select([self.descriptor], [], [])
        frame = self.memory[found.address : found.address + found.length]
        self.free.put(ctypes.c_uint64, found.address // FRAME * FRAME)
        return frame

    def send(self, frame):
        while self.sent.take(ctypes.c_uint64) is not None:
            pass
        address = (FRAMES // 2 + self.next) * FRAME
        self.next = (self.next + 1) % (FRAMES // 2)
        self.memory[address : address + len(frame)] = frame
        self.going.put(Descriptor, Descriptor(address, len(frame), 0))
        ctypes.CDLL(None).sendto(self.descriptor, None, 0, socket.MSG_DONTWAIT, None, 0)


def echo_xdp(interface):
    there = Xdp(interface)
    try:
        print("ready", flush=True)
        while True:
            frame = there.receive()
            if frame[12:14] == PROTOCOL.to_bytes(2):
                there.send(reply(frame))
    finally:
        there.close()


def ask(interface, address, mtu):
    """Sizes from the least to the largest, and those around powers of two."""
    theirs = bytes.fromhex(address.replace(":", ""))
    most = ETHERNET + int(mtu)
    sizes = sorted({size for power in range(6, 15) for size in (2**power - 1, 2**power, 2**power + 1) if LEAST <= size < most} | {LEAST, most})
    with packets(interface) as there:
        there.settimeout(PATIENCE)
        mine = there.getsockname()[4]
        for turn in range(3):
            for size in sizes:
                payload = bytes((turn * 31 + size + place * 7) & 255 for place in range(size - ETHERNET))
                there.send(theirs + mine + PROTOCOL.to_bytes(2) + payload)
                try:
                    back = there.recv(65536)
                except TimeoutError:
                    sys.exit(f"a frame of {size} bytes does not come back")
                if back != mine + theirs + PROTOCOL.to_bytes(2) + payload:
                    sys.exit(f"a frame of {size} bytes comes back as another, of {len(back)}")
    print(f"compared; {3 * len(sizes)} frames of {len(sizes)} sizes", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    {"echo-packet": echo_packets, "echo-xdp": echo_xdp, "ask": ask}[sys.argv[1]](*sys.argv[2:])

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Device memory that programs of several nodes use (nupadv.h), for program.py. share.c does what pyverbs cannot."""

import ctypes
import os

from pattern import difference, not_zero, pattern

LIBRARY = "/nupa/build/lib/libnupa-share-test.so"
POINTER, SIZE, NUMBER = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint32
HANDLE = 32
# What functions return and take. None is an error number.
FUNCTIONS = {
    "open": (POINTER, ctypes.c_char_p),
    "number": (NUMBER, POINTER),
    "connect": (None, POINTER, NUMBER, ctypes.c_char_p, ctypes.c_int),
    "alloc": (POINTER, POINTER, SIZE),
    "export": (None, POINTER, ctypes.c_char_p),
    "import": (POINTER, POINTER, ctypes.c_char_p),
    "map": (POINTER, POINTER, ctypes.POINTER(SIZE)),
    "free": (None, POINTER),
    "load": (None, POINTER, ctypes.c_char_p, ctypes.c_uint64, SIZE),
    "store": (None, POINTER, ctypes.c_char_p, ctypes.c_uint64, SIZE),
    "register": (POINTER, POINTER, POINTER, SIZE),
    "key": (NUMBER, POINTER),
    "deregister": (None, POINTER),
    "transfer": (ctypes.c_int, POINTER, ctypes.c_int, POINTER, ctypes.c_uint64, NUMBER, NUMBER, ctypes.c_uint64),
    "count": (NUMBER, POINTER, NUMBER),
}


class Piece:
    """Device memory, and where it is mapped."""

    def __init__(self, dm, address, size):
        self.dm, self.address, self.size = dm, address, size


class Share:
    """The part of a program that shares device memory, with a context, a domain and a connection of its own."""

    def call(self, name, *arguments):
        result = getattr(self.library, f"share_{name}")(*arguments)
        kind = FUNCTIONS[name][0]
        error = ctypes.get_errno() if kind is POINTER and not result else result if kind is None else 0
        if error:
            raise OSError(error, f"share_{name}: {os.strerror(error)}")
        return result

    def share_open(self, device):
        self.library = ctypes.CDLL(LIBRARY, use_errno=True)
        for name, (result, *arguments) in FUNCTIONS.items():
            function = getattr(self.library, f"share_{name}")
            function.restype, function.argtypes = result or ctypes.c_int, arguments
        self.share = self.call("open", device.encode())
        return self.call("number", self.share)

    def share_connect(self, peer, gid, sgid_index):
        self.call("connect", self.share, peer, bytes.fromhex(gid.replace(":", "")), sgid_index)

    def piece(self, dm):
        size = SIZE()
        address = self.call("map", dm, size)
        return self.add(Piece(dm, address, size.value), size=size.value)

    def share_alloc(self, size):
        return self.piece(self.call("alloc", self.share, size))

    def share_export(self, piece):
        handle = ctypes.create_string_buffer(HANDLE)
        self.call("export", self.objects[piece].dm, handle)
        return handle.raw.hex()

    def share_take(self, handle):
        return self.piece(self.call("import", self.share, bytes.fromhex(handle)))

    def share_exports(self, size, count):
        """Exports so many pieces; handles of those that there are, and the errno of the next one."""
        handles = []
        for _ in range(count):
            piece = self.share_alloc(size)["id"]
            try:
                handles.append(self.share_export(piece))
            except OSError as error:
                return handles, error.errno
        return handles, 0

    def share_takes(self, handle, count):
        """Imports a piece so many times; the numbers of those that there are, and the errno of the next one."""
        pieces = []
        for _ in range(count):
            try:
                pieces.append(self.share_take(handle)["id"])
            except OSError as error:
                return pieces, error.errno
        return pieces, 0

    def share_free(self, piece):
        self.call("free", self.objects[piece].dm)

    # Plain loads and stores.

    def share_fill(self, piece, seed, offset=0, size=None):
        piece = self.objects[piece]
        size = piece.size - offset if size is None else size
        ctypes.memmove(piece.address + offset, pattern(seed, size), size)

    def share_check(self, piece, seed, offset=0, size=None):
        """Words on the first byte that is not of the pattern, or None."""
        piece = self.objects[piece]
        size = piece.size - offset if size is None else size
        return difference(ctypes.string_at(piece.address + offset, size), pattern(seed, size))

    def share_left(self, piece):
        """Where the first byte is that is not zero, and what is there; None if there is no such byte."""
        piece = self.objects[piece]
        return not_zero(ctypes.string_at(piece.address, piece.size))

    def share_count(self, piece, times):
        self.call("count", self.objects[piece].address, times)

    def share_word(self, piece):
        return ctypes.c_uint64.from_address(self.objects[piece].address).value

    # Verbs.

    def share_load(self, piece, offset, size):
        data = ctypes.create_string_buffer(size)
        self.call("load", self.objects[piece].dm, data, offset, size)
        return data.raw.hex()

    def share_store(self, piece, offset, text):
        data = bytes.fromhex(text)
        self.call("store", self.objects[piece].dm, data, offset, len(data))

    def share_register(self, piece):
        piece = self.objects[piece]
        region = self.call("register", self.share, piece.dm, piece.size)
        return self.add(region, key=self.call("key", region))

    def share_deregister(self, region):
        self.call("deregister", self.objects[region])

    def share_transfer(self, what, region, offset, size, key, remote):
        """READ or WRITE between a region and the peer's; returns the completion's status."""
        return self.call("transfer", self.share, what == "READ", self.objects[region], offset, size, key, remote)

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Multicast groups of queue pairs, for program.py. pyverbs has no functions for them, so those of libibverbs are called."""

import ctypes
import os
import struct

# Where `struct ibv_qp` has the queue pair's number, behind six pointers and the handle.
NUMBER_AT = 52


def mapped():
    """Memory of this process that it may read and write."""
    with open("/proc/self/maps") as file:
        lines = [line.split() for line in file]
    return [[int(address, 16) for address in line[0].split("-")] for line in lines if line[1].startswith("rw")]


def pointer_of(queue):
    """The C structure of a queue pair of pyverbs, which does not tell: the one that it refers to and that has its number."""
    size = type(queue).__basicsize__
    ranges = mapped()
    for word in struct.unpack(f"{size // 8}Q", ctypes.string_at(id(queue), size // 8 * 8)):
        if word % 8 == 0 and any(start <= word and word + NUMBER_AT + 4 <= end for start, end in ranges):
            if ctypes.c_uint32.from_address(word + NUMBER_AT).value == queue.qp_num:
                return ctypes.c_void_p(word)
    raise LookupError("the queue pair's structure was not found")


class Groups:
    """The part of a program that joins groups."""

    def attach(self, qp, *gids, lid=0):
        self.change("attach", qp, gids, lid)

    def detach(self, qp, *gids, lid=0):
        self.change("detach", qp, gids, lid)

    def change(self, verb, qp, gids, lid):
        function = getattr(ctypes.CDLL("libibverbs.so.1"), f"ibv_{verb}_mcast")
        queue = pointer_of(self.objects[qp])
        for gid in gids:
            if error := function(queue, bytes.fromhex(gid.replace(":", "")), ctypes.c_uint16(lid)):
                raise OSError(error, f"ibv_{verb}_mcast: {os.strerror(error)}")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Bytes that tests fill buffers with, known on both nodes and to the model by a seed alone."""

import random

# Its length is prime, so bytes that were moved by a page or any other round distance are noticed.
TILE = random.Random(2024).randbytes(1000003)


def pattern(seed, size, start=0):
    """`size` bytes of the pattern of a seed, from offset `start` on."""
    first = (seed * 104729 + start) % len(TILE)
    return (TILE[first:] + TILE * (size // len(TILE) + 1))[:size]


def patched(seed, size, patches):
    """A pattern with parts replaced, one after the other.

    A patch is [offset, seed, start, length] for bytes of another pattern, or [offset, text] for literal ones in
    hexadecimal.
    """
    result = bytearray(pattern(seed, size))
    for offset, *source in patches:
        data = bytes.fromhex(source[0]) if len(source) == 1 else pattern(source[0], source[2], source[1])
        result[offset : offset + len(data)] = data
    assert len(result) == size, "a patch reaches beyond the buffer"
    return bytes(result)


def difference(found, wanted):
    """None if equal, else words on the first byte that differs."""
    if found == wanted:
        return None
    low, high = 0, min(len(found), len(wanted))
    while low < high:
        middle = (low + high) // 2
        if found[: middle + 1] == wanted[: middle + 1]:
            low = middle + 1
        else:
            high = middle
    return (f"byte {low} of {len(wanted)}: found {found[low:low + 8].hex()}, wanted {wanted[low:low + 8].hex()}; "
            f"{sum(a != b for a, b in zip(found, wanted))} bytes differ")


def not_zero(found, start=0):
    """None if all bytes are zero, else words on the first that is not; `start` is where they begin."""
    rest = found.lstrip(b"\0")
    if not rest:
        return None
    place = len(found) - len(rest)
    return f"byte {start + place}: {rest[:8].hex()}; {len(found) - found.count(0)} bytes of {len(found)} from {start} on"

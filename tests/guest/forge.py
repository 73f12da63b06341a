# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Sends frames whose offload words no honest driver makes, from a node that has the hostile driver (scripts/build hostile).

`forge.py INTERFACE SOURCE DESTINATION` prints how many bad and good ones it has sent.
"""

import socket
import struct
import sys
import time

MARK = b"NUPAFORG"  # drivers/net/forged.rs
SOL_PACKET, PACKET_VNET_HDR = 263, 15
NEEDS_CSUM, CSUM_VALID, GSO_ECN = 1, 2, 4
NONE, TCPV4, TCPV6, UDP_L4 = 0, 1, 4, 5
TCP, UDP = 6, 17
LONG, SHORT = 8000, 1500  # payload: with fragments at the receiver, and without


def words(kind=NONE, flags=0, size=0, headers=0, start=0, offset=0):
    """struct FrameMeta of drivers/proto/frame.rs."""
    return struct.pack("<BBHHHHHI", kind, flags, size, headers, start, offset, 0, 0)


def packet(version, protocol, payload, ports=(9, 9)):
    """An IP packet without its checksums; returns it and the length of its IP header."""
    transport = struct.pack(">HHHH", *ports, 8 + payload, 0)
    if protocol == TCP:
        transport = struct.pack(">HHIIBBHHH", *ports, 1, 1, 0x50, 0x10, 1000, 0, 0)
    body = transport + bytes(payload)
    if version == 4:
        header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0, bytes([10, 77, 0, 200]), bytes([10, 77, 0, 201]))
        total = sum(struct.unpack(">10H", header))
        total = (total & 0xFFFF) + (total >> 16)
        header = header[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + header[12:]
    else:
        header = struct.pack(">IHBB16s16s", 6 << 28, len(body), protocol, 64, bytes(15) + b"\1", bytes(15) + b"\2")
    return header + body, len(header)


def frames(payload):
    """Per kind of super-frame: its ethertype, its packet, the words that fit it as keywords."""
    for version, ethertype in ((4, 0x0800), (6, 0x86DD)):
        for protocol in (TCP, UDP):
            data, header = packet(version, protocol, payload)
            start = 14 + header
            kind = UDP_L4 if protocol == UDP else TCPV4 if version == 4 else TCPV6
            yield ethertype, data, {
                "kind": kind, "flags": NEEDS_CSUM, "size": 1000, "start": start, "offset": 6 if protocol == UDP else 16,
                "headers": start + (8 if protocol == UDP else 20)}


def wrong(right, data):
    """All that is wrong with the words of a super-frame, one at a time."""
    others = {TCPV4, TCPV6, UDP_L4} - {right["kind"]}
    yield from ({"kind": kind} for kind in {*others, 2, 3, 6, 7, 0x80, 0x80 | right["kind"], 0xFF})
    yield from ({"size": size} for size in (0, 0xFFFF))
    yield from ({"flags": flags} for flags in (0, CSUM_VALID, GSO_ECN, *(NEEDS_CSUM | 1 << bit for bit in (5, 6, 7))))
    if right["kind"] == UDP_L4:
        yield from ({"size": size} for size in (1, 7, 10))
        yield {"flags": NEEDS_CSUM | GSO_ECN}
    start, end = right["start"], 14 + len(data)
    yield from ({"start": at} for at in (0, 1, 2, 12, 13, 14, 15, 20, 33, start - 20, start - 2, start - 1, start + 1, start + 2, start + 8,
                                         255, 256, end - 2, end - 1, end, 0x7FFF, 0xFFF0, 0xFFFE, 0xFFFF))
    yield from ({"offset": at} for at in (0, 1, 4, right["offset"] - 1, right["offset"] + 1, 22 - right["offset"], 18, 200, end, 0xFFFE, 0xFFFF))


def wrong_alone(right, data):
    """What is wrong with a checksum to do, where there is nothing to segment."""
    base = {"kind": NONE, "size": 0}
    end = 14 + len(data)
    yield from (base | {"start": at} for at in (0, 1, 13, 14, 20, 33, end - 1, end, 0x7FFF, 0xFFF0, 0xFFFE, 0xFFFF))
    yield from (base | {"offset": at} for at in (end - right["start"] - 1, end, 0x7FFF, 0xFFFE, 0xFFFF))
    yield base | {"flags": GSO_ECN}
    yield base | {"flags": NEEDS_CSUM | GSO_ECN}


def bad_headers(ethertype, data):
    """Packets that are not what their words say."""
    yield 0x88B5, data
    yield 0x0806, data
    yield 0x86DD if ethertype == 0x0800 else 0x0800, data
    if ethertype == 0x0800:
        for at, value in ((0, 0x65), (0, 0x44), (0, 0x40), (0, 0x4F), (6, 0x20), (7, 1), (9, 1), (9, 132)):
            yield ethertype, data[:at] + bytes([value]) + data[at + 1:]
    else:
        for at, value in ((0, 0x45), (6, 44), (6, 0), (6, 50), (6, 59)):
            yield ethertype, data[:at] + bytes([value]) + data[at + 1:]


def cases():
    """(whether it is good, ethertype, packet, words) of all."""
    for payload in (LONG, SHORT):
        for ethertype, data, right in frames(payload):
            yield True, ethertype, data, words(**right)
            yield True, ethertype, data, words(**right | {"kind": NONE, "size": 0})
            for change in (*wrong(right, data), *wrong_alone(right, data)):
                yield False, ethertype, data, words(**right | change)
            for kind, changed in bad_headers(ethertype, data):
                yield False, kind, changed, words(**right)
            if payload == LONG:
                # Headers that are not in the linear part.
                yield False, ethertype, data, words(**right | {"headers": 14})
                yield False, ethertype, data, words(**right | {"headers": right["start"] + 7})


def main(interface, source, destination):
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    raw.bind((interface, 0))
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    raw.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    addresses = bytes.fromhex((destination + source).replace(":", ""))
    counts = {True: 0, False: 0}
    for good, ethertype, data, meta in cases():
        counts[good] += 1
        frame = addresses + struct.pack(">H", ethertype) + data
        # The length of the headers is that of the linear part, which the driver looks for the mark in.
        linear = struct.pack("=BBHHHH", 0, 0, len(frame), 0, 0, 0)
        raw.send(linear + frame[:-len(MARK + meta)] + MARK + meta)
        if sum(counts.values()) % 16 == 0:
            time.sleep(0.01)  # for the receiver to keep up
    print(counts[False], counts[True])


if __name__ == "__main__":
    main(*sys.argv[1:])

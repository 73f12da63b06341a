# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Has the family `nupa` drain controller $1 by requests that no well-behaved program makes; prints the error of each, as JSON."""

import errno
import json
import socket
import struct
import sys

GENERIC, CONTROL, GET_FAMILY, DRAIN = 16, 16, 3, 8
REQUEST_ACK = 1 | 4
FAMILY_ID, FAMILY_NAME, INDEX, DRAINING = 1, 2, 1, 16


def attribute(number, payload):
    return struct.pack("=HH", 4 + len(payload), number) + payload + bytes(-len(payload) % 4)


def word(number, value):
    return attribute(number, struct.pack("=I", value))


def asked(channel, family, command, attributes, reserved=0):
    """The answer to a request, or the number of the error."""
    body = struct.pack("=BBH", command, 1, reserved) + attributes
    channel.send(struct.pack("=IHHII", 16 + len(body), family, REQUEST_ACK, 1, 0) + body)
    answer = channel.recv(1 << 16)
    kind, code = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
    return -code if kind == 2 else answer


def family_of(answer):
    at = 20
    while at < len(answer):
        length, number = struct.unpack_from("=HH", answer, at)
        if number == FAMILY_ID:
            return struct.unpack_from("=H", answer, at + 4)[0]
        at += (length + 3) & ~3
    raise LookupError("no family")


OURS, DRAINED = word(INDEX, int(sys.argv[1])), word(DRAINING, 1)
REQUESTS = {
    "nothing": b"",
    "no index": DRAINED,
    "no value": OURS,
    "another value": OURS + word(DRAINING, 2),
    "no such controller": word(INDEX, 0xffff_ffff) + DRAINED,
    "short": OURS + attribute(DRAINING, b"\1"),
    "long": OURS + attribute(DRAINING, bytes(8)),
    "another attribute": OURS + DRAINED + word(2, 1),
    "an attribute of no policy": OURS + DRAINED + word(1000, 1),
    "cut off": OURS + struct.pack("=HH", 400, DRAINING),
    "behind": OURS + DRAINED + b"\1\1",
}

with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC) as channel:
    channel.settimeout(10)
    # The acknowledgement behind this answer stays unread.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, GENERIC) as first:
        family = family_of(asked(first, CONTROL, GET_FAMILY, attribute(FAMILY_NAME, b"nupa\0")))
    found = {name: asked(channel, family, DRAIN, attributes) for name, attributes in REQUESTS.items()}
    found["reserved"] = asked(channel, family, DRAIN, OURS + DRAINED, reserved=1)
    found["no such command"] = asked(channel, family, 200, b"")
print(json.dumps({name: errno.errorcode.get(code, "done") for name, code in found.items()}))

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
# Acknowledgements say what is wrong, and do not repeat the request.
SOL_NETLINK, CAP_ACK, EXT_ACK, MISSING_TYPE = 270, 10, 11, 5


def attribute(number, payload):
    return struct.pack("=HH", 4 + len(payload), number) + payload + bytes(-len(payload) % 4)


def word(number, value):
    return attribute(number, struct.pack("=I", value))


def asked(channel, family, command, attributes, reserved=0):
    """The answer to a request, or the error, with the attribute that is missing if the kernel names it."""
    body = struct.pack("=BBH", command, 1, reserved) + attributes
    channel.send(struct.pack("=IHHII", 16 + len(body), family, REQUEST_ACK, 1, 0) + body)
    answer = channel.recv(1 << 16)
    kind, code = struct.unpack_from("=H", answer, 4)[0], struct.unpack_from("=i", answer, 16)[0]
    if kind != 2:
        return answer
    # Behind the error and the head of the request.
    missing = found(answer, 36, MISSING_TYPE)
    return errno.errorcode.get(-code, "done") + (f", {missing[0]} is missing" if missing else "")


def found(answer, at, wanted):
    """The payload of an attribute, as bytes; None without it."""
    while at < len(answer):
        length, number = struct.unpack_from("=HH", answer, at)
        if number == wanted:
            return answer[at + 4:at + length]
        at += (length + 3) & ~3
    return None


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
        answer = asked(first, CONTROL, GET_FAMILY, attribute(FAMILY_NAME, b"nupa\0"))
    family = struct.unpack("=H", found(answer, 20, FAMILY_ID))[0]
    for option in CAP_ACK, EXT_ACK:
        channel.setsockopt(SOL_NETLINK, option, 1)
    errors = {name: asked(channel, family, DRAIN, attributes) for name, attributes in REQUESTS.items()}
    errors["reserved"] = asked(channel, family, DRAIN, OURS + DRAINED, reserved=1)
    errors["no such command"] = asked(channel, family, 200, b"")
print(json.dumps(errors))

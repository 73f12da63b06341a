# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the network core says of an interface's queues by generic netlink (family netdev):  netdev.py INTERFACE

One line of JSON: queues, NAPI instances, and statistics of the device and of each queue (include/uapi/linux/netdev.h).
"""

import json
import socket
import struct
import sys

NETLINK_GENERIC, GENL_ID_CTRL = 16, 16
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 3, 1, 2
QUEUE_GET, NAPI_GET, QSTATS_GET = 10, 11, 12
SCOPE_QUEUE = 1
QUEUE = {1: "id", 2: "ifindex", 3: "type", 4: "napi"}
NAPI = {1: "ifindex", 2: "id", 3: "irq"}
STATS = {1: "ifindex", 2: "type", 3: "queue", 8: "rx_packets", 9: "rx_bytes", 10: "tx_packets", 11: "tx_bytes", 12: "rx_alloc_fail", 33: "tx_stop"}


def attribute(kind, payload):
    data = struct.pack("HH", 4 + len(payload), kind) + payload
    return data + bytes(-len(data) % 4)


def attributes(data):
    while len(data) >= 4:
        size, kind = struct.unpack_from("HH", data)
        yield kind & 0x3fff, data[4:size]
        data = data[(size + 3) & ~3:]


def ask(sock, family, command, payload=b"", dump=True):
    """All answers, each a list of attributes."""
    flags = NLM_F_REQUEST | (NLM_F_DUMP if dump else 0)
    sock.send(struct.pack("IHHIIBBH", 20 + len(payload), family, flags, 1, 0, command, 1, 0) + payload)
    answers = []
    while True:
        data = sock.recv(1 << 16)
        while data:
            size, kind = struct.unpack_from("IH", data)
            if kind == NLMSG_ERROR:
                sys.exit(f"netdev.py: error {struct.unpack_from('i', data, 16)[0]} to command {command}")
            if kind == NLMSG_DONE:
                return answers
            answers.append(list(attributes(data[20:size])))
            if not dump:
                return answers
            data = data[(size + 3) & ~3:]


def main():
    interface = socket.if_nametoindex(sys.argv[1])
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC)
    name = attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0")
    found = dict(ask(sock, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, name, dump=False)[0])
    family = struct.unpack("H", found[CTRL_ATTR_FAMILY_ID])[0]

    def objects(command, names, payload):
        answers = ask(sock, family, command, payload)
        return [{names[kind]: int.from_bytes(value, sys.byteorder) for kind, value in answer if kind in names} for answer in answers]

    by_index = attribute(1, struct.pack("I", interface))
    print(json.dumps({
        "queues": objects(QUEUE_GET, QUEUE, attribute(2, struct.pack("I", interface))),
        "napis": objects(NAPI_GET, NAPI, by_index),
        # In this order: what the device has moved is no less than what its queues had.
        "by_queue": objects(QSTATS_GET, STATS, by_index + attribute(4, struct.pack("Q", SCOPE_QUEUE))),
        "device": objects(QSTATS_GET, STATS, by_index),
    }))


main()

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""XDP programs for the tests, written as instructions, and what shows what they do; a node has neither a compiler nor bpftool.

    xdp.py attach INTERFACE ACTION [--frags] [--vlan] [--to INTERFACE] [CHANGE]   of UDP over IPv4 to PORT; anything else passes
    xdp.py echo ADDRESS SIZE...      sends datagrams, and expects the same ones back from there
    xdp.py send ADDRESS SIZE...      sends datagrams
    xdp.py take COUNT                receives datagrams
    xdp.py watch INTERFACE COUNT     the same with a packet socket, whoever they are for; --trim N: without so many bytes at their ends
    xdp.py inject INTERFACE MAC SOURCE DESTINATION SIZE...               sends them as frames with a packet socket

A CHANGE is --metadata (the beginning is moved to and fro, and metadata put before it), --trim N (bytes at the end go) or --pop (the tag goes).

Datagrams go from PORT to PORT. What they hold follows from their size, so the one line of JSON at the end has sizes of right ones only.
"""

import argparse
import ctypes
import json
import os
import random
import socket
import struct
import sys

PORT = 5999
SECONDS = 20
SO_RCVBUFFORCE = 33
READY = "/run/xdp.ready"

SYS_BPF, BPF_PROG_LOAD, BPF_PROG_TYPE_XDP, BPF_XDP = 321, 5, 6, 37
BPF_F_XDP_HAS_FRAGS = 1 << 5
BPF_REDIRECT, BPF_XDP_ADJUST_HEAD, BPF_XDP_ADJUST_META, BPF_XDP_ADJUST_TAIL = 23, 44, 54, 65
# Instructions, as include/uapi/linux/bpf.h puts their parts together.
MOVE, MOVE_REGISTER, ADD, CALL, EXIT, IF_GREATER, IF_NOT = 0xB7, 0xBF, 0x07, 0x85, 0x95, 0x2D, 0x55
ACTIONS = {"aborted": 0, "drop": 1, "pass": 2, "tx": 3, "unknown": 77}
RTM_SETLINK, NLM_F_REQUEST, NLM_F_ACK, NLMSG_ERROR = 19, 1, 4, 2
IFLA_XDP, IFLA_XDP_FD, IFLA_XDP_FLAGS, XDP_FLAGS_DRV_MODE = 43, 1, 3, 1 << 2
SOL_NETLINK, NETLINK_CAP_ACK, NETLINK_EXT_ACK, NLMSGERR_ATTR_MSG = 270, 10, 11, 1
ETH_P_ALL, PACKET_OUTGOING = 3, 4


class Program:
    """Instructions, with jumps forward to the end of what acts."""

    def __init__(self):
        self.instructions, self.jumps = [], []

    def add(self, code, to=0, source=0, offset=0, value=0):
        self.instructions.append([code, source << 4 | to, offset, value])

    def load(self, size, to, source, offset):
        self.add(0x61 | {4: 0x00, 2: 0x08, 1: 0x10}[size], to, source, offset)

    def store(self, size, to, source, offset):
        self.add(0x63 | {4: 0x00, 2: 0x08, 1: 0x10}[size], to, source, offset)

    def jump(self, code, to, source=0, value=0):
        self.jumps.append(len(self.instructions))
        self.add(code, to, source, 0, value)

    def end(self, action):
        self.add(MOVE, 0, value=action)
        self.add(EXIT)

    def adjust(self, function, by):
        """Moves an end of the frame; where that fails, it passes. Register 6 has the context."""
        self.add(MOVE_REGISTER, 1, 6)
        self.add(MOVE, 2, value=by)
        self.add(CALL, value=function)
        self.jump(IF_NOT, 0)

    def swap(self, size, one, other):
        """Of the frame that register 2 points to."""
        self.load(size, 4, 2, one)
        self.load(size, 5, 2, other)
        self.store(size, 2, 5, one)
        self.store(size, 2, 4, other)

    def packed(self):
        """Where it does not apply, the packet passes."""
        last = len(self.instructions)
        for jump in self.jumps:
            self.instructions[jump][2] = last - jump - 1
        self.end(ACTIONS["pass"])
        return b"".join(struct.pack("<BBhi", *one) for one in self.instructions)


def change(code, metadata, trim, pop):
    """Moves ends of the frame that register 2 points to, which does not do so afterwards."""
    if pop:
        for offset in (8, 4, 0):
            code.load(4, 5, 2, offset)
            code.store(4, 2, 5, offset + 4)
        code.adjust(BPF_XDP_ADJUST_HEAD, 4)
    if metadata:
        code.adjust(BPF_XDP_ADJUST_HEAD, -64)
        code.adjust(BPF_XDP_ADJUST_HEAD, 64)
        code.adjust(BPF_XDP_ADJUST_META, -32)
    if trim:
        code.adjust(BPF_XDP_ADJUST_TAIL, -trim)


def program(action, to, vlan, **changes):
    tag = 4 if vlan else 0
    code = Program()
    code.add(MOVE_REGISTER, 6, 1)
    code.load(4, 2, 1, 0)  # data
    code.load(4, 3, 1, 4)  # data_end
    code.add(MOVE_REGISTER, 4, 2)
    code.add(ADD, 4, value=42 + tag)
    code.jump(IF_GREATER, 4, 3)
    if vlan:
        code.load(2, 5, 2, 12)
        code.jump(IF_NOT, 5, value=socket.htons(0x8100))
    for size, offset, value in ((2, 12 + tag, socket.htons(0x0800)), (1, 23 + tag, 17), (2, 36 + tag, socket.htons(PORT))):
        code.load(size, 5, 2, offset)
        code.jump(IF_NOT, 5, value=value)
    if action == "tx":
        for size, one, other in ((4, 0, 6), (2, 4, 10), (4, 26, 30)):
            code.swap(size, one, other)
    change(code, **changes)
    if action == "redirect":
        code.add(MOVE, 1, value=socket.if_nametoindex(to))
        code.add(MOVE, 2)
        code.add(CALL, value=BPF_REDIRECT)
        code.add(EXIT)
        return code.packed()
    code.end(ACTIONS[action])
    return code.packed()


def load(instructions, frags):
    libc = ctypes.CDLL(None, use_errno=True)
    code, text, log = ctypes.create_string_buffer(instructions), ctypes.create_string_buffer(b"GPL"), ctypes.create_string_buffer(1 << 16)
    attributes = struct.pack("<IIQQIIQII16sII", BPF_PROG_TYPE_XDP, len(instructions) // 8, ctypes.addressof(code), ctypes.addressof(text),
                             1, len(log), ctypes.addressof(log), 0, BPF_F_XDP_HAS_FRAGS if frags else 0, b"nupa", 0, BPF_XDP)
    found = libc.syscall(SYS_BPF, BPF_PROG_LOAD, ctypes.create_string_buffer(attributes), len(attributes))
    if found < 0:
        sys.exit(f"xdp.py: cannot load: {os.strerror(ctypes.get_errno())}\n{log.value.decode()}")
    return found


def attribute(kind, payload):
    data = struct.pack("HH", 4 + len(payload), kind) + payload
    return data + bytes(-len(data) % 4)


def route_socket():
    """A socket of rtnetlink whose answers say why."""
    sock = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    sock.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
    sock.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
    return sock


def attach(interface, found):
    """Fails with what the driver says, if it refuses it."""
    with route_socket() as sock:
        attach_to(sock, socket.if_nametoindex(interface), found)


def attach_to(sock, index, found):
    """As `attach`, where the socket and the interface's index are known."""
    nested = attribute(IFLA_XDP_FD, struct.pack("i", found)) + attribute(IFLA_XDP_FLAGS, struct.pack("I", XDP_FLAGS_DRV_MODE))
    body = struct.pack("BxHiII", 0, 0, index, 0, 0) + attribute(IFLA_XDP | 0x8000, nested)
    sock.send(struct.pack("IHHII", 16 + len(body), RTM_SETLINK, NLM_F_REQUEST | NLM_F_ACK, 1, 0) + body)
    answer = sock.recv(1 << 16)
    kind, = struct.unpack_from("H", answer, 4)
    error, = struct.unpack_from("i", answer, 16)
    assert kind == NLMSG_ERROR
    rest, said = answer[36:], ""
    while error and len(rest) >= 4:
        size, kind = struct.unpack_from("HH", rest)
        if kind == NLMSGERR_ATTR_MSG:
            said = rest[4:size].rstrip(b"\0").decode()
        rest = rest[(size + 3) & ~3:]
    if error:
        raise OSError(-error, f"{os.strerror(-error)}: {said}")


def payload(size):
    return random.Random(size).randbytes(size)


def is_right(data, trim=0):
    return data == payload(len(data) + trim)[:len(data)]


def udp():
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    sock.bind(("0.0.0.0", PORT))
    sock.settimeout(SECONDS)
    return sock


def echo(address, sizes):
    sock, right = udp(), []
    for size in sizes:
        sock.sendto(payload(size), (address, PORT))
        try:
            data, sender = sock.recvfrom(1 << 16)
        except TimeoutError:
            continue
        if sender == (address, PORT) and data == payload(size):
            right.append(size)
    return right


def send(address, sizes):
    sock = udp()
    for size in sizes:
        sock.sendto(payload(size), (address, PORT))
    return sizes


def ready():
    with open(READY, "w", encoding="ascii"):
        pass


def take(count):
    sock, right = udp(), []
    ready()
    try:
        while len(right) < count:
            data = sock.recv(1 << 16)
            if is_right(data):
                right.append(len(data))
    except TimeoutError:
        pass
    return right


def watch(interface, count, trim):
    sock, right = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)), []
    sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 8 << 20)
    sock.bind((interface, ETH_P_ALL))
    sock.settimeout(SECONDS)
    ready()
    try:
        while len(right) < count:
            data, where = sock.recvfrom(1 << 17)
            if where[2] == PACKET_OUTGOING or data[12:14] != b"\x08\0" or data[23] != 17 or data[36:38] != struct.pack(">H", PORT):
                continue
            if is_right(data[42:], trim):
                right.append(len(data) - 42 + trim)
    except TimeoutError:
        pass
    return right


def inject(interface, mac, source, destination, sizes):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
    sock.bind((interface, 0))
    for size in sizes:
        header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 28 + size, 1, 0, 64, 17, 0, socket.inet_aton(source), socket.inet_aton(destination))
        total = sum(struct.unpack(">10H", header))
        total = (total & 0xFFFF) + (total >> 16)
        header = header[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + header[12:]
        ports = struct.pack(">HHHH", PORT, PORT, 8 + size, 0)
        sock.send(bytes.fromhex(mac.replace(":", "")) + bytes(6) + b"\x08\0" + header + ports + payload(size))
    return sizes


def main():
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("attach")
    one.add_argument("interface")
    one.add_argument("action", choices=[*ACTIONS, "redirect"])
    one.add_argument("--frags", action="store_true")
    one.add_argument("--vlan", action="store_true")
    one.add_argument("--to")
    one.add_argument("--metadata", action="store_true")
    one.add_argument("--trim", type=int, default=0)
    one.add_argument("--pop", action="store_true")
    for name, words in (("echo", ["address"]), ("send", ["address"]), ("inject", ["interface", "mac", "source", "destination"])):
        one = commands.add_parser(name)
        for word in words:
            one.add_argument(word)
        one.add_argument("sizes", nargs="+", type=int)
    commands.add_parser("take").add_argument("count", type=int)
    one = commands.add_parser("watch")
    one.add_argument("interface")
    one.add_argument("count", type=int)
    one.add_argument("--trim", type=int, default=0)
    options = vars(parser.parse_args())
    command = options.pop("command")
    if command == "attach":
        interface, frags = options.pop("interface"), options.pop("frags")
        try:
            attach(interface, load(program(**options), frags))
        except OSError as failure:
            sys.exit(f"xdp.py: {failure.args[1]}")
        return
    print(json.dumps(globals()[command](**options)))


if __name__ == "__main__":
    main()

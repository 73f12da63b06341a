# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Unconnected queue pairs (UD): the header, what is dropped, and that one queue pair serves many."""

import ipaddress
import random

import pytest

from verbs import DEVICE, Side, gid_of, sge

GRH = 40
QKEY = 0x1ABCDE
LARGEST = 4096


def datagram_side(program, **options):
    side = Side(program, kind="UD", **options)
    side.program.to_init(side.qp, qkey=QKEY)
    side.program.to_rtr(side.qp)
    side.program.to_rts(side.qp)
    return side


def address_of(a, b, version=4):
    """A's handle for B's address, and the GIDs that it names."""
    ours, theirs = ((side.program.node.ip if version == 4 else side.program.node.ip6) for side in (a, b))
    return a.program.address(a.pd, gid_of(theirs), a.program.gid(ours)[0]), ours, theirs


def send(a, handle, b, sges, qkey=QKEY, **options):
    a.post_send("SEND" if "imm" not in options else "SEND_WITH_IMM", sges=sges, address=[handle, b.qp.qpn, qkey], **options)
    a.done("SEND")


# What the low 3 bits of a completion's service level say of a datagram's header (as mlx5 and irdma have it; UCX reads it there).
HEADER_TYPE = {4: 2, 6: 1}


@pytest.mark.parametrize("version", [4, 6])
def test_datagrams(settled, rdma, saw, version):
    """Sizes up to the MTU, with and without immediate data; source, header and payload are right."""
    a, b = (datagram_side(rdma.program(node)) for node in settled)
    handle, ours, theirs = address_of(a, b, version)
    choose = random.Random(version)
    for number, size in enumerate([0, 1, 2, 64, LARGEST, *(choose.randrange(LARGEST) for _ in range(10))]):
        local, far = a.region(size + 1, number), b.region(GRH + size + 100, 50)
        b.post_recv([sge(far)], wr_id=number)
        send(a, handle, b, [sge(local, 1)], **({"imm": number} if number % 2 else {}))
        found = b.done("RECV", wr_id=number, byte_len=GRH + size, src_qp=a.qp.qpn, **({"imm": number} if number % 2 else {}))
        assert found["flags"] & 1, "no header is announced"
        assert found["sl"] & 7 == HEADER_TYPE[version], f"service level {found['sl']} for a header of IPv{version}"
        header = bytes.fromhex(b.program.load(far.buffer, 0, GRH))
        check_header(header, ours, theirs, version)
        b.check(far, [[0, header.hex()], [GRH, number, 1, size]])
    saw(f"{number + 1} datagrams of 0 to {LARGEST} bytes over IPv{version}")


def test_header_type_of_an_extended_queue(settled, rdma, saw):
    """Polled piece by piece, completions say the same of datagrams' headers."""
    a, b = datagram_side(rdma.program(settled[0])), datagram_side(rdma.program(settled[1]), extended=True)
    local, far = a.region(8, 1), b.region(GRH + 8, 2)
    found = {}
    for version in (4, 6):
        b.post_recv([sge(far)])
        send(a, address_of(a, b, version)[0], b, [sge(local)])
        found[version] = b.done("RECV", byte_len=GRH + 8)["sl"] & 7
    assert found == HEADER_TYPE
    saw(f"service levels {found}")


def check_header(header, source, target, version):
    if version == 4:
        assert header[20] >> 4 == 4, f"no IPv4 header: {header.hex()}"
        addresses = header[32:36], header[36:40]
    else:
        assert header[0] >> 4 == 6, f"no IPv6 header: {header.hex()}"
        addresses = header[8:24], header[24:40]
    assert [str(ipaddress.ip_address(address)) for address in addresses] == [source, target]


def test_dropped_datagrams(settled, rdma, saw):
    """Wrong queue key, no buffer, no such queue pair: the sender succeeds, the receiver gets nothing and goes on."""
    a, b = (datagram_side(rdma.program(node)) for node in settled)
    handle = address_of(a, b)[0]
    local, far = a.region(100, 1), b.region(GRH + 100, 2)
    send(a, handle, b, [sge(local)])
    b.post_recv([sge(far)])
    send(a, handle, b, [sge(local)], qkey=QKEY ^ 1)
    a.post_send("SEND", sges=[sge(local)], address=[handle, 0xFFFFF0, QKEY])
    a.done("SEND")
    b.quiet()
    b.check(far)
    send(a, handle, b, [sge(local)])
    b.done("RECV", byte_len=GRH + 100)
    saw("no buffer, wrong key and wrong number dropped, the next one arrives")


def test_many_senders(settled, rdma, saw):
    """One queue pair hears several programs on both nodes, its own node included, and answers each."""
    one, two = settled
    server = datagram_side(rdma.program(two))
    clients = [datagram_side(rdma.program(node)) for node in (one, two, one)]
    inbox = server.region(len(clients) * (GRH + 8), 9)
    for number in range(len(clients)):
        server.post_recv([sge(inbox, number * (GRH + 8), GRH + 8)], wr_id=number)
    for number, client in enumerate(clients):
        send(client, address_of(client, server)[0], server, [sge(client.region(8, number))])
        assert server.done("RECV", wr_id=number)["src_qp"] == client.qp.qpn
        reply, answer = client.region(GRH + 8, 5), server.region(8, 100 + number)
        client.post_recv([sge(reply)])
        send(server, address_of(server, client)[0], client, [sge(answer)])
        client.done("RECV", byte_len=GRH + 8, src_qp=server.qp.qpn)
    saw(f"{len(clients)} clients on two nodes served by one queue pair")


def test_address_of_nobody(settled, rdma, saw):
    """An address that no node has: the handle cannot be made, and nothing hangs."""
    a = datagram_side(rdma.program(settled[0]))
    if DEVICE.startswith("rxe"):
        pytest.skip("soft RoCE makes such a handle")
    failed = a.program.fails("address", a.pd, gid_of("10.77.0.99"), a.program.gid()[0], wait=60)
    saw(f"errno {failed}")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Work requests and completions of a verbs program: between JSON and pyverbs."""

import socket

import pyverbs.enums as e
from pyverbs.mr import MWBindInfo
from pyverbs.qp import DataBuffer
from pyverbs.wr import SGE, RecvWR, SendWR

def flags(prefix, names):
    """The value of 'A|B' for constants IBV_prefix_A and IBV_prefix_B."""
    return sum(getattr(e, f"IBV_{prefix}_{name}") for name in names.split("|") if name)


def name_of(kind, value):
    """A constant's name without its prefix, or its number if it has none."""
    try:
        return kind(value).name.removeprefix("IBV_WC_")
    except ValueError:
        return value


def receive(wr_id, sges):
    """A receive request; `sges` are [address, length, key]."""
    # pyverbs insists on an element; the count takes it away again.
    request = RecvWR(wr_id=wr_id, num_sge=len(sges) or 1, sg=[SGE(*sge) for sge in sges or [(0, 0, 0)]])
    request.num_sge = len(sges)
    return request


class Send:
    """One request for a send queue, as the test describes it."""

    def __init__(self, opcode, wr_id=0, sges=(), flags="SIGNALED", remote=None, imm=0, invalidate=0, compare=0, swap=0,
                 add=0, data="", bind=None, address=None, length=0, flush=None):
        self.opcode, self.wr_id, self.sges, self.flags = opcode, wr_id, sges, flags
        self.remote = remote  # [address, key]
        self.imm, self.invalidate = imm, invalidate
        self.compare, self.swap, self.add = compare, swap, add
        self.data = data  # of an ATOMIC_WRITE, in hexadecimal
        self.bind = bind  # [window, region, address, length, access]
        self.address = address  # [address handle, queue pair number, queue key]
        self.length, self.flush = length, flush  # of a FLUSH: bytes, [placement, selectivity]

    def elements(self):
        return [SGE(*sge) for sge in self.sges]

    def request(self):
        """The request as a struct ibv_send_wr."""
        elements = self.elements()
        request = SendWR(wr_id=self.wr_id, opcode=flags("WR", self.opcode), num_sge=len(elements) or 1,
                         sg=elements or [SGE(0, 0, 0)], send_flags=flags("SEND", self.flags),
                         imm_data=self.invalidate or socket.htonl(self.imm))
        request.num_sge = len(elements)
        if self.opcode in ("ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD"):
            address, key = self.remote
            request.set_wr_atomic(key, address, self.add or self.compare, self.swap)
        elif self.remote:
            request.set_wr_rdma(self.remote[1], self.remote[0])
        if self.address:
            request.set_wr_ud(*self.address)
        if self.bind:
            window, region, address, length, access = self.bind
            request.set_bind_wr(window, MWBindInfo(region, address, length, flags("ACCESS", access)))
        return request

    def post_extended(self, queue):
        """Posts the request by the ibv_wr_* interface; returns the key that it made, if it makes one."""
        key = None
        queue.wr_start()
        queue.wr_id, queue.wr_flags = self.wr_id, flags("SEND", self.flags)
        address, rkey = self.remote or (0, 0)
        match self.opcode:
            case "SEND":
                queue.wr_send()
            case "SEND_WITH_IMM":
                queue.wr_send_imm(self.imm)
            case "SEND_WITH_INV":
                queue.wr_send_inv(self.invalidate)
            case "RDMA_WRITE":
                queue.wr_rdma_write(rkey, address)
            case "RDMA_WRITE_WITH_IMM":
                queue.wr_rdma_write_imm(rkey, address, self.imm)
            case "RDMA_READ":
                queue.wr_rdma_read(rkey, address)
            case "ATOMIC_CMP_AND_SWP":
                queue.wr_atomic_cmp_swp(rkey, address, self.compare, self.swap)
            case "ATOMIC_FETCH_AND_ADD":
                queue.wr_atomic_fetch_add(rkey, address, self.add)
            case "ATOMIC_WRITE":
                queue.wr_atomic_write(rkey, address, bytes.fromhex(self.data))
            case "FLUSH":
                queue.wr_flush(rkey, address, self.length, *self.flush)
            case "LOCAL_INV":
                queue.wr_local_inv(self.invalidate)
            case "BIND_MW":
                window, region, start, length, access = self.bind
                key = next_key(window.rkey)
                queue.wr_bind_mw(window, key, MWBindInfo(region, start, length, flags("ACCESS", access)))
        if self.address:
            queue.wr_set_ud_addr(*self.address)
        elements = self.elements()
        if "INLINE" in self.flags:
            queue.wr_set_inline_data_list(len(self.sges), [DataBuffer(address, length) for address, length, _ in self.sges])
        elif elements:
            queue.wr_set_sge_list(len(elements), elements)
        queue.wr_complete()
        return key


def next_key(key):
    """ibv_inc_rkey(): the low byte is the consumer's."""
    return key & ~0xFF | (key + 1) & 0xFF


def completion(wc):
    """A completion as the test reads it."""
    return {
        "wr_id": wc.wr_id, "status": name_of(e.ibv_wc_status, wc.status), "opcode": name_of(e.ibv_wc_opcode, wc.opcode),
        "byte_len": wc.byte_len, "imm": socket.ntohl(wc.imm_data), "flags": wc.wc_flags, "qpn": wc.qp_num, "src_qp": wc.src_qp,
        "sl": wc.sl,
    }


def extended_completion(queue):
    """The completion that an extended queue's poll is at."""
    status = name_of(e.ibv_wc_status, queue.status)
    found = {"wr_id": queue.wr_id, "status": status, "qpn": queue.read_qp_num()}
    if status == "SUCCESS":
        found |= {"opcode": name_of(e.ibv_wc_opcode, queue.read_opcode()), "byte_len": queue.read_byte_len(),
                  "imm": socket.ntohl(queue.read_imm_data()), "flags": queue.read_wc_flags(), "src_qp": queue.read_src_qp(),
                  "sl": queue.read_sl()}
    return found

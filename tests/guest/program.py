# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A verbs program that does what a test on the host tells it, one call after the other.

What is made is known by a number. Calls take and return what JSON can say; a verb that fails raises, and the test gets
its errno.
"""

import ctypes
import fcntl
import mmap
import os
import resource
import select
import struct
import time

import pyverbs.enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ, CQEX, CompChannel, CqInitAttrEx, PollCqAttr
from pyverbs.device import DM, AllocDmAttr, Context
from pyverbs.mr import DMMR, MR, MW, DmaBufMR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPEx, QPInitAttr, QPInitAttrEx
from pyverbs.srq import SRQ, SrqAttr, SrqInitAttr
from pyverbs.wr import SGE

from exchange import Exchange
from groups import Groups
from loops import Loops
from many import Many
from mapped import Mapped
from mixture import Mixture
from pattern import difference, not_zero, pattern, patched
from peer_region import PeerRegions
from scribble import Scribble
from share import Share
from stamps import Stamps
from work import Send, completion, extended_completion, flags, receive

PORT = 1
HUGE_PAGE = 2 << 20
# Bytes of device memory that are copied at once.
CHUNK = 1 << 20
MAP_FIXED = 0x10
UDMABUF_CREATE = 0x40187542  # _IOW('u', 0x42, struct udmabuf_create)


def event_files():
    """Descriptors of this process that deliver events of verbs; pyverbs does not tell which it has."""
    links = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the directory's own
    return {file for file, link in links.items() if "infinibandevent" in link}


def route_to(gid, sgid_index):
    """The address vector of a GID, given as text."""
    route = GlobalRoute(dgid=GID(gid), sgid_index=sgid_index, hop_limit=64)
    return AHAttr(port_num=PORT, is_global=1, gr=route)


class Buffer:
    """Memory of the program: anonymous, or that of a file."""

    def __init__(self, size, seed, file=-1):
        self.memory = mmap.mmap(file, size) if file >= 0 else mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)
        self.size, self.seed = size, seed
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.fill(seed)

    def fill(self, seed):
        self.seed = seed
        self.memory[:] = pattern(seed, self.size)

    def load(self, offset, length):
        return self.memory[offset : offset + length]


class Repeated:
    """Address space that shows one file of huge pages again and again."""

    def __init__(self, size, file_size):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                                                  ctypes.c_long]
        self.file = os.memfd_create("huge", os.MFD_HUGETLB)
        os.ftruncate(self.file, file_size)
        self.memory = mmap.mmap(self.file, file_size)
        self.file_size = file_size
        # Room for the size, from a huge page's boundary on.
        room = libc.mmap(None, size + HUGE_PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE, -1, 0)
        self.address = (room + HUGE_PAGE - 1) // HUGE_PAGE * HUGE_PAGE
        for place in range(self.address, self.address + size, file_size):
            found = libc.mmap(place, file_size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, self.file, 0)
            if found != place:
                raise OSError(ctypes.get_errno(), "mmap")

    def load(self, offset, length):
        start = offset % self.file_size
        return (self.memory[:] * 2)[start : start + length]


class Scattered:
    """Address space that shows every second page of a file, and then the others."""

    def __init__(self, pages):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                                                  ctypes.c_long]
        self.size = pages * mmap.PAGESIZE
        self.file = os.memfd_create("scattered")
        os.ftruncate(self.file, self.size)
        self.address = libc.mmap(None, self.size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_NORESERVE, -1, 0)
        for place, page in enumerate([*range(0, pages, 2), *range(1, pages, 2)]):
            wanted = self.address + place * mmap.PAGESIZE
            found = libc.mmap(wanted, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, self.file,
                              page * mmap.PAGESIZE)
            if found != wanted:
                raise OSError(ctypes.get_errno(), "mmap")


class Program(Exchange, Groups, Loops, Many, Mapped, Mixture, PeerRegions, Scribble, Share, Stamps):
    """One process with a context of its own."""

    def __init__(self):
        self.context = None
        self.async_events = None
        self.any_pd = None
        self.objects = {}
        self.channel_files = {}

    def close(self):
        """Ends as a program that tidies up does."""
        if self.context:
            self.context.close()

    def add(self, thing, **known):
        number = len(self.objects) + 1
        self.objects[number] = thing
        return {"id": number, **known}

    def destroy(self, number):
        self.objects[number].close()

    # The process.

    def become_user(self, user, locked):
        """Gives up root's rights; `locked` is how many bytes of memory the user may lock."""
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (locked, locked))
        os.setgid(user)
        os.setuid(user)

    def pid(self):
        return os.getpid()

    def leave(self):
        """Ends without closing anything."""
        os._exit(0)

    def fork_and_wait(self):
        """Forks a child that ends at once."""
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)

    def fork_and_go_on(self):
        """Forks a child that stays until `end_child`."""
        stay, end = os.pipe()
        if (child := os.fork()) == 0:
            os.close(end)
            os.read(stay, 1)
            os._exit(0)
        os.close(stay)
        self.child = child, end

    def end_child(self):
        child, end = self.child
        os.close(end)
        os.waitpid(child, 0)

    def mappings(self):
        """What the process has mapped of the device."""
        with open("/proc/self/maps") as file:
            return [line.split()[0] for line in file if "/dev/infiniband/" in line]

    def map(self, offset, pages=1):
        mmap.mmap(self.context.cmd_fd, pages * mmap.PAGESIZE, offset=offset).close()

    # Device.

    def environ(self, name, value):
        """Sets a variable of the environment, before the device is opened."""
        os.environ[name] = value

    def open(self, device):
        before = event_files()
        self.context = Context(name=device)
        (self.async_events,) = event_files() - before

    def device(self):
        """What query_device says."""
        found = self.context.query_device_ex()
        found, extended = found.orig_attr, found
        return {name: value for name in dir(found) if isinstance(value := getattr(found, name), (int, str))
                and not name.startswith("_")} | {"max_dm_size": extended.max_dm_size,
                                                 "cap_flags_ex": extended.device_cap_flags_ex,
                                                 "timestamp_mask": extended.completion_timestamp_mask,
                                                 "hca_core_clock": extended.hca_core_clock}

    def gids(self):
        """Entries of the GID table."""
        return [{"index": entry.gid_index, "gid": entry.gid_str(), "type": entry.gid_type, "ifindex": entry.ndev_ifindex}
                for entry in self.context.query_gid_table(256)]

    def async_event(self, timeout):
        """The name of the next asynchronous event, None if there is none in time."""
        if not select.select([self.async_events], [], [], timeout)[0]:
            return None
        event = self.context.get_async_event()
        event.ack()
        return e.ibv_event_type(event.event_type).name.removeprefix("IBV_EVENT_")

    # Memory.

    def pd(self):
        self.any_pd = PD(self.context)  # pyverbs wants one where none is used
        return self.add(self.any_pd)

    def buffer(self, size, seed=0):
        buffer = Buffer(size, seed)
        return self.add(buffer, size=size, address=buffer.address)

    def dmabuf(self, size, seed=0):
        """A buffer of whole pages that is a dmabuf as well, made by /dev/udmabuf."""
        memory = os.memfd_create("dmabuf", os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, size)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with open("/dev/udmabuf", "rb+", buffering=0) as device:
            file = fcntl.ioctl(device, UDMABUF_CREATE, bytearray(struct.pack("=IIQQ", memory, 0, 0, size)))
        buffer = Buffer(size, seed, memory)
        os.close(memory)
        return self.add(buffer, size=size, address=buffer.address, file=file)

    def fill(self, buffer, seed):
        self.objects[buffer].fill(seed)

    def store(self, buffer, offset, text):
        data = bytes.fromhex(text)
        self.objects[buffer].memory[offset : offset + len(data)] = data

    def load(self, buffer, offset, length):
        return self.objects[buffer].load(offset, length).hex()

    def check(self, buffer, patches=()):
        """Compares each byte with what was filled in last, patched; words on the first difference, or None."""
        buffer = self.objects[buffer]
        return difference(buffer.memory[:], patched(buffer.seed, buffer.size, patches))

    def region(self, pd, buffer, access, offset=0, length=None):
        buffer = self.objects[buffer]
        length = buffer.size - offset if length is None else length
        region = MR(self.objects[pd], length, flags("ACCESS", access), address=buffer.address + offset)
        return self.add(region, address=buffer.address + offset, lkey=region.lkey, rkey=region.rkey)

    def region_at(self, pd, address, length, access):
        """A region of what the program has mapped at an address."""
        region = MR(self.objects[pd], length, flags("ACCESS", access), address=address)
        return self.add(region, address=address, size=length, lkey=region.lkey, rkey=region.rkey)

    def region_of_vdso(self, pd):
        """A region, to be read only, of pages of the kernel's own that every process has mapped."""
        with open("/proc/self/maps") as file:
            (place,) = [line.split()[0] for line in file if line.rstrip().endswith("[vdso]")]
        start, end = (int(address, 16) for address in place.split("-"))
        region = MR(self.objects[pd], end - start, 0, address=start)
        return self.add(region, address=start, size=end - start, lkey=region.lkey, rkey=region.rkey)

    def region_of_file(self, pd, path, length, access):
        """A region of a file that is mapped, such as that of a DAX device."""
        file = os.open(path, os.O_RDWR)
        memory = mmap.mmap(file, length)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        region = MR(self.objects[pd], length, flags("ACCESS", access), address=address)
        return self.add([region, memory], address=address, size=length, lkey=region.lkey, rkey=region.rkey)

    def scattered_regions(self, pd, pages, count, access):
        """So many regions of the same memory, whose pages are in no order, so that the device needs the address of each."""
        scattered = Scattered(pages)
        made = [MR(self.objects[pd], scattered.size, flags("ACCESS", access), address=scattered.address) for _ in range(count)]
        return self.add([scattered, *made])

    def reregister(self, region, pd=None, buffer=None, access=None):
        """Changes a region's domain, memory, rights: those that are given."""
        change, length, region = 0, 0, self.objects[region]
        address, pd = 0, self.objects[pd] if pd else None
        if pd:
            change |= e.IBV_REREG_MR_CHANGE_PD
        if buffer:
            change |= e.IBV_REREG_MR_CHANGE_TRANSLATION
            address, length = self.objects[buffer].address, self.objects[buffer].size
        if access:
            change |= e.IBV_REREG_MR_CHANGE_ACCESS
        region.rereg(change, pd or self.any_pd, address, length, flags("ACCESS", access or ""))
        return {"lkey": region.lkey, "rkey": region.rkey}

    def dmabuf_region(self, pd, file, length, access, offset=0):
        """A region of a dmabuf; its addresses start at the offset."""
        region = DmaBufMR(self.objects[pd], length, flags("ACCESS", access), dmabuf=file, offset=offset)
        return self.add(region, address=offset, lkey=region.lkey, rkey=region.rkey)

    def huge_region(self, pd, size, file_size, access):
        """A region of `size` bytes, which are the huge pages of one small file again and again."""
        buffer = Repeated(size, file_size)
        region = MR(self.objects[pd], size, flags("ACCESS", access), address=buffer.address)
        return self.add(buffer, address=buffer.address, rkey=region.rkey, region=self.add(region)["id"])

    def window(self, pd):
        window = MW(self.objects[pd], e.IBV_MW_TYPE_2)
        return self.add(window, rkey=window.rkey)

    def device_memory(self, length):
        return self.add(DM(self.context, AllocDmAttr(length)), size=length)

    def device_region(self, pd, memory, length, access, offset=0):
        region = DMMR(self.objects[pd], length, flags("ACCESS", access) | e.IBV_ACCESS_ZERO_BASED,
                      self.objects[memory], offset)
        return self.add(region, address=0, lkey=region.lkey, rkey=region.rkey)

    def device_store(self, memory, offset, text):
        data = bytes.fromhex(text)
        self.objects[memory].copy_to_dm(offset, data, len(data))

    def device_load(self, memory, offset, length):
        return self.objects[memory].copy_from_dm(offset, length).hex()

    def device_fill(self, memory, length, seed):
        """Fills the first bytes of device memory with a pattern."""
        for offset in range(0, length, CHUNK):
            size = min(CHUNK, length - offset)
            self.objects[memory].copy_to_dm(offset, pattern(seed, size), size)

    def device_left(self, memory, length):
        """Where the first byte is that is not zero, and what is there; None if there is no such byte."""
        for offset in range(0, length, CHUNK):
            if found := not_zero(self.objects[memory].copy_from_dm(offset, min(CHUNK, length - offset)), offset):
                return found
        return None

    # Queues.

    def channel(self):
        before = event_files()
        made = self.add(CompChannel(self.context))
        (self.channel_files[made["id"]],) = event_files() - before
        return made

    def cq(self, entries=256, channel=None, extended=False, overrun=False, more=""):
        """A completion queue; `more` than the standard fields has each completion of an extended one: IBV_WC_EX_WITH_*."""
        channel = self.objects[channel] if channel else None
        if extended or overrun:
            what = e.IBV_WC_STANDARD_FLAGS | flags("WC_EX_WITH", more) if extended else 0
            mask, flag = (e.IBV_CQ_INIT_ATTR_MASK_FLAGS, e.IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) if overrun else (0, 0)
            cq = CQEX(self.context, CqInitAttrEx(cqe=entries, channel=channel, wc_flags=what, comp_mask=mask, flags=flag))
        else:
            cq = CQ(self.context, entries, channel=channel)
        return self.add(cq, entries=entries if extended or overrun else cq.cqe)

    def resize(self, cq, entries):
        self.objects[cq].resize(entries)
        return self.objects[cq].cqe

    def srq(self, pd, entries=64, sges=1):
        return self.add(SRQ(self.objects[pd], SrqInitAttr(SrqAttr(max_wr=entries, max_sge=sges))))

    def limit(self, srq, limit):
        """Asks for an event when fewer than so many receives are left."""
        self.objects[srq].modify(SrqAttr(srq_limit=limit), e.IBV_SRQ_LIMIT)

    def srq_state(self, srq):
        attr = self.objects[srq].query()
        return {"max_wr": attr.max_wr, "max_sge": attr.max_sge, "limit": attr.srq_limit}

    def qp(self, pd, send_cq, recv_cq=None, kind="RC", srq=None, sends=64, recvs=64, send_sges=1, recv_sges=1, inline=0,
           all_signaled=False, operations=None):
        """A queue pair; with `operations`, one that offers these through ibv_wr_*."""
        cap = QPCap(sends, recvs, send_sges, recv_sges, inline)
        send_cq, recv_cq = self.objects[send_cq], self.objects[recv_cq or send_cq]
        srq = self.objects[srq] if srq else None
        if operations is None:
            init = QPInitAttr(flags("QPT", kind), scq=send_cq, rcq=recv_cq, srq=srq, cap=cap, sq_sig_all=all_signaled)
            queue = QP(self.objects[pd], init)
        else:
            init = QPInitAttrEx(flags("QPT", kind), scq=send_cq, rcq=recv_cq, srq=srq, cap=cap, sq_sig_all=all_signaled,
                                pd=self.objects[pd], send_ops_flags=flags("QP_EX", operations),
                                comp_mask=e.IBV_QP_INIT_ATTR_PD | e.IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
            queue = QPEx(self.context, init)
        return self.add(queue, qpn=queue.qp_num, max_sends=init.cap.max_send_wr, max_inline=init.cap.max_inline_data)

    def qp_sizes(self, qp):
        attr, _ = self.objects[qp].query(e.IBV_QP_CAP)
        return {name: getattr(attr.cap, name) for name in ("max_send_wr", "max_recv_wr", "max_inline_data")}

    def to_init(self, qp, access="LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC", qkey=0):
        attr = QPAttr(port_num=PORT)
        attr.qp_access_flags, attr.qkey = flags("ACCESS", access), qkey
        self.objects[qp].to_init(attr)

    def to_rtr(self, qp, peer=0, gid=None, sgid_index=0, rd_atomic=16, rnr_timer=12, psn=0):
        """`rnr_timer` 12 is 0.64 ms, as InfiniBand encodes it. The peer's requests begin with `psn`."""
        attr = QPAttr(port_num=PORT)
        if gid:
            attr.ah_attr = route_to(gid, sgid_index)
        attr.path_mtu, attr.dest_qp_num = e.IBV_MTU_4096, peer
        attr.max_dest_rd_atomic, attr.min_rnr_timer, attr.rq_psn = rd_atomic, rnr_timer, psn
        self.objects[qp].to_rtr(attr)

    def to_rts(self, qp, rd_atomic=16, rnr_retry=7, retry=7, timeout=14, psn=0):
        attr = QPAttr(port_num=PORT)
        attr.sq_psn = psn
        attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic = timeout, retry, rnr_retry, rd_atomic
        self.objects[qp].to_rts(attr)

    def to_state(self, qp, state):
        """A transition that needs no attributes: to RESET, ERR or SQD, or from SQD to RTS."""
        attr = QPAttr()
        attr.qp_state = flags("QPS", state)
        self.objects[qp].modify(attr, e.IBV_QP_STATE)

    def set_access(self, qp, access):
        """Changes what the peer of a queue pair that sends may do."""
        attr = QPAttr()
        attr.qp_access_flags = flags("ACCESS", access)
        self.objects[qp].modify(attr, e.IBV_QP_ACCESS_FLAGS)

    def rnr(self, qp):
        """What was set for the lack of receive buffers: retries as sender, timer as receiver."""
        attr, _ = self.objects[qp].query(e.IBV_QP_RNR_RETRY | e.IBV_QP_MIN_RNR_TIMER)
        return [attr.rnr_retry, attr.min_rnr_timer]

    def state(self, qp):
        attr, _ = self.objects[qp].query(e.IBV_QP_STATE)
        return e.ibv_qp_state(attr.qp_state).name.removeprefix("IBV_QPS_")

    def address(self, pd, gid, sgid_index):
        """An address handle."""
        return self.add(AH(self.objects[pd], attr=route_to(gid, sgid_index)))

    # Work.

    def post_recv(self, queue, sges=(), wr_id=0, count=1):
        """Posts to a queue pair or a shared receive queue; `count` requests with numbers from `wr_id` on."""
        for number in range(wr_id, wr_id + count):
            self.objects[queue].post_recv(receive(number, sges))

    def post_send(self, qp, opcode, extended=False, count=1, **request):
        """Posts requests with numbers from `wr_id` on; returns the key that the last one made, if it makes one."""
        if "bind" in request:
            request["bind"][:2] = (self.objects[number] for number in request["bind"][:2])
        if "address" in request:
            request["address"][0] = self.objects[request["address"][0]]
        key = None
        for _ in range(count):
            send = Send(opcode, **request)
            if extended:
                key = send.post_extended(self.objects[qp])
            else:
                wr = send.request()
                self.objects[qp].post_send(wr)
                key = wr.rkey if send.bind else None
            request["wr_id"] = request.get("wr_id", 0) + 1
        return key

    def abandon(self, qp, target, sges):
        """Begins a write by ibv_wr_* and gives it up."""
        queue = self.objects[qp]
        queue.wr_start()
        queue.wr_rdma_write(*target)
        queue.wr_set_sge_list(len(sges), [SGE(*sge) for sge in sges])
        queue.wr_abort()

    def poll(self, cq, count=1, timeout=5.0):
        """Completions: so many as asked for, or fewer if time runs out."""
        found, deadline = [], time.monotonic() + timeout
        cq = self.objects[cq]
        while True:
            found += self.poll_once(cq, count - len(found))
            if len(found) >= count or time.monotonic() >= deadline:
                return found

    @staticmethod
    def poll_once(cq, count):
        if isinstance(cq, CQ):
            return [completion(wc) for wc in cq.poll(count)[1]]
        found = []
        if cq.start_poll(PollCqAttr()) == 0:
            found.append(extended_completion(cq))
            while len(found) < count and cq.poll_next() == 0:
                found.append(extended_completion(cq))
            cq.end_poll()
        return found

    def arm(self, cq, solicited=False):
        self.objects[cq].req_notify(solicited)

    def await_event(self, channel, cq, timeout):
        """Whether an event of an armed queue came in time."""
        if not select.select([self.channel_files[channel]], [], [], timeout)[0]:
            return False
        cq = self.objects[cq]
        self.objects[channel].get_cq_event(cq)
        cq.ack_events(1)
        return True

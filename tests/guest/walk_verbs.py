# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Operations of verbs for walk.py: what makes an object, what changes one, what removes it, and the end of a process that has some."""

import ctypes
import errno
import itertools
import os
import traceback

from pyverbs.mr import MR
from pyverbs.pyverbs_error import PyverbsRDMAError

from program import Program
from walk import Operation
from work import flags

DEVICE = "nupa_rdma0"
ACCESS = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC"
PAGE = 4096
# Of these regions each page has an address of its own.
PAGES = 600
GROUP = "ff0e:0000:0000:0000:0000:0000:0000:0077"


class Verbs(Operation):
    """With a program that has the device open, and what objects are made of."""

    def __init__(self):
        self.program = Program()
        self.program.open(DEVICE)
        self.pd = self.program.pd()["id"]
        self.cq = self.program.cq(64)["id"]
        self.buffer = self.program.buffer(16 * PAGE)["id"]
        self.index, self.gid = self.own_gid()
        # Once without a fault, so that what libraries keep for later is there.
        self.program.destroy(self.new_qp())

    def own_gid(self):
        """Index and text of the last GID, which is that of an IP address if there is one."""
        entry = self.program.gids()[-1]
        return entry["index"], entry["gid"]

    def new_qp(self, **options):
        return self.program.qp(self.pd, self.cq, **options)["id"]

    def close(self):
        self.program.close()


class Make(Verbs):
    """Makes an object by `make`."""

    made = None

    def make(self):
        raise NotImplementedError

    def act(self):
        self.made = self.make()["id"]

    def after(self):
        self.program.destroy(self.made)
        self.made = None


MAKES = {
    "pd": lambda program, base: program.pd(),
    "region": lambda program, base: program.region(base.pd, base.buffer, ACCESS),
    "window": lambda program, base: program.window(base.pd),
    "device-memory": lambda program, base: program.device_memory(PAGE),
    "cq": lambda program, base: program.cq(256),
    "extended-cq": lambda program, base: program.cq(256, extended=True),
    "srq": lambda program, base: program.srq(base.pd, 64),
    "qp": lambda program, base: program.qp(base.pd, base.cq),
    "ud-qp": lambda program, base: program.qp(base.pd, base.cq, kind="UD"),
    "address": lambda program, base: program.address(base.pd, base.gid, base.index),
}


class Large(Verbs):
    """Registers many pages that are in no order; the memory itself is there before."""

    def __init__(self):
        super().__init__()
        self.buffers = self.program.scattered_regions(self.pd, PAGES, 1, ACCESS)["id"]
        self.region = None

    def act(self):
        held = self.program.objects[self.buffers][0]
        self.region = MR(self.program.objects[self.pd], held.size, flags("ACCESS", ACCESS), address=held.address)

    def after(self):
        self.region.close()


class DeviceRegion(Make):
    def __init__(self):
        super().__init__()
        self.memory = self.program.device_memory(PAGE)["id"]

    def make(self):
        return self.program.device_region(self.pd, self.memory, PAGE, ACCESS)


class Remove(Verbs):
    """Removes an object that `make` makes. An object that is not removed for want of memory stays, and can be removed later.

    The kernel removes a completion queue, a queue pair or a shared receive queue before it copies its last counts to the program. Where that fails the
    call does, too; the next one says that the object is gone.
    """

    made, has_failed = None, False

    def before(self):
        if self.made is None:
            self.made = self.make()["id"]

    def act(self):
        try:
            self.program.destroy(self.made)
        except PyverbsRDMAError as failure:
            if not self.has_failed or failure.error_code != errno.ENOENT:
                raise
            # pyverbs tries once more, in vain.
            del self.program.objects[self.made]
        self.made = None

    def failed(self):
        self.has_failed = True

    def after(self):
        self.has_failed = False


class Open(Operation):
    """Opens the device by libibverbs, which has found it before, and looks elsewhere for a file that cannot be opened."""

    clean = (*Operation.clean, errno.ENOENT)

    def __init__(self):
        self.verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
        self.verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
        self.verbs.ibv_open_device.restype = ctypes.c_void_p
        self.verbs.ibv_get_device_name.restype = ctypes.c_char_p
        count = ctypes.c_int()
        self.list = self.verbs.ibv_get_device_list(ctypes.byref(count))
        self.device = next(device for device in self.list[:count.value] if self.verbs.ibv_get_device_name(ctypes.c_void_p(device)).decode() == DEVICE)
        self.context = None

    def act(self):
        ctypes.set_errno(0)
        self.context = self.verbs.ibv_open_device(ctypes.c_void_p(self.device))
        if not self.context:
            raise OSError(ctypes.get_errno(), "ibv_open_device")

    def after(self):
        self.verbs.ibv_close_device(ctypes.c_void_p(self.context))


class Close(Open):
    """Closes it again, which does not fail."""

    clean = ()

    def before(self):
        super().act()

    def act(self):
        if error := self.verbs.ibv_close_device(ctypes.c_void_p(self.context)):
            raise OSError(error, "ibv_close_device")

    def after(self):
        pass


class Step(Verbs):
    """One step of a queue pair; those before it are made without a fault."""

    states = {"to_init": "INIT", "to_rtr": "RTR", "to_rts": "RTS", "to_error": "ERR"}
    step = "to_init"

    def __init__(self):
        super().__init__()
        self.qp = self.new_qp()
        self.number = self.program.objects[self.qp].qp_num

    def to_init(self):
        self.program.to_init(self.qp)

    def to_rtr(self):
        self.program.to_rtr(self.qp, self.number, self.gid, self.index)

    def to_rts(self):
        self.program.to_rts(self.qp)

    def to_error(self):
        self.program.to_state(self.qp, "ERR")

    def before(self):
        self.program.to_state(self.qp, "RESET")
        for step in itertools.takewhile(lambda step: step != self.step, self.states):
            getattr(self, step)()

    def act(self):
        getattr(self, self.step)()

    def works(self):
        state = self.program.state(self.qp)
        assert state == self.states[self.step], state


class Resize(Verbs):
    """Resizes a queue to and fro."""

    def __init__(self):
        super().__init__()
        self.sizes = [1024, 64]

    def act(self):
        self.program.resize(self.cq, self.sizes[0])

    def after(self):
        self.sizes.reverse()


class Reregister(Make):
    """Changes a region's domain and memory."""

    def __init__(self):
        super().__init__()
        self.region = self.program.region(self.pd, self.buffer, ACCESS)["id"]
        self.others = [(self.program.pd()["id"], self.program.buffer(8 * PAGE)["id"]), (self.pd, self.buffer)]

    def act(self):
        self.program.reregister(self.region, *self.others[0], ACCESS)

    def after(self):
        self.others.reverse()


class Limit(Verbs):
    """Sets a shared receive queue's limit."""

    def __init__(self):
        super().__init__()
        self.srq = self.program.srq(self.pd, 64)["id"]
        # With fewer than the limit the event comes at once, and there is no limit any more.
        self.program.post_recv(self.srq, count=16)

    def act(self):
        self.program.limit(self.srq, 3)

    def works(self):
        assert self.program.srq_state(self.srq)["limit"] == 3


class Attach(Verbs):
    """Joins a multicast group."""

    def __init__(self):
        super().__init__()
        self.qp = self.new_qp(kind="UD")
        self.program.to_init(self.qp, access="", qkey=1)

    def act(self):
        self.program.attach(self.qp, GROUP)

    def after(self):
        self.program.detach(self.qp, GROUP)


class Detach(Attach):
    """Leaves it."""

    joined = False

    def before(self):
        if not self.joined:
            super().act()
            self.joined = True

    def act(self):
        super().after()
        self.joined = False

    def after(self):
        pass


class End(Operation):
    """The end of a process that has objects of all kinds, which nothing may keep from being removed."""

    def child(self, nth):
        base = Verbs()
        program, pd = base.program, base.pd
        for make in MAKES.values():
            make(program, base)
        program.scattered_regions(pd, PAGES, 1, ACCESS)
        program.device_region(pd, program.device_memory(PAGE)["id"], PAGE, ACCESS)
        if nth == 0:
            os._exit(0)
        with open("/proc/self/fail-nth", "wb", buffering=0) as file:
            file.write(str(nth).encode())
            os._exit(0)

    def run(self, nth):
        """Whether the child's end came to its Nth point."""
        process = os.fork()
        if process == 0:
            try:
                self.child(nth)
            finally:
                traceback.print_exc()
                os._exit(1)
        left = None
        # One that ended can be looked at until its parent has waited for it.
        os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        if nth:
            with open(f"/proc/{process}/fail-nth", encoding="ascii") as file:
                left = int(file.read())
        assert os.waitpid(process, 0)[1] == 0, "the process failed"
        return left == 0

    def attempt(self, injector, nth):
        return self.run(nth if injector.fails else 0), None

    def act(self):
        self.run(0)


def of_kinds(prefix, base):
    """A class of operations for each kind of object."""
    return {f"{prefix}-{name}": type(name, (base,), {"make": lambda self, make=make: make(self.program, self)}) for name, make in MAKES.items()}


OPERATIONS = {
    "open": Open, "close": Close, **of_kinds("make", Make), **of_kinds("remove", Remove),
    "make-large-region": Large, "make-device-region": DeviceRegion,
    **{step.replace("_", "-"): type(step, (Step,), {"step": step}) for step in Step.states},
    "resize": Resize, "reregister": Reregister, "limit": Limit, "attach": Attach, "detach": Detach, "end": End,
}

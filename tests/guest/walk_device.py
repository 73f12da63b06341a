# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Operations for walk.py on the device and its interface: driver bound and unbound, reset, queues that come, go and change."""

import contextlib
import ctypes
import errno
import fcntl
import glob
import os
import socket
import struct
import time

from walk import Operation
from xdp import attach_to, load, program, route_socket

INTERFACE = "nupanet0"
IFF_UP, IFF_PROMISC = 0x1, 0x100
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU, SIOCADDMULTI, SIOCDELMULTI, SIOCETHTOOL = 0x8913, 0x8914, 0x8922, 0x8931, 0x8932, 0x8946
# Commands of ethtool, each a number and unsigned integers behind it (include/uapi/linux/ethtool.h).
RINGS, CHANNELS, COALESCE = (0x10, 0x11, 9), (0x3C, 0x3D, 9), (0x0E, 0x0F, 23)
GSTATS = 0x1D
GROUP = bytes.fromhex("333300007777")
# Seconds that what comes by itself may take.
PATIENCE = 60


def await_that(what, condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {PATIENCE} s"
        time.sleep(0.05)


def write(path, text):
    """In one call, whose error is the answer."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)


def bound_device():
    """The device that our driver has: its name, and the driver's directory."""
    for driver in ("pci/drivers/nupa_fabric", "pci/drivers/nupa_ivshmem", "dax/drivers/nupa_fabric"):
        for link in glob.glob(f"/sys/bus/{driver}/*"):
            if os.path.islink(link) and not link.endswith("/module"):
                return os.path.basename(link), f"/sys/bus/{driver}"
    raise LookupError("no device is bound to our driver")


class Child:
    """A device with a driver: the fabric's own, or an auxiliary one of it."""

    def __init__(self, device, directory):
        self.device, self.directory = device, directory

    def is_bound(self):
        return os.path.exists(f"{self.directory}/{self.device}")

    def bind(self):
        self.change("bind")

    def unbind(self):
        self.change("unbind")

    def change(self, name):
        write(f"{self.directory}/{name}", self.device)


def there():
    """Whether all is there that the modules make."""
    return os.path.exists(f"/sys/class/net/{INTERFACE}") and os.path.exists("/sys/class/infiniband/nupa_rdma0")


class Bind(Operation):
    """Binds the driver, which starts the controller, and both drivers above with it."""

    may_leave = True

    def __init__(self):
        self.child = Child(*bound_device())

    def before(self):
        if self.child.is_bound():
            self.child.unbind()

    def act(self):
        self.child.bind()

    def works(self):
        await_that("interface and RDMA device", there)

    def after(self):
        self.before()

    def close(self):
        if not self.child.is_bound():
            self.child.bind()
        self.works()


class Unbind(Bind):
    """Unbinds it again, for which no memory is needed: what fails has not begun."""

    may_leave = False

    def before(self):
        if not self.child.is_bound():
            self.child.bind()
        super().works()

    def act(self):
        self.child.unbind()

    def works(self):
        assert not self.child.is_bound()

    def failed(self):
        assert self.child.is_bound(), "unbound in spite of the error"
        assert there(), "half unbound"

    def after(self):
        pass

    def close(self):
        Unbind.before(self)


def checksum(data):
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF


class Network(Operation):
    """With the interface up."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.echo = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
        self.echo.settimeout(1)
        number = int(socket.gethostname().removeprefix("node"))
        self.peer = f"10.77.0.{1 if number == 2 else 2}"
        self.sent = 0
        self.set_up(True)

    def request(self, number, form, *values):
        """An ioctl about the interface."""
        data = struct.pack(f"16s{form}", INTERFACE.encode(), *values)
        return fcntl.ioctl(self.socket, number, data.ljust(40, b"\0"))

    def flags(self):
        return struct.unpack_from("H", self.request(SIOCGIFFLAGS, "H", 0), 16)[0]

    def set_flag(self, flag, on):
        flags = self.flags()
        self.request(SIOCSIFFLAGS, "H", flags | flag if on else flags & ~flag)

    def set_up(self, up):
        self.set_flag(IFF_UP, up)

    def is_answered(self):
        """Whether the peer answers a ping in a second."""
        self.sent += 1
        form, name = ">BBHHH", os.getpid() & 0xFFFF
        text = struct.pack(form, 8, 0, 0, name, self.sent & 0xFFFF)
        # No answer in time, or no way to the peer.
        with contextlib.suppress(OSError):
            self.echo.sendto(struct.pack(form, 8, 0, checksum(text), name, self.sent & 0xFFFF), (self.peer, 0))
            while True:
                answer = self.echo.recv(1 << 16)[20:]
                if answer[0] == 0 and struct.unpack_from(">HH", answer, 4) == (name, self.sent & 0xFFFF):
                    return True
        return False

    def works(self):
        await_that("answer of the peer", self.is_answered)

    def failed(self):
        self.works()

    def close(self):
        self.set_up(True)
        self.socket.close()
        self.echo.close()


class Reset(Network):
    """Resets the function. Where the driver cannot start it again, or the interface has no queues then, they say so; the next reset works."""

    def __init__(self):
        super().__init__()
        device, directory = bound_device()
        self.path = f"{directory}/{device}/reset"

    def before(self):
        # Without memory for its queues it is down, and would not be reset.
        self.set_up(True)

    def act(self):
        write(self.path, "1")

    def works(self):
        await_that("interface and RDMA device", there)
        self.set_up(True)
        super().works()

    def failed(self):
        pass


class Open(Network):
    """Sets the interface up, which makes its queues."""

    def before(self):
        self.set_up(False)

    def act(self):
        self.set_up(True)

    def failed(self):
        assert not self.flags() & IFF_UP, "up in spite of the error"


class Close(Network):
    """Sets it down, for which no memory is needed: what fails has not begun."""

    def before(self):
        self.set_up(True)

    def act(self):
        self.set_up(False)

    def works(self):
        assert not self.flags() & IFF_UP

    def failed(self):
        assert self.flags() & IFF_UP, "down in spite of the error"


class Mtu(Network):
    def __init__(self):
        super().__init__()
        self.sizes = [1500, 9000]

    def act(self):
        self.request(SIOCSIFMTU, "i", self.sizes[0])

    def after(self):
        self.sizes.reverse()


class Ethtool(Network):
    """Changes a setting to other values and back; one that cannot be changed stays as it was.

    The kernel copies its answer after the change: an error of that copy says nothing of the setting.
    """

    command, changes = RINGS, {5: 128, 8: 128}

    def __init__(self):
        super().__init__()
        get, self.put, self.words = self.command
        self.get = [get] + [0] * (self.words - 1)
        now = self.ask()
        self.values = [[self.changes.get(at, value) for at, value in enumerate(now)], now]
        assert self.values[0] != now, now

    def call(self, values):
        """The values that the kernel leaves."""
        memory = (ctypes.c_uint32 * self.words)(*values)
        self.request(SIOCETHTOOL, "Q", ctypes.addressof(memory))
        return list(memory)

    def ask(self):
        return self.call(self.get)

    def act(self):
        self.call([self.put, *self.values[0][1:]])

    def works(self):
        assert self.ask() == self.values[0]
        super().works()

    def failed(self):
        now = self.ask()
        assert now == self.values[1] or (self.error.errno == errno.EFAULT and now == self.values[0]), now
        super().works()

    def after(self):
        self.values.reverse()


class Channels(Ethtool):
    command, changes = CHANNELS, {8: 1}


class Coalesce(Ethtool):
    command, changes = COALESCE, {5: 500, 6: 17}


class Statistics(Network):
    """Asks for the statistics of ethtool -S."""

    def act(self):
        memory = (ctypes.c_uint32 * 4096)(GSTATS, 0)
        self.request(SIOCETHTOOL, "Q", ctypes.addressof(memory))


class Promiscuous(Network):
    def act(self):
        self.set_flag(IFF_PROMISC, True)

    def after(self):
        self.set_flag(IFF_PROMISC, False)


class Group(Network):
    """Receives a multicast address as well."""

    def act(self):
        self.request(SIOCADDMULTI, "H6s", 0, GROUP)

    def after(self):
        self.request(SIOCDELMULTI, "H6s", 0, GROUP)


class Xdp(Network):
    """Attaches a program that passes frames."""

    # Where memory lacks for the answer of rtnetlink.
    clean = (*Network.clean, errno.ENOBUFS)

    def __init__(self):
        super().__init__()
        self.program = load(program("drop", None, False, metadata=False, trim=0, pop=False), True)
        self.route, self.index = route_socket(), socket.if_nametoindex(INTERFACE)

    def act(self):
        attach_to(self.route, self.index, self.program)

    def after(self):
        attach_to(self.route, self.index, -1)


class XdpAway(Xdp):
    """Removes it, which does not fail."""

    attached = False

    def before(self):
        if not self.attached:
            super().act()
            self.attached = True

    def act(self):
        super().after()
        self.attached = False

    def after(self):
        pass


OPERATIONS = {
    "bind": Bind, "unbind": Unbind, "reset": Reset, "net-up": Open, "net-down": Close, "mtu": Mtu, "rings": Ethtool, "channels": Channels,
    "coalesce": Coalesce, "statistics": Statistics, "promiscuous": Promiscuous, "group": Group, "xdp": Xdp, "xdp-away": XdpAway,
}

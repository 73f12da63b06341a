# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What happens to nodes while loads run between them."""

import time

from modes import MODES
from test_hostile_peer import mad_driver, mad_member
from test_power import SLEEP
from waiting import wait_until

EVERYTHING = frozenset(("tcp", "udp", "verbs", "cm", "disk"))
PRESSURE = "python3 -c 'import mmap, time; a = mmap.mmap(-1, {bytes}); a.write(bytes({bytes})); time.sleep({seconds})'"


class Event:
    """Base of all. `cuts` are the kinds of loads that may end by it, and `bars` those that are not begun with it."""

    modes, cuts, bars = MODES, frozenset(), frozenset()

    def __init__(self, stage, node):
        self.stage, self.node = stage, node

    def __str__(self):
        return f"{self.__doc__.rstrip('.').lower()}: node {self.node.number}"


class Nothing(Event):
    """Nothing happens."""

    def happen(self):
        time.sleep(3)


class MemoryPressure(Event):
    """Memory gets short."""

    def happen(self):
        free = int(self.node.run("awk '/MemAvailable/ {print $2}' /proc/meminfo").out) << 10
        self.node.run(PRESSURE.format(bytes=free * 6 // 10, seconds=3), timeout=60)


class ThirdNode(Event):
    """A third node joins, talks to this one and leaves, in order or not."""

    def happen(self):
        (third,), _ = self.stage.fabric.start(3)
        try:
            third.up()
            third.await_ping(self.node.ip)
        finally:
            if self.stage.random.random() < 0.5:
                third.kill()
            else:
                third.stop()


class LinkFlaps(Event):
    """The link goes down and up."""

    modes, cuts, bars = ("pcie",), frozenset(("udp", "verbs", "cm")), frozenset(("disk",))

    def happen(self):
        for _ in range(self.stage.random.randrange(1, 4)):
            self.stage.fabric.switch.link(self.node.number, up=False)
            wait_until("the carrier to go", lambda: not self.node.carrier())
            self.stage.fabric.switch.link(self.node.number, up=True)
            wait_until("the carrier to return", self.node.carrier)


class FunctionReset(Event):
    """The function is reset."""

    # The target of the disk does not listen any more: its RDMA device has been replaced, and nvmet_rdma forgets the port with the device.
    modes, cuts, bars = ("pcie",), frozenset(("udp", "verbs", "cm")), frozenset(("disk",))

    def happen(self):
        self.node.run(f"echo 1 >{self.node.device_directory()}/reset", timeout=30)
        wait_until("the carrier after the reset", self.node.carrier, 30)


class Sleep(Event):
    """All devices are suspended and resumed."""

    cuts, bars = frozenset(("udp", "verbs", "cm")), frozenset(("disk",))

    def happen(self):
        slept = self.node.spawn(SLEEP).wait(120)
        assert slept.code == 0, f"it did not sleep:\n{slept}"
        wait_until("the carrier after sleep", self.node.carrier, 30)


class Reload(Event):
    """The modules are unloaded and loaded."""

    cuts, bars = EVERYTHING, frozenset(("disk",))

    def happen(self):
        self.node.run("nupa-down", timeout=60)
        self.node.up()


class Rebind(Event):
    """The driver is unbound and bound."""

    cuts, bars = EVERYTHING, frozenset(("disk",))

    def happen(self):
        device, driver = self.node.device(), self.node.driver_directory()
        self.node.run(f"echo {device} >{driver}/unbind", timeout=30)
        self.node.run(f"echo {device} >{driver}/bind", timeout=30)
        self.node.up()


class Killed(Event):
    """The node dies and is started again."""

    cuts, bars = EVERYTHING, frozenset(("disk",))

    def happen(self):
        self.node.kill()
        self.stage.fabric.ensure(self.node.number)
        self.stage.rebooted(self.node)


class ControllerFails(Event):
    """The controller is silent, gone or talks nonsense, and is mended."""

    modes, cuts, bars = ("pcie",), EVERYTHING, frozenset(("disk",))

    def happen(self):
        self.stage.fabric.switch.fault(self.node.number, self.stage.random.choice(("mute", "allones", "garbage")))
        self.node.run("nupa-down", timeout=60)
        self.stage.fabric.switch.fault(self.node.number)
        self.node.up()


class MadHost(Event):
    """A third host is hostile, and leaves."""

    # What it sends to everybody takes receive buffers, as what anybody sends.
    cuts = frozenset(("udp",))

    def happen(self):
        fabric, known = self.stage.fabric, {"seed": self.stage.random.getrandbits(32), "seconds": 5}
        if fabric.switch:
            mad = mad_driver(fabric, **known)
        else:
            (third,), _ = fabric.start(3)
            third.up()
            mad = mad_member(fabric, third, [fabric.nodes[number] for number in (1, 2)], **known)
        try:
            mad.report()
        finally:
            # It does not go on first: it has no place there any more.
            fabric.nodes[3].stop()
            mad.end()


EVENTS = (Nothing, MemoryPressure, ThirdNode, LinkFlaps, FunctionReset, Sleep, Reload, Rebind, Killed, ControllerFails, MadHost)

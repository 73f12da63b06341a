# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What devlink shows of a controller, and does for one that was given up."""

from modes import emulator_only
from nodes import INTERFACE
from waiting import wait_until


def handle_of(node):
    """The name of a node's device: bus and device."""
    return f"{node.device_directory().split('/')[3]}/{node.device()}"


def forget_dump(node, handle):
    """Else the dump of an earlier failure stays."""
    node.run(f"devlink health dump clear {handle} reporter controller")


def health_of(node, handle):
    reporters = node.run(f"devlink -j health show {handle}").json()["health"][handle]
    return next(reporter for reporter in reporters if reporter["reporter"] == "controller")


def diagnosis(node, handle):
    return node.run(f"devlink health diagnose {handle} reporter controller").out


def await_failure(node, handle, before):
    """Waits until one more failure than before is reported; returns the dump of it."""
    wait_until("the failure to be reported", lambda: health_of(node, handle)["error"] == before["error"] + 1, 30)
    assert health_of(node, handle)["state"] == "error"
    return node.run(f"devlink health dump show {handle} reporter controller").out


def test_device_and_port(settled, saw):
    one, _ = settled
    handle = handle_of(one)
    info = one.run(f"devlink -j dev info {handle}").json()["info"][handle]
    assert info["driver"] in ("nupa_fabric", "nupa_ivshmem") and len(info["serial_number"]) == 16, info
    firmware = one.run(f"ethtool -i {INTERFACE} | sed -n 's/^firmware-version: //p'").out.strip()
    assert info["versions"]["running"]["fw"] == firmware, info
    port = one.run(f"devlink -j port show {handle}/0").json()["port"][f"{handle}/0"]
    assert (port["type"], port["netdev"], port["flavour"]) == ("eth", INTERFACE, "physical"), port
    assert "Running" in (now := diagnosis(one, handle)), now
    saw(f"{handle}: {info['serial_number']}, firmware {firmware}, port of {port['netdev']}")


@emulator_only
def test_controller_that_was_given_up(pair, fabric, saw):
    """It is reported with a dump; once it is mended, `devlink health recover` has it work without a rebind."""
    one, two = pair
    handle = handle_of(two)
    before = health_of(two, handle)
    assert before["state"] == "healthy", before
    forget_dump(two, handle)
    fabric.switch.fault(2, "allones")
    dump = await_failure(two, handle, before)
    assert "controller is gone" in dump and "Lost" in dump, dump
    interface = two.link()["ifindex"]
    assert two.run(f"devlink health recover {handle} reporter controller", check=False).code != 0, "recovered in spite of the fault"
    fabric.switch.fault(2, "none")
    two.run(f"devlink health recover {handle} reporter controller", timeout=60)
    after = health_of(two, handle)
    assert after["state"] == "healthy" and after["recover"] == before["recover"] + 1, after
    took = one.await_ping(two.ip)
    assert "Running" in diagnosis(two, handle)
    assert two.link()["ifindex"] == interface, "the interface was made anew"
    saw(f"reported, dumped, recovered; first answer {took:.1f} s after it")


@emulator_only
def test_reset_that_fails_is_reported(pair, fabric, saw):
    """A controller that does not start after a reset by somebody else is given up as well; one that does works, and is healthy again."""
    one, two = pair
    handle = handle_of(two)
    before = health_of(two, handle)
    forget_dump(two, handle)
    fabric.switch.fault(2, "badstatus")
    reset = f"echo 1 >{two.device_directory()}/reset"
    two.run(reset, timeout=30, check=False)
    dump = await_failure(two, handle, before)
    assert "does not start after a reset" in dump, dump
    fabric.switch.fault(2, "none")
    two.run(reset, timeout=30)
    wait_until("the controller to be healthy", lambda: health_of(two, handle)["state"] == "healthy", 30)
    one.await_ping(two.ip)
    saw("reported, reset and healthy")


def test_unbind_while_devlink_is_used(pair, saw):
    """An instance goes and comes while somebody asks it things all the time."""
    one, two = pair
    handle, device, driver = handle_of(two), two.device(), two.driver_directory()
    two.run("rm -f /run/devlink-stop")
    asking = two.spawn(f"n=0; until [ -e /run/devlink-stop ]; do devlink dev info {handle} && devlink port show {handle}/0 && "
                       f"devlink health diagnose {handle} reporter controller && n=$((n + 1)); done >/dev/null 2>&1; echo $n")
    for _ in range(3):
        two.run(f"echo {device} >{driver}/unbind && echo {device} >{driver}/bind", timeout=60)
        wait_until("the instance", lambda: two.run(f"devlink dev info {handle}", check=False).code == 0)
    two.run("touch /run/devlink-stop")
    asked = int(asking.wait(30).out)
    two.run("rm /run/devlink-stop")
    assert asked > 0
    two.up()
    one.await_ping(two.ip)
    assert health_of(two, handle)["state"] == "healthy"
    saw(f"3 times, asked {asked} times meanwhile")

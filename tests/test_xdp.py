# SPDX-License-Identifier: GPL-2.0 OR MIT
"""XDP of the driver: what programs say is done, whatever the frame; attached and detached while verified traffic runs."""

import pytest

import traffic
from modes import everywhere, long, only
from nodes import INTERFACE
from test_settings import statistics
from waiting import wait_until

pytestmark = only("pcie", why="about nupa_net, which is the same above whatever is below")

XDP = "python3 -B /nupa/tests/guest/xdp.py"
# Small ones, which are copied; one buffer; several; and the largest that there is.
SIZES = (1, 18, 1400, 2100, 31000, 33000, 60000, 65000)
LARGE_MTU = 65520


def attach(node, action, options="--frags", interface=INTERFACE, check=True):
    return node.run(f"{XDP} attach {interface} {action} {options}", check=check)


def counted(node):
    """What programs have made of frames, of all channels."""
    found = {}
    for name, value in statistics(node).items():
        queue, _, rest = name.partition("_")
        what = rest.removeprefix("rx_xdp_")
        if queue.startswith("queue") and what != rest or rest == "tx_xdp":
            found[what] = found.get(what, 0) + value
    return found


def grown(node, before):
    return {name: value - before[name] for name, value in counted(node).items() if value != before[name]}


def without_port(node):
    """Datagrams that came for a port where nobody is."""
    return int(node.run("nstat -asz UdpNoPorts").out.split()[-2])


def receiving(node, command):
    """Starts what receives; it does once this returns."""
    node.run("rm -f /run/xdp.ready")
    running = node.spawn(f"{XDP} {command}")
    wait_until(f"{command} on {node.name}", lambda: node.run("[ -e /run/xdp.ready ]", check=False).code == 0)
    return running


def sizes(numbers):
    return " ".join(map(str, numbers))


@pytest.fixture
def large(pair):
    """Nodes with the largest MTU. Programs go at the end of the test."""
    for node in pair:
        node.run(f"ip link set {INTERFACE} mtu {LARGE_MTU}")
    yield pair
    for node in pair:
        node.run(f"ip link set {INTERFACE} xdpdrv off", check=False)


@everywhere
def test_pass(large, saw):
    """Datagrams of all sizes and TCP arrive unchanged; super-frames come as segments."""
    one, two = large
    attach(two, "pass")
    before, gso = counted(two), statistics(two)
    taking = receiving(two, f"take {len(SIZES)}")
    one.run(f"{XDP} send {two.ip} {sizes(SIZES)}")
    assert taking.wait(40).json() == list(SIZES)
    for node in large:
        node.run(f"ip link set {INTERFACE} mtu 1500")
    traffic.tcp(one, two.ip, size=4 << 20)
    traffic.tcp(one, two.ip6, size=1 << 20)
    now = grown(two, before)
    after = statistics(two)
    wholes = sum(after[name] - gso[name] for name in after if name.endswith("rx_gso"))
    assert wholes > 0, "no super-frames came"
    assert set(now) == {"pass"} and now["pass"] > wholes * 2, now
    saw(f"{now['pass']} frames passed, {wholes} super-frames among what came")


def test_verdicts(large, saw):
    """Dropped, aborted and unknown: the frames are gone and counted, and everything else goes on."""
    one, two = large
    for action, counter in (("drop", "drop"), ("aborted", "aborted"), ("unknown", "aborted")):
        attach(two, action)
        before, unwanted = counted(two), without_port(two)
        one.run(f"{XDP} send {two.ip} {sizes(SIZES)}")
        wait_until(f"{action} of {len(SIZES)} frames", lambda: grown(two, before).get(counter) == len(SIZES))
        assert one.pings(two.ip) == 3
        assert without_port(two) == unwanted, "the stack has seen them"
    attach(two, "pass")
    one.run(f"{XDP} send {two.ip} {sizes(SIZES)}")
    wait_until("the stack to see what passes", lambda: without_port(two) == unwanted + len(SIZES))
    saw(f"{len(SIZES)} frames each dropped and aborted")


@everywhere
def test_reflect(large, saw):
    """XDP_TX: datagrams of all sizes come back with the checksum that the program has seen, which was open on the way there."""
    one, two = large
    attach(two, "tx")
    before = counted(two)
    assert one.run(f"{XDP} echo {two.ip} {sizes(SIZES)}", timeout=60).json() == list(SIZES)
    now = grown(two, before)
    assert now["tx"] == now["tx_xdp"] == len(SIZES) and "errors" not in now, now
    saw(f"{now['tx']} frames of up to {max(SIZES)} bytes came back")


@pytest.fixture
def veth(large):
    """A pair of veth interfaces on node 2, which take frames of XDP."""
    _, two = large
    two.run(f"ip link add veth0 mtu {LARGE_MTU} type veth peer name veth1 mtu {LARGE_MTU} && ip link set veth0 up && ip link set veth1 up "
            "&& ethtool -K veth1 gro on && ethtool -K veth0 gro on")
    yield large
    two.run("ip link del veth0")


def test_redirect_to_another(veth, saw):
    one, two = veth
    attach(two, "redirect", "--frags --to veth0")
    before = counted(two)
    watching = receiving(two, f"watch veth1 {len(SIZES)}")
    one.run(f"{XDP} send {two.ip} {sizes(SIZES)}")
    assert watching.wait(40).json() == list(SIZES)
    now = grown(two, before)
    assert now["redirect"] == len(SIZES) and "errors" not in now, now
    saw(f"{now['redirect']} frames of up to {max(SIZES)} bytes to veth")


def test_redirect_from_another(veth, saw):
    """Frames that veth redirects to the interface arrive at the other node (ndo_xdp_xmit)."""
    one, two = veth
    attach(two, "redirect", f"--frags --to {INTERFACE}", interface="veth1")
    mac = one.link()["address"]
    before = counted(two)
    # More at once than a batch has.
    some = [*SIZES, *range(100, 140)]
    taking = receiving(one, f"take {len(some)}")
    two.run(f"{XDP} inject veth0 {mac} {two.ip} {one.ip} {sizes(some)}")
    assert taking.wait(40).json() == some
    assert grown(two, before) == {"tx_xdp": len(some)}
    # While it is down they are dropped.
    two.run(f"ip link set {INTERFACE} down")
    before = counted(two)
    two.run(f"{XDP} inject veth0 {mac} {two.ip} {one.ip} 100")
    two.run(f"ip link set {INTERFACE} up")
    one.await_ping(two.ip)
    assert grown(two, before) == {}
    saw(f"{len(some)} frames of up to {max(SIZES)} bytes from veth")


def test_vlan(pair, saw):
    """The program sees the tag that the sender's stack has left out, and so does the stack behind it."""
    one, two = pair
    for node in pair:
        node.run(f"ip link add link {INTERFACE} name {INTERFACE}.100 type vlan id 100 && ip addr add 10.78.0.{node.number}/24 "
                 f"dev {INTERFACE}.100 && ip link set {INTERFACE}.100 up")
    attach(two, "pass")
    one.await_ping("10.78.0.2")
    traffic.tcp(one, "10.78.0.2", size=1 << 20)
    attach(two, "drop", "--frags --vlan")
    before = counted(two)
    one.run(f"{XDP} send 10.78.0.2 100 8000")
    wait_until("the drop of two frames", lambda: grown(two, before).get("drop") == 2)
    two.run(f"ip link set {INTERFACE} xdpdrv off")
    saw("tagged frames passed and dropped")


@long
def test_moved_ends(veth, saw):
    """Programs move both ends of frames: fragments that nothing is left of go, and what is put in front of a frame harms nobody."""
    one, two = veth
    # The longest piece of a frame has 32064 bytes, so the last fragment of some goes, and of others a part of it.
    some = [2100, 32020, 32100, 33000, 64200]
    for trim in (5, 1000):
        attach(two, "redirect", f"--frags --trim {trim} --to veth0")
        before = counted(two)
        watching = receiving(two, f"watch veth1 {len(some)} --trim {trim}")
        one.run(f"{XDP} send {two.ip} {sizes(some)}")
        assert watching.wait(40).json() == some
        # Whatever else comes meanwhile passes, as this does.
        assert one.pings(two.ip) == 3
        now = grown(two, before)
        assert now.pop("pass") >= 3 and now == {"redirect": len(some)}, now
    attach(two, "pass", "--frags --metadata")
    taking = receiving(two, f"take {len(SIZES)}")
    one.run(f"{XDP} send {two.ip} {sizes(SIZES)}")
    assert taking.wait(40).json() == list(SIZES)
    two.run(f"ip link set {INTERFACE} xdpdrv off")
    saw(f"{2 * len(some)} shorter frames, {len(SIZES)} with metadata")


def test_pop(pair, saw):
    """A program takes the tag out of frames; the stack looks at their checksums itself then, which are right."""
    one, two = pair
    one.run(f"ip link add link {INTERFACE} name {INTERFACE}.100 type vlan id 100 && ip addr add 10.78.0.1/24 dev {INTERFACE}.100 && "
            f"ip link set {INTERFACE}.100 up && ip neigh add 10.78.0.2 lladdr {two.link()['address']} dev {INTERFACE}.100")
    two.run(f"ip addr add 10.78.0.2/24 dev {INTERFACE}")
    attach(two, "pass", "--frags --vlan --pop")
    before = counted(two)
    taking = receiving(two, "take 3")
    one.run(f"{XDP} send 10.78.0.2 18 1400 8000")
    assert taking.wait(40).json() == [18, 1400, 8000]
    assert grown(two, before).get("pass", 0) >= 3
    two.run(f"ip link set {INTERFACE} xdpdrv off")
    saw("three frames without their tags")


def test_without_frags(large, saw):
    """A program that takes no fragments wants an MTU that one buffer takes. Larger frames do not reach it."""
    one, two = large
    refused = attach(two, "pass", "", check=False)
    assert refused.code != 0 and "32000" in refused.err, refused
    two.run(f"ip link set {INTERFACE} mtu 32000")
    attach(two, "tx", "")
    refused = two.run(f"ip link set {INTERFACE} mtu {LARGE_MTU}", check=False)
    assert refused.code != 0 and "maximum" in refused.err, refused
    before = counted(two)
    few = [size for size in SIZES if size < 32000]
    assert one.run(f"{XDP} echo {two.ip} {sizes(few)}", timeout=60).json() == few
    one.run(f"{XDP} send {two.ip} 60000")
    wait_until("a frame that is too long to be counted", lambda: grown(two, before).get("errors") == 1)
    # Super-frames are no such frames: it sees their segments.
    for node in large:
        node.run(f"ip link set {INTERFACE} mtu 1500")
    traffic.tcp(one, two.ip, size=1 << 20)
    two.run(f"ip link set {INTERFACE} xdpdrv off && ip link set {INTERFACE} mtu {LARGE_MTU}")
    saw(f"{refused.err.strip()}")


@long
@everywhere
def test_attach_under_traffic(pair, saw):
    """Attached, replaced and detached on both ends, and channels changed meanwhile."""
    one, two = pair
    done = "/run/xdp.done"
    load = traffic.start_rounds(one, two.ip, done)
    for node in (two, one):
        attach(node, "pass")
        attach(node, "drop")
        attach(node, "pass", "")
        node.run(f"ethtool -L {INTERFACE} combined 1 && ethtool -L {INTERFACE} combined 2 && ethtool -G {INTERFACE} rx 128")
        traffic.tcp(one, two.ip, size=1 << 20)
        node.run(f"ip link set {INTERFACE} xdpdrv off")
    one.run(f"touch {done}")
    result = load.wait(60)
    assert result.code == 0, f"traffic did not survive:\n{result}"
    saw(f"{len(result.out.splitlines())} rounds of verified traffic")


@long
def test_outlives_restarts(pair, saw):
    """A program stays while the interface is down, and over a reset of the controller; the module can go with one attached."""
    one, two = pair
    attach(two, "tx")
    program = two.link()["xdp"]["prog"]["id"]
    two.run(f"ip link set {INTERFACE} down && ip link set {INTERFACE} up")
    one.await_ping(two.ip)
    assert two.link()["xdp"]["prog"]["id"] == program
    assert one.run(f"{XDP} echo {two.ip} 100 8000").json() == [100, 8000]
    two.run(f"ip link set {INTERFACE} down")
    attach(two, "drop")
    attach(two, "tx")
    two.run(f"ip link set {INTERFACE} up")
    one.await_ping(two.ip)
    assert one.run(f"{XDP} echo {two.ip} 100").json() == [100]
    two.run(f"echo 1 >{two.device_directory()}/reset", timeout=20)
    one.await_ping(two.ip)
    assert one.run(f"{XDP} echo {two.ip} 100 8000").json() == [100, 8000]
    two.run("nupa-down && nupa-up", timeout=60)
    one.await_ping(two.ip)
    assert "xdp" not in two.link()
    saw("down and up, reset, and removed, with a program")

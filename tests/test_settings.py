# SPDX-License-Identifier: GPL-2.0 OR MIT
"""ethtool and ip settings: shown as they are, changed while verified traffic runs."""

import re

import pytest

import traffic
from modes import everywhere, long, only
from nodes import INTERFACE
from waiting import DEBUG_KERNEL, wait_until

pytestmark = only("pcie", why="about nupa_net, which is the same above whatever is below")


def shown(node, option):
    """Output of `ethtool -x` as {name: value}; of two sections (-g, -l) the current one."""
    text = node.run(f"ethtool {option} {INTERFACE}").out
    text = text.rpartition("Current hardware settings:")[2]
    pairs = (line.strip().partition(":") for line in text.splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def maxima(node, option):
    text = node.run(f"ethtool {option} {INTERFACE}").out
    text = text.partition("Current hardware settings:")[0]
    return {name: int(value) for name, value in re.findall(r"^(\w[\w ]*):\s+(\d+)$", text, re.MULTILINE)}


def statistics(node):
    pairs = re.findall(r"^\s+(\S+): (\d+)$", node.run(f"ethtool -S {INTERFACE}").out, re.MULTILINE)
    return {name: int(value) for name, value in pairs}


@everywhere
def test_driver_info(settled, saw):
    for node in settled:
        info = shown(node, "-i")
        assert info["driver"] == "nupa_net", info
        assert node.device() in info["bus-info"], info
        assert info["firmware-version"], info
    saw(f"{info['driver']} {info['version']}, firmware {info['firmware-version']}, {info['bus-info']}")


def test_link_settings(settled, saw):
    for node in settled:
        link = shown(node, "")
        assert link["Duplex"] == "Full" and link["Link detected"] == "yes", link
        assert re.match(r"\d+Mb/s", link["Speed"]), link
        assert node.read(f"/sys/class/net/{INTERFACE}/speed") == link["Speed"].removesuffix("Mb/s")
    saw(f"{link['Speed']}, {link['Duplex']} duplex")


def test_statistics_count_traffic(settled, saw):
    one, two = settled
    names = statistics(one).keys()
    assert len(names) >= 4, names
    before = [node.link()["stats64"] for node in settled], [statistics(node) for node in settled]
    traffic.tcp(one, two.ip, size=4 << 20)
    after = [node.link()["stats64"] for node in settled], [statistics(node) for node in settled]
    for old, new in zip(*(side[0] for side in (before, after))):
        for way in ("rx", "tx"):
            assert new[way]["bytes"] - old[way]["bytes"] >= 4 << 20, f"{way}: {old} -> {new}"
            assert new[way]["packets"] > old[way]["packets"]
            assert new[way]["errors"] == old[way]["errors"] and new[way]["dropped"] == old[way]["dropped"], (old, new)
    rising = [name for name in names if after[1][0][name] > before[1][0][name]]
    assert rising, "no statistic of ethtool -S moved"
    saw(f"{len(names)} statistics, {len(rising)} of them moved")


@everywhere
def test_super_frames_travel_whole(pair, saw):
    """Segments of up to 64 KB cross the fabric as one frame: far fewer frames than packets of the MTU."""
    one, two = pair
    for node in pair:
        node.run(f"ip link set {INTERFACE} mtu 1500")
    before = two.link()["stats64"]["rx"]
    # TCP makes segments of what it sends in a millisecond, and of so many packets at least: a machine that is busy sends little in that time.
    least_packets = "/proc/sys/net/ipv4/tcp_min_tso_segs"
    usual = one.read(least_packets)
    try:
        one.run(f"echo 32 >{least_packets}")
        traffic.iperf3(one, two, "-M 1448", seconds=2)
    finally:
        one.run(f"echo {usual} >{least_packets}")
    after = two.link()["stats64"]["rx"]
    mean = (after["bytes"] - before["bytes"]) / (after["packets"] - before["packets"])
    # On the debug kernel it has little to send at a time.
    least = 1514 if DEBUG_KERNEL else 6000
    assert mean > least, f"frames of {mean:.0f} bytes on average arrive at MTU 1500"
    saw(f"MTU 1500: received frames of {mean:.0f} bytes on average")


def test_features(pair, saw):
    one, two = pair
    features = shown(one, "-k")
    for name in ("tx-checksumming", "scatter-gather", "tcp-segmentation-offload", "tx-udp-segmentation",
                 "generic-receive-offload", "rx-checksumming"):
        assert features[name].startswith("on"), f"{name}: {features[name]}"
    load = traffic.start(one, two.ip, 8)
    for words in ("tso off", "tx off", "sg off", "gro off", "sg on", "tx on", "tso on gro on"):
        one.run(f"ethtool -K {INTERFACE} {words}")
    traffic.tcp(one, two.ip, size=1 << 20)
    report = traffic.survived(load)
    saw(f"tso, tx, sg, gro off and on under {report['sent'] + report['received']} verified bytes")


@everywhere
def test_channels_under_traffic(pair, saw):
    one, two = pair
    most = maxima(one, "-l")["Combined"]
    assert most >= 2, "nodes of two CPUs offer at least two queue pairs"
    load = traffic.start(one, two.ip, 7)
    for count in (1, most, 1, 2):
        for node in pair:
            node.run(f"ethtool -L {INTERFACE} combined {count}")
            assert shown(node, "-l")["Combined"] == str(count)
            queues = node.run(f"ls -d /sys/class/net/{INTERFACE}/queues/tx-* | wc -l").out.strip()
            assert queues == str(count), f"{queues} transmit queues in sysfs, not {count}"
    report = traffic.survived(load)
    assert one.run(f"ethtool -L {INTERFACE} combined {most + 1}", check=False).code != 0
    assert one.run(f"ethtool -L {INTERFACE} combined 0", check=False).code != 0
    saw(f"1, {most}, 1, 2 queue pairs under {report['sent'] + report['received']} verified bytes")


def test_both_queues_carry_traffic(pair, saw):
    one, two = pair
    for node in pair:
        node.run(f"ethtool -L {INTERFACE} combined 2")
    before = statistics(two)
    traffic.iperf3(one, two, "-P 8", seconds=3)
    after = statistics(two)
    moved = {name: after[name] - before[name] for name in after if re.search(r"rx.*(packets|frames)", name)}
    moved = {name: count for name, count in moved.items() if re.search(r"\d", name)}
    assert sum(count > 0 for count in moved.values()) >= 2, f"eight streams, but receive queues saw {moved}"
    saw(", ".join(f"{name} {count}" for name, count in moved.items()))


@long
def test_the_core_knows_the_queues(pair, saw):
    """Which NAPI instance polls each queue, and what each has moved: netdev's family of generic netlink agrees with the interface."""
    one, two = pair

    def asked():
        return two.run(f"python3 /nupa/tests/guest/netdev.py {INTERFACE}").json()

    for count in (2, 1, 2):
        two.run(f"ethtool -L {INTERFACE} combined {count}")
        one.await_ping(two.ip)
        found = asked()
        napis = [napi["id"] for napi in found["napis"]]
        assert len(set(napis)) == count, found
        for kind in (0, 1):
            queues = {queue["id"]: queue["napi"] for queue in found["queues"] if queue["type"] == kind}
            assert sorted(queues) == list(range(count)) and sorted(queues.values()) == sorted(napis), found
        vectors = [int(number) for number in re.findall(r"^ *(\d+):.* nupa_fabric$", two.read("/proc/interrupts"), re.MULTILINE)]
        # The first is that of events of the link and of nodes.
        assert sorted(napi["irq"] for napi in found["napis"]) == sorted(vectors)[1:count + 1], (found, vectors)

    def moved(found, name, queues):
        return sum(queue.get(name, 0) for queue in found["by_queue"] if queue["queue"] in queues)

    # So many that both queues get some of them.
    traffic.iperf3(one, two, "-P 16", seconds=2)
    earlier = asked()
    two.run(f"ethtool -L {INTERFACE} combined 1")
    link, found = two.link()["stats64"], asked()
    for direction in ("rx", "tx"):
        for unit in ("packets", "bytes"):
            before, name = link[direction][unit], f"{direction}_{unit}"
            total, in_use = found["device"][0][name], moved(found, name, (0, 1))
            # The neighbours may have said something in between.
            assert before <= total <= two.link()["stats64"][direction][unit], (name, link, found)
            assert total - in_use >= moved(earlier, name, (1,)), f"{name}: the queue that is not in use is left out: {earlier}, {found}"
    two.run(f"ip link set {INTERFACE} down")
    assert not asked()["napis"]
    two.run(f"ip link set {INTERFACE} up")
    saw(f"{total} bytes sent, {in_use} of them by the queue that is left")


def spread(node):
    """The table of `ethtool -x`."""
    lines = re.findall(r"^ *\d+:((?: +\d+)+) *$", node.run(f"ethtool -x {INTERFACE}").out, re.MULTILINE)
    return [int(entry) for line in lines for entry in line.split()]


def test_spread_over_queues(pair, saw):
    """Each queue in turn takes all that is received, if the table says so; that outlives a restart of the queues."""
    one, two = pair
    for node in pair:
        node.run(f"ethtool -L {INTERFACE} combined 2")
    default = spread(two)
    assert default == [index % 2 for index in range(len(default))] and len(default) >= 8, default
    taken = []
    for queue, words in ((0, "equal 1"), (1, "weight 0 1")):
        two.run(f"ethtool -X {INTERFACE} {words}")
        two.run(f"ip link set {INTERFACE} down && ip link set {INTERFACE} up && nupa-up")
        assert spread(two) == [queue] * len(default)
        one.await_ping(two.ip)
        before = statistics(two)
        traffic.iperf3(one, two, "-P 8", seconds=1)
        after = statistics(two)
        moved = [after[name] - before[name] for name in ("queue0_rx_packets", "queue1_rx_packets")]
        assert moved[queue] > 0 and moved[1 - queue] == 0, (queue, moved)
        taken.append(moved[queue])
    for refused in (f"-L {INTERFACE} combined 1", f"-X {INTERFACE} equal 3", f"-X {INTERFACE} hfunc toeplitz"):
        assert two.run(f"ethtool {refused}", check=False).code != 0, refused
    assert spread(two) == [1] * len(default)
    two.run(f"ethtool -X {INTERFACE} default && ethtool -L {INTERFACE} combined 1")
    assert spread(two) == [0] * len(default)
    two.run(f"ethtool -L {INTERFACE} combined 2")
    assert spread(two) == default
    saw(f"{len(default)} entries; {taken[0]} packets by queue 0, {taken[1]} by queue 1")


def test_what_a_frame_cannot_say_is_done_before(pair, saw):
    """Headers that are too long for a receiver to look at: the sender's stack segments such packets and fills in their checksums."""
    one, two = pair
    two.run("rm -f /run/long_headers.err")
    serving = two.spawn("timeout 60 python3 /nupa/tests/guest/long_headers.py serve 5400 2>/run/long_headers.err")
    wait_until("the server", lambda: "ready" in two.run("cat /run/long_headers.err", check=False).out)
    before = statistics(two)
    found = one.run(f"python3 /nupa/tests/guest/long_headers.py send {two.ip6} 5400 {4 << 20}", timeout=60).json()
    assert serving.wait(30).code == 0
    after = statistics(two)
    refused = sum(after[name] - before[name] for name in after if name.endswith(("rx_bad_offload", "rx_errors")))
    assert refused == 0, {name: after[name] - before[name] for name in after}
    saw(f"{found['bytes']} bytes in segments with headers of 342 bytes")


def test_rings_under_traffic(pair, saw):
    one, two = pair
    most = maxima(one, "-g")
    default = shown(one, "-g")
    load = traffic.start(two, one.ip, 7)
    sizes = [(64, 64), (most["RX"], most["TX"]), (int(default["RX"]), int(default["TX"]))]
    for rx, tx in sizes:
        one.run(f"ethtool -G {INTERFACE} rx {rx} tx {tx}")
        now = shown(one, "-g")
        assert (int(now["RX"]), int(now["TX"])) == (rx, tx), now
        assert one.pings(two.ip, 2) == 2
    report = traffic.survived(load)
    for words in (f"rx {most['RX'] * 2}", f"tx {most['TX'] * 2}", "rx 63", "tx 63"):
        assert one.run(f"ethtool -G {INTERFACE} {words}", check=False).code != 0
    saw(f"rx/tx {sizes} under {report['sent'] + report['received']} verified bytes")


def test_mtu_changes_under_traffic(pair, saw):
    one, two = pair
    load = traffic.start(one, two.ip, 7)
    mtus = (1500, 65535, 576, 9000, 30000, 9000)
    for mtu in mtus:
        for node in pair:
            node.run(f"ip link set {INTERFACE} mtu {mtu}")
    report = traffic.survived(load)
    saw(f"MTU {mtus} under {report['sent'] + report['received']} verified bytes")


def test_coalescing(pair, saw):
    one, two = pair
    default = shown(one, "-c")
    assert "Adaptive RX" in default, default
    one.run(f"ethtool -C {INTERFACE} adaptive-rx off rx-usecs 50")
    now = shown(one, "-c")
    assert now["rx-usecs"] == "50" and "off" in now["Adaptive RX"].split()[0], now
    traffic.tcp(one, two.ip, size=1 << 20)
    one.run(f"ethtool -C {INTERFACE} rx-usecs 0")
    traffic.tcp(two, one.ip, size=1 << 20)
    one.run(f"ethtool -C {INTERFACE} adaptive-rx on")
    now = shown(one, "-c")
    assert now["Adaptive RX"].split()[0] == "on", now
    saw(f"default: Adaptive RX: {default['Adaptive RX']}, rx-usecs {default['rx-usecs']}")


@pytest.mark.parametrize("words", ["up", "promisc on", "allmulticast on"])
def test_flags(pair, words):
    one, two = pair
    one.run(f"ip link set {INTERFACE} {words}")
    one.await_ping(two.ip)
    one.run(f"ip link set {INTERFACE} promisc off allmulticast off")


def test_down_and_up(pair, saw):
    one, two = pair
    for _ in range(5):
        one.run(f"ip link set {INTERFACE} down && ip link set {INTERFACE} up && nupa-up")
    wait_until("carrier", one.carrier)
    one.await_ping(two.ip)
    traffic.tcp(one, two.ip, size=1 << 20)
    saw("5 times, traffic after it")


def test_set_mac_address(pair, saw):
    one, two = pair
    old = one.link()["address"]
    new = "02:12:34:56:78:9a"
    done = one.run(f"ip link set {INTERFACE} address {new}", check=False)
    if done.code != 0:
        assert one.link()["address"] == old
        pytest.skip("the driver keeps the node's own address (it names the node)")
    try:
        one.run(f"ip neigh flush dev {INTERFACE}")
        two.run(f"ip neigh flush dev {INTERFACE}")
        one.await_ping(two.ip)
        traffic.tcp(two, one.ip, size=1 << 20)
    finally:
        one.run(f"ip link set {INTERFACE} address {old}")
        two.run(f"ip neigh flush dev {INTERFACE}")
    saw(f"{old} -> {new} and back")

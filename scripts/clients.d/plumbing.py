# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a kernel puts above a network device: bridges, VLANs, virtual interfaces, tunnels, routing tables, filters, queues."""

import contextlib
import re

from kernel_users import modules, unloading
from sockets import BLOB, COPY, blob, compare
from stage import ROOT, Failed
from work import SOCKETS, Work

SIZE = 2 << 20
PORT = 9000
# The other node by what is above the device. Nothing else leads to this network.
THERE = "10.78.0.2"
INNER = "inner"
# Puts nupanet0 back to where `nupa-up` has it.
RESTORE = """node=$(hostname | tr -d a-z)
ip link set nupanet0 up
ip address replace 10.77.0.$node/24 dev nupanet0
ip address replace fd77::$node/64 dev nupanet0 nodad"""


def transfer(stage, to=THERE, options="", ports=(PORT, PORT)):
    """socat sends a file to an address of node 2, which writes it down; it is compared.

    `options` are socat's, for both; `ports`: the one that is asked for, and the one that is listened at.
    """
    sent = blob(stage, stage.one, SIZE)
    stage.run(f"rm -f {COPY}", node=stage.two)
    with stage.serving(f"socat -u TCP-LISTEN:{ports[1]},reuseaddr{options} CREATE:{COPY}", port=ports[1], ends=True):
        stage.run(f"socat -u OPEN:{BLOB} TCP:{to}:{ports[0]},retry=20,interval=0.5{options}", seconds=90)
    compare(stage, stage.two, sent)


@contextlib.contextmanager
def laid(stage, names, commands, undo, namespace=""):
    """Both nodes have modules loaded and commands run meanwhile, then all is undone. NUMBER stands for a node's number, PEER for the other's.

    Where a namespace is named, clients run there.
    """
    with unloading(stage, *names):
        modules(stage, *names)
        try:
            for node in (stage.one, stage.two):
                node.run("set -e\n" + commands.replace("PEER", str(3 - node.number)).replace("NUMBER", str(node.number)), timeout=60)
            with stage.within(namespace):
                yield
        finally:
            for node in (stage.one, stage.two):
                node.run(f"{undo}\n{RESTORE}", timeout=60)
            stage.one.await_ping(stage.two.ip)


def above(names, commands, undo, namespace=""):
    """A work: what has been laid carries a file."""
    def run(stage):
        with laid(stage, names, commands, undo, namespace):
            transfer(stage)
    return run


def interface(link):
    """Commands that make an interface with an address of the other network, and remove it; `link` begins with its name."""
    name = link.split()[0]
    return f"ip link add name {link}\nip address add 10.78.0.NUMBER/24 dev {name}\nip link set {name} up", f"ip link del {name}"


def inner(link):
    """The same, in a network namespace."""
    name = link.split()[0]
    made = (f"ip netns add {INNER}\nip link add name {link}\nip link set {name} netns {INNER}\n"
            f"ip -n {INNER} address add 10.78.0.NUMBER/24 dev {name}\nip -n {INNER} link set {name} up")
    return made, f"ip -n {INNER} link del {name}; ip netns del {INNER}", INNER


# A port of the bridge leads into a namespace, which has an Ethernet address that the device knows nothing of.
BRIDGE = f"""ip netns add {INNER}
ip link add br0 type bridge
ip link add veth0 mtu 9000 type veth peer name veth1 netns {INNER}
ip link set nupanet0 master br0
ip link set veth0 master br0 up
ip link set br0 up
ip -n {INNER} address add 10.78.0.NUMBER/24 dev veth1
ip -n {INNER} link set veth1 up
"""
UNBRIDGE = f"ip link set nupanet0 nomaster; ip link del veth0; ip link del br0; ip netns del {INNER}"

MOVE = f"""ip netns add {INNER}
ip link set nupanet0 netns {INNER}
ip -n {INNER} address add 10.78.0.NUMBER/24 dev nupanet0
ip -n {INNER} link set nupanet0 up
"""
MOVE_BACK = f"ip -n {INNER} link set nupanet0 netns 1; ip netns del {INNER}"

VRF = """ip link add blue type vrf table 77
ip link set blue up
ip link set nupanet0 master blue
ip address add 10.78.0.NUMBER/24 dev nupanet0
"""
UNVRF = "ip link set nupanet0 nomaster; ip address del 10.78.0.$(hostname | tr -d a-z)/24 dev nupanet0; ip link del blue"


def vrf(stage):
    """A network in a routing table of its own: it is reached from there, and not from elsewhere."""
    with laid(stage, ["vrf"], VRF, UNVRF):
        transfer(stage, options=",so-bindtodevice=blue")
        if stage.one.pings(THERE, 1, deadline=1):
            raise Failed("the network can be reached from outside of its VRF")


BOND = """modprobe -d ROOT dummy
ip link add backup0 type dummy
ip link add bond0 mtu 9000 type bond mode active-backup miimon 50 primary nupanet0
ip link set nupanet0 down
ip link set nupanet0 master bond0
ip link set backup0 master bond0
ip link set bond0 up
ip address add 10.78.0.NUMBER/24 dev bond0
""".replace("ROOT", ROOT)
UNBOND = "ip link del bond0; ip link del backup0; rmmod dummy"


def await_active(node, name):
    """Waits until a bond sends over this interface."""
    file = "/sys/class/net/bond0/bonding/active_slave"
    if node.run(f"for i in $(seq 100); do grep -qx {name} {file} && exit; sleep 0.1; done; exit 1", check=False).code != 0:
        raise Failed(f"the bond is active on {node.read(file) or 'nothing'}, not on {name}")


def bond(stage):
    """A bond over nupanet0 and an interface that leads nowhere: it goes to that when the device is down, and comes back."""
    with laid(stage, ["bonding"], BOND, UNBOND):
        await_active(stage.one, "nupanet0")
        transfer(stage)
        stage.one.run("ip link set nupanet0 down")
        await_active(stage.one, "backup0")
        stage.one.run("ip link set nupanet0 up")
        await_active(stage.one, "nupanet0")
        transfer(stage)


RULES = """table inet clients {
    chain in { type filter hook input priority 0; iifname nupanet0 tcp dport 9001 counter reject with tcp reset; }
    chain before { type nat hook prerouting priority -100; iifname nupanet0 tcp dport 9002 counter redirect to :9000; }
}
"""
NFT = ("nft_redir", "nft_reject_inet", "nft_chain_nat", "nft_ct", "nf_tables")


def nftables(stage):
    """Node 2 refuses one port, and takes another to where a server listens; both are counted."""
    modules(stage, *NFT)
    stage.run(f"nft -f - <<'end'\n{RULES}end", node=stage.two)
    try:
        refused = stage.result(f"socat -u OPEN:/dev/null TCP:{stage.server}:9001", seconds=20)
        if refused.code == 0 or "refused" not in refused.err:
            raise Failed(f"a port is not refused: {refused.err.strip()[-80:]}")
        transfer(stage, to=stage.server, ports=(9002, PORT))
        counted = [int(packets) for packets in re.findall(r"counter packets (\d+)", stage.run("nft list ruleset", node=stage.two))]
        if len(counted) != 2 or 0 in counted:
            raise Failed(f"the rules counted {counted} packets")
    finally:
        stage.run("nft delete table inet clients", node=stage.two)
        with unloading(stage, *NFT):
            pass


def netem(stage):
    """Packets are held for a time, which ping sees; then some are lost and others come out of order, which TCP makes good."""
    delay = 60
    with laid(stage, ["sch_netem"], f"tc qdisc replace dev nupanet0 root netem delay {delay}ms", "tc qdisc del dev nupanet0 root"):
        told = stage.one.run(f"ping -n -q -c 5 -i 0.2 -w 20 {stage.two.ip}", timeout=40).out
        least = re.search(r"= ([\d.]+)/", told)
        if not least or float(least[1]) < 2 * delay:
            raise Failed(f"a packet was faster there and back than {2 * delay} ms: {told.strip().splitlines()[-1]}")
        for node in (stage.one, stage.two):
            node.run("tc qdisc replace dev nupanet0 root netem delay 2ms reorder 25% loss 1%")
        transfer(stage, to=stage.server)


CONSOLE = "/sys/kernel/config/netconsole/clients"
CONSOLE_ON = f"""set -e
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
mkdir {CONSOLE}
cd {CONSOLE}
echo nupanet0 >dev_name
echo ADDRESS >local_ip
echo OTHER >remote_ip
echo MAC >remote_mac
echo 1 >enabled
for i in $(seq 20); do echo "<5>clients: line $i of netconsole" >/dev/kmsg; done
"""


def netconsole(stage):
    """What node 1's kernel prints comes to node 2."""
    mac = stage.two.read("/sys/class/net/nupanet0/address")
    with unloading(stage, "netconsole"):
        modules(stage, "netconsole")
        stage.run(f"rm -f {COPY}", node=stage.two)
        with stage.serving(f"socat -u UDP-RECV:6666 CREATE:{COPY}", ready="ss -Hlun 'sport = :6666' | grep -q ."):
            try:
                stage.one.run(CONSOLE_ON.replace("ADDRESS", stage.one.ip).replace("OTHER", stage.two.ip).replace("MAC", mac))
                arrived = f"for i in $(seq 50); do [ $(grep -c 'line [0-9]* of netconsole' {COPY}) -ge 20 ] && exit; sleep 0.1; done; exit 1"
                came = stage.two.run(arrived, timeout=60, check=False).code == 0
            finally:
                stage.one.run(f"[ ! -d {CONSOLE} ] || {{ echo 0 >{CONSOLE}/enabled; rmdir {CONSOLE}; }}", check=False)
        if not came:
            raise Failed(f"{stage.two.run(f'grep -c netconsole {COPY}', check=False).out.strip()} of 20 lines came")


# A container whose root directory is the image's own, and which has an interface of its own above nupanet0. Nodes have no udev, whose note
# about the device it looks for.
ROOM = "/mnt/container"
CONTAIN = f"""mkdir -p {ROOM} && mount --bind / {ROOM} || exit 1
systemd-machine-id-setup 2>/dev/null
mkdir -p /run/udev/data; echo I:1 >/run/udev/data/n$(cat /sys/class/net/nupanet0/ifindex)
mountpoint -q /sys/fs/cgroup || mount -t cgroup2 cgroup2 /sys/fs/cgroup
systemd-nspawn --quiet --register=no --keep-unit --resolv-conf=off --timezone=off --directory={ROOM} --bind=/tmp --network-KIND=nupanet0 --pipe \\
    sh -ec 'ip link set lo up; ip address add ADDRESS/24 dev LINK; ip link set LINK up; COMMAND'
ended=$?
umount {ROOM}; rm -r /run/udev
exit $ended
"""


def container(kind, prefix):
    """socat in a container on each node: one sends a file to the other."""
    def contained(address, command):
        found = CONTAIN.replace("KIND", kind).replace("ADDRESS", address).replace("LINK", f"{prefix}-nupanet0")
        return found.replace("COMMAND", command)

    def run(stage):
        with unloading(stage, kind):
            modules(stage, kind)
            sent = blob(stage, stage.one, SIZE)
            stage.run(f"rm -f {COPY}", node=stage.two)
            listens = "for p in $(pgrep socat); do nsenter -n -t $p ss -Hltn 'sport = :9000' | grep -q . && exit; done; false"
            with stage.serving(contained(THERE, f"socat -u TCP-LISTEN:{PORT} CREATE:{COPY}"), ready=f"({listens})", ends=True):
                stage.run(contained("10.78.0.1", f"socat -u OPEN:{BLOB} TCP:{THERE}:{PORT},retry=20,interval=0.5"), seconds=90)
            compare(stage, stage.two, sent)
    return run


def work(client, done, run, package="iproute2"):
    return Work(client, package, done, "", run, SOCKETS)


def carries(client, done, names, laying):
    return work(client, f"{done}; carries 2 MB, compared", above(names, *laying))


WORKS = [
    carries("bridge (kernel)", "`nupanet0` and a veth into a namespace are its ports", ["veth", "bridge"], (BRIDGE, UNBRIDGE, INNER)),
    carries("VLAN (kernel)", "`type vlan id 7`", ["8021q"], interface("vlan7 link nupanet0 type vlan id 7")),
    carries("macvlan (kernel)", "`type macvlan mode bridge`, in a namespace", ["macvlan"],
            inner("mv0 link nupanet0 type macvlan mode bridge")),
    carries("ipvlan (kernel)", "`type ipvlan mode l2`, in a namespace", ["ipvlan"], inner("iv0 link nupanet0 type ipvlan mode l2")),
    carries("vxlan (kernel)", "`type vxlan id 42`", ["vxlan"],
            interface("vx0 type vxlan id 42 dstport 4789 local 10.77.0.NUMBER remote 10.77.0.PEER dev nupanet0")),
    carries("Geneve (kernel)", "`type geneve id 42`", ["geneve"], interface("gv0 type geneve id 42 remote 10.77.0.PEER")),
    carries("GRE (kernel)", "`type gretap`", ["ip_gre"], interface("gr0 type gretap local 10.77.0.NUMBER remote 10.77.0.PEER dev nupanet0")),
    carries("network namespace (kernel)", "`ip link set nupanet0 netns`", [], (MOVE, MOVE_BACK, INNER)),
    work("container (systemd-nspawn)", "`--network-macvlan=nupanet0`; carries 2 MB, compared", container("macvlan", "mv"), "systemd-container"),
    work("container (systemd-nspawn)", "`--network-ipvlan=nupanet0`; carries 2 MB, compared", container("ipvlan", "iv"), "systemd-container"),
    work("VRF (kernel)", "`nupanet0` in a routing table of its own; carries 2 MB, compared; not reached from outside", vrf),
    work("bonding (kernel)", "active-backup over `nupanet0` and a dummy: fails over and back; carries 2 MB before and after, compared", bond),
    work("nftables", "a port refused, one redirected; 2 MB through that, compared", nftables, "nftables"),
    work("tc netem (kernel)", "a delay of 60 ms, seen by `ping`; 2 MB through loss and reordering, compared", netem),
    work("netconsole (kernel)", "20 lines of a kernel's log come to the other node", netconsole),
]

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The device as tools and test programs of rdma-core and perftest see it."""

import re

import pytest

from modes import EVERYTHING, everywhere, long, only
from nodes import INTERFACE
from verbs import DEVICE, gid_of, install, remote, send_requests, serve, sge
from waiting import wait_until

pytestmark = only("pcie", why="about nupa_rdma and rdma-core, which are the same above whatever is below")


@pytest.fixture
def equipped(settled):
    """Nodes with the device, for programs that bring their own verbs."""
    for node in settled:
        install(node)
    return settled


def devinfo(node):
    """`ibv_devinfo -v` as {name: value}; what is a list there is a list here."""
    found = {}
    for name, value in re.findall(r"^\s*(\S+):\s+(.*)$", node.run(f"ibv_devinfo -v -d {DEVICE}").out, re.MULTILINE):
        found.setdefault(name, value.strip())
    return found


@everywhere
def test_devinfo(equipped, saw):
    one, two = equipped
    found = devinfo(one)
    assert found["transport"] == "InfiniBand (0)" and found["link_layer"] == "Ethernet"
    assert found["state"] == "PORT_ACTIVE (4)" and found["max_mtu"] == found["active_mtu"] == "4096 (5)"
    assert found["vendor_id"] == "0x1af4" and found["vendor_part_id"] == str(0x10F0)
    assert found["fw_ver"] and found["node_guid"] == found["sys_image_guid"]
    assert int(found["node_guid"].replace(":", ""), 16) != 0 and found["node_guid"] != devinfo(two)["node_guid"]
    assert found["atomic_cap"] == "ATOMIC_HCA (1)"
    saw(f"fw {found['fw_ver']}, node_guid {found['node_guid']}")


# What real programs ask for (see Documentation/rdma.md).
LEAST = {"max_qp": 4096, "max_qp_wr": 4096, "max_sge": 16, "max_sge_rd": 16, "max_cq": 4096, "max_cqe": 1 << 22, "max_mr": 4096,
         "max_pd": 1024, "max_qp_rd_atom": 16, "max_qp_init_rd_atom": 16, "max_srq": 256, "max_srq_wr": 16384,
         "max_srq_sge": 16, "max_ah": 1024, "max_mw": 256}


@everywhere
def test_limits(settled, rdma, saw):
    """Limits are large enough, and true: the largest queues that are promised can be made."""
    program = rdma.program(settled[0])
    found = program.device()
    short = {name: found[name] for name, least in LEAST.items() if found[name] < least}
    assert not short, f"too small: {short}"
    pd = program.pd()
    cq = program.cq(found["max_cqe"])
    program.qp(pd, cq, sends=found["max_qp_wr"], recvs=found["max_qp_wr"])
    program.srq(pd, found["max_srq_wr"], found["max_srq_sge"])
    assert program.fails("cq", found["max_cqe"] + 1) and program.fails("srq", pd, 2 * found["max_srq_wr"])
    assert program.fails("qp", pd, cq, sends=4 * found["max_qp_wr"])
    saw(", ".join(f"{name} {found[name]}" for name in ("max_qp", "max_qp_wr", "max_cqe", "max_srq_wr")))


def test_rdma_link(equipped, saw):
    (link,) = [link for link in equipped[0].run("rdma -j link show").json() if link["ifname"] == DEVICE]
    assert (link["state"], link["physical_state"], link["netdev"]) == ("ACTIVE", "LINK_UP", INTERFACE), link
    saw(f"{link['state']}, {link['physical_state']}, netdev {link['netdev']}")


def has_gid(program, address):
    return any(entry["gid"] == gid_of(address) for entry in program.gids())


def test_gids_follow_the_addresses(settled, rdma, saw):
    """Each address of nupanet0 is a GID of type RoCE v2, while it is there."""
    one = settled[0]
    program = rdma.program(one)
    index = {address: program.gid(address)[0] for address in (one.ip, one.ip6)}
    one.run(f"ip address add 10.77.1.1/24 dev {INTERFACE}")
    # The kernel's RDMA core follows in a work queue.
    wait_until("a GID for a third address", lambda: has_gid(program, "10.77.1.1"), 10)
    one.run(f"ip address del 10.77.1.1/24 dev {INTERFACE}")
    wait_until("that GID to go", lambda: not has_gid(program, "10.77.1.1"), 10)
    assert index == {address: program.gid(address)[0] for address in (one.ip, one.ip6)}
    sysfs = f"/sys/class/infiniband/{DEVICE}/ports/1/gid_attrs"
    assert one.read(f"{sysfs}/types/{index[one.ip]}") == "RoCE v2"
    assert one.read(f"{sysfs}/ndevs/{index[one.ip]}") == INTERFACE
    saw(f"IPv4 at {index[one.ip]}, IPv6 at {index[one.ip6]}; a third came and went")


@everywhere
def test_parent_is_the_device(equipped, saw):
    """What programs look for in sysfs to place themselves: the PCI function or DAX device, and its NUMA node."""
    one = equipped[0]
    parent = one.run(f"readlink -f /sys/class/infiniband/{DEVICE}/device").out.strip()
    assert parent.endswith(one.device()), parent
    one.read(f"{parent}/numa_node")
    saw(parent.rpartition("/")[2])


def test_details_of_resources(settled, rdma, saw):
    """`rdma resource show -dd` tells sizes as they were granted, and how far the controller has come."""
    one, two = settled
    a, b = rdma.rc(one, two, sends=100, recvs=100)
    local, far = a.region(10000, 1), b.region(10000, 2)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far), count=5)
    a.poll(5)

    def details(kind, **wanted):
        """The driver's part of those entries that have these values."""
        listed = one.run(f"rdma -dd -j resource show {kind}").json()
        found = [entry for entry in listed if all(entry.get(name) == value for name, value in wanted.items())]
        return [{name.removeprefix("drv_"): value for name, value in entry.items() if name.startswith("drv_")}
                for entry in found]

    (qp,) = details("qp", ifname=DEVICE, lqpn=a.qp.qpn)
    assert qp == {"sq_requests": send_requests(one, a.qp), "sq_sges": 1, "inline_bytes": 0, "rq_requests": 128, "rq_sges": 1,
                  "remote_node": int(two.read(f"/sys/class/net/{INTERFACE}/address").replace(":", "")[-4:], 16), "sq_index": 5, "rq_index": 0,
                  "requests": 5, "served": 0, "sent_bytes": 5 * 10000, "received_bytes": 0}
    assert {"ring_entries": 512, "vector": 0} in details("cq", ifname=DEVICE, comm="python3")
    (mr,) = details("mr", ifname=DEVICE, mrlen=10000)
    assert set(mr) == {"pages", "page_shift"}
    saw(", ".join(f"{name} {qp[name]}" for name in ("sq_requests", "rq_requests", "sq_index")))


def counters(node):
    """Counters of the port, as `rdma statistic` shows them."""
    (found,) = node.run(f"rdma -j statistic show link {DEVICE}/1").json()
    return {name: value for name, value in found.items() if isinstance(value, int) and name != "port"}


def test_statistic(settled, rdma, saw):
    """Counters count what happens, and sysfs has the same."""
    one, two = settled
    a, b = rdma.rc(one, two)
    local, far = a.region(1000, 1), b.region(1000, 2)
    before = counters(one)
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far), count=5)
    a.poll(5)
    after = counters(one)
    grown = [name for name in after if after[name] > before.get(name, 0)]
    assert grown, f"no counter of {sorted(after)} grew"
    names = one.run(f"ls /sys/class/infiniband/{DEVICE}/ports/1/hw_counters").out.split()
    assert set(after) <= set(names), set(after) - set(names)
    saw(f"{len(after)} counters, of which grew: {', '.join(grown)}")


def port_counters(node):
    """The standard counters of the port, as node_exporter and others read them."""
    lines = node.run(f"cd /sys/class/infiniband/{DEVICE}/ports/1/counters && grep . *").out.split()
    return {name: int(value) for name, value in (line.split(":") for line in lines)}


def test_standard_counters(settled, rdma, saw):
    """What is written and read counts where it goes out and where it comes in, in words of 4 bytes."""
    one, two = settled
    a, b = rdma.rc(one, two)
    local, far = a.region(40000, 1), b.region(40000, 2)
    before = [port_counters(node) for node in settled]
    a.post_send("RDMA_WRITE", sges=[sge(local)], remote=remote(far), count=5)
    a.poll(5)
    a.post_send("RDMA_READ", sges=[sge(local, 0, 4000)], remote=remote(far))
    a.poll(1)
    after = [port_counters(node) for node in settled]
    grown = [{name: new[name] - old[name] for name in new if new[name] != old[name]} for old, new in zip(before, after)]
    packets = {f"{kind}_{way}_packets": 6 for kind, way in (("port", "xmit"), ("unicast", "xmit"))}
    assert grown[0] == {"port_xmit_data": 50000, "port_rcv_data": 1000, **packets}, grown
    packets = {name.replace("xmit", "rcv"): count for name, count in packets.items()}
    assert grown[1] == {"port_xmit_data": 1000, "port_rcv_data": 50000, **packets}, grown
    saw(f"{len(after[0])} counters; " + ", ".join(f"{name} {count}" for name, count in grown[0].items()))


@everywhere
@pytest.mark.parametrize("program,options", [
    ("ibv_rc_pingpong", ""), ("ibv_rc_pingpong", "-e -s 65536"), ("ibv_srq_pingpong", ""), ("ibv_ud_pingpong", ""),
    ("ibv_rc_pingpong", "-N -s 1000"),
], ids=["rc", "rc-events", "srq", "ud", "rc-new-post"])
def test_pingpong(equipped, saw, program, options):
    """Examples of libibverbs, between two nodes and on one; -c checks the bytes where they can."""
    check = "" if program == "ibv_ud_pingpong" else "-c"
    for server, client in ((equipped[1], equipped[0]), (equipped[0], equipped[0])):
        command = f"{program} -d {DEVICE} -g {gid_index(server)} -n 200 {check} {options}"
        serve(server, command, 18515)
        out = client.run(f"{command} {server.ip}", timeout=60).out
    saw(re.search(r"(\S+ usec/iter)", out).group(1))


def gid_index(node):
    """Index of the GID of a node's IPv4 address; the same on all nodes."""
    out = node.run(f"grep -l . /sys/class/infiniband/{DEVICE}/ports/1/gids/* 2>/dev/null | xargs grep -l "
                   f"'ffff:0a4d:000{node.number}' | head -n 1").out
    return int(out.rpartition("/")[2])


# All of them in `make test-long`.
PERFTEST = ["ib_write_lat", "ib_read_lat", "ib_send_lat", "ib_atomic_bw",
            *(pytest.param(name, marks=long) for name in ("ib_write_bw", "ib_read_bw", "ib_send_bw", "ib_atomic_lat"))]


@pytest.mark.parametrize("program", PERFTEST)
def test_perftest(equipped, saw, program):
    """Unmodified, with all sizes, with options that people use, between two nodes and on one."""
    one, two = equipped
    options = ["-a -n 5"] if program.endswith("_bw") and "atomic" not in program else ["-n 100"]
    if program == "ib_send_bw":
        options += ["-c UD -s 4096", "--use-srq -q 4 -l 4", *(["-e", "-b"] if EVERYTHING else [])]
    if program == "ib_write_bw":
        options += ["-q 8", "-I 64 -s 64", "--use_old_post_send"]
    for option in options:
        command = f"{program} -d {DEVICE} -F {option if '-n' in option else '-n 100 ' + option}"
        for server in (two, one) if option == options[0] else (two,):
            running = serve(server, command, 18515)
            result = one.run(f"{command} {server.ip}", timeout=60)
            running.wait(20)
    saw(f"{len(options)} ways; {result.out.strip().splitlines()[-2].split()[-1]}")

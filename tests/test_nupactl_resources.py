# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl: queue pairs, memory regions and queues of a host's controllers, with their processes."""

import json
import re

from nodes import INTERFACE
from test_nupactl import FINE, NAMED, NOTHING, NUPACTL, debugfs_peers, told
from verbs import DEVICE, send_requests


def of_process(objects, pid):
    """Those that a process has made."""
    return [entry for entry in objects if entry["owner"]["pid"] == pid]


def pid_of(node, number):
    """The process that has a queue pair, as `rdma` says it."""
    (qp,) = [qp for qp in node.run("rdma -j resource show qp").json() if qp["ifname"] == DEVICE and qp["lqpn"] == number]
    return qp["pid"]


def test_queue_pairs(settled, rdma, saw):
    one, two = settled
    a, b = rdma.rc(one, two, sends=100, recvs=100)
    unconnected = a.another_qp(sends=1, recvs=1)
    pid = pid_of(one, a.qp.qpn)
    here, alone = sorted(of_process(told(one, "qp"), pid), key=lambda qp: qp["number"])
    node = debugfs_peers(two)[0][0]
    assert (here["device"], here["number"], here["kind"], here["state"]) == (DEVICE, a.qp.qpn, "RC", "RTS")
    assert (here["remote_node"], here["remote_number"]) == (node, b.qp.qpn)
    assert (here["send_requests"], here["receive_requests"]) == (send_requests(one, a.qp), 128)
    assert here["owner"] == {"pid": pid, "name": one.read(f"/proc/{pid}/comm")}
    assert (alone["number"], alone["state"], alone["remote_node"], alone["remote_number"]) == (unconnected.qpn, "RESET", None, None)
    # The kernel's own, for connection management.
    gsi = [qp for qp in told(one, "qp") if qp["kind"] == "GSI"]
    assert [(qp["number"], qp["owner"]) for qp in gsi] == [(1, {"pid": None, "name": "ib_core"})]
    text = one.run(f"{NAMED} '{node} beta\\n' {NUPACTL} qp").out
    assert re.search(rf"^{DEVICE} +{a.qp.qpn} +RC +RTS +{node} \(beta\) +{b.qp.qpn} .* {pid} +python3$", text, re.MULTILINE), text
    assert re.search(r" GSI .*\[ib_core\]$", text, re.MULTILINE), text
    a.program.end()
    assert not of_process(told(one, "qp"), pid)
    saw(next(line for line in text.splitlines() if "(beta)" in line))


def test_many_queue_pairs(settled, rdma, saw):
    """More than one message of the kernel has room for."""
    one, two = settled
    a, _ = rdma.rc(one, two)
    made = {a.qp.qpn} | {a.another_qp(sends=1, recvs=1).qpn for _ in range(100)}
    found = of_process(told(one, "qp"), pid_of(one, a.qp.qpn))
    assert sorted(qp["number"] for qp in found) == sorted(made)
    saw(f"{len(found)} of {len(json.dumps(found))} bytes")


def test_regions_without_their_keys(settled, rdma, saw):
    one, two = settled
    a, _ = rdma.rc(one, two)
    region = a.region(10000, 1)
    (found,) = of_process(told(one, "mr"), pid_of(one, a.qp.qpn))
    assert (found["device"], found["bytes"]) == (DEVICE, 10000)
    assert found["pages"] * found["page_size"] >= 10000 or found["pages"] == 0
    said = one.run(f"{NUPACTL} --json mr").out + one.run(f"{NUPACTL} mr").out
    for key in region.lkey, region.rkey:
        assert str(key) not in said and f"{key:x}" not in said, said
    text = one.run(f"{NUPACTL} mr").out
    assert re.search(rf"^{DEVICE} +{found['number']} +10.0 kB ", text, re.MULTILINE), text
    saw(text.splitlines()[-1])


def test_queues(settled, rdma, saw):
    one, two = settled
    a, _ = rdma.rc(one, two, entries=300)
    said = told(one, "queues")
    (cq,) = of_process(said["completion_queues"], pid_of(one, a.qp.qpn))
    (listed,) = [entry for entry in one.run("rdma -dd -j resource show cq").json() if entry.get("pid") == cq["owner"]["pid"]]
    assert (cq["number"], cq["entries"], cq["ring_entries"], cq["vector"], cq["users"]) == (
        listed["cqn"], listed["cqe"], listed["drv_ring_entries"], listed["drv_vector"], listed["users"])
    (interface,) = said["interfaces"]
    rings, channels = (one.run(f"ethtool {option} {INTERFACE}").out for option in ("-g", "-l"))
    # What is set comes behind what could be.
    pairs, receives, sends = (int(re.findall(rf"^{name}:\s+(\d+)$", shown, re.MULTILINE)[-1])
                              for name, shown in (("Combined", channels), ("RX", rings), ("TX", rings)))
    assert interface == {"netdev": INTERFACE, "queue_pairs": pairs, "receive_buffers": receives, "send_frames": sends}
    text = one.run(f"{NUPACTL} queues").out
    assert re.search(rf"^{INTERFACE} +{pairs} +{receives} +{sends}$", text, re.MULTILINE), text
    saw(text.splitlines()[-1])


def test_user_without_rights(settled, rdma, saw):
    one, two = settled
    rdma.rc(one, two)
    for verb in "qp", "mr", "queues":
        as_user = one.run(f"setpriv --reuid=65534 --clear-groups {NUPACTL} --json {verb}")
        assert json.loads(as_user.out) == told(one, verb), as_user
    saw("reads the same")


def test_other_devices_are_not_shown(settled, saw):
    """Soft RoCE over the same interface is no device of ours."""
    one, _ = settled
    one.run(f"modprobe rdma_rxe && rdma link add rxe9 type rxe netdev {INTERFACE}")
    try:
        for verb in "qp", "queues":
            said = one.run(f"{NUPACTL} {verb}").out
            assert DEVICE in said and "rxe9" not in said, said
    finally:
        one.run("rdma link delete rxe9")
    saw("rxe9 is left out")


def test_without_an_rdma_device(pair, saw):
    one, _ = pair
    one.run("rmmod nupa_rdma", timeout=60)
    for verb in "qp", "mr", "queues":
        done = one.run(f"{NUPACTL} {verb}")
        assert done.code == FINE and "modprobe nupa_rdma" in done.out, done
    assert told(one, "qp") == [] and told(one, "queues")["interfaces"][0]["netdev"] == INTERFACE
    one.run("nupa-down", timeout=60)
    for verb in "qp", "mr", "queues":
        done = one.run(f"{NUPACTL} {verb}", check=False)
        assert done.code == NOTHING and "modprobe nupa_fabric" in done.err and not done.out, done
    saw(done.err.strip())

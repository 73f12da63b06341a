# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Tracepoints: each event of Documentation/tracing.md comes when it should, and its fields are what is known otherwise."""

import contextlib
import errno
import re

import pytest

from modes import emulator_only, long
from nodes import INTERFACE
from test_nupactl import debugfs_peers
from verbs import DEVICE, Side, connect, sge
from waiting import DEBUG_KERNEL, wait_until

TRACED = "/sys/kernel/tracing"
START = f"cd {TRACED} && echo 0 >tracing_on && echo >trace && echo 1 >events/nupa/enable && echo 1 >tracing_on"
STOP = f"cd {TRACED} && echo 0 >events/nupa/enable && echo >trace"

pytestmark = pytest.mark.skipif(DEVICE.startswith("rxe"), reason="about nupa_fabric")


def parsed(text):
    """Events of a trace: (name, fields)."""
    return [(name, dict(field.split("=", 1) for field in fields.split()))
            for name, fields in re.findall(r": (nupa_\w+): (.*)$", text, re.MULTILINE)]


@contextlib.contextmanager
def tracing(node):
    """Traces on a node; gives a function that returns the fields of the events of a name so far, those with certain values."""
    node.run(START)

    def events(name, **wanted):
        wanted = {field: str(value) for field, value in wanted.items()}
        return [fields for found, fields in parsed(node.run(f"cat {TRACED}/trace").out)
                if found == name and wanted.items() <= fields.items()]

    try:
        yield events
    finally:
        node.run(STOP)


def the(events, name, **wanted):
    """The fields of the only such event."""
    found = events(name, **wanted)
    assert len(found) == 1, f"{len(found)} events {name} with {wanted}, of {events(name)}"
    return found[0]


def key(number):
    return f"0x{number:08x}"


def test_queues_and_regions(settled, rdma, saw):
    node, _ = settled
    device = node.device()
    with tracing(node) as events:
        program = rdma.program(node)
        side = Side(program, shared=64)
        program.to_init(side.qp)
        region = side.region(5000, 1)
        moved = program.buffer(9000, 2)
        new = program.reregister(region, buffer=moved)["lkey"]
        program.window(side.pd)
        program.end()
        pair = the(events, "nupa_qp_create", device=device, qpn=side.qp.qpn, type="Rc")
        queue = the(events, "nupa_cq_create", device=device, cqn=pair["send_cqn"])
        shared = the(events, "nupa_srq_create", device=device, pd=pair["pd"])
        assert pair["recv_cqn"] == pair["send_cqn"] and int(queue["entries"]) >= 512 and int(shared["entries"]) >= 64
        the(events, "nupa_qp_modify", device=device, qpn=side.qp.qpn, state="Init")
        the(events, "nupa_mr_reg", device=device, key=key(region.lkey), pd=pair["pd"], iova=hex(region.address), len=5000,
            access="0xf")
        the(events, "nupa_mr_rereg", device=device, old_key=key(region.lkey), key=key(new))
        the(events, "nupa_mr_alloc", device=device, pd=pair["pd"], kind="Window", max_pages=0)
        for gone in (new, int(the(events, "nupa_mr_alloc")["key"], 16)):
            the(events, "nupa_mr_dereg", device=device, key=key(gone))
        the(events, "nupa_qp_destroy", device=device, qpn=side.qp.qpn)
        the(events, "nupa_cq_destroy", device=device, cqn=queue["cqn"])
        the(events, "nupa_srq_destroy", device=device, srqn=shared["srqn"])
        for opcode in ("CreateQp", "CreateCq", "CreateSrq", "CreateMr", "ModifyMr", "DestroyQp"):
            command = the(events, "nupa_admin_cmd", device=device, opcode=opcode, status="Success", error=0)
            assert 0 < int(command["duration_ns"]) < 5_000_000_000, command
    saw(f"queue pair {pair['qpn']}, region {key(region.lkey)}, and what belongs to them")


def test_errors(settled, rdma, saw):
    one, two = settled
    with tracing(one) as events:
        a, b = (Side(rdma.program(node)) for node in (one, two))
        connect(a, b)
        local, far = b.region(1000, 1), a.region(1000, 2)
        b.post_send("RDMA_WRITE", sges=[sge(local)], remote=[far.address, far.rkey ^ 0x5500])
        b.failed("REM_ACCESS_ERR")
        assert a.program.async_event(5) == "QP_ACCESS_ERR"
        the(events, "nupa_async_event", device=one.device(), event="QpAccess", number=a.qp.qpn)
        assert [fields["state"] for fields in events("nupa_qp_modify", qpn=a.qp.qpn)] == ["Init", "Rtr", "Rts"]
    saw(f"queue pair {a.qp.qpn} refused a request")


@emulator_only
def test_link_and_peers(pair, fabric, saw):
    """Both nodes are traced: one loses its link, the other its peer."""
    one, two = pair
    number = debugfs_peers(two)[0][0]
    with tracing(one) as far, tracing(two) as near:
        for up in (False, True):
            fabric.switch.link(2, up=up)
            wait_until("the link to change", lambda: near("nupa_link", device=two.device(), up=int(up)))
            wait_until("the peer to come or go", lambda: far("nupa_peer", device=one.device(), node=number, up=int(up)))
        assert [fields["up"] for fields in near("nupa_link")] == ["0", "1"]
        assert not far("nupa_link"), "node 1's own link did not change"
        back = the(far, "nupa_peer", node=number, up=1)
        assert (number, int(back["epoch"])) in debugfs_peers(one)
    saw(f"link down and up; node {number} back, epoch {back['epoch']}")


@emulator_only
def test_reset_by_the_system(pair, saw):
    """A function-level reset, which the driver is told of."""
    one, two = pair
    with tracing(two) as events:
        two.run(f"echo 1 >{two.device_directory()}/reset", timeout=20)
        wait_until("the controller to run", lambda: events("nupa_controller_state", new="Running"))
        states = [(fields["old"], fields["new"]) for fields in events("nupa_controller_state", device=two.device())]
        assert states == [("Running", "Paused"), ("Paused", "Running")]
        assert not events("nupa_reset"), "it was not the driver who reset it"
        the(events, "nupa_admin_cmd", opcode="QueryDevice", error=0)
    one.await_ping(two.ip)
    saw(f"{states}")


@emulator_only
def test_recovery(pair, fabric, saw):
    """The controller answers a command with a status that there is not, and is reset."""
    one, two = pair
    with tracing(two) as events:
        # Not "garbage": it spoils completions of frames as well, and one that comes by itself would be what the driver resets for.
        fabric.switch.fault(2, "badstatus")
        two.run(f"ethtool -S {INTERFACE}", check=False)
        fabric.switch.fault(2)
        wait_until("the controller to run", lambda: events("nupa_controller_state", new="Running"), 30)
        failed = events("nupa_admin_cmd", opcode="QueryCounters", error=-errno.EIO)
        assert failed, events("nupa_admin_cmd")
        the(events, "nupa_reset", device=two.device(), reason="AdminQueue", fault="NONE")
        states = [(fields["old"], fields["new"]) for fields in events("nupa_controller_state")]
        assert states == [("Running", "Down"), ("Down", "Running")]
    one.await_ping(two.ip)
    saw(f"reset after {len(failed)} commands that failed")


@long
def test_perf(settled, saw):
    """perf knows the events, and has the names of values."""
    node, _ = settled
    # Creates a queue pair, says its number, and ends, as nobody listens. perf starts it when it has enabled the events.
    program = f"ibv_rc_pingpong -d {DEVICE} -g 0 -p 1 127.0.0.1"
    said = node.run(f"timeout 110 perf record -q -a -e 'nupa:*' -o /run/perf.data -- {program}", timeout=120, check=False)
    qpn = re.search(r"local address:.* QPN 0x([0-9a-f]{6}),", said.out)
    assert qpn, said
    said = node.run("perf script -i /run/perf.data 2>/dev/null").out
    assert re.search(rf"nupa:nupa_qp_create: device={re.escape(node.device())} qpn={int(qpn[1], 16)} type=Rc ", said), said
    saw(f"{len(said.splitlines())} events recorded")


@pytest.mark.skipif(DEBUG_KERNEL, reason="the debug kernel's modules have no BTF")
def test_btf(settled, saw):
    """The kernel takes the BTF of the modules; it has the tracepoints' structures."""
    one, _ = settled
    sizes = dict(zip(("nupa_fabric", "nupa_net", "nupa_rdma"), one.run("cd /sys/kernel/btf && stat -c %s nupa_fabric nupa_net nupa_rdma").out.split()))
    one.run("grep -q trace_event_raw_nupa_admin_cmd /sys/kernel/btf/nupa_fabric")
    saw(", ".join(f"{name}: {size} bytes" for name, size in sizes.items()))

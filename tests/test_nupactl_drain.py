# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl drain: a controller goes out of service without a process of it being cut off."""

import errno
import json
import re

import traffic
from test_nupactl import FAILED, FINE, NUPACTL, TROUBLE, printed, told
from test_nupactl_resources import pid_of
from verbs import DEVICE, remote, sge
from waiting import wait_until

OUTPUT = "/run/drain.out"
# Requests of nupa_requests.py that are like those of nupactl but for one thing.
REFUSED = ["no value", "another value", "no such controller", "long", "another attribute"]


def port_state(node):
    return node.read(f"/sys/class/infiniband/{DEVICE}/ports/1/state")


def written(a, b, here, there):
    """A WRITE that succeeds."""
    a.post_send("RDMA_WRITE", wr_id=1, sges=[sge(here)], remote=remote(there))
    a.done("RDMA_WRITE", 1)
    b.check(there, [[0, 1, 0, here.size]])


def test_drain(settled, rdma, saw):
    one, two = settled
    a, b = rdma.rc(one, two)
    here, there = a.region(4096, 1), b.region(4096, 1)
    pid, device = pid_of(one, a.qp.qpn), one.device()
    one.run(f"rm -f {OUTPUT}")
    with printed(one, "--json events --follow") as lines:
        draining = one.spawn(f"timeout 60 {NUPACTL} drain >{OUTPUT}")
        try:
            wait_until("the process to be named", lambda: f"process {pid} (python3): 1 queue pair" in one.read(OUTPUT))
            assert a.program.fails("qp", a.pd, a.cq) == errno.ESHUTDOWN
            a.program.cq(16)
            # Those who are there go on, and so does the network.
            written(a, b, here, there)
            traffic.tcp(one, two.ip, size=1 << 20)
            (controller,) = told(one, "status")
            assert (controller["state"], controller["draining"], controller["user_queue_pairs"]) == ("running", True, 1)
            status, link = (one.run(f"{NUPACTL} {verb}").out for verb in ("status", "link"))
            assert "running, draining" in status and f"`nupactl drain --undo {device}`" in status, status
            assert ", draining" in link, link
            assert port_state(one) == "5: ACTIVE_DEFER"
            looked = one.run(f"{NUPACTL} drain --timeout 0 {device}", check=False)
            assert looked.code == TROUBLE and f"process {pid}" in looked.out and "--undo" in looked.out, looked
            a.program.end()
            done = draining.wait(20)
            assert done.code == FINE and f"{device} is drained" in one.read(OUTPUT), (done, one.read(OUTPUT))
            drained = told(one, "drain")
            assert drained == {"controller": controller["index"], "device": device, "draining": True, "queue_pairs": 0, "processes": []}
        finally:
            undone = one.run(f"{NUPACTL} drain --undo")

        def told_draining():
            found = [json.loads(line) for line in lines()]
            return [event["draining"] for event in found if event["event"] == "controller"]

        wait_until("the end of it to be told", lambda: len(told_draining()) >= 3)
    assert told_draining() == [False, True, False] and f"{device} is in service" in undone.out, (lines(), undone)
    assert port_state(one) == "4: ACTIVE"
    rdma.rc(one, two)
    saw(looked.out.splitlines()[1].strip())


def test_undone_while_it_waits(settled, rdma, saw):
    """Somebody else puts the controller back into service: the verb says so, waits no more, and does not call it drained."""
    one, two = settled
    a, _ = rdma.rc(one, two)
    pid = pid_of(one, a.qp.qpn)
    one.run(f"rm -f {OUTPUT}")
    draining = one.spawn(f"timeout 60 {NUPACTL} drain >{OUTPUT} 2>&1")
    wait_until("the process to be named", lambda: f"process {pid}" in one.read(OUTPUT))
    one.run(f"{NUPACTL} drain --undo")
    done, said = draining.wait(20), one.read(OUTPUT)
    assert done.code == TROUBLE and said.endswith(f"{one.device()} was put back into service meanwhile"), (done, said)
    saw(said.splitlines()[-1])


def test_who_may_drain_what(settled, saw):
    one, _ = settled
    as_user = one.run(f"setpriv --reuid=65534 --clear-groups {NUPACTL} drain", check=False)
    assert as_user.code == FAILED and "CAP_NET_ADMIN" in as_user.err, as_user
    other = one.run(f"{NUPACTL} drain 0000:ff:1f.7", check=False)
    assert other.code == FAILED and "there is no controller 0000:ff:1f.7 here" in other.err and one.device() in other.err, other
    assert not told(one, "status")[0]["draining"]
    saw(as_user.err.strip())


def test_odd_requests_drain_nothing(settled, saw):
    """By root, by another user, and by who is root in a namespace of its own."""
    one, _ = settled
    index = told(one, "status")[0]["index"]
    program = f"python3 -B /nupa/tests/guest/nupa_requests.py {index}"
    errors = json.loads(one.run(program).out)
    expected = {"nothing": "EINVAL, 1 is missing", "no index": "EINVAL, 1 is missing", "no value": "EINVAL, 16 is missing",
                "another value": "ERANGE", "no such controller": "ENODEV", "no such command": "ENOTSUP"}
    assert errors == {name: expected.get(name, "EINVAL") for name in errors}, errors
    for others in "setpriv --reuid=65534 --clear-groups", "unshare --user --map-root-user":
        found = json.loads(one.run(f"{others} {program}").out)
        assert {found[name] for name in REFUSED} == {"EPERM"}, (others, found)
    assert not told(one, "status")[0]["draining"]
    saw(f"{len(errors)} requests, such as {next(iter(errors))}")


def test_draining_ends_with_the_driver(pair, saw):
    """It stays while the RDMA device comes and goes, and the kernel says once what is refused."""
    one, two = pair
    one.run(f"{NUPACTL} drain")
    one.run("rmmod nupa_rdma", timeout=60)
    one.up()
    assert told(one, "status")[0]["draining"] and port_state(one) == "5: ACTIVE_DEFER"
    traffic.tcp(two, one.ip, size=1 << 20)
    device, driver = one.device(), one.driver_directory()
    one.run(f"echo {device} >{driver}/unbind && echo {device} >{driver}/bind", timeout=60)
    one.up()
    assert not told(one, "status")[0]["draining"]
    logged = re.findall(r"controller is drained.*", one.run("dmesg").out)
    assert logged, "the kernel log says nothing of it"
    saw(logged[-1])

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The scripts that people develop with: starting many nodes, and saying beforehand that there is no room for them."""

import os
import subprocess

import pytest

import modes
from nodes import TOP, VMS, Node, make_run_dir, stop_all
from waiting import PATIENCE

pytestmark = modes.only("pcie", why="scripts are tried with the modes that they are about")


def script(*command, run_dir=None, seconds=30, **variables):
    """Runs a script of the tree with only these variables about nodes set."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MODE", "NODES", "MEM", "POOL", "CPUS")}
    if run_dir:
        environment["NUPA_RUN"] = str(run_dir)
    return subprocess.run(command, cwd=TOP, env=environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=seconds * PATIENCE, check=False)


@pytest.mark.parametrize("variables, told", [
    ({"NODES": "0"}, "NODES is a number from 1 to 64 with MODE=pcie, not '0'"),
    ({"NODES": "65"}, "NODES is a number from 1 to 64 with MODE=pcie, not '65'"),
    ({"NODES": "9", "MODE": "cxl"}, "NODES is a number from 1 to 8 with MODE=cxl, not '9'"),
    ({"NODES": "two"}, "NODES is a number from 1 to 64 with MODE=pcie, not 'two'"),
    ({"MODE": "usb"}, "MODE is pcie, cxl or ivshmem, not 'usb'"),
    ({"MEM": "much"}, "MEM is a number with M or G, such as"),
    ({"MEM": "90000G"}, "2 nodes need 46080512 MB of memory, and"),
    ({"MODE": "ivshmem", "POOL": "90000G"}, "the pool needs 92160000 MB in"),
])
def test_what_cannot_be_started_is_refused_in_a_sentence(variables, told, saw):
    """Before anything is built or started."""
    run_dir = make_run_dir("nupa-up-")
    for command in ([VMS / "up"], ["make", "vm-up"]):
        done = script(*command, run_dir=run_dir, **variables)
        assert done.returncode != 0 and told in done.stderr, done
        assert "Traceback" not in done.stderr and not list(run_dir.glob("node*")), done
    saw(done.stderr.splitlines()[0])


@pytest.mark.parametrize("mode", ["pcie", "ivshmem"])
def test_one_node_too_many_is_refused_by_itself(mode):
    """Each start looks for room, not only that of many."""
    run_dir = make_run_dir("nupa-up-")
    done = script(VMS / "start", "--fabric", mode, "1", run_dir=run_dir, MEM="90000G")
    assert done.returncode != 0 and "a node needs" in done.stderr, done
    done = script("tests/run", "-k", "no_such_test", MODE=mode, MEM="90000G")
    assert done.returncode != 0 and "6 nodes need" in done.stderr and "--lanes 1" in done.stderr, done


@modes.long
def test_vm_up(saw):
    """Three nodes come up by one command, and reach each other; a second one has nothing left to do but the fourth."""
    run_dir = make_run_dir("nupa-up-")
    try:
        for count in (3, 4):
            done = script(VMS / "up", run_dir=run_dir, seconds=180, NODES=str(count))
            assert done.returncode == 0, done
        assert "node 3 is running already" in done.stdout and "node 4 is up" in done.stdout, done
        Node(4, run_dir).await_ping("10.77.0.1")
        saw(f"{len(list(run_dir.glob('node*.pid')))} nodes")
    finally:
        stop_all(run_dir)

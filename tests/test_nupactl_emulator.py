# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl emulator: the switch is asked and told by people, and nodes see what comes of it."""

import json
import os
import shutil
import subprocess
import tempfile

import pytest

from modes import emulator_only
from nodes import TOP, Switch, make_run_dir, stop_all
from pages import follows
from test_nupactl import FAILED, FINE, NOTHING, USAGE
from waiting import PATIENCE, wait_until

PAGE = "Documentation/nupactl.md"
pytestmark = emulator_only


PROGRAM = TOP / "build" / "bin" / "nupactl"


def nupactl(arguments, run_dir, code=FINE, user=None, program=PROGRAM):
    """Runs it on the host; returns what it printed."""
    done = subprocess.run([program, *arguments.split()], env=dict(os.environ, NUPA_RUN=str(run_dir)), capture_output=True, text=True, user=user,
                          timeout=30 * PATIENCE, check=False)
    assert done.returncode == code, done
    return done.stdout + done.stderr


def nupactl_of_nobody(arguments, run_dir, code):
    """The same as a user who may not enter the directories that the project lies in."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        return nupactl(arguments, run_dir, code, user=65534, program=shutil.copy(PROGRAM, directory))


def nodes(run_dir, arguments=""):
    """What it says of the nodes: {number: what}."""
    return {node["node"]: node for node in json.loads(nupactl(f"emulator {arguments} --json", run_dir))}


@pytest.fixture
def switch():
    """A switch of its own, without any guest."""
    run_dir = make_run_dir("nupa-emulator-")
    own = Switch(run_dir, nodes=3)
    own.start()
    yield own
    own.stop()
    stop_all(run_dir)
    shutil.rmtree(run_dir, ignore_errors=True)


def test_without_guests(switch, saw):
    """What is told is what is shown, to people and to programs."""
    where = switch.run_dir
    assert sorted(nodes(where)) == [1, 2, 3]
    assert "3 nodes and no guest" in nupactl("emulator", where)
    assert nodes(where, "link 2 down").keys() == {2} and not nodes(where)[2]["link"]
    assert switch.stats(2)["link"] is False and switch.stats(1)["link"] is True
    assert nodes(where, "fault 3 mute")[3]["fault"] == "mute"
    rows = [line.split()[:5] for line in nupactl("emulator", where).splitlines()]
    assert rows[1:] == [["2", "-", "-", "down", "-"], ["3", "-", "-", "up", "mute"]], rows
    assert len(nupactl("emulator show --all", where).splitlines()) == 4
    nupactl("emulator link 2 up", where)
    nupactl("emulator fault 3 none", where)
    assert "no guest" in nupactl(f"emulator --socket {where}/control.sock", "/nowhere")
    schema = json.loads(nupactl("schema", where))
    known = set(schema["$defs"]["NodeStats"]["properties"])
    assert "emulator" in schema["properties"] and known <= set(nodes(where)[1]), known
    saw("3 nodes")


def test_what_cannot_be_done(switch):
    """Each with what to do, and the exit code that scripts know."""
    where = switch.run_dir
    for arguments in ("emulator link 9 down", "emulator fault 9 mute", "emulator link 0 up"):
        assert "the emulator refuses: " in nupactl(arguments, where, FAILED)
    for arguments in ("emulator fault 1 broken", "emulator link 1 sideways", "emulator link x up", "emulator pull 1"):
        nupactl(arguments, where, USAGE)
    assert "badstatus" in nupactl("emulator fault 1 broken", where, USAGE)
    told = nupactl("emulator", where / "nowhere", NOTHING)
    assert "no emulator listens on" in told and "vms/pcie/node1.sh" in told and "--socket" in told, told
    (where / "text").write_text("")
    assert "no emulator listens on" in nupactl(f"emulator --socket {where}/text", where, NOTHING)
    if os.geteuid() == 0:
        os.chmod(where, 0o700)
        assert "another user's" in nupactl_of_nobody("emulator", where, FAILED)
    switch.stop()
    assert "no emulator" in nupactl("emulator link 1 down", where, NOTHING)


@follows(PAGE, "The emulated fabric")
@follows("Documentation/development.md", "Debugging")
def test_nodes_see_it(pair, fabric, said, saw):
    """Both pages' commands: a link that goes and comes back, a controller that does not answer and works again."""
    one, two = pair
    where = fabric.run_dir
    for command in said.commands():
        *_, last = words = command.text.split()
        told = nupactl(command.text.partition("nupactl ")[2], where)
        assert last != "emulator" or [line.split()[:4] for line in told.splitlines()[1:3]] == [[n, "yes", "runs", "up"] for n in "12"], told
        if last == "down":
            wait_until("the carrier to be gone", lambda: not two.carrier())
            nupactl(f"emulator link {words[-2]} up", where)
            wait_until("the carrier to be back", two.carrier)
        elif last == "mute":
            assert nodes(where)[2]["fault"] == "mute" and "mute" in told, told
    assert nodes(where)[2]["fault"] == "none"
    one.await_ping(two.ip)
    saw("links and faults of node 2")

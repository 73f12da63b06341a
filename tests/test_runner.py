# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The tests' own ways: nodes and switches do not outlive those who started them, and what one test expects of a log hides nothing else."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import types

import pytest

import modes
import reaper
from kernel_log import KernelLog, without_traces
from nodes import process_alive
from waiting import wait_until

pytestmark = modes.only("pcie", why="one mode is enough to see how runs end")

HERE = pathlib.Path(__file__).resolve().parent

# Starts a switch and a node, each as the tests do, and says when.
STARTER = """
import sys
import types
from fabric import Fabric
session = Fabric()
print(session.run_dir, flush=True)
session.switch.start()
node = session.nodes[1]
node.begin_start()
print("begun", flush=True)
node._starter.wait()
print("runs", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("when", ["begun", "runs"])
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_nothing_outlives_a_run(saw, how, when):
    """A run that is ended by a signal leaves no process and no directory, whether its nodes run or are just starting."""
    environment = dict(os.environ, PYTHONPATH=str(HERE), PYTHONDONTWRITEBYTECODE="1")
    run = subprocess.Popen([sys.executable, "-c", STARTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                           stderr=subprocess.DEVNULL, env=environment)
    run_dir = pathlib.Path(run.stdout.readline().strip())
    while run.stdout.readline().strip() != when:
        assert run.poll() is None, "the run ended by itself"
    there = reaper.belonging(run_dir)
    assert there, "nothing was started"
    run.send_signal(getattr(signal, how))
    run.communicate(timeout=20)
    wait_until("all that the run started to be gone", lambda: not reaper.belonging(run_dir) and not run_dir.exists())
    assert not any(process_alive(process) for process in there)
    saw(f"{len(there)} processes ended")


def test_what_is_excused_hides_nothing_else():
    """Of a kernel's log what a test expects goes, with its trace; not what comes behind that, also if the trace's last line was lost."""
    trace = ["Call Trace:", " <TASK>", " dump_stack"]
    expected, other = ["page allocation failure"], ["BUG: KASAN: use-after-free in nupa", "Call Trace:", " <TASK>", " nupa", " </TASK>"]
    for end in ([" </TASK>"], []):
        assert without_traces([*expected, *trace, *end, *other], re.compile("page allocation failure")) == other
    assert without_traces(other, re.compile("page allocation failure")) == other


def test_a_line_counts_once_it_has_ended(tmp_path):
    """A console is read while its node prints: half a line is neither taken for what a test waits for nor for trouble."""
    console = tmp_path / "console"
    console.write_text("[ 1.0] booted\nnode1 login: ")
    log = KernelLog(console)
    mark = log.position()
    printed = "[ 2.0] page allocation failure\n[ 3.0] node 0 is lost (offset 0x123000)\n[ 4.0] BUG: bad\n[ 5.0] more\n"
    seen, trouble = set(), []
    with log.excusing(re.compile("page allocation failure")):
        for letter in printed:
            with console.open("a") as file:
                file.write(letter)
            seen.update(log.since(mark).splitlines())
            trouble += log.new_trouble()
    assert seen == {"node1 login: [ 2.0] page allocation failure", *printed.splitlines()[1:]}
    assert trouble == ["[ 4.0] BUG: bad"]


class WithoutNodes:
    """A collected test that starts no nodes of the run."""

    module = sys.modules[__name__]

    def __init__(self, *marks):
        self.own_markers = [decorator.mark for decorator in marks]

    def iter_markers(self, name):
        return (mark for mark in self.own_markers if mark.name == name)

    def get_closest_marker(self, name):
        return next(self.iter_markers(name), None)


@pytest.mark.parametrize("mode", modes.MODES)
def test_what_is_about_one_mode_is_in_a_run_of_all(mode, monkeypatch):
    """Also if it starts its own nodes, so that there is nothing to make one test for each mode of; and in a run of that mode, and of no other."""
    test = WithoutNodes(modes.only(mode, why="whatever"), modes.long)
    monkeypatch.setattr(modes, "EVERYTHING", True)
    runs = {run: monkeypatch.setenv("MODE", run) or modes.fits(test) for run in ("", *modes.MODES)}
    assert runs == {"": True, **{other: other == mode for other in modes.MODES}}


def test_a_short_test_is_left_out_where_all_modes_run(monkeypatch):
    """On other modes than its own; a run of one mode has it, and so has one of everything."""
    test = WithoutNodes(modes.only("cxl", why="whatever"), modes.short_on("pcie"))
    test.module = types.SimpleNamespace(__name__=modes.SHORT["cxl"][0])
    for everything, of_all in (False, False), (True, True):
        monkeypatch.setattr(modes, "EVERYTHING", everything)
        runs = {run: monkeypatch.setenv("MODE", run) or modes.fits(test) for run in ("", "cxl")}
        assert runs == {"": of_all, "cxl": True}, everything

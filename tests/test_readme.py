# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What README.md and rdma.md tell people to type works as it stands, in the order in which it stands there."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import modes
import pages
from nodes import TOP, CommandFailed, make_run_dir, stop_all
from verbs import serve
from waiting import PATIENCE, wait_until

pytestmark = modes.only("pcie", why="the pages say themselves what joins the nodes")
MODULES = "/nupa/build/modules"
# What comes before the tree that a test has: the clone, behind which more may be in the line.
HAVE_TREE = "&& cd nupa && "


README = "README.md"


def target(command):
    """The target of the Makefile that it makes; None if it is another command. All that pages name take minutes."""
    words = command.split()
    return words[1] if words[0] == "make" else None


class Reader:
    """Types what a page says, in a tree, with a run directory of its own."""

    def __init__(self, top, run_dir):
        self.top, self.run_dir = top, run_dir
        self.environment = dict(os.environ, NUPA_RUN=str(run_dir))
        self.environment.pop("MODE", None)

    def run(self, command, minutes, typed=""):
        """Runs a command, which must end well and in time, and returns what it printed."""
        # Into a file: what a command leaves running keeps a pipe open.
        with tempfile.TemporaryFile("w+") as output:
            try:
                code = subprocess.run(["bash", "-c", command], cwd=self.top, env=self.environment, input=typed, text=True,
                                      stdout=output, stderr=subprocess.STDOUT, timeout=60 * minutes * PATIENCE, check=False).returncode
            except subprocess.TimeoutExpired:
                code = "still running"
            output.seek(0)
            text = output.read()
        if code != 0:
            raise CommandFailed(f"README says: {command}\nto which was typed: {typed or 'nothing'}\n{text[-3000:]}\n[exit {code}]")
        return text

    def follow(self, step, building):
        """Does what a step says; `building`: also what takes minutes, else it only has to be there."""
        command = step.text.rpartition(HAVE_TREE)[2]
        if target(command):
            # The target of a whole test run cannot be part of one.
            makes = building and not target(command).startswith("test")
            return self.run(command if makes else command.replace("make", "make -n", 1), minutes=30)
        told = step.comment.partition("there: ")[2]
        typed = " && ".join(told.split(", then ")).replace("ping ", "ping -c 3 ")
        text = self.run(command, minutes=30 if building else 3, typed=typed)
        promised = re.search(r"as many as (\d+)", step.comment)
        if promised:
            assert (self.run_dir / f"node{promised[1]}.sock").exists(), f"README promises {promised[1]} nodes: {os.listdir(self.run_dir)}"
        if "ping" in typed:
            assert "3 received" in text, text
        return text


@pytest.fixture
def run_dir():
    directory = make_run_dir("nupa-readme-")
    yield directory
    stop_all(directory)


@pages.follows(README, fenced=False)
def test_readme(run_dir, said, saw):
    """All its blocks for the development nodes, in order, in this tree; of what takes minutes only whether it is there."""
    assert any("there: " in command.comment for command in said.left), "README does not tell how to log in any more"
    reader = Reader(TOP, run_dir)
    typed = []
    for command in said.commands():
        reader.follow(command, building=False)
        typed.append(command.text)
    saw("; ".join(typed))


# The numbers of those blocks.
BLOCKS = sorted({command.block for command in pages.commands(README) if not command.fenced and not command.reason()})


@modes.long
@pytest.mark.parametrize("number", BLOCKS)
def test_readme_on_a_fresh_clone(run_dir, saw, number):
    """Each of its blocks where nothing is built yet."""
    steps = [command for command in pages.commands(README) if command.block == number and not command.reason()]
    with tempfile.TemporaryDirectory(prefix="nupa-clone-") as clone:
        top = pathlib.Path(clone) / "nupa"
        shutil.copytree(TOP, top, symlinks=True, ignore=lambda folder, _: ["build", ".git"] if folder == str(TOP) else [])
        reader = Reader(top, run_dir)
        for step in steps:
            reader.follow(step, building=True)
        stop_all(run_dir)
    saw("; ".join(step.text for step in steps))


@modes.long
@pages.follows("Documentation/rdma.md", "Bring it up")
def test_rdma_page(fabric, said, saw):
    """`Bring it up` of rdma.md, on nodes that have no module of ours yet."""
    one, two = nodes = fabric.bare(1, 2)
    server, provided, typed = None, False, []
    for step in said.commands():
        typed.append(step.text)
        if step.text.startswith(("insmod", "modprobe", "ip ")):
            for node in nodes:
                node.run(f"cd {MODULES} && {step.text.replace('10.77.0.1', node.ip)}", timeout=60)
            continue
        if not provided:
            # What the page tells in words.
            for node in nodes:
                node.run("cp /nupa/build/lib/libnupa-rdmav34.so /usr/lib/x86_64-linux-gnu/libibverbs/ && "
                         "cp /nupa/build/lib/nupa.driver /etc/libibverbs.d/")
            one.await_ping(two.ip)
            provided = True
        if step.comment == "on node 1":
            server = serve(one, step.text, 18515) if step.text.startswith("ib_") else one.spawn(step.text)
            if not step.text.startswith("ib_"):
                wait_until("the server", lambda: "LISTEN" in one.run("rdma -j resource show cm_id").out)
        elif step.comment == "on node 2":
            two.run(step.text, timeout=60)
            assert server.wait(60).code == 0, step.text
        else:
            one.run(step.text)
    saw("; ".join(typed))

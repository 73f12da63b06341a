# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What README.md and rdma.md tell people to type works as it stands, in the order in which it stands there."""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import pytest

import modes
from nodes import TOP, CommandFailed, make_run_dir, stop_all
from verbs import serve
from waiting import PATIENCE, wait_until

pytestmark = modes.only("pcie", why="the pages say themselves what joins the nodes")
MODULES = "/nupa/build/modules"
# What comes before the tree that a test has: tools from Debian, and the clone, behind which more may be in the line.
HAVE_TOOLS = "apt-get "
HAVE_TREE = "&& cd nupa && "


@dataclasses.dataclass
class Step:
    """One line of a block of code."""

    command: str
    comment: str

    @property
    def target(self):
        """The target of the Makefile that it makes; None if it is another command. All that pages name take minutes."""
        words = self.command.split()
        return words[1] if words[0] == "make" else None


def blocks(page):
    """The indented blocks of a page, each a list of steps."""
    found = []
    for text in re.findall(r"(?:^    .*\n)+", (TOP / page).read_text(), re.MULTILINE):
        lines = [line.strip().partition(" #") for line in text.splitlines()]
        steps = [Step(command.strip().rpartition(HAVE_TREE)[2], comment.strip()) for command, _, comment in lines]
        found.append([step for step in steps if not step.command.startswith(HAVE_TOOLS)])
    return found


README = blocks("README.md")


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
        if step.target:
            # The target of a whole test run cannot be part of one.
            makes = building and not step.target.startswith("test")
            return self.run(step.command if makes else step.command.replace("make", "make -n", 1), minutes=30)
        told = step.comment.partition("there: ")[2]
        typed = " && ".join(told.split(", then ")).replace("ping ", "ping -c 3 ")
        text = self.run(step.command, minutes=30 if building else 3, typed=typed)
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


def test_readme(run_dir, saw):
    """All its blocks, in order, in this tree; of what takes minutes only whether it is there."""
    steps = [step for block in README for step in block]
    assert any("there: " in step.comment for step in steps), "README does not tell how to log in any more"
    reader = Reader(TOP, run_dir)
    for step in steps:
        reader.follow(step, building=False)
    saw("; ".join(step.command for step in steps))


@modes.long
@pytest.mark.parametrize("number", range(len(README)))
def test_readme_on_a_fresh_clone(run_dir, saw, number):
    """Each of its blocks where nothing is built yet."""
    with tempfile.TemporaryDirectory(prefix="nupa-clone-") as clone:
        top = pathlib.Path(clone) / "nupa"
        shutil.copytree(TOP, top, symlinks=True, ignore=lambda folder, _: ["build", ".git"] if folder == str(TOP) else [])
        reader = Reader(top, run_dir)
        for step in README[number]:
            reader.follow(step, building=True)
        stop_all(run_dir)
    saw("; ".join(step.command for step in README[number]))


@modes.long
def test_rdma_page(fabric, saw):
    """`Bring it up` of rdma.md, on nodes that have no module of ours yet."""
    nodes = fabric.bare(1, 2)
    bring_up, use = blocks("Documentation/rdma.md")[:2]
    for node in nodes:
        for step in bring_up:
            node.run(f"cd {MODULES} && {step.command.replace('10.77.0.1', node.ip)}", timeout=60)
        # What the page tells in words.
        node.run("cp /nupa/build/lib/libnupa-rdmav34.so /usr/lib/x86_64-linux-gnu/libibverbs/ && "
                 "cp /nupa/build/lib/nupa.driver /etc/libibverbs.d/")
    one, two = nodes
    one.await_ping(two.ip)
    server = None
    for step in use:
        if step.comment == "on node 1":
            server = serve(one, step.command, 18515) if step.command.startswith("ib_") else one.spawn(step.command)
            if not step.command.startswith("ib_"):
                wait_until("the server", lambda: "LISTEN" in one.run("rdma -j resource show cm_id").out)
        elif step.comment == "on node 2":
            two.run(step.command, timeout=60)
            assert server.wait(60).code == 0, step.command
        else:
            one.run(step.command)
    saw("; ".join(step.command for step in bring_up + use))

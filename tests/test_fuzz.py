# SPDX-License-Identifier: GPL-2.0 OR MIT
"""`make fuzz`: what is not known is refused before anything is built, and all targets are described."""

import subprocess

import pytest

from modes import only
from nodes import TOP
from waiting import PATIENCE

FUZZ = TOP / "scripts" / "fuzz"
pytestmark = only("pcie", why="no node is needed, so once is enough")


def fuzz(*arguments):
    return subprocess.run([FUZZ, *arguments], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)


@pytest.mark.parametrize("arguments, said", [
    (("rain", "10"), "no target 'rain'; there are admin "),
    (("wqe", "soon"), "'soon' is no time"),
    (("wqe", "/does/not/exist"), "'/does/not/exist' is no time"),
    (("all", "0.001h"), "3 s is too short for 9 targets"),
    (("--seeds", "rain"), "no target 'rain'"),
    ((), "usage: "),
])
def test_what_there_is_not(arguments, said):
    done = fuzz(*arguments)
    assert done.returncode == 1 and said in done.stderr, done


def test_targets_are_described():
    """The table of the page has each target, and no other."""
    page = (TOP / "Documentation" / "development.md").read_text()
    section = page.split("\n## Fuzzing\n")[1].split("\n## ")[0]
    rows = [line.split("`")[1] for line in section.splitlines() if line.startswith("| `")]
    assert sorted(rows) == fuzz("--list").stdout.split()

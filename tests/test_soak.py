# SPDX-License-Identifier: GPL-2.0 OR MIT
"""`make soak`: each event beside a load that it cuts and one that it does not; what is not known is refused."""

import os
import subprocess
import sys

import pytest

from modes import long, only
from nodes import TOP
from waiting import PATIENCE

sys.path.append(str(TOP / "scripts" / "soak.d"))
import events  # noqa: E402 (the path comes first)

SOAK = TOP / "scripts" / "soak"


def soak(mode, *arguments):
    return subprocess.run([SOAK, "--seed", "1", *arguments], env=dict(os.environ, MODE=mode), capture_output=True, text=True,
                          timeout=500 * PATIENCE, check=False)


@only("pcie", why="no node is needed, so once is enough")
@pytest.mark.parametrize("mode, arguments, said", [("ring", (), "MODE=ring is unknown"), ("pcie", ("--event", "Rain"), "there are the events Nothing, "),
                                                   ("pcie", ("--load", "Truck"), "and the loads Tcp, ")])
def test_what_there_is_not(mode, arguments, said):
    done = soak(mode, *arguments)
    assert done.returncode == 1 and said in done.stderr, done


@long
@only("pcie", why="it starts nodes of its own")
@pytest.mark.parametrize("event", [event.__name__ for event in events.EVENTS])
def test_event(event, tmp_path, saw):
    """Two rounds; loads are chosen by the seed."""
    done = soak("pcie", "--rounds", "2", "--event", event, "--seconds", "5", "--output", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "pcie.md").read_text()
    assert "Nothing failed" in page and page in done.stdout and " 2 |" in page
    saw(done.stdout.splitlines()[1].strip())

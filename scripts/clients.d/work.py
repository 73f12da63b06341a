# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What is done with a client, and how its figures are read."""

import dataclasses
import re
from typing import Callable

from modes import MODES
from stage import PATHS, TCP, Failed


@dataclasses.dataclass(frozen=True)
class Work:
    """Something that a client does between two nodes."""

    client: str
    """The program."""
    package: str
    """The package that it is of: one of Debian or, with `pypi:` before its name, of PyPI."""
    done: str
    """What was done, in the words of the table."""
    unit: str
    """Unit of the figure; empty if there is none."""
    run: Callable
    """Does it on a `Stage`; returns the figure or None, or raises `Failed`."""
    paths: tuple = PATHS
    """What it can go over; what the first one of these gives is the result."""
    modes: tuple = MODES
    """The modes in which it can."""
    good: str = "works"
    """What the table says if it did what was asked of it."""

    @property
    def own(self):
        """The path that the result is about."""
        return self.paths[0]


RDMA = tuple(path for path in PATHS if path != TCP)
SOCKETS = (TCP,)


def number(pattern, text, what):
    """The number that a pattern finds in what a client printed."""
    found = re.findall(pattern, text, re.MULTILINE)
    if not found:
        lines = text.strip().splitlines()
        raise Failed(f"it printed no {what}; its last line: {lines[-1][:120] if lines else 'none'}")
    return float(found[-1])

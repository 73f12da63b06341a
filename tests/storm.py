# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The program that makes as much work for its node as a process can (tests/guest/storm.c)."""

import os
import subprocess

from nodes import TOP

# Where nodes see it.
PROGRAM = "/nupa/build/lib/nupa-storm"


def build():
    """Compiles it. Runs that go on at the same time may build it, too."""
    made = TOP / "build" / "lib" / "nupa-storm"
    new = made.with_name(f"{made.name}.{os.getpid()}")
    subprocess.run(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", f"-I{os.environ['NUPA_RDMA_CORE']}/include",
                    f"{TOP}/tests/guest/storm.c", f"-o{new}", "-l:libibverbs.so.1"], check=True)
    new.rename(made)

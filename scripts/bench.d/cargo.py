# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Measurements that cargo builds and runs on the host."""

import os
import pathlib
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "build" / "userspace"))


def run(what, subcommand, *options, **environment):
    """The output of a cargo command on the workspace; `what` is what the reader is told of a failure."""
    command = ["cargo", subcommand, "--locked", "--manifest-path", str(TOP / "userspace" / "Cargo.toml"),
               "--target-dir", str(TARGET), *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          env=dict(os.environ, **environment))
    if done.returncode != 0:
        print(done.stdout[-4000:])
        sys.exit(f"bench: {what} failed")
    return done.stdout

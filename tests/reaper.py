# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Ends what belongs to a run directory as soon as the process that made it is gone, however it went.

QEMU and the switch outlive whoever started them. What belongs to a run directory has it as NUPA_RUN in its environment,
which everything inherits; a process beside the tests, in a session of its own, waits for their end and kills that.
"""

import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

VARIABLE = "NUPA_RUN"
watchers = {}


def belonging(run_dir):
    """Ids of the processes that belong to a run directory."""
    entry = f"{VARIABLE}={run_dir}".encode()
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if entry in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
        except OSError:
            continue  # it ended, or is another user's
    return found


def watch(run_dir):
    """From now on nothing of this run directory outlives the calling process."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    caller = os.pidfd_open(os.getpid())
    watchers[str(run_dir)] = subprocess.Popen([sys.executable, __file__, str(run_dir)], stdin=caller, env=environment,
                                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                              start_new_session=True)
    os.close(caller)


def release(run_dir):
    """Lets what belongs to a run directory live on."""
    watcher = watchers.pop(str(run_dir))
    watcher.kill()
    watcher.wait()


def main(run_dir, caller):
    """Waits for the end of the process that `caller` is a descriptor of, then kills what it left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    select.select([caller], [], [])
    # One that forked while the others were looked at is seen the next time.
    clean = 0
    while clean < 3:
        found = belonging(run_dir)
        clean = 0 if found else clean + 1
        for process in found:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.05)
    shutil.rmtree(run_dir, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.stdin.fileno())

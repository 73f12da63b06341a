# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Waiting for a state, always with a limit and words for what was awaited."""

import os
import time

# The debug kernel checks each access, lock and allocation: what takes a second on the stock kernel may take up to
# this many on it. All limits of the tests are multiplied by it. So it may be on a machine that is busy with something
# else; NUPA_PATIENCE says it there.
DEBUG_KERNEL = os.environ.get("NUPA_KERNEL") == "debug"
PATIENCE = int(os.environ.get("NUPA_PATIENCE") or (8 if DEBUG_KERNEL else 1))


def many(count):
    """How often a test repeats what it does `count` times on the stock kernel: a tenth on the debug kernel, whose
    checks find in one time what the stock kernel shows after many."""
    return count // 10 if DEBUG_KERNEL else count


class TimedOut(AssertionError):
    """A state that was awaited did not come in time."""


def wait_until(what, condition, timeout=15.0, interval=0.1):
    """Polls `condition` until it returns something true, and returns that.

    `what` completes the sentence "waited N s for ...". An exception of the condition is an answer
    of "not yet"; the last one is shown if time runs out.
    """
    timeout *= PATIENCE
    deadline = time.monotonic() + timeout
    last = None
    while True:
        try:
            value = condition()
            if value:
                return value
            last = f"last seen: {value!r}"
        except (OSError, AssertionError, ValueError, KeyError) as error:
            last = f"last error: {error}"
        if time.monotonic() >= deadline:
            raise TimedOut(f"waited {timeout:g} s for {what}; {last}")
        time.sleep(interval)

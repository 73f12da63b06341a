#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Has allocations and copies of the kernel fail, one after the other:  walk.py [--from N] [--to N] [--show] OPERATION...

The kernel has a task's Nth allocation or copy fail (/proc/self/fail-nth, Documentation/fault-injection). An operation is tried with N = 1, 2, 3...
until it ends before its Nth. Each time it must fail with an error that fits, or do without; and tried again without a fault it must work.
One line of JSON for each operation: how many points there were, how often which error came, and what was wrong.

`--from` and `--to` try these points alone. `--show` has the kernel print what it lets fail. `--plain` tries each operation twice without a fault, for
kernels that let nothing fail.
"""

import argparse
import contextlib
import errno
import json
import os
import time

from pyverbs.pyverbs_error import PyverbsRDMAError

DEBUG = "/sys/kernel/debug"
# Where kmemleak allocates what it notes of other allocations. That such a note is missing is nothing that a driver sees.
NOTES = ("mem_pool_alloc", "__alloc_object", "__link_object")
# An operation with more points than these does not end.
MOST = 5000


def function_range(names):
    """Addresses of the first of these functions that the kernel has."""
    places = []
    with open("/proc/kallsyms", encoding="ascii") as file:
        for line in file:
            address, _, name = line.split()[:3]
            places.append((int(address, 16), name))
    places.sort()
    for wanted in names:
        for address, name in places:
            if name == wanted:
                return address, next(later for later, _ in places if later > address)
    raise LookupError(f"none of {names} is in /proc/kallsyms")


def configure(show):
    """Any allocation may fail, also those that may wait, and each copy from and to a program."""
    start, end = function_range(NOTES)
    settings = {"failslab": {"ignore-gfp-wait": "N"}, "fail_usercopy": {},
                "fail_page_alloc": {"ignore-gfp-wait": "N", "ignore-gfp-highmem": "N", "min-order": "0"}}
    for kind, own in settings.items():
        common = {"require-start": "0", "require-end": hex((1 << 64) - 1), "reject-start": hex(start), "reject-end": hex(end),
                  "verbose": "2" if show else "0", "stacktrace-depth": "32"}
        for name, value in (common | own).items():
            with open(f"{DEBUG}/{kind}/{name}", "w", encoding="ascii") as file:
                file.write(value)


class Injector:
    """Of this process's only thread."""

    fails = True

    def __init__(self):
        self.file = os.open("/proc/self/fail-nth", os.O_RDWR)

    def arm(self, nth):
        os.write(self.file, str(nth).encode())

    def left(self):
        """How many points there are until the one that fails; none if that has been. Disarms."""
        try:
            left = int(os.pread(self.file, 16, 0))
        except OSError:  # The copy of the answer was the one to fail.
            return 1
        # Or that of what is written.
        with contextlib.suppress(OSError):
            self.arm(0)
        return left

    def attempt(self, nth, act):
        """Whether the point was reached, and the error of the act, None if it had none."""
        error = None
        self.arm(nth)
        try:
            act()
        except (OSError, PyverbsRDMAError, MemoryError) as failure:
            error = failure
        return self.left() == 0, error


class Harmless:
    """In place of an injector: nothing fails."""

    fails = False

    @staticmethod
    def attempt(_nth, act):
        act()
        return False, None


def errno_of(error):
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return error.error_code if isinstance(error, PyverbsRDMAError) else error.errno


class Operation:
    """What is walked: `act`, between `before` and `after`, which no fault disturbs."""

    # Errors that fit. madvise(), by which libibverbs keeps memory of queues from children, has EAGAIN where memory lacks.
    clean = (errno.ENOMEM, errno.EFAULT, errno.EAGAIN)
    # What the act failed with.
    error = None
    # Whether a failed act may leave what `after` has to tidy up, and `before` to make anew.
    may_leave = False

    def before(self):
        """Makes what the act needs."""

    def act(self):
        """The one thing that is to fail."""
        raise NotImplementedError

    def attempt(self, injector, nth):
        return injector.attempt(nth, self.act)

    def after(self):
        """Removes what the act has made."""

    def works(self):
        """Fails unless what the act was for is there, after an act without a fault."""

    def failed(self):
        """Fails unless things are as they were, after an act that failed."""

    def close(self):
        """The end of the walk."""


def note(found, nth, error):
    """Counts an outcome; one that does not fit is told with its point."""
    name = "none" if error is None else errno.errorcode.get(errno_of(error), str(errno_of(error)))
    found["outcomes"][name] = found["outcomes"].get(name, 0) + 1


def walk(operation, injector, first, last):
    found = {"points": 0, "outcomes": {}, "wrong": []}
    start = time.monotonic()
    operation.before()
    operation.act()
    operation.works()
    operation.after()
    for nth in range(first, last + 1):
        operation.before()
        reached, error = operation.attempt(injector, nth)
        if reached:
            found["points"] += 1
            note(found, nth, error)
        if error is not None and (not reached or errno_of(error) not in operation.clean):
            found["wrong"].append(f"point {nth}: {error}")
        if not reached:
            if error is None:
                operation.after()
            break
        if error is None or operation.may_leave:
            operation.after()
            operation.before()
        try:
            if error is not None:
                operation.error = error
                operation.failed()
            operation.act()
            operation.works()
        except (OSError, PyverbsRDMAError, AssertionError) as failure:
            found["wrong"].append(f"point {nth}: {error}; the next try: {failure}")
            break
        operation.after()
    else:
        if last == MOST:
            found["wrong"].append(f"no end after {MOST} points")
    operation.close()
    return found | {"seconds": round(time.monotonic() - start, 1)}


def main():
    import walk_device
    import walk_verbs

    operations = walk_verbs.OPERATIONS | walk_device.OPERATIONS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--to", type=int, default=MOST, dest="last")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("operations", nargs="+", choices=sorted(operations), metavar="OPERATION")
    options = parser.parse_args()
    if not options.plain:
        configure(options.show)
    injector = Harmless() if options.plain else Injector()
    for name in options.operations:
        found = walk(operations[name](), injector, options.first, options.last)
        print(json.dumps({"operation": name} | found), flush=True)


if __name__ == "__main__":
    main()

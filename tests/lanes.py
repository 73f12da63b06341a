# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs modules of tests beside each other: each lane is a process with a fabric of its own, and takes the next module
when it is done with one. Tests that are marked `alone` come last, when all other lanes have ended."""

import ctypes
import fcntl
import json
import os
import signal
import tempfile
import traceback

import pytest

PR_SET_PDEATHSIG = 1


class Lane:
    """A pytest plug-in that runs the modules which this lane gets.

    `modules` is a pipe with the place of a module in `names` in each byte; `others` one that ends when the other lanes
    have ended, None in those.
    """

    def __init__(self, number, names, modules, others):
        self.number, self.names, self.modules, self.others = number, names, modules, others

    def claimed(self):
        """The modules that this lane gets, one after the other."""
        while place := os.read(self.modules, 1):
            yield self.names[place[0]]

    def tests(self, session):
        """The tests of this lane, each taken when the one before is about to run."""
        crowd = [item for item in session.items if not item.get_closest_marker("alone")]
        for name in self.claimed():
            yield from (item for item in crowd if item.module.__name__ == name)
        alone = [item for item in session.items if item.get_closest_marker("alone")]
        if alone and self.others is not None:
            os.read(self.others, 1)
            yield from alone

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """In place of pytest's own loop, which knows all tests from the start."""
        if session.testsfailed:
            raise session.Failed("not all tests can be collected")
        tests = self.tests(session)
        item = next(tests, None)
        while item:
            following = next(tests, None)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                # Nothing is left for the other lanes either.
                for _ in self.claimed():
                    pass
                raise session.Failed(session.shouldfail or session.shouldstop)
            item = following
        return True


class Lock:
    """Held by one lane at a time, while it prints."""

    def __init__(self):
        self.file = tempfile.TemporaryFile()

    def __enter__(self):
        fcntl.lockf(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        fcntl.lockf(self.file, fcntl.LOCK_UN)


def modules_of(names):
    """A pipe that has a byte for each module."""
    reading, writing = os.pipe()
    os.write(writing, bytes(range(len(names))))
    os.close(writing)
    return reading


def run(count, names, work):
    """Calls `work(lane)` in so many processes; returns what it returned in each, None where one ended otherwise.

    The processes end with the caller.
    """
    modules = modules_of(names)
    waiting, ending = os.pipe()
    caller = os.getpid()
    answers, children = [], []
    for number in range(count):
        answer = tempfile.TemporaryFile()
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != caller:
                os._exit(1)
            if number == 0:
                os.close(ending)
            lane = Lane(number, names, modules, waiting if number == 0 else None)
            try:
                answer.write(json.dumps(work(lane)).encode())
                answer.flush()
            except BaseException:  # whatever happened, this is not the parent
                traceback.print_exc()
            finally:
                os._exit(0)
        answers.append(answer)
        children.append(child)
    os.close(ending)
    interrupted = False
    for child in children:
        while True:
            try:
                os.waitpid(child, 0)
                break
            except KeyboardInterrupt:
                # They may have got it too; a second one does no harm.
                interrupted = True
                for other in children:
                    signal_if_there(other, signal.SIGINT)
            except ChildProcessError:
                break
    if interrupted:
        raise KeyboardInterrupt
    return [read_answer(answer) for answer in answers]


def signal_if_there(process, number):
    try:
        os.kill(process, number)
    except ProcessLookupError:
        pass


def read_answer(file):
    file.seek(0)
    text = file.read()
    return json.loads(text) if text else None

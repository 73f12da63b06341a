# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs modules of tests beside each other: each lane is a process with a fabric of its own, and takes the next job, which
is a module in one mode, when it is done with one. Tests that are marked `alone` come last, when all other lanes have
ended."""

import ctypes
import fcntl
import json
import os
import signal
import tempfile
import traceback

import pytest

from modes import mode_of

PR_SET_PDEATHSIG = 1
# In the stash of a test: whether it is the last one of its job.
LAST = pytest.StashKey[bool]()


class Lock:
    """Held by one lane at a time, while it prints or takes a job."""

    def __init__(self):
        self.file = tempfile.TemporaryFile()

    def __enter__(self):
        fcntl.lockf(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        fcntl.lockf(self.file, fcntl.LOCK_UN)


class Jobs:
    """Jobs, (mode, module), that no lane has taken yet. All lanes see the same."""

    def __init__(self, jobs):
        self.jobs = list(jobs)
        self.lock = Lock()
        self.taken = tempfile.TemporaryFile()
        os.ftruncate(self.taken.fileno(), len(self.jobs))

    def take(self, mode, share):
        """The next job, None if there is none: one of the mode, because nodes of another have to be started first.

        If the mode has none left, lanes begin with another at different places of what is left, from its start to its end as `share` is 0 to 1,
        so that each has its own mode for long.
        """
        with self.lock:
            taken = os.pread(self.taken.fileno(), len(self.jobs), 0)
            left = [place for place, byte in enumerate(taken) if not byte]
            if not left:
                return None
            if mode not in (self.jobs[place][0] for place in left):
                mode = self.jobs[left[round(share * (len(left) - 1))]][0]
            place = next(place for place in left if self.jobs[place][0] == mode)
            os.pwrite(self.taken.fileno(), b"\1", place)
            return self.jobs[place]


class Lane:
    """A pytest plug-in that runs the jobs which this lane gets.

    `share` says where among the jobs it begins; `others` is a pipe that ends when the other lanes have ended, None in those.
    """

    def __init__(self, number, share, jobs, others):
        self.number, self.share, self.jobs, self.others = number, share, jobs, others

    def taken(self):
        """The jobs that this lane gets, one after the other."""
        job = None, None
        while job := self.jobs.take(job[0], self.share):
            yield job

    def tests(self, session):
        """The tests of this lane; a job is taken when the last test of the one before is about to run."""
        crowd = [item for item in session.items if not item.get_closest_marker("alone")]
        for job in self.taken():
            yield from (item for item in crowd if job_of(item) == job)
        if self.others is not None:
            yield from (item for item in session.items if item.get_closest_marker("alone"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session):
        """In place of pytest's own loop, which knows all tests from the start."""
        if session.testsfailed:
            raise session.Failed("not all tests can be collected")
        if session.config.option.collectonly:
            return True
        tests = self.tests(session)
        item = next(tests, None)
        while item:
            following = next(tests, None)
            if item.get_closest_marker("alone"):
                os.read(self.others, 1)
            item.stash[LAST] = following is None or job_of(following) != job_of(item)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                # Nothing is left for the other lanes either.
                for _ in self.taken():
                    pass
                raise session.Failed(session.shouldfail or session.shouldstop)
            item = following
        return True


def job_of(item):
    return mode_of(item), item.module.__name__


def run(count, jobs, work):
    """Calls `work(lane)` in so many processes; returns what it returned in each, None where one ended otherwise.

    The processes end with the caller.
    """
    jobs = Jobs(jobs)
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
            lane = Lane(number, number / max(1, count - 1), jobs, waiting if number == 0 else None)
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

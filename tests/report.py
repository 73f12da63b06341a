# SPDX-License-Identifier: GPL-2.0 OR MIT
"""How a test run is printed: one line a test with what it saw, details of failures, the slowest, one line of totals."""

import contextlib
import os

import pytest

SAW = "saw"
SLOWEST = 10


class Report:
    """A pytest plug-in in place of pytest's own terminal output. `lock` is held while something is printed."""

    def __init__(self, lock=contextlib.nullcontext(), collects=True):
        self.passed = self.failed = self.skipped = 0
        self.failures = []
        self.seconds = {}
        self.lock, self.collects = lock, collects
        self.colour = os.isatty(1)

    def _line(self, word, colour, name, text, seconds):
        word = f"\033[{colour}m{word}\033[0m" if self.colour else word
        return f"{word} {name:<44} {seconds:6.1f} s  {text}".rstrip()

    def _print(self, *lines):
        with self.lock:
            print(*lines, sep="\n", flush=True)

    @pytest.hookimpl
    def pytest_collectreport(self, report):
        if report.failed and self.collects:
            self.failed += 1
            self._print(self._line("FAIL", 31, report.nodeid, "cannot be collected", 0), report.longreprtext)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[-1]
        self.seconds[name] = self.seconds.get(name, 0) + report.duration
        saw = "; ".join(str(value) for key, value in report.user_properties if key == SAW)
        if report.failed:
            self.failed += 1
            self.failures.append(name)
            where = "" if report.when == "call" else f"in its {report.when}: "
            text = where + str(report.longrepr).strip().splitlines()[-1][:160]
            sections = [f"--- {title}\n{text}" for title, text in report.sections
                        if "setup" not in title or report.when == "setup"]
            self._print(self._line("FAIL", 31, name, text, report.duration), report.longreprtext, *sections, "---")
        elif report.skipped:
            self.skipped += 1
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._print(self._line("SKIP", 33, name, reason, report.duration))
        elif report.when == "call":
            self.passed += 1
            self._print(self._line("PASS", 32, name, saw, report.duration))

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr):
        self.failed += 1
        self._print(excrepr)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        # pytest's own reporter must be there (assertions ask it how to be shown), but say nothing.
        reporter = config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w")

    def counts(self):
        """What a lane tells of itself."""
        return {"passed": self.passed, "failed": self.failed, "skipped": self.skipped, "failures": self.failures,
                "seconds": self.seconds}


def total(reports):
    """The sum of what lanes told of themselves; a lane that told nothing has failed."""
    sums = {"passed": 0, "failed": 0, "skipped": 0, "failures": [], "seconds": {}}
    for number, report in enumerate(reports):
        if report is None:
            report = Report().counts() | {"failed": 1, "failures": [f"lane {number + 1}, which ended by itself"]}
        for key in ("passed", "failed", "skipped", "failures"):
            sums[key] += report[key]
        sums["seconds"] |= report["seconds"]
    return sums


def print_summary(sums, seconds):
    """Names what failed and what took longest, with what it took to prepare."""
    for name in sums["failures"]:
        print(f"failed: {name}")
    slowest = sorted(sums["seconds"].items(), key=lambda entry: -entry[1])[:SLOWEST]
    print("slowest: " + ", ".join(f"{name} {took:.0f} s" for name, took in slowest if took >= 1))
    print(f"two-node tests: {sums['passed']} passed, {sums['failed']} failed, {sums['skipped']} skipped in {seconds:.0f} s")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""How a test run is printed: one line a test with what it saw, details of failures, one line of totals."""

import os
import time

import pytest

SAW = "saw"


class Report:
    """A pytest plug-in in place of pytest's own terminal output."""

    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.failures = []
        self.start = time.monotonic()
        self.colour = os.isatty(1)

    def _line(self, word, colour, name, text, seconds):
        word = f"\033[{colour}m{word}\033[0m" if self.colour else word
        print(f"{word} {name:<44} {seconds:6.1f} s  {text}".rstrip(), flush=True)

    @pytest.hookimpl
    def pytest_collectreport(self, report):
        if report.failed:
            self.failed += 1
            self._line("FAIL", 31, report.nodeid, "cannot be collected", 0)
            print(report.longreprtext, flush=True)

    @pytest.hookimpl
    def pytest_runtest_logstart(self, nodeid, location):
        if self.colour:
            print(f"     {location[2]} ...", end="\r", flush=True)

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::", 1)[-1]
        saw = "; ".join(str(value) for key, value in report.user_properties if key == SAW)
        if report.failed:
            self.failed += 1
            self.failures.append(name)
            where = "" if report.when == "call" else f"in its {report.when}: "
            self._line("FAIL", 31, name, where + str(report.longrepr).strip().splitlines()[-1][:160], report.duration)
            print(report.longreprtext)
            for title, text in report.sections:
                if "setup" not in title or report.when == "setup":
                    print(f"--- {title}\n{text}")
            print("---", flush=True)
        elif report.skipped:
            self.skipped += 1
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            self._line("SKIP", 33, name, reason, report.duration)
        elif report.when == "call":
            self.passed += 1
            self._line("PASS", 32, name, saw, report.duration)

    @pytest.hookimpl
    def pytest_internalerror(self, excrepr):
        self.failed += 1
        print(excrepr, flush=True)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config):
        # pytest's own reporter must be there (assertions ask it how to be shown), but say nothing.
        reporter = config.pluginmanager.getplugin("terminalreporter")
        reporter._tw._file = open(os.devnull, "w")

    def summary(self):
        for name in self.failures:
            print(f"failed: {name}")
        print(f"two-node tests: {self.passed} passed, {self.failed} failed, {self.skipped} skipped "
              f"in {time.monotonic() - self.start:.0f} s")

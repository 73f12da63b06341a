# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Fixtures: the fabric of the session, its nodes in their default state, and the check of their logs."""

import itertools
import os

import pytest

import lanes
import leaks
import modes
import pages
import reaper
import report
from fabric import LOGS, Fabric
from waiting import DEBUG_KERNEL
from verbs import Rdma


def pytest_configure(config):
    config.addinivalue_line("markers", "alone: what a test asserts is a time that other tests must not change")
    config.addinivalue_line("markers", "debug_kernel: left out on other kernels")
    config.addinivalue_line("markers", "follows(page, sections, fenced): what pages say that a test does (tests/pages.py)")
    config.addinivalue_line("markers", "long(*modes): takes long and seldom breaks; part of `make test-long` only, but for these modes")
    config.addinivalue_line("markers", "short(*modes): part of a run of all modes on these only")
    config.addinivalue_line("markers", "only(*modes, why): the modes that a test is about")


def pytest_addoption(parser):
    parser.addoption("--keep", action="store_true", help="leave the nodes running at the end")


def pytest_generate_tests(metafunc):
    """Has tests on nodes once for each mode of the run."""
    if "fabric" in metafunc.fixturenames:
        metafunc.parametrize("fabric", modes.chosen(), indirect=True, scope="session")


def pytest_collection_modifyitems(config, items):
    """Drops what is not about its mode; it is not counted as skipped, because there is nothing to be had."""
    dropped = [item for item in items if not modes.fits(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if modes.fits(item)]


@pytest.fixture(scope="session")
def fabric(request):
    """The nodes of a mode, and the switch where there is one; nothing runs until a test asks for nodes.

    Those of one mode end when a test of another one asks.
    """
    session = Fabric(request.param, keep_logs=LOGS / f"lane{os.environ['NUPA_TEST_LANE']}-{request.param}")
    yield session
    if request.config.getoption("--keep"):
        reaper.release(session.run_dir)
        print(f"nodes left running; NUPA_RUN={session.run_dir}")
    else:
        session.close()


@pytest.fixture
def pair(fabric):
    """Nodes 1 and 2, up, in default state, reaching each other."""
    return fabric.ensure(1, 2)


@pytest.fixture
def trio(fabric):
    """Nodes 1, 2 and 3, up, in default state, reaching each other."""
    return fabric.ensure(1, 2, 3)


@pytest.fixture
def settled(fabric):
    """Nodes 1 and 2 for a test that changes no settings of theirs: nothing is put back before the next such test."""
    return fabric.ensure(1, 2, settled=True)


@pytest.fixture
def rdma(fabric):
    """Starts verbs programs; those that a test leaves are killed."""
    programs = Rdma(fabric)
    yield programs
    programs.kill_all()


@pytest.fixture
def saw(record_property):
    """Notes what a test saw, for its line in the report."""
    return lambda text: record_property(report.SAW, text)


@pytest.fixture
def said(request):
    """What the pages say that a test follows. It fails if it has left something out."""
    found = pages.Said(list(request.node.iter_markers("follows")))
    yield found
    assert request.node.stash.get(pages.FAILED, False) or not found.left, f"not typed: {[command.text for command in found.left]}"


@pytest.fixture(autouse=True)
def quiet_kernels(request):
    """Fails a test during which a node's kernel printed a warning or worse."""
    yield
    if "fabric" not in request.fixturenames:
        return
    trouble = request.getfixturevalue("fabric").trouble()
    for name, lines in trouble.items():
        pytest.fail(f"{name}'s kernel printed:\n" + "\n".join(lines), pytrace=False)


@pytest.fixture(autouse=True)
def no_leaks(request):
    """On the debug kernel: fails a file's last test in a mode where a node's kernel has lost memory since it started."""
    yield
    if not DEBUG_KERNEL or "fabric" not in request.fixturenames or not request.node.stash.get(lanes.LAST, False):
        return
    fabric = request.getfixturevalue("fabric")
    found = {node.name: leaks.scan(node) for node in fabric.running()}
    if any(found.values()):
        fabric.trouble()  # The kernel's own line about it is not the next test's.
    for name, blocks in found.items():
        ours = [block for block in blocks if not leaks.NOT_OURS.search(block)]
        if ours:
            pytest.fail(f"{name}'s kernel lost memory:\n{''.join(ours)}", pytrace=False)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds to a failure what was run on the nodes and what they printed last."""
    outcome = yield
    result = outcome.get_result()
    item.stash[pages.FAILED] = result.failed
    fabric = item.funcargs.get("fabric") if hasattr(item, "funcargs") else None
    if fabric is None:
        return
    if result.failed:
        fabric.settled.clear()
        for node in fabric.nodes.values():
            if node.history:
                # What was asked again and again, with the same answer, is shown once.
                different = [str(entry)[-1500:] for entry in node.history[-50:]]
                text = "\n".join([text for text, _ in itertools.groupby(different)][-4:])
                result.sections.append((f"{node.name}: last commands", text))
            if node.log.path.exists():
                result.sections.append((f"{node.name}: last words", node.last_words()))
        if fabric.switch:
            result.sections.append(("switch: last lines of its log", fabric.switch.log_tail(15)))
    if result.when == "teardown":
        for node in fabric.nodes.values():
            node.history.clear()

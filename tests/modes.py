# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What joins the nodes: the emulated controllers, CXL memory, or ivshmem. Most tests run once for each of these modes."""

import os
import sys

import pytest

from waiting import DEBUG_KERNEL

MODES = ("pcie", "cxl", "ivshmem")
POOLS = ("cxl", "ivshmem")
# What a run of all modes has on pools, so that it fits into its time: all that differs there. MODE=cxl and MODE=ivshmem
# have all files.
SHORT = {
    "cxl": ("test_cleared", "test_guides", "test_hostile_peer", "test_mapped_regions", "test_memory_device_dmabufs", "test_memory_device_regions", "test_memory_devices", "test_pool_copy_workers", "test_pool_inboxes", "test_pool_memory",
            "test_pool_nodes", "test_pool_poison", "test_pool_sharing", "test_power", "test_process_rings", "test_process_rings_counters", "test_rdma_accounting", "test_rdma_direct", "test_rdma_errors",
            "test_rdma_operations", "test_rdma_registration", "test_rdma_timestamps", "test_traffic"),
    "ivshmem": ("test_guides", "test_kernel_stack", "test_pool_dma_copies", "test_pool_ids", "test_pool_memory", "test_pool_polling", "test_pool_sharing", "test_power",
                "test_rdma_direct", "test_rdma_storm", "test_rdma_timestamps", "test_rdma_udata", "test_traffic"),
}


def chosen():
    """The modes of this run: that of MODE, or all."""
    mode = os.environ.get("MODE")
    if mode and mode not in MODES:
        sys.exit(f"tests: MODE={mode} is unknown; it may be {', '.join(MODES)}")
    return (mode,) if mode else MODES


def only(*modes, why):
    """A mark of tests that are about certain modes; `why` is for who reads it. A test's own comes before its file's."""
    assert why and set(modes) <= set(MODES)
    return pytest.mark.only(*modes, why=why)


# For what takes long and seldom breaks: left out of `make test`, part of `make test-long`.
long = pytest.mark.long


def long_but_on(*modes):
    """A mark of tests that take long, and whose code differs little between modes: `make test` has them in these modes."""
    assert modes and set(modes) <= set(MODES)
    return pytest.mark.long(*modes)


def short_on(*modes):
    """A mark of tests that a run of all modes has on these only: what SHORT is to files. A run of one mode has them, whichever it is."""
    assert modes and set(modes) <= set(MODES)
    return pytest.mark.short(*modes)


# For what only a kernel can do that checks itself. Without it such a test is left out, and does not count as skipped.
debug_kernel = pytest.mark.debug_kernel

# Whether this run has everything: tests that take long, and all files on all modes.
EVERYTHING = os.environ.get("NUPA_TEST_LONG") == "1"

# For a test in a file that is marked otherwise.
everywhere = pytest.mark.only(*MODES)
emulator_only = only("pcie", why="the emulated switch is told by its control socket what to do, and there is none")


def about(item):
    """The modes that a collected test is about: what it is marked with counts, and if that is nothing, what its file is."""
    marks = [mark for mark in item.own_markers if mark.name == "only"] or list(item.iter_markers("only"))
    return [mode for mode in MODES if all(mode in mark.args for mark in marks)]


def mode_of(item):
    """The mode that a collected test is for. One that starts no nodes of the run is for the first of this run that it is about."""
    callspec = getattr(item, "callspec", None)
    own = [mode for mode in chosen() if mode in about(item)] or chosen()
    return callspec.params.get("fabric", own[0]) if callspec else own[0]


def fits(item):
    """Whether a test has something to say in its mode, in this run."""
    mode, module = mode_of(item), item.module.__name__
    if item.get_closest_marker("debug_kernel") and not DEBUG_KERNEL:
        return False
    long_test = item.get_closest_marker("long")
    if not EVERYTHING and long_test and mode not in long_test.args:
        return False
    short = item.get_closest_marker("short")
    if not EVERYTHING and len(chosen()) > 1 and (module not in SHORT.get(mode, (module,)) or short and mode not in short.args):
        return False
    return mode in about(item)

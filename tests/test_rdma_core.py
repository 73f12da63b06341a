# SPDX-License-Identifier: GPL-2.0 OR MIT
"""libibverbs of other releases (rdma-core.pin): it opens the device with the provider of its ABI, and carries data."""

import pytest

from modes import long, only
from nodes import TOP
from test_rdma_device import gid_index
from verbs import DEVICE, install, serve
from waiting import DEBUG_KERNEL

pytestmark = [long, only("pcie", why="about rdma-core, which is the same above whatever is below"),
              pytest.mark.skipif(DEBUG_KERNEL, reason="about what is in packages, which are for the distribution's kernel")]

PROVIDERS = "/usr/lib/x86_64-linux-gnu/libibverbs"
# Of the node's own programs, some that use nothing but libibverbs' public interface: perftest and ibv_devinfo do not. What differs between the versions: how contexts, completion
# queues and queue pairs are made, and the table of functions.
PROGRAMS = ("ibv_rc_pingpong -c -n 50", "ibv_rc_pingpong -c -e -s 65536 -n 50", "ibv_rc_pingpong -c -N -s 1000 -n 50", "ibv_srq_pingpong -c -n 50",
            "ibv_ud_pingpong -n 50")


def pinned():
    """(ABI, version) of each line."""
    lines = (TOP / "rdma-core.pin").read_text().splitlines()
    return [tuple(line.split()[:2]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("abi,version", pinned(), ids=[f"{abi}-{version}" for abi, version in pinned()])
def test_rdma_core(settled, saw, abi, version):
    library = TOP / "build" / "rdma-core" / version / "libibverbs.so.1"
    built = TOP / "build" / "lib" / f"libnupa-rdmav{abi}.so"
    if not (library.exists() and built.exists()):
        pytest.skip(f"rdma-core {version} was not to be had when providers were built")
    environment = f"env LD_LIBRARY_PATH=/nupa/{library.parent.relative_to(TOP)}"
    installed = f"{PROVIDERS}/{built.name}"
    for node in settled:
        install(node)
        if abi != "34":
            # It is not the node's own libibverbs, which has a provider.
            assert DEVICE not in node.run(f"{environment} ibv_devices").out
            node.run(f"cp /nupa/build/lib/{built.name} {installed}")
    try:
        works(*settled, environment, saw)
    finally:
        for node in settled:
            # A server that a failed test leaves would answer the next one's client.
            node.run(f"pkill -x 'ibv_.*'; [ {abi} = 34 ] || rm {installed}")


def works(one, two, environment, saw):
    """What is loaded is this libibverbs, and it opens the device; data goes both ways."""
    loaded = one.run(f"{environment} ldd $(command -v ibv_devices)").out
    assert f"libibverbs.so.1 => {environment.partition('=')[2]}/libibverbs.so.1" in loaded, loaded
    assert DEVICE in one.run(f"{environment} ibv_devices").out
    for program in PROGRAMS:
        command = f"{environment} {program} -d {DEVICE} -g {gid_index(two)}"
        running = serve(two, command, 18515)
        one.run(f"{command} {two.ip}", timeout=60)
        assert running.wait(20).code == 0
    saw(f"{len(PROGRAMS)} programs")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""libfabric over the device: what Documentation/uec.md says that runs today."""

import re

import pytest

from modes import long, only
from verbs import DEVICE, install
from waiting import PATIENCE, wait_until

PORT = 47592
OUTPUT = "/run/fi_pingpong.out"
ROUNDS = 200
SIZE = 70000  # more than libfabric's providers send without a rendezvous


@pytest.fixture
def equipped(settled):
    for node in settled:
        install(node)
    return settled


def offered(node, provider):
    """Kinds of endpoints that a provider has on the device."""
    out = node.run(f"fi_info -p '{provider}' -d {DEVICE}", check=False).out
    return set(re.findall(r"^\s+type: FI_EP_(\w+)", out, re.MULTILINE))


@only("pcie", why="about what libfabric makes of the device, which is the same above whatever is below")
def test_fi_info(equipped, saw):
    """The verbs provider has connected and datagram endpoints, the ones on top of it have reliable datagrams."""
    node = equipped[0]
    found = {provider: offered(node, provider) for provider in ("verbs", "verbs;ofi_rxm")}
    assert "MSG" in found["verbs"] and found["verbs;ofi_rxm"] == {"RDM"}, found
    saw(", ".join(f"{provider}: {' '.join(sorted(kinds))}" for provider, kinds in found.items()))


# How the programs end is not judged above ofi_rxm. It closes an endpoint before it has read the completions of it, and
# closing drops them, on any device (on soft RoCE too); so a side that learns of the end of the other before it has read
# the last message waits for ever, or says that its own last message was flushed (vrb_flush_sq() in prov/verbs). libfabric
# mends that after 2.6.0 (commit 697688386d16, "fix the msg_ep use-after-free at connection teardown"). Both sides have
# exchanged and checked all bytes, and said so, before either can end.
@pytest.mark.parametrize("provider,options,ends", [
    ("verbs", "-e msg", True), pytest.param("verbs;ofi_rxm", "-e rdm", False, marks=long),
    pytest.param("verbs;ofi_rxm", "-e rdm -m tagged", False, marks=long)], ids=["connected", "reliable-datagrams", "tagged"])
def test_fi_pingpong(equipped, saw, provider, options, ends):
    """libfabric's own test program between two nodes; it checks its bytes (-c)."""
    one, two = equipped
    times = []
    for size in (64, SIZE):
        command = f"timeout {60 * PATIENCE} stdbuf -oL fi_pingpong -p '{provider}' -d {DEVICE} {options} -c -I {ROUNDS} -S {size}"
        for node in (one, two):
            node.run(f"rm -f {OUTPUT}")
        server = two.spawn(f"{command} >{OUTPUT} 2>&1")
        two.run(f"for i in $(seq {100 * PATIENCE}); do ss -Hltn 'sport = :{PORT}' | grep -q . && exit 0; sleep 0.1; done; "
                "exit 1")
        client = one.spawn(f"{command} {two.ip} >{OUTPUT} 2>&1")
        results = [wait_until(f"the result of fi_pingpong on node {node.number}", lambda: result(node), timeout=60) for node in (one, two)]
        if ends:
            assert [side.wait(20).code for side in (server, client)] == [0, 0]
        else:
            for node in (one, two):
                node.run("pkill -x fi_pingpong", check=False)
            for side in (server, client):
                side.wait(20)
        times.append(f"{results[0][0]} B {results[0][-2]} us")
    saw(", ".join(times))


def result(node):
    """The words of the line that fi_pingpong prints of a size, when all of its messages have arrived. More may follow it."""
    out = node.run(f"cat {OUTPUT}").out
    found = [words for words in map(str.split, out.splitlines()) if words[1:3] == [f"{ROUNDS}", f"={ROUNDS}"]]
    assert len(found) == 1, out
    return found[0]

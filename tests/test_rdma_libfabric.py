# SPDX-License-Identifier: GPL-2.0 OR MIT
"""libfabric over the device: what Documentation/uec.md says that runs today."""

import re

import pytest

from modes import only
from verbs import DEVICE, install
from waiting import PATIENCE

PORT = 47592
# For 256 peers, which is the default, ofi_rxm asks for a larger completion queue than there is.
ENVIRONMENT = "FI_UNIVERSE_SIZE=64"
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


@pytest.mark.parametrize("provider,options", [
    ("verbs", "-e msg"), ("verbs;ofi_rxm", "-e rdm"), ("verbs;ofi_rxm", "-e rdm -m tagged"),
], ids=["connected", "reliable-datagrams", "tagged"])
def test_fi_pingpong(equipped, saw, provider, options):
    """libfabric's own test program between two nodes; it checks its bytes (-c)."""
    one, two = equipped
    times = []
    for size in (64, SIZE):
        command = f"{ENVIRONMENT} timeout {60 * PATIENCE} fi_pingpong -p '{provider}' -d {DEVICE} {options} -c -I 200 -S {size}"
        server = two.spawn(command)
        two.run(f"for i in $(seq {100 * PATIENCE}); do ss -Hltn 'sport = :{PORT}' | grep -q . && exit 0; sleep 0.1; done; "
                "exit 1")
        out = one.run(f"{command} {two.ip}", timeout=70).out
        assert server.wait(20).code == 0
        last = out.strip().splitlines()[-1].split()
        times.append(f"{last[0]} B {last[-2]} us")
    saw(", ".join(times))

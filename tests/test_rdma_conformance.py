# SPDX-License-Identifier: GPL-2.0 OR MIT
"""rdma-core's own tests, of the version that the nodes run: client and server on one device."""

import os
import re
import subprocess

import pytest

from modes import only
from verbs import DEVICE, install
from waiting import PATIENCE

pytestmark = only("pcie", why="rdma-core's tests stay on one node, where no pool is in between")

SUITE = os.environ.get("NUPA_RDMA_CORE", "")
MODULES = ["test_addr", "test_atomic", "test_cq", "test_cq_events", "test_cqex", "test_device", "test_fork", "test_mr",
           "test_odp", "test_parent_domain", "test_pd", "test_qp", "test_qpex", "test_rdmacm", "test_relaxed_ordering",
           "test_shared_pd", "test_srq"]
# What rdma-core's tests may find missing: {words of the reason for skipping: what the device does not have}.
MISSING = {
    r"XRC": "extended reliable connections",
    r"(?i)on.?demand|ODP": "on-demand paging",
    r"(?i)raw ?packet|CAP_NET_RAW": "raw packet queue pairs",
    r"(?i)\bUC\b|unreliable": "unreliable connections",
    r"(?i)gpu|dri\b|dmabuf|dma-buf": "a GPU in the node",
    r"SRQ resize": "shared receive queues that change their size",
    r"(?i)huge ?page|hugetlb": "huge pages in the node",
    r"(?i)multicast": "multicast",
    r"mw_type1": "memory windows of type 1",
    r"(?i)import": "objects that several contexts share",
}
# What the device does otherwise than these tests ask for.
OTHERWISE = {
    "test_dm_bad_access": "device memory is not limited to words of four bytes",
    "test_dm_write_bad_flow": "device memory is not limited to words of four bytes",
}
NAME = re.compile(r"^(test_\w+) \((?:tests\.)?(test_\w+)\.(\w+)")
RESULT = re.compile(r"(?:\.\.\. |^)(ok|FAIL|ERROR|skipped '(.*)')$")


def results(text):
    """What unittest printed: {module: {(class, test): (result, reason for skipping)}}.

    A test's name and result may be lines apart.
    """
    found, name = {}, None
    for line in text.splitlines():
        name = match.group(2, 3, 1) if (match := NAME.match(line)) else name
        if name and (match := RESULT.search(line)):
            module, *test = name
            found.setdefault(module, {})[tuple(test)] = (match[1].split()[0], match[2] or "")
            name = None
    return found


@pytest.fixture(scope="module")
def outcome(fabric, request):
    """Output of the suite on node 1: of all modules at once, because loading them takes as long as most of them run."""
    node, _ = fabric.ensure(1, 2, settled=True)
    install(node)
    chosen = sorted({item.callspec.params["module"] for item in request.session.items if item.module is request.module})
    if node.run("test -d /run/tests", check=False).code != 0:
        archive = subprocess.run(["tar", "-C", SUITE, "-cf", "-", "tests"], capture_output=True, check=True).stdout
        subprocess.run(node.ssh("tar -C /run -xf -"), input=archive, env=node.environment(), check=True, timeout=60)
    return node.run(f"cd /run/tests && timeout {300 * PATIENCE} python3 -B -W ignore run_tests.py --dev {DEVICE} "
                    f"-v {' '.join(chosen)} 2>&1", timeout=320, check=False).out


@pytest.mark.parametrize("module", MODULES)
def test_conformance(settled, outcome, saw, module):
    found = results(outcome).get(module, {})
    wrong = [test for test, (result, _) in found.items() if result in ("FAIL", "ERROR") and test[1] not in OTHERWISE]
    skipped = {test: reason for test, (result, reason) in found.items() if result == "skipped"}
    assert found and not wrong, f"{wrong}\n{outcome[-6000:]}"
    surprising = {test: reason for test, reason in skipped.items()
                  if not any(re.search(words, test[1] + reason) for words in MISSING)}
    assert not surprising, f"skipped, though the device should have it: {surprising}"
    saw(f"{len(found) - len(skipped)} passed, {len(skipped)} skipped")

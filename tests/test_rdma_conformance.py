# SPDX-License-Identifier: GPL-2.0 OR MIT
"""rdma-core's own tests, of the version that the nodes run: client and server on one device."""

import os
import re
import subprocess

import pytest

from verbs import DEVICE, install

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
    r"(?i)timestamp|clock": "completion time stamps",
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
NAME = re.compile(r"^(test_\w+) \(")
RESULT = re.compile(r"(?:\.\.\. |^)(ok|FAIL|ERROR|skipped '(.*)')$")


def results(text):
    """What unittest printed: {test: (result, reason for skipping)}. A test's name and result may be lines apart."""
    found, name = {}, None
    for line in text.splitlines():
        name = match[1] if (match := NAME.match(line)) else name
        if name and (match := RESULT.search(line)):
            found[name] = (match[1].split()[0], match[2] or "")
            name = None
    return found


@pytest.fixture
def suite(settled):
    """Node 1 with the suite unpacked."""
    node = settled[0]
    install(node)
    if node.run("test -d /run/tests", check=False).code != 0:
        archive = subprocess.run(["tar", "-C", SUITE, "-cf", "-", "tests"], capture_output=True, check=True).stdout
        subprocess.run(node.ssh("tar -C /run -xf -"), input=archive, env=node.environment(), check=True, timeout=60)
    return node


@pytest.mark.parametrize("module", MODULES)
def test_conformance(suite, saw, module):
    done = suite.run(f"cd /run/tests && timeout 120 python3 -B -W ignore run_tests.py --dev {DEVICE} -v {module} 2>&1",
                     timeout=150, check=False)
    found = results(done.out)
    wrong = [name for name, (result, _) in found.items() if result in ("FAIL", "ERROR") and name not in OTHERWISE]
    skipped = {name: reason for name, (result, reason) in found.items() if result == "skipped"}
    assert found and not wrong, f"{wrong}\n{done.out[-6000:]}"
    surprising = {name: reason for name, reason in skipped.items()
                  if not any(re.search(words, name + reason) for words in MISSING)}
    assert not surprising, f"skipped, though the device should have it: {surprising}"
    saw(f"{len(found) - len(skipped)} passed, {len(skipped)} skipped")

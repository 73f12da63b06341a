# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The kernel's own tests of network drivers (tools/testing/selftests/drivers/net), unmodified, node 2 being the remote end.

tests/selftests.py says what comes out. A case that does better than that fails as well: then the entry is to go.
"""

import re

import pytest

import selftests
from modes import long, only
from nodes import INTERFACE, TOP

pytestmark = [only("pcie", why="interrupts are those of PCIe; the rest is the same everywhere"), long]

WHERE = TOP / "build" / "selftests"
# KTAP, of which the case is "program.case" or "program.case.variant".
RESULT = re.compile(r"^(not )?ok \d+ [^ .]+\.(\S+)(?: # (SKIP|XFAIL)?)?", re.MULTILINE)
# One connection for all commands on the remote end; each would take a second or more for its keys, and some wait for two only.
SHARED = """mkdir -p /root/.ssh
printf 'Host 10.77.0.*\\n ControlMaster auto\\n ControlPath /run/ssh-%%h\\n ControlPersist 300\\n' >/root/.ssh/config"""


@pytest.fixture
def ready(pair):
    """The nodes with the tests, and the programs that these start."""
    if not WHERE.exists():
        pytest.skip("not built: make test-selftests")
    one, two = pair
    for node in pair:
        # What is there stays as it is: it may be in use.
        node.run("[ -e /run/selftests ] || { cp -an /nupa/build/selftests/programs/. / && ldconfig && cp -r /nupa/build/selftests/tests "
                 "/run/selftests; }", timeout=60)
    yield pair
    one.run(f"ssh -O exit {two.ip} 2>/dev/null; rm -f /root/.ssh/config", check=False)
    for node in pair:
        node.run(f"ip link set {INTERFACE} xdp off; ip link set {INTERFACE} xdpgeneric off; ethtool -X {INTERFACE} default; tc qdisc del dev {INTERFACE} clsact", check=False)


def verdicts(output):
    """What a program says of its cases."""
    found = {}
    for bad, case, word in RESULT.findall(output):
        found[case] = word.lower() if word else "fail" if bad else "ok"
    return found


def test_all_programs_are_known():
    if not WHERE.exists():
        pytest.skip("not built: make test-selftests")
    top = WHERE / "tests" / "drivers" / "net"
    programs = {str(path.relative_to(top)) for folder in (top, top / "hw") for path in folder.glob("*.py")}
    assert programs == set(selftests.RUN) | set(selftests.NOT_RUN)


# Its receiver waits for 2 s, or 1, in which another program has to be started and send 100 packets.
HURRIED = "hw/csum.py"


@pytest.mark.parametrize("program", [pytest.param(program, marks=pytest.mark.alone) if program == HURRIED else program for program in selftests.RUN])
def test_program(program, ready, saw):
    one, two = ready
    if program not in selftests.ENDS_COMMANDS:
        one.run(SHARED)
    folder, _, name = f"/run/selftests/drivers/net/{program}".rpartition("/")
    environment = (f"NETIF={INTERFACE} LOCAL_V4={one.ip} LOCAL_V6={one.ip6} REMOTE_V4={two.ip} REMOTE_V6={two.ip6} REMOTE_TYPE=ssh "
                   f"REMOTE_ARGS=root@{two.ip} PYTHONDONTWRITEBYTECODE=1 KSFT_MACHINE_SLOW=yes")
    done = one.run(f"cd {folder} && {environment} timeout 280 python3 ./{name} 2>&1", timeout=300, check=False)
    found = verdicts(done.out)
    expected = {case: result for case, (result, _) in selftests.RUN[program].items()}
    assert found, done.out
    different = {case: result for case, result in found.items() if result != expected.get(case, "ok")}
    missing = set(expected) - set(found)
    assert not different and not missing, f"{different} {missing}\n{done.out}"
    counts = {word: list(found.values()).count(word) for word in ("ok", "skip", "xfail", "fail")}
    saw(", ".join(f"{count} {word}" for word, count in counts.items() if count))

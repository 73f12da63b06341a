# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What README.md and Documentation tell people to type, and which test types it.

A test names the sections that it follows by the mark `follows`, and takes their commands by the fixture `said`; so a page and
its test cannot differ. `NOT_RUN` has those that no test runs, and why. tests/test_pages.py fails for one that is in neither.
"""

import dataclasses
import functools
import re

import pytest

from nodes import TOP

PAGES = ["README.md", *sorted(f"Documentation/{path.name}" for path in (TOP / "Documentation").glob("*.md"))]
FENCE = re.compile(r"\s*```(\w*)$")
# In the stash of a test: whether it has failed, so that there is no need to say that it has left something out.
FAILED = pytest.StashKey[bool]()
# Blocks of these are one thing, not a command a line.
WHOLE = {"xml"}

FIRMWARE = "needs firmware that asks a person at its console; no emulated node has it"
ARCHIVE = "needs Debian's archive, and a Debian that is installed; tests/test_packages.py installs without a network"
PACKAGES = "is a matter of a Debian with systemd: tests/test_packages.py does it there, by scripts"
YNL = "needs a kernel's source tree, and the Python modules of its tool; userspace/nupactl/tests/spec.rs compares the file with what is spoken"
MINUTES = "takes an hour; tests/test_bench.py looks at what becomes of the figures"
DEVICES = "has names and handles that differ each time: tests/test_memory_devices.py makes devices on two nodes, and maps them"
POLLING = "needs a pool, and a processor to spare: tests/test_pool_polling.py does it on nodes of one"
FUZZ = "builds and runs for minutes at least; scripts/fuzz --check, a part of make test-long, builds and runs the same"
# By page: the commands that no test runs, and why.
NOT_RUN = {
    "README.md": {
        "apt-get update && apt-get install --yes git make": "what a test of this tree has already",
        "qemu-system-x86_64 ...": "is abridged: test_readme_names_the_devices_of_the_guide compares it with the whole line of kvm.md",
        "rm -f /etc/modprobe.d/nupa.conf": "nodes have no initramfs of their own that could be updated",
    },
    "Documentation/benchmarks.md": {"make bench": MINUTES, "scripts/in-root scripts/bench --readme": "would change the pages of this tree"},
    "Documentation/clients.md": {"make test-clients": "takes an hour, and an image of its own; tests/test_clients.py looks at what becomes of the results"},
    "Documentation/development.md": {
        "make fuzz": FUZZ,
        "scripts/fuzz": FUZZ,
        "setpriv --reuid 65534": "tests/test_hostile.py runs it beside others, for as long as it looks",
        "build/bin/nupa-hostile": "tests/test_hostile_peer.py runs it beside others, on its own nodes",
        "NUPA_MESH_SECONDS=600": "takes ten minutes; make test runs the same for some seconds",
        "tar -xf build/bundle/nupa-bundle.tar": "tests/test_environment.py unpacks and runs it in an empty root",
    },
    "Documentation/memory.md": {"nupactl memory": DEVICES, "ssh alpha nupactl memory": DEVICES},
    "Documentation/networking.md": {
        "ip link set nupanet0 xdpdrv obj": "needs a compiled program, and nodes have no compiler; tests/test_xdp.py attaches programs of its own",
    },
    "Documentation/install.md": {
        "make deb": PACKAGES,
        "apt install": PACKAGES,
        "apt purge": PACKAGES,
        "cp /usr/share/doc/nupa-tools/examples/": PACKAGES,
        "nupactl pool format": PACKAGES,
        "systemctl": PACKAGES,
        "networkctl": PACKAGES,
        "ping 10.77.0.2": PACKAGES,
        "modprobe": PACKAGES,
        "rm /etc/systemd/network/nupanet0.network": PACKAGES,
        "mokutil": FIRMWARE,
        "reboot": FIRMWARE,
    },
    "Documentation/kvm.md": {
        "echo 'deb http": ARCHIVE,
        "apt-get update": ARCHIVE,
        "reboot": "goes with the kernel from the archive; the guests of the test boot it already",
    },
    "Documentation/nupactl.md": {
        "nupactl memory": DEVICES,
        "nupactl poll": POLLING,
        "systemctl enable --now nupactl-serve": PACKAGES,
        "spec=": YNL,
        "tools/net/ynl": YNL,
    },
    "Documentation/pool.md": {"echo blacklist kmem": "nodes have no initramfs of their own that could be updated, and no kmem"},
    "Documentation/rdma.md": {"gcc -O2 -o prog prog.c -libverbs": "the build root has no headers of librdmacm, as the page says"},
    "Documentation/tracing.md": {
        "trace-cmd": "is not on the nodes",
        "bpftrace": "is not on the nodes: it would make their image larger by a half",
        "trace_event=": "is for the kernel's command line, and no node is booted for it",
        "41.274:": "is what tracefs prints; tests/test_tracing.py looks at fields",
    },
    "Documentation/troubleshooting.md": {
        "grep CONFIG_RUST=": "nodes have no /boot",
        "echo identity": "needs a machine with an IOMMU that translates; no node has one",
    },
}


@dataclasses.dataclass(frozen=True)
class Command:
    """One command of a page, with the comment behind it."""

    page: str
    section: str
    block: int
    fenced: bool
    text: str
    comment: str = ""

    def reason(self):
        """Why no test runs it; None if one should."""
        return next((why for start, why in NOT_RUN.get(self.page, {}).items() if self.text.startswith(start)), None)


def blocks(page):
    """The blocks of code of a page: (section, language or None of an indented one, lines)."""
    section, before, language, lines, found = "", "", None, [], []
    for line in [*(TOP / page).read_text().splitlines(), ""]:
        fence = FENCE.match(line)
        if language is not None and not fence:
            lines.append(line)
        elif fence and language is None:
            language = fence[1]
        elif fence:
            found.append((section, language, lines))
            language, lines = None, []
        elif line.startswith("    ") and (lines or not before.strip()):
            lines.append(line[4:])
        elif lines:
            found.append((section, None, lines))
            lines = []
        if language is None and line.startswith("#"):
            section = line.lstrip("#").strip()
        before = line
    return found


@functools.cache
def commands(page):
    """All commands of a page."""
    found = []
    for number, (section, language, lines) in enumerate(blocks(page)):
        text = "\n".join(lines)
        if language in WHOLE:
            found.append(Command(page, section, number, True, text))
            continue
        for line in re.sub(r"\\\n\s*", "", text).splitlines():
            command, _, comment = line.partition(" #")
            if command.strip() and not command.startswith("#"):
                found.append(Command(page, section, number, language is not None, command.strip(), comment.strip()))
    return found


def follows(page, *sections, fenced=None):
    """A mark of a test that does what sections of a page say, all if none is named; `fenced`: only blocks of that kind."""
    assert page in PAGES, page
    return pytest.mark.follows(page, sections, fenced)


def followed(mark):
    """The commands that a test with this mark types."""
    page, sections, fenced = mark.args
    found = [command for command in commands(page) if (not sections or command.section in sections) and fenced in (None, command.fenced)]
    missing = set(sections) - {command.section for command in found}
    assert not missing, f"{page} has no commands under {missing} any more"
    return [command for command in found if not command.reason()]


class Said:
    """What the sections say that a test follows; each command of them has to be typed by its end."""

    def __init__(self, marks):
        self.left = [command for mark in reversed(marks) for command in followed(mark)]

    def commands(self, section=None, replaced=()):
        """The commands of a section, or of all, each typed when the next one is asked for.

        `replaced` has what is different here, such as addresses: {what the page has: what is typed}.
        """
        for command in [command for command in self.left if section in (None, command.section)]:
            text = command.text
            for old, new in dict(replaced).items():
                text = text.replace(old, new)
            yield dataclasses.replace(command, text=text)
            self.left.remove(command)

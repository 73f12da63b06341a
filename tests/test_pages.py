# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Each command of README.md and Documentation is typed by a test, or it is said why not; and what of the pages takes no node of the run."""

import importlib
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import xml.etree.ElementTree as ElementTree

import pytest

import modes
import pages
from nodes import TOP, CommandFailed, make_run_dir, stop_all
from pages import NOT_RUN, PAGES, follows
from waiting import PATIENCE, wait_until

pytestmark = modes.only("pcie", why="the pages say themselves what joins the nodes")
KVM = "Documentation/kvm.md"


def marks():
    """The marks of all tests that follow pages."""
    for path in sorted(pathlib.Path(__file__).parent.glob("test_*.py")):
        for value in vars(importlib.import_module(path.stem)).values():
            yield from (mark for mark in getattr(value, "pytestmark", ()) if isinstance(mark, pytest.Mark) and mark.name == "follows")


def test_each_command_is_typed_or_it_is_said_why_not(saw):
    """Tests say which sections they follow, and `said` fails one that leaves something out."""
    everything = [command for page in PAGES for command in pages.commands(page)]
    typed = {command.text for mark in marks() for command in pages.followed(mark)}
    neither = [f"{command.page}, {command.section}: {command.text}" for command in everything
               if not command.reason() and command.text not in typed]
    assert not neither, "no test types these, and tests/pages.py has no reason why:\n" + "\n".join(neither)
    excused = [command for command in everything if command.reason()]
    for page, reasons in NOT_RUN.items():
        unused = [start for start in reasons if not any(command.page == page and command.text.startswith(start) for command in excused)]
        assert not unused, f"{page} does not have these any more: {unused}"
    assert len(typed) > 80, "commands are not found any more"
    saw(f"{len(everything)} commands, {len(excused)} of them with a reason")


def test_readme_names_the_devices_of_the_guide():
    """The abridged line of README.md has nothing that the whole one of kvm.md does not have."""
    short, = (command.text for command in pages.commands("README.md") if "..." in command.text)
    whole, = (command.text for command in pages.commands(KVM) if command.text.startswith("qemu-system-x86_64"))
    program, _, options = short.partition(" ... ")
    assert whole.startswith(program) and whole.endswith(options), f"{short}\n{whole}"


# What a test of each language looks like; between its attribute and it there may be others, and comments.
IS_TEST = {".py": r"^def (?=test_){}\(", ".rs": r"#\[test\]\n(\s*(#\[|//).*\n)*\s*fn {}\("}
# A test, as pages name it.
NAMED_TEST = re.compile(r"`([\w/-]+\.(?:py|rs))::(\w+)`")


def test_what_security_rests_on_is_there(saw):
    """Each claim of security.md names tests, and these exist."""
    text = (TOP / "Documentation" / "security.md").read_text()
    claims = [line.split("|") for line in text.splitlines() if line.startswith("|") and line.count("|") == 3]
    claims = [cells[1:3] for cells in claims if cells[1].strip() not in ("claim", "---")]
    without = [claim for claim, tests in claims if "::" not in tests]
    assert len(claims) > 20 and not without, f"these claims name no test: {without}"
    assert len(NAMED_TEST.findall(text)) >= text.count("::"), "a test is named in another way than `FILE::TEST`"
    saw(f"{len(claims)} claims")


def test_named_tests_are_there(saw):
    """Tests that pages name exist."""
    named = [found for page in PAGES for found in NAMED_TEST.findall((TOP / page).read_text())]
    gone = [f"{file}::{name}" for file, name in named
            if not (TOP / file).is_file() or not re.search(IS_TEST[pathlib.Path(file).suffix].format(name), (TOP / file).read_text(), re.MULTILINE)]
    assert len(named) > 80 and not gone, f"there are no such tests: {gone}"
    saw(f"{len(named)} tests")


def shell(command, directory=TOP, seconds=60):
    """Types something on the host, which has to end well."""
    done = subprocess.run(["bash", "-c", command], cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=seconds * PATIENCE, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{command}\n{done.stdout}[exit {done.returncode}]")
    return done.stdout


@pytest.fixture
def run_dir():
    """Where the pages have /run/nupa, and where all that a test starts writes."""
    directory = make_run_dir("nupa-pages-")
    yield directory
    stop_all(directory)
    shutil.rmtree(directory, ignore_errors=True)


class Background:
    """Programs that a page has stay in the foreground, each with what it prints in a file."""

    def __init__(self, run_dir):
        self.run_dir, self.started = run_dir, []

    def start(self, name, command):
        """Types something that goes on; returns the file of what it prints."""
        printed = self.run_dir / f"{name}.out"
        printed.unlink(missing_ok=True)
        with open(printed, "wb") as output:
            process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=TOP, env=dict(os.environ, NUPA_RUN=str(self.run_dir)),
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        self.started.append(process)
        return printed

    def await_word(self, printed, word, seconds):
        """Waits for what a program says when it can be used; fails at once if it has ended."""
        def said():
            text = printed.read_text(errors="replace")
            if self.started[-1].poll() is not None:
                raise CommandFailed(f"it ended:\n{text}")
            return word in text
        wait_until(f"{printed.name} to say {word}", said, seconds)

    def end(self):
        for process in self.started:
            process.terminate()
            process.wait(timeout=20 * PATIENCE)
        self.started.clear()


@pytest.fixture
def background(run_dir):
    programs = Background(run_dir)
    yield programs
    programs.end()


def here(run_dir):
    """What is different on this machine: {what the pages have: what is typed}."""
    return {"/run/nupa": f"{run_dir}/nupa", "/dev/shm/nupa-pool": f"{run_dir}/nupa/pool"}


def serve(background, command):
    """Does one command of a section with the server, which goes on."""
    if "nupa-ivshmem --socket" in command:
        background.await_word(background.start("server", command), "ready", 20)
    else:
        shell(command)


def is_the_same_device(xml):
    """Whether what libvirt is told says the same as the line for QEMU. Elements and attributes are those of libvirt's schema (domain.rng)."""
    shmem = ElementTree.fromstring(xml)
    line, = (command.text for command in pages.commands(KVM) if command.text.startswith("qemu-system"))
    device = dict(word.partition("=")[::2] for word in re.search(r"-device (ivshmem\S+)", line)[1].split(","))
    assert {element.tag: set(element.attrib) for element in shmem.iter()} == {
        "shmem": {"name"}, "model": {"type"}, "server": {"path"}, "msi": {"vectors", "ioeventfd"}}
    assert shmem.find("model").get("type") in device and shmem.find("msi").get("vectors") == device["vectors"]
    assert f"path={shmem.find('server').get('path')} " in line and shmem.find("msi").get("ioeventfd") in ("on", "off")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
@follows(KVM, "On the host: libvirt")
def test_server_and_machine_of_libvirt(run_dir, background, said, saw):
    """The server as the user that libvirt's QEMU runs as, here another one."""
    os.chmod(run_dir, 0o711)
    (run_dir / "bin").mkdir(0o755)
    replaced = {**here(run_dir), "libvirt-qemu": "nobody", "/usr/local/bin/": f"{run_dir}/bin/", "-- nupa-": f"-- {run_dir}/bin/nupa-"}
    for command in said.commands(replaced=replaced):
        if not command.text.startswith("<"):
            serve(background, command.text)
    is_the_same_device(*(command.text for command in pages.commands(KVM) if command.text.startswith("<")))
    owner = (run_dir / "nupa" / "ivshmem.sock").stat().st_uid
    assert owner != 0 and (run_dir / "nupa" / "pool").stat().st_size == 256 << 20
    saw(f"a server of user {owner}")


@follows("Documentation/install.md", "Secure Boot")
def test_key_for_modules(tmp_path, said, saw):
    """The key that is made for modules is for them, and no other."""
    for command in said.commands("Secure Boot"):
        shell(command.text, tmp_path)
    told = shell("openssl x509 -in module.pem -noout -subject -ext extendedKeyUsage,basicConstraints", tmp_path)
    assert "modules of my hosts" in told and "Code Signing" in told, told
    saw("; ".join(told.split("\n")[:1]))


PROGRAM = """
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stddef.h>
#include "nupadv.h"
int example(struct ibv_dm *dm, struct ibv_context *context, size_t length);
int example(struct ibv_dm *dm, struct ibv_context *context, size_t length)
{
%s
	return words != NULL;
}
"""


@follows("Documentation/rdma.md", "Memory that nodes share")
def test_functions_of_the_page(tmp_path, said):
    """The lines of C fit the header."""
    lines = [command.text for command in said.commands("Memory that nodes share")]
    (tmp_path / "example.c").write_text(PROGRAM % "\n".join(lines))
    shell('gcc -Wall -Werror -Ibuild/lib -I"$NUPA_RDMA_CORE/include" -fsyntax-only ' + str(tmp_path / "example.c"))


class Guest:
    """A machine that the line of kvm.md starts, with the nodes' system and kernel in place of an installed Debian."""

    def __init__(self, number, run_dir, background):
        self.number, self.run_dir, self.background = number, run_dir, background
        self.image, self.kernel = (pathlib.Path(shell(f"scripts/env {name}").strip()) for name in ("GUEST", "KTREE"))
        self.port = free_port()
        self.address = f"10.77.0.{number}"

    def start(self, line):
        """Types the line with a disk and a port of its own. Emulated CPUs take the place of KVM."""
        disk = self.run_dir / f"vm{self.number}.qcow2"
        disk.symlink_to(self.image / "root.erofs")
        for old, new in (("-enable-kvm", "-accel tcg,thread=multi"), ("-cpu host", "-cpu max,-erms,-fsrm,-fsrs,-fzrm"),
                         ("vm1.qcow2", str(disk)), ("-nic user,", f"-nic user,mac=52:54:00:00:00:0{self.number},"), (":2201-", f":{self.port}-")):
            assert old in line, f"the line has no {old} any more"
            line = line.replace(old, new)
        kernel = self.kernel.parent / "vmlinux"
        command = f"console=ttyS0 quiet panic=-1 tsc=reliable no_timer_check nupa.node={self.number}"
        self.printed = self.background.start(f"guest{self.number}", f"{line} -snapshot -display none -serial stdio -monitor none -no-reboot "
                                             f"-kernel {kernel} -initrd {self.image}/initramfs -append '{command}'")

    def ssh(self):
        """The options that ssh and scp need here, where nobody has seen this host's key before."""
        return (f"-i {self.image}/id_ed25519 -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=5")

    def run(self, command, terminal=False):
        """Types something in the guest, `y` to what it asks if it has a terminal."""
        login = f"ssh {'-tt' if terminal else '-n'} {self.ssh()} -p {self.port} root@127.0.0.1"
        return shell(f"{'echo y |' if terminal else ''} {login} {shlex.quote(command)}")

    def answers(self):
        """Whether one can log in."""
        try:
            return self.run("test -e /run/ready") == ""
        except CommandFailed:
            return False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@modes.long
@follows(KVM, "On the host: the server")
@follows(KVM, "On the host: QEMU")
@follows(KVM, "In each guest")
def test_guests_of_the_guide(run_dir, background, said, saw):
    """The whole guide: a server, two machines, a pool, and a ping through it."""
    for command in said.commands("On the host: the server", here(run_dir)):
        serve(background, command.text)
    guests = [Guest(number, run_dir, background) for number in (1, 2)]
    for command in said.commands("On the host: QEMU", here(run_dir)):
        for guest in guests:
            guest.start(command.text)
    for guest in guests:
        wait_until(f"guest {guest.number}", guest.answers, 120, interval=1)
    device = guests[0].run("lspci -Dnd 1af4:1110").split()[0]
    for command in said.commands("In each guest", {"0000:00:04.0": device}):
        text = command.text
        if text.startswith("scp "):
            for guest in guests:
                shell(text.replace("scp ", f"scp {guest.ssh()} ").replace("2201", str(guest.port)))
        elif text.startswith("./nupa-mkpool"):
            assert "formatted as pool" in guests[0].run(text, terminal=True)
        else:
            for guest in guests:
                told = guest.run(text.replace("10.77.0.1", guest.address))
                assert not text.startswith("lspci") or device in told, f"guest {guest.number} does not see the device: {told}"
    guests[1].run("ping -c 3 -w 30 10.77.0.1")
    saw(f"{device} in both")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The scripts that people develop with: starting many nodes, saying beforehand that there is no room, gdb, the bundle."""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import tempfile

import pytest

import modes
from nodes import TOP, VMS, Node, make_run_dir, stop_all
from waiting import DEBUG_KERNEL, PATIENCE

pytestmark = modes.only("pcie", why="scripts are tried with the modes that they are about")


by_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users, or mount")


def script(*command, run_dir=None, seconds=30, **variables):
    """Runs a script of the tree with only these variables about nodes set."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MODE", "NODES", "MEM", "POOL", "CPUS")}
    if run_dir:
        environment["NUPA_RUN"] = str(run_dir)
    return subprocess.run(command, cwd=TOP, env=environment | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=seconds * PATIENCE, check=False)


@pytest.mark.parametrize("variables, told", [
    ({"NODES": "0"}, "NODES is a number from 1 to 64 with MODE=pcie, not '0'"),
    ({"NODES": "65"}, "NODES is a number from 1 to 64 with MODE=pcie, not '65'"),
    ({"NODES": "9", "MODE": "cxl"}, "NODES is a number from 1 to 8 with MODE=cxl, not '9'"),
    ({"NODES": "two"}, "NODES is a number from 1 to 64 with MODE=pcie, not 'two'"),
    ({"MODE": "usb"}, "MODE is pcie, cxl or ivshmem, not 'usb'"),
    ({"MEM": "much"}, "MEM is a number with M or G, such as"),
    ({"MEM": "90000G"}, "2 nodes need 46080512 MB of memory, and"),
    ({"MODE": "ivshmem", "POOL": "90000G"}, "the pool needs 92160000 MB in"),
])
def test_what_cannot_be_started_is_refused_in_a_sentence(variables, told, saw):
    """Before anything is built or started."""
    run_dir = make_run_dir("nupa-up-")
    for command in ([VMS / "up"], ["make", "vm-up"]):
        done = script(*command, run_dir=run_dir, **variables)
        assert done.returncode != 0 and told in done.stderr, done
        assert "Traceback" not in done.stderr and not list(run_dir.glob("node*")), done
    saw(done.stderr.splitlines()[0])


@pytest.mark.parametrize("mode", ["pcie", "ivshmem"])
def test_one_node_too_many_is_refused_by_itself(mode):
    """Each start looks for room, not only that of many."""
    run_dir = make_run_dir("nupa-up-")
    done = script(VMS / "start", "--fabric", mode, "1", run_dir=run_dir, MEM="90000G")
    assert done.returncode != 0 and "a node needs" in done.stderr, done
    for options, told in ((["--lanes", "2"], ("6 nodes need", "--lanes 1")), ([], ("3 nodes need",))):
        done = script("tests/run", *options, "-k", "no_such_test", MODE=mode, MEM="90000G")
        assert done.returncode != 0 and all(text in done.stderr for text in told), done


@by_root
def test_what_another_user_put_into_tmp_is_not_believed(tmp_path, saw):
    """Where the run directory's path is too long, its files are in a place that others may write to, under a name that they know."""
    far, shared = tmp_path / ("x" * 80), tmp_path / "shared"
    shared.mkdir()
    place = pathlib.Path(script("bash", "-c", '. vms/lib.sh && echo "$run_dir"', run_dir=far, XDG_RUNTIME_DIR=str(shared)).stdout.strip())
    assert place.parent == shared

    def refused(*command):
        done = script(*command, run_dir=far, XDG_RUNTIME_DIR=str(shared))
        return done.stderr if done.returncode else ""

    place.mkdir()
    assert not refused(VMS / "status")
    os.chown(place, 65534, 65534)
    told = refused(VMS / "status")
    assert f"{place} is another user's" in told and f"{place} is another user's" in refused(VMS / "stop", "all"), told
    place.rmdir()
    place.symlink_to(tmp_path)
    assert "or a link" in refused(VMS / "status")
    saw(told.strip())


@modes.long
def test_vm_up(saw):
    """Three nodes come up by one command, and reach each other; a second one has nothing left to do but the fourth."""
    run_dir = make_run_dir("nupa-up-")
    try:
        for count in (3, 4):
            done = script(VMS / "up", run_dir=run_dir, seconds=180, NODES=str(count))
            assert done.returncode == 0, done
        assert "node 3 is running already" in done.stdout and "node 4 is up" in done.stdout, done
        Node(4, run_dir).await_ping("10.77.0.1")
        saw(f"{len(list(run_dir.glob('node*.pid')))} nodes")
    finally:
        stop_all(run_dir)


DKMS = """
mount -t tmpfs tmpfs /var/cache && mount -t tmpfs tmpfs /usr/src && mkdir -p /usr/src/linux-headers-7.2-here /var/cache/nupa-dkms
cd /var/cache/nupa-dkms && mkdir -p partial-abc123/tree 7.2-here/tree 7.2-gone/tree && cd "$1"
dkms/build 7.2-none; ls -A /var/cache/nupa-dkms
"""


@by_root
def test_dkms_keeps_nothing_of_kernels_that_are_gone(tmp_path):
    """What a build left that was ended goes with the next one, and so does what is kept for kernels that are gone."""
    (tmp_path / "dkms").mkdir()
    for file in "packaging/dkms/build", "scripts/setup.d/kernel.sh":
        shutil.copy(TOP / file, tmp_path / "dkms")
    done = script("unshare", "--mount", "--propagation", "unchanged", "sh", "-c", DKMS, "sh", str(tmp_path))
    assert "no /usr/src/linux-headers-7.2-none" in done.stderr and done.stdout.split() == [".lock", "7.2-here"], done


def test_packages_have_the_notices_of_all_crates(saw):
    """What cargo's tree of the packaged programs shows, but for what runs in the compiler, is in the copyright file."""
    done = script("scripts/notices", seconds=60)
    assert done.returncode == 0, done.stderr
    named = set(re.findall(r"^Files: crates/(.+)-(\d[^-]*)/\*$", done.stdout, re.MULTILINE))
    tree = script("cargo", "tree", "--manifest-path", "userspace/Cargo.toml", "--locked", "--edges", "normal,no-proc-macro", "--prefix", "none",
                  "--target", "x86_64-unknown-linux-gnu", "-p", "nupactl", "-p", "nupa-mkpool", "-p", "nupa-provider", seconds=60)
    assert tree.returncode == 0, tree.stderr
    linked = set(re.findall(r"^(\S+) v(\S+)(?: \(\*\))?$", tree.stdout, re.MULTILINE))
    # The workspace asks for more of some crates than these programs do.
    assert linked <= named and len(named - linked) <= 5, named ^ linked
    licences = set(re.findall(r"^License: (\S+)$", done.stdout, re.MULTILINE))
    texts = re.findall(r"^License: (\S+)\n .", done.stdout, re.MULTILINE)
    # The text of Expat is in the file that the notices are put behind.
    assert licences == {"Expat", *texts} and len(texts) == len(set(texts)), (licences, texts)
    assert "Files: crates/std/*" in done.stdout and "John Baublitz" in done.stdout
    saw(f"{len(named)} crates, {', '.join(sorted(licences))}")


def test_gdb(pair, fabric, saw):
    """gdb stops node 1 in the interrupt handler of nupa_fabric, knows where in our sources that is and which functions of the
    kernel have called it, and the node goes on when gdb ends."""
    one, two = pair
    built = "kbuild-debug" if DEBUG_KERNEL else "kbuild"
    symbols = subprocess.run(["nm", TOP / "build" / built / "nupa_fabric.ko"], capture_output=True, text=True, check=True).stdout
    handler = re.search(r" [tT] (\S*irq8callback\S*VectorInterrupt\S*)", symbols)[1]
    two.run(f"setsid ping -n -q -c 600 -i 0.1 {one.ip} >/dev/null 2>&1 </dev/null &")
    try:
        done = script(VMS / "gdb", "1", "-batch", "-ex", f"break {handler}", "-ex", "continue", "-ex", "backtrace 8",
                      run_dir=fabric.run_dir, seconds=90)
    finally:
        two.run("pkill -x ping", check=False)
    assert done.returncode == 0, done
    assert "Breakpoint 1, " in done.stdout, done
    # The compiler may have put what the handler calls into it.
    stopped = re.search(r"^#\d+ +(nk::pci::irq::callback\S*) .* at \S*/(drivers/kernel/pci/irq\.rs:\d+)$", done.stdout, re.MULTILINE)
    caller = re.search(r"^#\d+ .* in (\S*handle\S*irq\S*) \(\)", done.stdout, re.MULTILINE)
    assert stopped and caller, done
    one.await_ping(two.ip)
    saw(f"{stopped[1]} at {stopped[2]}, called by {caller[1]}")


class FakeBundle:
    """A bundle whose programs are a script: each says what it was made with, and that all is well."""

    USER, OTHER = 65534, 65533

    def __init__(self, directory):
        self.directory = directory
        directory.chmod(0o755)
        shutil.copy("/usr/bin/busybox", directory / "busybox")
        shutil.copy(VMS / "machine.sh", directory)
        shutil.copy(VMS / "bundle" / "start", directory / "demo")
        self.fill("first")
        self.give(directory, self.USER)

    @staticmethod
    def give(directory, user):
        for path in (directory, *directory.rglob("*")):
            os.chown(path, user, user)

    @staticmethod
    def programs(directory, word):
        """What is unpacked."""
        (directory / "lib").mkdir(parents=True)
        linker = directory / "lib" / "ld-linux-x86-64.so.2"
        linker.write_text(f"#!/bin/sh\necho {word}\necho @ok\n")
        linker.chmod(0o755)

    def fill(self, word):
        with tempfile.TemporaryDirectory() as files:
            self.programs(pathlib.Path(files), word)
            subprocess.run(["tar", "-C", files, "-cJf", self.directory / "files.tar.xz", "."], check=True)

    def unpacked(self):
        return sorted(self.directory.glob("files*[!z]"))

    def start(self, user=USER, **variables):
        return subprocess.Popen(["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", str(self.directory / "demo")],
                                env={"PATH": os.environ["PATH"], "MODE": "cxl"} | variables, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, **options):
        process = self.start(**options)
        text, _ = process.communicate(timeout=30 * PATIENCE)
        return process.returncode, text

    def refuses(self, hint, **options):
        code, text = self.run(**options)
        assert code == 1 and hint in text and "foreign" not in text, text


@pytest.fixture
def fake_bundle():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="nupa-bundle-"))
    try:
        yield FakeBundle(directory)
    finally:
        shutil.rmtree(directory)


@by_root
def test_what_a_bundle_unpacked_is_named_by_its_content(fake_bundle, saw):
    """It is unpacked once, also by two at once, and anew where it is another one."""
    starts = [fake_bundle.start() for _ in range(2)]
    for process in starts:
        text, _ = process.communicate(timeout=30 * PATIENCE)
        assert process.returncode == 0 and "\nfirst\n" in text, text
    files, = fake_bundle.unpacked()
    assert stat.S_IMODE(files.stat().st_mode) == 0o755 and not list(fake_bundle.directory.glob("partial*"))
    code, text = fake_bundle.run()
    assert code == 0 and "unpacking" not in text, text
    # Anybody may run what the bundle's owner has unpacked.
    code, text = fake_bundle.run(user=FakeBundle.OTHER)
    assert code == 0 and "unpacking" not in text, text
    fake_bundle.fill("second")
    code, text = fake_bundle.run()
    assert code == 0 and "\nsecond\n" in text, text
    assert len(fake_bundle.unpacked()) == 2
    saw(files.name)


@by_root
def test_a_bundle_runs_nothing_that_another_user_prepared(fake_bundle, saw):
    assert fake_bundle.run()[0] == 0
    files, = fake_bundle.unpacked()
    shutil.rmtree(files)
    fake_bundle.programs(files, "foreign")
    fake_bundle.give(files, FakeBundle.OTHER)
    fake_bundle.refuses("is another user's, or others can write to it")
    for mode in (0o775, 0o757):
        fake_bundle.give(files, FakeBundle.USER)
        files.chmod(mode)
        fake_bundle.refuses("is another user's, or others can write to it")
    files.chmod(0o755)
    assert "\nforeign\n" in fake_bundle.run()[1], "the test itself does not work"
    elsewhere = files.rename(fake_bundle.directory / "elsewhere")
    files.symlink_to(elsewhere)
    fake_bundle.refuses("is another user's, or others can write to it")
    files.unlink()
    shared = fake_bundle.directory / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    fake_bundle.refuses("others can replace what lies in", NUPA_DIR=str(shared))
    shared.chmod(0o1777)
    code, text = fake_bundle.run(NUPA_DIR=str(shared))
    assert code == 0 and "\nfirst\n" in text, text
    saw(text.splitlines()[0])


@modes.long
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make an empty root")
def test_bundle(saw):
    """Packs the bundle and runs ./demo as a user without rights, where there is no network, not even a loopback, no /proc, and no
    program but a shell; then ./bench, and nodes that share memory."""
    done = script("scripts/bundle", seconds=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    archive = TOP / "build" / "bundle" / "nupa-bundle.tar"
    size = archive.stat().st_size
    assert size <= 60_000_000, size
    root = pathlib.Path(tempfile.mkdtemp(prefix="nupa-empty-", dir=TOP / "build"))
    try:
        root.chmod(0o755)
        for name in ("bin", "dev"):
            (root / name).mkdir()
        shutil.copy("/usr/bin/busybox", root / "bin" / "sh")
        os.mknod(root / "dev" / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        (root / "dev" / "null").chmod(0o666)
        subprocess.run(["tar", "-xf", archive, "-C", root], check=True)
        for path in (root / "nupa-bundle", *(root / "nupa-bundle").iterdir()):
            os.chown(path, 65534, 65534)
        alone = ["unshare", "--net", "chroot", "--userspec=65534:65534", str(root), "/bin/sh", "-c"]
        done = script(*alone, "cd nupa-bundle && exec ./demo", seconds=300)
        assert done.returncode == 0 and "100 verified rounds" in done.stdout and "SHA-256 equal" in done.stdout, done.stdout + done.stderr
        assert not list((root / "nupa-bundle").glob("nupa.*")), "a run directory is left"
        done = script(*alone, "cd nupa-bundle && SECONDS_EACH=1 RUNS=1 exec ./bench", seconds=300)
        assert done.returncode == 0 and "ib_write_bw 64 B" in done.stdout, done.stdout + done.stderr
        for mode in ("cxl", "ivshmem"):
            done = script(*alone, f"cd nupa-bundle && MODE={mode} exec ./demo", seconds=300)
            assert done.returncode == 0 and "100 verified rounds" in done.stdout, done.stdout + done.stderr
    finally:
        shutil.rmtree(root)
    saw(f"{size:,} bytes")

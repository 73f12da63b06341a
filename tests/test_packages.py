# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The Debian packages on a Debian as users have it: installed, used over reboots and an upgrade, and removed."""

import contextlib
import os
import pathlib
import subprocess
import tempfile

import pytest

from modes import long, only
from nodes import INTERFACE, TOP, CommandFailed, Node, Switch, make_run_dir, stop_all
from waiting import DEBUG_KERNEL, PATIENCE, wait_until

pytestmark = [only("pcie", why="what is installed is the same in all modes"),
              pytest.mark.skipif(DEBUG_KERNEL, reason="packages are for the distribution's kernel")]

# What changes by itself on a Debian that runs, or with each use of apt: not a package's.
MOVING = ("/nupa", "/tmp", "/var/cache", "/var/lib/apt", "/var/lib/dpkg/*-old", "/var/lib/systemd", "/var/log", "/var/tmp")
FILES = "find / -xdev \\( {} \\) -prune -o -printf '%M %u:%g %p -> %l\\n' | sort; cksum /usr/lib/modules/*/modules.*".format(
    " -o ".join(f"-path '{path}'" for path in MOVING))


def environment(name):
    """A value that scripts/env prints."""
    return subprocess.run([TOP / "scripts" / "env", name], capture_output=True, text=True, check=True).stdout.strip()


def script(*command, **variables):
    """Runs a program of the checkout or the build root; a failure shows what it printed."""
    done = subprocess.run([str(word) for word in command], env=dict(os.environ, **variables), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300 * PATIENCE, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{command}:\n{done.stdout}")


class Host(Node):
    """A node that boots the Debian and keeps what is written on a disk of its own."""

    def __init__(self, number, run_dir, fabric):
        super().__init__(number, run_dir, cpus=1, fabric=fabric)
        self.image = environment("DEBIAN")
        self.disk = self.run_dir / f"{self.name}.disk"
        self.memory = self.run_dir / f"{self.name}.pool"
        for file, size in (self.disk, 1 << 30), (self.memory, 64 << 20):
            with open(file, "xb") as made:
                made.truncate(size)
        script("mkfs.ext4", "-q", self.disk)

    def environment(self):
        arguments = f"-drive if=none,id=disk,file={self.disk},format=raw,cache=unsafe -device virtio-blk-pci,bus=pcie.0,drive=disk,disable-legacy=on"
        if self.fabric == "pcie":
            # A pool beside the controller, which a fabric of CXL memory is by itself.
            arguments += f" -object memory-backend-file,id=pool,mem-path={self.memory},size=64M,share=on -device ivshmem-plain,memdev=pool"
        return dict(super().environment(), NUPA_GUEST=self.image, QEMU_ARGS=arguments)

    def finish_start(self, timeout=300):
        """Waits longer than for a node of the initramfs: systemd and udev take an emulated processor minutes beside other tests."""
        super().finish_start(timeout)

    def reboot(self):
        """Goes down as a host does, and comes up again."""
        down = self.spawn("systemctl reboot")
        wait_until(f"{self.name} to go down", lambda: not self.alive(), 60)
        down.abandon()
        self.healthy()
        self.start()

    def healthy(self):
        """Fails if the kernel complained."""
        lines = self.log.new_trouble()
        assert not lines, "the kernel printed:\n" + "\n".join(lines)

    def install(self, directory):
        """What a user types, with packages that lie in a directory of the node."""
        self.run(f"DEBIAN_FRONTEND=noninteractive apt-get install -y {directory}/*.deb", timeout=120)

    def works(self, peer):
        """All that a user sees of it, with nothing typed but what networkd's file says."""
        wait_until("the address", lambda: self.ip in self.run(f"ip -br address show {INTERFACE}", check=False).out, 30)
        self.await_ping(peer.ip)
        wait_until("the RDMA device's port", lambda: "PORT_ACTIVE" in self.run("ibv_devinfo -d nupa_rdma0", check=False).out, 15)


@pytest.fixture
def pair_of_hosts():
    """A Debian without our packages, and a node with its network up that it is to reach."""
    yield from started("pcie")


@pytest.fixture
def pair_with_a_pool():
    """A Debian without our packages, and a node that shares CXL memory with it, which holds no pool yet."""
    yield from started("cxl")


def started(fabric):
    """Starts such a pair, and ends it when the test has."""
    assert pathlib.Path(environment("DEBIAN")).is_dir(), "nothing to install on: scripts/setup --debian makes it"
    run_dir = make_run_dir("nupa-packages-")
    switch = Switch(run_dir, nodes=2) if fabric == "pcie" else None
    try:
        if switch:
            switch.start()
        host, peer = Host(1, run_dir, fabric), Node(2, run_dir, cpus=1, fabric=fabric)
        for node in (host, peer):
            node.begin_start()
        peer.finish_start()
        if switch:
            peer.up()
        host.finish_start()
        yield host, peer
    finally:
        if switch:
            switch.stop()
        stop_all(run_dir)


def versions(directory):
    """Names of the packages that lie in a directory, and the one version that all have."""
    names = [path.name.split("_") for path in pathlib.Path(directory).glob("*.deb")]
    version, = {name[1] for name in names}
    return [name[0] for name in names], version


def pool_at_boot(host):
    """A pool that is named to systemd is attached when it is told to, and at boot; no other memory is."""
    device = host.run("dirname $(grep -l 0x1110 /sys/bus/pci/devices/*/device) | xargs basename").out.strip()
    unit = f"nupa-pool@{device}"

    def attached():
        return host.run(f"test -e /sys/bus/pci/devices/{device}/driver", check=False).code == 0

    unformatted = host.run(f"systemctl start {unit}", check=False, timeout=60)
    told = host.run(f"journalctl -u {unit} --no-pager").out
    assert unformatted.code != 0 and "the memory holds no pool" in told, told
    host.run(f"nupactl pool format {device} --nodes 2 --yes", timeout=60)
    host.run(f"systemctl enable --now {unit}", timeout=60)
    assert attached()
    host.run(f"systemctl stop {unit}", timeout=60)
    assert not attached()
    host.reboot()
    wait_until("the pool to be attached", lambda: host.run(f"systemctl is-active {unit}", check=False).out.strip() == "active", 60)
    assert attached()
    host.run(f"systemctl disable --now {unit}", timeout=60)


def serves(host, peer):
    """Nobody measures to a host that does not say so; with the unit others do."""
    assert host.run("systemctl is-enabled nupactl-serve", check=False).out.strip() == "disabled"
    assert host.run("systemctl is-active nupactl-serve", check=False).out.strip() == "inactive"
    host.run("systemctl start nupactl-serve", timeout=60)
    number = host.run("nupactl --json status").json()[0]["node"]
    measure = f"/nupa/build/bin/nupactl --json lat -n 5 {number}"
    wait_until("the host to serve", lambda: peer.run(measure, check=False).code == 0, 30)
    # The unit may do that, and no more than that.
    for verb in "lat", "bw":
        peer.run(f"/nupa/build/bin/nupactl {verb} --rdma -d 0.2 {number}", timeout=60)
    process = host.run("systemctl show -P MainPID nupactl-serve").out.strip()
    status = host.run(f"cat /proc/{process}/status /proc/{process}/limits").out
    assert "CapEff:\t0000000000000000" in status and "NoNewPrivs:\t1" in status, status
    assert "Max locked memory         67108864" in status, status
    host.run("systemctl stop nupactl-serve", timeout=60)


@contextlib.contextmanager
def packages_of(version):
    """A directory with packages of a version, which nodes see; not the one that other tests make packages in."""
    with tempfile.TemporaryDirectory(prefix="nupa-deb-", dir=TOP / "build") as directory:
        script(TOP / "scripts" / "deb", directory, NUPA_VERSION=version)
        os.chmod(directory, 0o755)
        yield directory


def networkd(host):
    """The example, with the address that the host is to have."""
    host.run("sed 's/10.77.0.1/{0.ip}/; s/fd77::1/{0.ip6}/' /usr/share/doc/nupa-tools/examples/nupanet0.network "
             ">/etc/systemd/network/nupanet0.network".format(host))


@long
def test_life_of_an_installation(pair_of_hosts, saw):
    host, peer = pair_of_hosts
    script(TOP / "scripts" / "deb")
    packages, version = versions(TOP / "build" / "deb")
    before = host.run(FILES, timeout=60).out
    assert host.run("lsmod").out.count("nupa") == 0

    with packages_of("0.0.1") as older:
        host.install("/nupa/" + os.path.relpath(older, TOP))
    networkd(host)
    host.reboot()
    host.works(peer)

    # An upgrade, and what it takes to use it at once.
    host.install("/nupa/build/deb")
    assert host.run("dpkg-query -Wf '${Version}\\n' " + " ".join(packages)).out.split() == [version] * len(packages)
    host.works(peer)
    host.run("modprobe -r nupa_rdma nupa_net nupa_fabric && modprobe nupa_fabric", timeout=60)
    host.works(peer)
    host.reboot()
    host.works(peer)

    serves(host, peer)
    pool_at_boot(host)

    host.run("modprobe -r nupa_rdma nupa_net nupa_fabric && rm /etc/systemd/network/nupanet0.network", timeout=60)
    host.run("DEBIAN_FRONTEND=noninteractive apt-get purge -y " + " ".join(packages), timeout=120)
    after = host.run(FILES, timeout=60).out
    left = sorted(set(after.splitlines()) ^ set(before.splitlines()))
    assert not left, "differs from before the installation:\n" + "\n".join(left)
    host.healthy()
    saw(f"{len(packages)} packages, 0.0.1 to {version}, three reboots, a pool at boot; nothing is left")


@long
@only("cxl", why="about CXL memory, which systemd's units make a device of at boot")
def test_pool_of_cxl_memory_at_boot(pair_with_a_pool, saw):
    """By the examples of the package: memory becomes a DAX device and stays no system memory, its pool is attached, and the network is up."""
    host, peer = pair_with_a_pool
    examples = "/usr/share/doc/nupa-tools/examples"
    before = host.run(FILES, timeout=60).out
    with packages_of("0.0.2") as made:
        packages, _ = versions(made)
        host.install("/nupa/" + os.path.relpath(made, TOP))
    host.run(f"cp {examples}/nupa-pool.conf /etc/modprobe.d/ && cp {examples}/nupa-cxl-region.service /etc/systemd/system/")
    networkd(host)
    host.run("systemctl daemon-reload && systemctl enable --now nupa-cxl-region", timeout=60)
    host.run("modprobe device_dax && echo dax0.0 >/sys/bus/dax/drivers/device_dax/new_id", timeout=60)
    host.run("nupactl pool format dax0.0 --nodes 2 --yes", timeout=60)
    host.run("systemctl enable --now nupa-pool@dax0.0", timeout=60)
    host.reboot()
    wait_until("the pool to be attached", lambda: host.run("systemctl is-active nupa-pool@dax0.0", check=False).out.strip() == "active", 60)
    peer.up()
    host.works(peer)
    assert "dax0.0" in host.run("nupactl status").out

    host.run("systemctl disable --now nupa-pool@dax0.0 nupa-cxl-region", timeout=60)
    host.run("modprobe -r nupa_rdma nupa_net nupa_fabric && rm /etc/systemd/network/nupanet0.network /etc/modprobe.d/nupa-pool.conf"
             " /etc/systemd/system/nupa-cxl-region.service && systemctl daemon-reload", timeout=60)
    host.run("DEBIAN_FRONTEND=noninteractive apt-get purge -y " + " ".join(packages), timeout=120)
    left = sorted(set(host.run(FILES, timeout=60).out.splitlines()) ^ set(before.splitlines()))
    assert not left, "differs from before the installation:\n" + "\n".join(left)
    host.healthy()
    saw("the region, the pool and the network are there after a boot; nothing is left")

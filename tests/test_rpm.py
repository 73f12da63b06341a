# SPDX-License-Identifier: GPL-2.0 OR MIT
"""RPM packages: what rpmbuild of a Debian makes of the spec file, without a Fedora to install it on."""

import os
import tempfile

import pytest

from debian_copy import in_copy
from modes import long, only
from nodes import TOP
from waiting import DEBUG_KERNEL

pytestmark = [long, only("pcie", why="nothing of it runs on nodes"),
              pytest.mark.skipif(DEBUG_KERNEL, reason="packages are for the distribution's kernel"),
              pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")]

# $1 is the checkout, $2 where the packages go.
MAKE = """
export DEBIAN_FRONTEND=noninteractive
apt-get -qq update
apt-get -qq install --yes --no-install-recommends rpm >/dev/null
NUPA_VERSION=1.2.3 "$1/scripts/rpm" "$2" >/dev/null
cd "$2"
for package in *.rpm; do
	echo "package $package"
	rpm -qlp "$package" | sed 's/^/file /'
	rpm -qp --requires "$package" | sed 's/^/requires /'
done
"""
LIBRARIES = "/usr/lib64/libibverbs/"
UNITS = {f"/usr/lib/systemd/system/{unit.name}" for unit in (TOP / "packaging/systemd").iterdir()}
# What each package has at least, and nothing outside of what is named.
FILES = {
    "libnupa-verbs": ({LIBRARIES + "libnupa-rdmav34.so", "/etc/libibverbs.d/nupa.driver"},
                      (LIBRARIES, "/etc/libibverbs.d/", "/usr/share/licenses/")),
    "nupa-tools": ({"/usr/bin/nupactl", "/usr/bin/nupa-mkpool", "/usr/share/man/man8/nupactl.8",
                    "/usr/share/doc/nupa-tools/install.md", "/usr/share/doc/nupa-tools/examples/nupanet0.network",
                    "/usr/share/bash-completion/completions/nupactl"} | UNITS,
                   ("/usr/bin/", "/usr/lib/systemd/system/", "/usr/share/")),
    "nupa-devel": ({"/usr/include/infiniband/nupadv.h", "/usr/include/linux/nupa_memory.h", "/usr/include/rdma/nupa-abi.h"}, ("/usr/include/",)),
    "nupa-dkms": ({f"/usr/src/nupa-1.2.3/{name}" for name in ("dkms.conf", "dkms/build", "dkms/kernel.sh", "Kbuild", "drivers/net/nupa_net.rs")},
                  ("/usr/src/nupa-1.2.3",)),
}


def test_packages_have_their_files(saw):
    with tempfile.TemporaryDirectory(prefix="nupa-rpm-", dir=TOP / "build") as place:
        done = in_copy(MAKE, TOP, place, seconds=600)
    assert done.returncode == 0, done.stdout[-5000:]
    found = {}
    for line in done.stdout.splitlines():
        kind, _, value = line.partition(" ")
        if kind == "package":
            files, requires = found.setdefault(value.split("-1.2.3-")[0], (set(), set()))
        elif kind == "file":
            files.add(value)
        elif kind == "requires":
            requires.add(value)
    assert set(found) == set(FILES), found.keys()
    for name, (least, places) in FILES.items():
        files = found[name][0]
        assert least <= files, (name, least - files)
        assert all(file.startswith(places) for file in files), (name, files)
    # A provider for another libibverbs than the host's is no reason not to be installed.
    assert not [word for word in found["libnupa-verbs"][1] if "IBVERBS" in word]
    assert "dkms" in found["nupa-dkms"][1] and "rdma-core-devel" in found["nupa-devel"][1]
    saw(", ".join(f"{name} {len(files)}" for name, (files, _) in sorted(found.items())))

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupa-dkms on a Debian with a kernel that there is no package of modules for: installed, built by dkms, and removed."""

import os
import re
import subprocess

import pytest

from debian_copy import in_copy
from modes import long, only
from nodes import TOP
from waiting import DEBUG_KERNEL

pytestmark = [long, only("pcie", why="nothing of it runs on nodes"),
              pytest.mark.skipif(DEBUG_KERNEL, reason="packages are for the distribution's kernel"),
              pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")]

# Arguments: the kernel, and the checkout. Compared is what there is of the file system, but for what each use of apt changes, and
# the key that dkms makes for itself when it builds the first module of a host: it signs those of all packages, and may be enrolled.
LIFE = """
export DEBIAN_FRONTEND=noninteractive
files() {
	find / -xdev \\( -path /tmp -o -path /var/cache/apt -o -path /var/cache/debconf -o -path /var/cache/ldconfig -o -path /var/lib/apt \\
		-o -path '/var/lib/dpkg/*-old' -o -path /var/log -o -path /root \\
		-o -path /var/lib/dkms/mok.key -o -path /var/lib/dkms/mok.pub \\) -prune -o -printf '%M %u:%g %p -> %l\\n' | sort
}
kernel=$1
# Not where others make packages.
NUPA_VERSION=1.2.3 "$2/scripts/deb" /tmp/deb >/dev/null
apt-get -qq update
apt-get -qq install --yes --no-install-recommends dkms "linux-headers-$kernel" >/dev/null
files >/tmp/before
# The machine's own kernel, which is any, has no headers here.
apt-get -qq install --yes --no-install-recommends /tmp/deb/dkms/nupa-dkms_*.deb
echo "status: $(dkms status -k "$kernel" nupa)"
for module in nupa_fabric nupa_net nupa_rdma; do
	file=$(echo /usr/lib/modules/"$kernel"/updates/dkms/$module.ko*)
	echo "module: $file $(modinfo -F vermagic "$file")"
done
apt-get -qq purge --yes nupa-dkms
files >/tmp/after
diff /tmp/before /tmp/after && echo "nothing is left"
"""


def other_kernel():
    """The newest kernel of the pinned one's series in the archive, but for that one."""
    pinned = subprocess.run([TOP / "scripts" / "env", "KERNEL"], capture_output=True, text=True, check=True).stdout.strip()
    series = re.match(r"\d+\.\d+\.", pinned)[0]
    subprocess.run(["apt-get", "-qq", "update"], check=True)
    found = subprocess.run(["bash", "-c", f". '{TOP}/scripts/setup.d/kernel.sh' && kernels_available"], capture_output=True, text=True, check=True)
    return [name for name in found.stdout.split() if name.startswith(series) and name != pinned][-1]


def test_dkms_builds_for_another_kernel_and_leaves_nothing(saw):
    kernel = other_kernel()
    done = in_copy(LIFE, kernel, TOP, seconds=1800)
    out = done.stdout
    assert done.returncode == 0 and out.rstrip().endswith("nothing is left"), out[-5000:]
    assert re.search(rf"^status: nupa/\S+, {re.escape(kernel)}, x86_64: installed", out, re.MULTILINE), out[-5000:]
    modules = re.findall(r"^module: (\S+) (\S+)", out, re.MULTILINE)
    assert [version for _, version in modules] == [kernel] * 3 and all("/updates/dkms/" in path for path, _ in modules), modules
    saw(f"{kernel}: {len(modules)} modules; nothing is left")

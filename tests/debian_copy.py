# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs scripts in a copy of the build root, a Debian 13 whose packages they can change. Only root can."""

import pathlib
import subprocess
import tempfile

from nodes import TOP
from waiting import PATIENCE

# $1 is for the copy, $2 the checkout, $3 the cache, $4 the script; what follows are its arguments.
IN_COPY = """
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t tmpfs tmpfs "$1/root/tmp"
mkdir -p "$1/root$2" "$1/root$3"
for path in /dev /proc /sys /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
	if [ -e "$path" ]; then mount --rbind "$path" "$1/root$path"; fi
done
mount --bind "$2" "$1/root$2"
mount --bind "$3" "$1/root$3"
root=$1 script=$4
shift 4
exec chroot "$root/root" /bin/bash -euo pipefail -c "$script" script "$@"
"""


def in_copy(script, *arguments, seconds):
    """Runs a bash script there with the checkout at its own path; returns what it printed, errors included."""
    cache = subprocess.run([TOP / "scripts" / "env", "CACHE"], capture_output=True, text=True, check=True).stdout.strip()
    with tempfile.TemporaryDirectory(prefix="nupa-copy-", dir=TOP / "build") as place:
        for name in "upper", "work", "root":
            (pathlib.Path(place) / name).mkdir()
        return subprocess.run(["unshare", "--mount", "--propagation", "unchanged", "sh", "-euc", IN_COPY, "sh", place, TOP, cache, script, *arguments],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=seconds * PATIENCE, check=False)

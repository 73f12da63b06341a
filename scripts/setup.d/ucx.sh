# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# UCX's own measurements as Debian has them, a peer of `make bench BENCH=pool-host`. They and all that they link to are unpacked beside the root
# and not installed there: with its drivers of GPUs that is 240 MB, which nothing else needs. Made where somebody asks for it: scripts/setup --ucx.

# Runs in the root.
ucx_unpack() {
	local deb
	local -a packages
	apt-get -qq update
	mapfile -t packages < <(apt-get install -s --no-install-recommends ucx-utils | awk '/^Inst / { print $2 }')
	((${#packages[@]} > 0)) || die "$SUITE has no package ucx-utils"
	apt-get -qq download "${packages[@]}"
	for deb in *.deb; do
		dpkg-deb -x "$deb" .
		rm "$deb"
	done
	rm -rf usr/share
	[[ -x usr/bin/ucx_perftest ]] || die "the package ucx-utils has no ucx_perftest"
}

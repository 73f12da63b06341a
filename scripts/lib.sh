# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Paths, messages and cache keys that the scripts share. To be sourced, never run.
# shellcheck disable=SC2034 # what is set here is used there

set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)

# Which kernel the nodes run: `make test KERNEL=debug` says it by a name that the pins have for the
# release, so it is kept under another one, which commands that are started from here inherit.
export NUPA_KERNEL=${NUPA_KERNEL:-${KERNEL:-stock}}
# shellcheck source=../platform.pin
. "$top/platform.pin"

cache=${NUPA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/nupa}
export NUPA_CACHE=$cache # in-root gives commands another HOME
build=$top/build

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

say() {
	printf '%s\n' "$*"
}

# First 12 hex digits of the hash over the given words and files (a file counts by content).
key_of() {
	local item
	for item in "$@"; do
		if [[ -f $item ]]; then cat -- "$item"; else printf '%s\n' "$item"; fi
	done | sha256sum | cut -c1-12
}

# Each part of the cache is keyed by all that goes into it, so that moving the kernel keeps the root,
# and one more tool in the root keeps the kernel.
tools_key=$(key_of "$SUITE" "$BACKPORTS" "$QEMU" "$RUSTC" "$BINDGEN" "$GCC" "$CLANG")
root_key=$(key_of "$tools_key" "$top/scripts/setup.d/root.sh" "$top/scripts/setup.d/root.packages")
kernel_key=$(key_of "$tools_key" "$KERNEL" "$top/scripts/setup.d/kernel.sh")
debug_key=$(key_of "$kernel_key" "$top"/scripts/setup.d/debug.{sh,config})
# guest_of KERNEL_KEY: directory of the guest that has this kernel's modules.
guest_of() {
	printf '%s/guest-%s\n' "$cache" "$(key_of "$1" "$top/scripts/setup.d/guest.sh" "$top"/vms/guest/*)"
}
root_part=$cache/root-$root_key
root_dir=$root_part/root
stock_kernel=$cache/kernel-$kernel_key
stock_guest=$(guest_of "$kernel_key")
debug_kernel=$cache/debug-$debug_key
debug_guest=$(guest_of "$debug_key")

# A Debian that packages are installed on.
debian_dir=$cache/debian-$(key_of "$kernel_key" "$top"/scripts/setup.d/{guest,debian}.sh "$top"/vms/debian/*)

# The kernel's own tests of network drivers.
selftests_dir=$cache/selftests-$(key_of "$kernel_key" "$root_key" "$top/scripts/setup.d/selftests.sh")
# Programs that people run, for a second disk of nodes.
clients_dir=$cache/clients-$(key_of "$SUITE" "$BACKPORTS" "$top/scripts/setup.d/clients.sh" "$top"/vms/clients/*)
# UCX's measurements.
ucx_dir=$cache/ucx-$(key_of "$root_key" "$top/scripts/setup.d/ucx.sh")

rdma_core_dir=$cache/rdma-core-$(key_of "$RDMA_CORE_SHA256" "$top/scripts/setup.d/rdma-core.sh")

# rdma_cores all | built: lines of rdma-core.pin that are wanted: all, or those of the ABIs that NUPA_ABIS names ("59 65", or "" for none).
# With 'built' those alone that a provider is built against.
rdma_cores() {
	local line abi source
	while read -r line; do
		read -r abi _ _ _ source _ <<<"$line"
		[[ -z $abi || $abi == '#'* ]] && continue
		[[ -v NUPA_ABIS && $source != - && " $NUPA_ABIS " != *" $abi "* ]] && continue
		[[ $1 == built && $source == - ]] && continue
		printf '%s\n' "$line"
	done <"$top/rdma-core.pin"
}

# rdma_core_of ABI VERSION ARCHIVE LIBRARY SOURCE...: directory of such a version.
rdma_core_of() {
	printf '%s/rdma-core-%s\n' "$cache" "$(key_of "$4" "$5" "$top/scripts/setup.d/rdma-core.sh")"
}

# Of the chosen kernel: its directory (tree, modules, vmlinux), its guest, its release (uname -r),
# what make has to be told in its tree, and what directories of the build are told apart by.
case $NUPA_KERNEL in
stock)
	kernel_dir=$stock_kernel guest_dir=$stock_guest kernel_release=$KERNEL
	kernel_make=() kernel_suffix=''
	;;
debug)
	kernel_dir=$debug_kernel guest_dir=$debug_guest kernel_release=${KERNEL%%+*}-debug
	kernel_make=(LLVM=1) kernel_suffix=-debug
	;;
*) die "KERNEL is stock or debug, not '$NUPA_KERNEL'" ;;
esac
kernel_tree=$kernel_dir/tree
# Another guest that a node is to boot.
guest_dir=${NUPA_GUEST:-$guest_dir}

# Runs a long command quietly: step NAME LOG COMMAND...
# Says what runs and how long it took; a failure shows the end of the log and names it.
step() {
	local name=$1 log=$2 start=$SECONDS shown=0 pid status=0
	shift 2
	mkdir -p "$(dirname "$log")"
	set -m # a process group of its own, so that an interrupt ends all of it
	"$@" </dev/null >"$log" 2>&1 &
	pid=$!
	set +m
	trap 'kill -TERM -- -'"$pid"' 2>/dev/null; wait '"$pid"' || :; exit 130' INT TERM HUP
	while kill -0 "$pid" 2>/dev/null; do
		if [[ -t 1 ]]; then
			printf '\r%-46s %4d s ' "$name" $((SECONDS - start))
		elif ((SECONDS - start >= shown + 30)); then
			shown=$((SECONDS - start))
			printf '%-46s %4d s so far\n' "$name" "$shown"
		fi
		sleep 0.25
	done
	wait "$pid" || status=$?
	trap - INT TERM HUP
	if [[ -t 1 ]]; then printf '\r'; fi
	if ((status == 0)); then
		printf '%-46s %4d s  done\n' "$name" $((SECONDS - start))
		return 0
	fi
	printf '%-46s %4d s  FAILED\n' "$name" $((SECONDS - start))
	{
		printf -- '--- the last lines of %s\n' "$log"
		tail -n 25 "$log"
		printf -- '--- %s failed (exit %d); the whole log is %s\n' "$name" "$status" "$log"
	} >&2
	return "$status"
}

# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# What packages of all distributions have in common: which version they are, and what has to be built. To be sourced, after lib.sh.

repository() {
	git -c safe.directory='*' -C "$top" "$@" 2>/dev/null
}

# The version of the packages: grows with each commit, whether the clone has tags or not. A tag v1.2.3 is version 1.2.3, the fifth
# commit after it 1.2.3+5.gHASH. Without tags it is the workspace's version with a date, and sorts before that version's release.
version() {
	local base described date
	base=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"$/\1/p' "$top/userspace/Cargo.toml")
	if described=$(repository describe --tags --match 'v[0-9]*' --long); then
		described=${described#v}
		described=${described/%-0-g*/}
		base=$(sed -E 's/-([0-9]+)-(g[0-9a-f]+)$/+\1.\2/; s/-/~/g' <<<"$described")
	elif date=$(TZ=UTC repository log -1 --date=format-local:%Y%m%d.%H%M%S --format=%cd.g%h); then
		base+="~git$date"
	fi
	if repository rev-parse && ! repository diff-index --quiet HEAD; then base+=+changed; fi
	say "$base"
}

# need_built FILE...: fails if one of what packages hold is missing.
need_built() {
	local file
	for file; do
		[[ -e $file ]] || die "$file is missing: run 'make ${0##*/}', which builds it"
	done
}

# provider_abis: ABIs of rdma-core that packages have a provider for: those that set-up could get.
provider_abis() {
	local abi version archive library source
	printf '34\n'
	while read -r abi version archive library source _; do
		if [[ -d $(rdma_core_of "$abi" "$version" "$archive" "$library" "$source") ]]; then printf '%s\n' "$abi"; fi
	done < <(rdma_cores built)
}

# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# The debug kernel: the pinned source, configured small and with the kernel's own checks on, built by
# clang because KASAN with Rust asks for it. What lies in its directory has the names of the stock
# kernel's parts, so all that follows is the same for both. Sourced by scripts/setup.

debug_make() {
	make -C tree -j"$(nproc)" "${kernel_make[@]}" LOCALVERSION= "$@"
}

# Copies the stock kernel's source and configures it; names each line of debug.config that does not
# hold, because Kconfig drops silently what depends on something that is off.
debug_configure() {
	local line missing=0 release wanted=$top/scripts/setup.d/debug.config
	cp -a "$stock_kernel/tree" tree
	debug_make mrproper
	debug_make KCONFIG_ALLCONFIG="$wanted" allnoconfig
	while read -r line; do
		grep -qxF -- "$line" tree/.config && continue
		printf 'does not hold in the configuration: %s\n' "$line"
		missing=1
	done < <(grep -E '^(# )?CONFIG_' "$wanted")
	((missing == 0)) || return 1
	release=$(debug_make -s kernelrelease)
	[[ $release == "$kernel_release" ]] || {
		printf 'the debug kernel calls itself %s, not %s\n' "$release" "$kernel_release"
		return 1
	}
}

debug_build() {
	debug_make vmlinux modules
}

# Puts image and modules where the stock kernel's are, and removes what no module build reads.
debug_install() {
	debug_make INSTALL_MOD_PATH="$PWD/installed" INSTALL_MOD_STRIP=1 modules_install
	mv "installed/lib/modules/$kernel_release" modules
	rm -f modules/build
	rm -r installed
	llvm-objcopy --strip-all tree/vmlinux vmlinux
	find tree -name '*.[oa]' -not -path 'tree/scripts/*' -not -path 'tree/tools/*' -delete
	rm -f tree/vmlinux tree/vmlinux.unstripped
}

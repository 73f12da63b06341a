# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# The pinned kernel: image and modules as the distribution ships them, and its source prepared so
# that Rust modules built against it load into that image. Sourced by scripts/setup.

# The distribution's headers package has no Rust metadata, so the source is prepared with the
# headers' .config and Module.symvers instead.
kernel_packages() {
	local source=${KERNEL%%+*}
	printf '%s\n' "linux-binary-$KERNEL" "linux-modules-$KERNEL" "linux-base-$KERNEL" \
		"linux-headers-$KERNEL" "linux-source-${source%.*}"
}

# Kernel releases of which the archive has image, modules, headers and source of one version.
kernels_available() {
	apt-cache search --names-only '^linux-binary-[0-9.]+\+deb[0-9]+-amd64$' | cut -d' ' -f1 |
		sed 's/^linux-binary-//' | sort -V | while read -r release; do
		version=${release%%+*}
		apt-cache madison "linux-source-${version%.*}" | grep -q "| $version-" &&
			apt-cache madison "linux-headers-$release" | grep -q . && printf '%s\n' "$release"
	done
}

# Downloads the packages into the current directory (runs in the root). apt checks their hashes
# against the signed index.
kernel_download() {
	local version=${KERNEL%%+*} package have
	local -a wanted=()
	apt-get -qq update
	for package in $(kernel_packages); do
		have=$(apt-cache madison "$package" | cut -d'|' -f2 | tr -d ' ' | grep -m1 "^$version-") || {
			printf 'Kernel %s is pinned, but the archive no longer has %s %s.\n' \
				"$KERNEL" "$package" "$version"
			printf 'It has all that is needed for these:\n'
			kernels_available | sed 's/^/  KERNEL=/'
			printf 'Change KERNEL in platform.pin to one of these.\n'
			return 1
		}
		wanted+=("$package=$have")
	done
	apt-get -qq download "${wanted[@]}"
}

# Unpacks the .debs of the current directory and the source below it (runs in the root).
kernel_unpack() {
	local deb
	for deb in linux-*.deb; do
		dpkg-deb -x "$deb" packages
		rm "$deb"
	done
	mkdir tree
	# A third of the source is register headers of one GPU driver, which no module build reads.
	tar -xf packages/usr/src/linux-source-*.tar.xz -C tree --strip-components=1 \
		--exclude='*/drivers/gpu/drm/amd/include/asic_reg'
	cp "packages/usr/src/linux-headers-$KERNEL"/{.config,Module.symvers} tree/
	mv "packages/usr/lib/modules/$KERNEL" modules
	mv modules/vmlinuz .
	rm -r packages
}

# The uncompressed kernel out of the bzImage: QEMU enters it directly (PVH), which saves the guest
# the decompression, a second of each boot without KVM.
kernel_vmlinux() {
	tree/scripts/extract-vmlinux vmlinuz >vmlinux
}

# Configures and builds what module builds need; then checks that the Rust symbols, whose hashes
# depend on compiler, configuration and source, are the ones the distribution's image exports.
kernel_prepare() {
	local missing release
	make -C tree -j"$(nproc)" LOCALVERSION="+${KERNEL#*+}" prepare modules_prepare
	release=$(cat tree/include/config/kernel.release)
	if [[ $release != "$KERNEL" ]]; then
		printf 'the prepared tree calls itself %s, not %s\n' "$release" "$KERNEL"
		return 1
	fi
	missing=$(comm -23 <(cut -f2 tree/Module.symvers | grep '^_R' | sort) \
		<(grep -ohE '_R[A-Za-z0-9_]+' tree/rust/exports_*_generated.h | sort -u) | wc -l)
	if ((missing != 0)); then
		printf '%d Rust symbols of the stock kernel have other hashes in the prepared tree:\n' "$missing"
		printf 'compiler, configuration or source differ from what built the distribution image\n'
		return 1
	fi
}


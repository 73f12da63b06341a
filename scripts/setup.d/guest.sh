# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# What a node boots: initramfs, read-only root image, and the key that opens it. Sourced by
# scripts/setup; each function works in the current directory.

# A key pair for log-in from the host and between nodes, and the host key all nodes share.
guest_keys() {
	local name
	for name in id_ed25519 ssh_host_ed25519_key; do
		ssh-keygen -q -t ed25519 -N '' -C nupa -f "$name"
	done
	printf '* %s\n' "$(cut -d' ' -f1,2 ssh_host_ed25519_key.pub)" >known_hosts
}

# modules_with_dependencies NAME...: their files below the modules directory, in load order.
modules_with_dependencies() {
	local name
	for name in "$@"; do
		modprobe --dirname="$PWD/stage" --set-version="$kernel_release" --show-depends "$name"
	done | sed -n "s|^insmod $PWD/stage/lib/modules/$kernel_release/\([^ ]*\).*|\1|p" | awk '!seen[$0]++'
}

# Picks the modules the nodes need out of the kernel's, uncompressed: unpacking them in the guest
# costs more than reading them.
guest_modules() {
	local -a names
	local file to=modules/usr/lib/modules/$kernel_release
	mapfile -t names <"$top/vms/guest/modules"
	mkdir -p stage/lib/modules "$to"
	ln -s "$kernel_dir/modules" "stage/lib/modules/$kernel_release"
	depmod --basedir "$PWD/stage" "$kernel_release"
	modules_with_dependencies "${names[@]}" >files
	modules_with_dependencies virtio_blk erofs overlay >initramfs-files
	while read -r file; do
		mkdir -p "$to/$(dirname "$file")"
		xz -dc "$kernel_dir/modules/$file" >"$to/${file%.xz}"
	done <files
	cp "$kernel_dir"/modules/modules.{builtin,builtin.modinfo,order} "$to/"
	depmod --basedir "$PWD/modules/usr" "$kernel_release"
}

guest_initramfs() {
	local file
	mkdir -p initramfs-root/{bin,modules}
	: >initramfs-root/modules/order
	cp /usr/bin/busybox initramfs-root/bin/
	install -m755 "$top/vms/guest/initramfs-init" initramfs-root/init
	while read -r file; do
		file=${file%.xz}
		cp "modules/usr/lib/modules/$kernel_release/$file" initramfs-root/modules/
		printf '%s\n' "${file##*/}" >>initramfs-root/modules/order
	done <initramfs-files
	(cd initramfs-root && find . | cpio --quiet -o -H newc --owner=0:0) >initramfs
}

# Files that the image has on top of its packages.
guest_overlay() {
	mkdir -p overlay/{etc/ssh,nupa,root/.ssh,usr/sbin}
	install -m755 "$top/vms/guest/init" overlay/usr/sbin/init
	install -m755 "$top"/vms/guest/nupa-{up,down,pool} overlay/usr/sbin/
	install -m644 "$top/vms/guest/motd" overlay/etc/motd
	install -m644 "$top/vms/guest/sshd_config" overlay/etc/ssh/
	install -m600 ssh_host_ed25519_key overlay/etc/ssh/
	install -m600 id_ed25519 overlay/root/.ssh/
	install -m644 id_ed25519.pub overlay/root/.ssh/authorized_keys
	install -m644 known_hosts overlay/root/.ssh/
	chmod 700 overlay/root/.ssh
	tar -C overlay --owner=0 --group=0 -cf overlay.tar .
	tar -C modules --owner=0 --group=0 -cf modules.tar .
}

# All that the packages are not needed for.
guest_parts() {
	guest_keys
	guest_modules
	guest_initramfs
	guest_overlay
}

# The packages; runs on the host, because mmdebstrap does.
guest_bootstrap() {
	local include
	include=$(paste -sd, "$top/vms/guest/packages")
	bootstrap --variant=minbase --include="$include" \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/usr/sbin/init; ln -s /proc/mounts "$1/etc/mtab" 2>/dev/null || :' \
		--customize-hook="tar-in '$PWD/overlay.tar' /" \
		--customize-hook="tar-in '$PWD/modules.tar' /" \
		--customize-hook='for a in poweroff reboot halt vi less; do ln -sf busybox "$1/usr/bin/$a"; done' \
		"$SUITE" root.tar
}

# erofs, uncompressed: the host's page cache holds it, and the guest has no cycles to spare.
guest_image() {
	mkfs.erofs --quiet --tar=f root.erofs root.tar
	rm -r root.tar overlay overlay.tar modules modules.tar stage files initramfs-files initramfs-root
}

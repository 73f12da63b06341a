# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# A Debian as users have it, with systemd and the distribution's kernel packages, that packages are installed on. It boots like
# the nodes' own guest, but keeps what is written on a second disk. Made where a test asks for it: scripts/setup --debian.

debian_initramfs() {
	local file
	mkdir -p initramfs-root/{bin,modules} stage/lib/modules
	ln -s "$stock_kernel/modules" "stage/lib/modules/$KERNEL"
	depmod --basedir "$PWD/stage" "$KERNEL"
	cp /usr/bin/busybox initramfs-root/bin/
	install -m755 "$top/vms/debian/initramfs-init" initramfs-root/init
	modules_with_dependencies virtio_blk erofs ext4 overlay >files
	while read -r file; do
		xz -dc "$stock_kernel/modules/$file" >"initramfs-root/modules/$(basename "$file" .xz)"
		basename "$file" .xz >>initramfs-root/modules/order
	done <files
	(cd initramfs-root && find . | cpio --quiet -o -H newc --owner=0:0) >initramfs
	rm -r initramfs-root stage files
}

# What the image has on top of its packages: the way in.
debian_overlay() {
	mkdir -p overlay/{nupa,root/.ssh,etc/ssh/sshd_config.d,etc/systemd/network,etc/systemd/system}
	install -m644 "$top/vms/debian/mgmt.network" overlay/etc/systemd/network/10-mgmt.network
	install -m644 "$top"/vms/debian/*.{service,mount} overlay/etc/systemd/system/
	install -m644 "$top/vms/debian/sshd.conf" overlay/etc/ssh/sshd_config.d/nupa.conf
	install -m600 ssh_host_ed25519_key overlay/etc/ssh/
	install -m644 id_ed25519.pub overlay/root/.ssh/authorized_keys
	chmod 700 overlay/root/.ssh
	tar -C overlay --owner=0 --group=0 -cf overlay.tar .
	rm -r overlay
}

debian_parts() {
	guest_keys
	debian_initramfs
	debian_overlay
}

# The packages; runs on the host, because mmdebstrap does.
debian_bootstrap() {
	local include
	# A kernel of backports wants the linux-base of backports, which apt does not take by itself.
	include=$(paste -sd, "$top/vms/debian/packages"),linux-base/$BACKPORTS,linux-image-$KERNEL
	# Modules of devices that no node has are left out: depmod, which packages with modules run, unpacks all that there are, and in a node
	# that takes minutes.
	bootstrap --variant=minbase --include="$include" \
		--dpkgopt='path-exclude=/usr/lib/modules/*/kernel/drivers/'{ata,bluetooth,comedi,gpu,hid,hwmon,iio,input,media,platform,scsi,usb}'/*' \
		--dpkgopt='path-exclude=/usr/lib/modules/*/kernel/drivers/net/'{can,ethernet,phy,usb,wireless}'/*' \
		--dpkgopt='path-exclude=/usr/lib/modules/*/kernel/'{net/{bluetooth,mac80211,wireless},sound}'/*' \
		--customize-hook='rm -f "$1"/etc/ssh/ssh_host_*' \
		--customize-hook="tar-in '$PWD/overlay.tar' /" \
		--customize-hook='chroot "$1" systemctl enable systemd-networkd nupa-ready nupa.mount' \
		--customize-hook='chroot "$1" systemctl mask getty@tty1 apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer' \
		--customize-hook='chroot "$1" systemd-machine-id-setup; echo installed >"$1/etc/hostname"' \
		"$SUITE" root.tar
}

debian_image() {
	mkfs.erofs --quiet --tar=f root.erofs root.tar
	rm root.tar overlay.tar
}

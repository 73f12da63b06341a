# shellcheck shell=sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2034,SC2154 # what is set here is used there, and the other way round
#
# The machine that a node is, for vms/start and for the bundle, whose shell is busybox's. To be sourced after `run_dir`, where
# the node's sockets are, `node`, its number, `pool_file` and `pool`, the file of a pool and its size, are set, or before.

machine=q35,memory-backend=ram,vmport=off,hpet=off,i8042=off,smbus=off,usb=off,sata=off,smm=off

# The check whether the timer ticks gives up, and panics, when the host has no time for the guest meanwhile.
# A node has one processor until its first program runs, which takes the others into use (vms/guest/init). The kernel changes its own code as it
# starts, and QEMU's TCG drops what it has translated of the old code before the change is there: another processor that
# comes by in between translates the breakpoint that the kernel puts there meanwhile, and meets it when it is gone ("Oops: int3").
# Without noreplace-smp it would also take the locks out of its code, and put them back for the second processor.
kernel_line="console=ttyS0 quiet panic=-1 mitigations=off tsc=reliable no_timer_check maxcpus=1 noreplace-smp"

# Interrupt vectors of an ivshmem device, which the server has to know, too.
vectors=4

# /dev/kvm may be there, and even open, where no guest can run: the CPU must have it too.
kvm_works() {
	grep -qwE 'vmx|svm' /proc/cpuinfo 2>/dev/null && [ -r /dev/kvm ] && [ -w /dev/kvm ]
}

# tsc_parameter NUPA-TSC...: prints the kernel parameter that says how fast the time stamp counter is; the command measures that. A
# guest that is not told measures it itself, badly if the host is busy. KVM tells its guests.
tsc_parameter() {
	if kvm_works; then return; fi
	if khz=$("$@"); then echo "tsc_early_khz=$khz"; fi
}

# accelerator_args FABRIC: prints QEMU's arguments, one per line.
accelerator_args() {
	cpu_flags=''
	# Linux sets no CXL region up where the CPU says that it is virtual, because it could not rely on
	# flushing caches there.
	if [ "$1" = cxl ]; then cpu_flags=,hypervisor=off; fi
	if kvm_works; then
		printf '%s\n' -accel kvm -cpu "host$cpu_flags"
	else
		# TCG runs rep movsb and rep stosb byte by byte, and the kernel takes them where the CPU
		# claims them to be fast. Without the claim (measured, 1 vCPU): read() of 64 KB from page
		# cache 360 -> 1800 MB/s, clear_user 620 -> 6500 MB/s, iperf3 over lo 0.67 -> 2.4 Gb/s.
		printf '%s\n' -accel tcg,thread=multi -cpu "max,-erms,-fsrm,-fsrs,-fzrm$cpu_flags"
	fi
}

# fabric_args FABRIC: what joins the node to others, one argument per line.
fabric_args() {
	case $1 in
	pcie)
		# Behind a root port, so that it can be unplugged and errors can be injected. A switch that gets no processor for
		# a while is waited for: after QEMU's own 5 s the device would be lost for good.
		printf '%s\n' -device pcie-root-port,id=fabric,chassis=1,slot=1 -device "$(printf \
			'{"driver":"vfio-user-pci","id":"nupa","bus":"fabric","socket":{"path":"%s","type":"unix"},"x-msg-timeout":30000}' \
			"$run_dir/node$node.sock")"
		;;
	cxl)
		# A window of the host's addresses, a host bridge that it leads to, a port, and the memory.
		printf '%s\n' -machine cxl=on,cxl-fmw.0.targets.0=cxl,cxl-fmw.0.size=4G \
			-device pxb-cxl,id=cxl,bus=pcie.0,bus_nr=32 -device cxl-rp,id=pool-port,bus=cxl,chassis=2,slot=2 \
			-object "memory-backend-file,id=pool,mem-path=$pool_file,size=$pool,share=on" \
			-device cxl-type3,id=nupa,bus=pool-port,volatile-memdev=pool
		;;
	ivshmem)
		printf '%s\n' -chardev "socket,id=pool,path=$run_dir/ivshmem.sock" \
			-device "ivshmem-doorbell,id=nupa,chardev=pool,vectors=$vectors"
		;;
	esac
}

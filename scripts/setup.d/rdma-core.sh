# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# What a provider is built against. libibverbs-dev has no driver.h, so it comes from rdma-core's source, of the version
# that the nodes run; that source's own tests are kept too. Sourced by scripts/setup; runs in the root.

# rdma_core_sites ARCHIVE NAME: addresses of a file of the distribution's package: the mirror, which has what a suite has, and
# the distribution's place for all that there ever was.
rdma_core_sites() {
	local pool=pool/main/r/rdma-core mirror
	if [[ $1 == debian ]]; then
		mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' | head -n 1)
		printf '%s\n' "$mirror/$pool/$2" "https://snapshot.debian.org/archive/debian/$DEBIAN_SNAPSHOT/$pool/$2"
	else
		mirror=${NUPA_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}
		printf '%s\n' "$mirror/$pool/$2" "https://launchpad.net/ubuntu/+archive/primary/+files/$2"
	fi
}

# fetch_rdma_core ARCHIVE NAME HASH PIN
fetch_rdma_core() {
	local sites site
	mapfile -t sites < <(rdma_core_sites "$1" "$2")
	for site in "${sites[@]}"; do
		/usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "$site" "$2" "$3" && return
	done
	printf '%s is not to be had. Where the archive has a newer version by now, put that into %s.\n' "$2" "$4"
	return 1
}

# rdma_core_source ARCHIVE VERSION HASH PIN
rdma_core_source() {
	local name=rdma-core_${2%-*}.orig.tar.gz
	fetch_rdma_core "$1" "$name" "$3" "$4"
	mkdir source
	tar -xf "$name" -C source --strip-components=1
	rm "$name"
}

rdma_core_download() {
	# Which apt knows of once it has indices: not in a root that no kernel was downloaded in.
	apt-get -qq update
	rdma_core_source debian "$RDMA_CORE-1" "SHA256:$RDMA_CORE_SHA256" platform.pin
}

# rdma_core_other_download ABI VERSION ARCHIVE LIBRARY SOURCE...: one of rdma-core.pin, of which the build root has no library to link with.
rdma_core_other_download() {
	local name=libibverbs1_${2}_amd64.deb abi
	apt-get -qq update
	fetch_rdma_core "$3" "$name" "$4" rdma-core.pin
	mkdir lib
	dpkg-deb -x "$name" package
	cp -L package/usr/lib/x86_64-linux-gnu/libibverbs.so.1 lib/
	rm -r package "$name"
	[[ $5 == - ]] && return
	rdma_core_source "$3" "$2" "$5" rdma-core.pin
	rdma_core_headers
	abi=$(sed -n 's/^#define IBVERBS_PABI_VERSION //p' include/config.h)
	[[ $abi == "$1" ]] || die "rdma-core $2 has ABI $abi, and rdma-core.pin says $1"
}

# Lays the headers out as rdma-core's build does, with as much of its config.h as they ask for.
rdma_core_headers() {
	mkdir -p include/{infiniband,rdma,kernel-abi,util,ccan}
	cp source/libibverbs/*.h source/kernel-headers/rdma/ib_user_ioctl_verbs.h include/infiniband/
	cp source/kernel-headers/rdma/*.h include/rdma/
	cp source/util/*.h include/util/
	cp source/ccan/*.h include/ccan/
	python3 source/buildlib/make_abi_structs.py source/kernel-headers/rdma/ib_user_verbs.h \
		include/kernel-abi/ib_user_verbs.h
	cat >include/config.h <<-EOF
		#define HAVE_STATEMENT_EXPR 1
		#define HAVE_BUILTIN_TYPES_COMPATIBLE_P 1
		#define HAVE_TYPEOF 1
		$(sed -nE 's/^set\((IBVERBS_PABI_VERSION) "([0-9]+)"\)$/#define \1 \2/p' source/CMakeLists.txt)
		#define VERBS_IOCTL_ONLY 0
		#define VERBS_WRITE_ONLY 0
	EOF
	mv source/tests source/COPYING* .
	rm -r source
}

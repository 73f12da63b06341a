# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# What a provider is built against. libibverbs-dev has no driver.h, so it comes from rdma-core's source, of the version
# that the nodes run; that source's own tests are kept too. Sourced by scripts/setup; runs in the root.

# fetch_rdma_core NAME HASH: a file of the distribution's package, from the mirror of the root.
fetch_rdma_core() {
	local site
	# Which apt knows of once it has indices: not in a root that no kernel was downloaded in.
	apt-get -qq update
	site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' | head -n 1)
	/usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file "$site/pool/main/r/rdma-core/$1" "$1" "SHA256:$2"
}

# rdma_core_source NAME HASH
rdma_core_source() {
	fetch_rdma_core "$1" "$2"
	mkdir source
	tar -xf "$1" -C source --strip-components=1
	rm "$1"
}

rdma_core_download() {
	rdma_core_source "rdma-core_$RDMA_CORE.orig.tar.gz" "$RDMA_CORE_SHA256"
}

# The next one, of which the build root has no library to link with.
rdma_core_next_download() {
	local name=libibverbs1_${LIBIBVERBS_NEXT}_amd64.deb
	if ! fetch_rdma_core "$name" "$LIBIBVERBS_NEXT_SHA256"; then
		printf 'If the archive no longer has %s, change LIBIBVERBS_NEXT in platform.pin to what the next release has.\n' "$name"
		return 1
	fi
	rdma_core_source "rdma-core_${LIBIBVERBS_NEXT%-*}.orig.tar.gz" "$RDMA_CORE_NEXT_SHA256"
	mkdir lib
	dpkg-deb -x "$name" package
	cp -L package/usr/lib/x86_64-linux-gnu/libibverbs.so.1 lib/
	rm -r package "$name"
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

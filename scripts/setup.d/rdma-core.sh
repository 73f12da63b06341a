# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# What a provider is built against. libibverbs-dev has no driver.h, so it comes from rdma-core's source, of the version
# that the nodes run; that source's own tests are kept too. Sourced by scripts/setup; runs in the root.

# The archive that the distribution's source package names, from the mirror of the root.
rdma_core_download() {
	local site name=rdma-core_$RDMA_CORE.orig.tar.gz
	site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Component: main' | head -n 1)
	/usr/lib/apt/apt-helper -o APT::Sandbox::User=root download-file \
		"$site/pool/main/r/rdma-core/$name" "$name" "SHA256:$RDMA_CORE_SHA256"
	mkdir source
	tar -xf "$name" -C source --strip-components=1
	rm "$name"
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

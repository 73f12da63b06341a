# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# The kernel's own tests of network drivers (tools/testing/selftests/drivers/net of the pinned source), laid out as the kernel's
# `make install` of them does, and programs that they start and nodes do not have. Made where a test asks for it:
# scripts/setup --selftests.

# Runs in the root, which has the nodes' release of Debian. What a node has already is not overwritten there.
selftests_programs() {
	local deb library
	apt-get -qq update
	apt-get -qq download bpftool python3-yaml libyaml-0-2
	for deb in *.deb; do
		dpkg-deb -x "$deb" programs
		rm "$deb"
	done
	rm -r programs/usr/share
	install -D -t programs/usr/bin /usr/bin/socat
	for library in $(ldd /usr/bin/socat | awk '$2 == "=>" { print $3 }'); do
		install -D -m 644 -t programs/usr/lib/x86_64-linux-gnu "$library"
	done
}

selftests_lay_out() {
	local source=$stock_kernel/tree/tools/testing/selftests
	mkdir -p tests/drivers/net/hw tests/net/lib/ynl
	cp -r "$source"/drivers/net/{*.py,lib} tests/drivers/net/
	cp -r "$source"/drivers/net/hw/{*.py,lib} tests/drivers/net/hw/
	cp -r "$source"/net/lib/{py,sh} tests/net/lib/
	cp -r "$stock_kernel/tree/tools/net/ynl/pyynl" tests/net/lib/ynl/
	cp -r "$stock_kernel/tree/Documentation/netlink/specs" tests/net/lib/
	# By this they know that they are not in the kernel's tree.
	printf 'drivers/net:%s\n' tests/drivers/net/*.py >tests/kselftest-list.txt
}

# The programs in C and BPF that the tests start.
selftests_compile() {
	local tree=$stock_kernel/tree program
	local source=$tree/tools/testing/selftests
	for program in net/lib/{csum,gro,xdp_helper} drivers/net/{napi_id_helper,so_txtime}; do
		gcc -O2 -w -idirafter "$tree/tools/include/uapi" -I "$source" -I "$source/net/lib" -o "tests/$program" "$source/$program.c"
	done
	mkdir -p include/bpf
	cp "$tree"/tools/lib/bpf/bpf_{helpers,endian,tracing,core_read}.h include/bpf/
	"$tree/scripts/bpf_doc.py" --header --file "$tree/tools/include/uapi/linux/bpf.h" >include/bpf/bpf_helper_defs.h
	for program in "$source"/net/lib/*.bpf.c; do
		clang -O2 -g -w --target=bpf -I include -I "$tree/tools/include/uapi" -idirafter /usr/include/x86_64-linux-gnu \
			-idirafter /usr/include -c "$program" -o "tests/net/lib/$(basename "${program%.c}").o"
	done
	rm -r include
}

# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# The build root: a Debian of the pinned suite with every tool, so that the host's own compilers
# and QEMU do not matter. Sourced by scripts/setup.

# The Debian mirror the host itself uses; NUPA_MIRROR overrides it.
mirror() {
	local url
	if [[ -n ${NUPA_MIRROR:-} ]]; then
		printf '%s\n' "$NUPA_MIRROR"
		return
	fi
	# shellcheck disable=SC2016 # the $(...) are apt's fields, not the shell's
	url=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian' \
		'Component: main' 2>/dev/null | grep -E '^https?://' | head -n 1) || :
	[[ -n $url ]] || die "no Debian mirror in this machine's apt configuration;" \
		"name one: NUPA_MIRROR=http://... scripts/setup"
	printf '%s\n' "$url"
}

# A proxy set in the host's apt configuration (one in the environment is inherited anyway).
apt_proxy_options() {
	apt-config dump 2>/dev/null | sed -nE 's/^(Acquire::https?::Proxy) "(.+)";$/--aptopt=\1 "\2"/p'
}

# bootstrap ARGS...: mmdebstrap in namespaces of its own. Whatever ends it, no process goes on
# writing, and no mount is left that removing the half-built directory could follow into the host.
bootstrap() {
	local site
	local -a proxy
	site=$(mirror)
	mapfile -t proxy < <(apt_proxy_options)
	if ((EUID == 0)); then
		unshare --mount --propagation private --pid --fork --kill-child --mount-proc \
			mmdebstrap --mode=root "${proxy[@]}" "$@" \
			"deb $site $SUITE main" "deb $site $BACKPORTS main"
	else
		mmdebstrap --mode=unshare "${proxy[@]}" "$@" \
			"deb $site $SUITE main" "deb $site $BACKPORTS main"
	fi
}

# QEMU and its firmware come from backports at the pinned version; the rest of that suite stays
# at its low default priority.
root_preferences() {
	cat <<-EOF
		Package: src:qemu
		Pin: version 1:$QEMU.*
		Pin-Priority: 600

		Package: src:seabios src:edk2 src:ipxe src:libslirp
		Pin: release n=$BACKPORTS
		Pin-Priority: 600
	EOF
}

# build_root TARGET
build_root() {
	local target=$1 include
	include=$(paste -sd, "$top/scripts/setup.d/root.packages")
	root_preferences >"$target.preferences"
	local -a args=(
		--variant=minbase --include="$include"
		--dpkgopt='path-exclude=/usr/share/doc/*'
		--dpkgopt='path-exclude=/usr/share/man/*'
		--dpkgopt='path-exclude=/usr/share/locale/*'
		--setup-hook="install -D -m644 '$target.preferences' \"\$1/etc/apt/preferences.d/nupa\""
		# Mount points for the host's own files, and the mark that in-root looks for.
		--customize-hook='cd "$1/etc"; rm -f resolv.conf; touch resolv.conf hosts nupa-root'
		"$SUITE"
	)
	if ((EUID == 0)); then
		bootstrap "${args[@]}" "$target"
	else
		# Owned by the caller throughout: bubblewrap maps nobody else, and any user can remove it.
		bootstrap "${args[@]}" "$target.tar"
		mkdir "$target"
		tar -xf "$target.tar" -C "$target" --no-same-owner --exclude='./dev/*'
		rm "$target.tar"
	fi
	rm "$target.preferences"
}

# check_tool NAME WANTED PACKAGE: the version that got installed has the pinned prefix.
check_tool() {
	local root=$1 name=$2 wanted=$3 package=$4 got
	got=$(NUPA_ROOT=$root "$top/scripts/in-root" dpkg-query -W -f='${Version}' "$package")
	got=${got#*:}
	[[ $got == "$wanted" || $got == "$wanted"[.+~-]* ]] && return
	printf '%s %s is pinned, but the archive gave %s.\n' "$name" "$wanted" "$got" >&2
	printf 'The archive has, in %s and %s:\n' "$SUITE" "$BACKPORTS" >&2
	NUPA_ROOT=$root "$top/scripts/in-root" sh -c "apt-get -qq update && apt-cache madison $package" >&2
	printf 'Change %s in platform.pin to one of these.\n' "$name" >&2
	return 1
}

check_root() {
	local root=$1
	check_tool "$root" QEMU "$QEMU" qemu-system-x86
	check_tool "$root" RUSTC "$RUSTC" rustc
	check_tool "$root" BINDGEN "$BINDGEN" bindgen
	check_tool "$root" GCC "$GCC" gcc-"$GCC"
	check_tool "$root" CLANG "$CLANG" clang-"$CLANG"
}

# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
# shellcheck disable=SC2154 # paths and pins come from scripts/lib.sh
#
# The image of programs that people run, as Debian has them: a second disk of nodes, for scripts/clients. Nodes of tests and of
# the demo do not have it. Made where somebody asks for it: scripts/setup --clients.

# In the half-made image ROOT: what PyPI has and Debian has not. An archive that cannot be reached leaves it out, and the clients in it are
# not tried then.
clients_pypi() {
	local root=$1
	cp "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/tmp/certificates"
	cp "$top/vms/clients/pypi" "$root/tmp/pypi"
	# What says to pip where the host has its certificates would come before --cert.
	env -u PIP_FIND_LINKS -u PIP_CERT -u REQUESTS_CA_BUNDLE -u CURL_CA_BUNDLE -u SSL_CERT_FILE -u SSL_CERT_DIR chroot "$root" pip install --cert /tmp/certificates --no-deps --no-cache-dir --break-system-packages --root-user-action ignore \
		--requirement /tmp/pypi || printf 'the image has no clients of PyPI\n'
	rm "$root"/tmp/{certificates,pypi}
}

# The packages; runs on the host, because mmdebstrap does.
clients_bootstrap() {
	local include
	include=$(paste -sd, "$top/vms/clients/packages")
	bootstrap --variant=minbase --include="$include" \
		--dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook='chroot "$1" sh -c "pg_lsclusters -h | grep -q . || pg_createcluster --locale C.UTF-8 17 main"' \
		--customize-hook='mkdir -p "$1/nupa"' \
		--customize-hook="bash -c '. \"$top/scripts/lib.sh\"; . \"$top/scripts/setup.d/clients.sh\"; clients_pypi \"\$1\"' clients \"\$1\"" \
		"$SUITE" root.tar
}

clients_image() {
	mkfs.erofs --quiet --tar=f root.erofs root.tar
	rm root.tar
}

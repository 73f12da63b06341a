#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Starts node 1 on the emulated PCIe fabric; NODE=3, or 3 as the argument, starts another one.
# `vms/start --help` tells what else can be chosen.

set -euo pipefail
node=${NODE:-1}
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
	node=$1
	shift
fi
exec "$(dirname "$0")/../start" --fabric pcie "$@" "$node"

#!/bin/bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Starts a node: vms/MODE/nodeN.sh, which all are this script, starts node N on the fabric MODE:
#   pcie      the emulated PCIe fabric
#   cxl       a pool of CXL memory
#   ivshmem   a pool of plain shared memory, with interrupts
# NODE=3, or 3 as the argument, starts another one. `vms/start --help` tells what else can be chosen.
# What a node needs and is missing is built first, and the network is brought up on it (nupa-up).

set -euo pipefail
directory=$(cd "$(dirname "$0")" && pwd -P)
mode=${directory##*/}
name=${0##*/}
name=${name#node}
node=${NODE:-${name%.sh}}
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
	node=$1
	shift
fi
exec "$directory/../start" --fabric "$mode" --up "$@" "$node"

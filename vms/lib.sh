# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What the scripts for nodes share: where a node's files are, how to reach it, whether it runs.
# To be sourced, never run.
# shellcheck disable=SC2034 # what is set here is used there

# shellcheck source=../scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../scripts/lib.sh"

# own_or_none PATH: ends the script if another user has made a file there, or a link. In /tmp anybody can, and what lies there is believed: ids of
# processes to end, sockets, files to write to.
own_or_none() {
	if [[ -L $1 || (-e $1 && ! -O $1) ]]; then die "$1 is another user's, or a link: remove it, or name a directory of yours in XDG_RUNTIME_DIR"; fi
}

# Sockets lie in the run directory, and a socket's path has at most 107 characters.
run_dir=${NUPA_RUN:-$build/run}
shared_place=''
if ((${#run_dir} > 80)); then
	shared_place=1
	run_dir=${XDG_RUNTIME_DIR:-/tmp}/nupa-$UID-$(key_of "$run_dir")
	own_or_none "$run_dir"
fi

# The file that is the pool's memory. It has to be in memory, or writing it back to the disk would stall the nodes.
pool_file=$run_dir/pool
if [[ -d /dev/shm && $run_dir != /dev/shm/* ]]; then
	pool_file=/dev/shm/nupa-pool-$UID-$(key_of "$run_dir")
fi

# check_node N: a node number, which is also the controller's place in the switch.
check_node() {
	[[ ${1:-} =~ ^([1-9]|[1-5][0-9]|6[0-4])$ ]] || die "a node is a number from 1 to 64, not '${1:-}'"
}

# pid_of NAME: sets `pid` to what NAME.pid in the run directory says; fails where it says nothing. QEMU removes its file when it
# ends, which may be just now; $(<FILE) would end the script then, in a condition too.
pid_of() {
	pid=''
	read -r pid 2>/dev/null <"$run_dir/$1.pid" || :
	[[ $pid ]]
}

# running NAME: whether the process of NAME.pid in the run directory lives. A number that the
# system gave to another process meanwhile does not count.
running() {
	local pid words=()
	pid_of "$1" || return
	mapfile -d '' -t words 2>/dev/null <"/proc/$pid/cmdline" || return
	[[ ${words[*]} == *"$run_dir"* ]]
}

# stop_process NAME: ends the process of NAME.pid and waits until it is gone.
stop_process() {
	local pid tries
	if pid_of "$1" && running "$1"; then
		kill "$pid" 2>/dev/null || :
		for ((tries = 0; tries < 100; tries++)); do
			running "$1" || break
			sleep 0.05
		done
		if running "$1"; then kill -9 "$pid" 2>/dev/null || :; fi
	fi
	rm -f "$run_dir/$1.pid"
}

# ssh_command N: sets `ssh_command` to what logs in to node N from within the root. The first log-in
# leaves a connection that later ones share, because a key exchange takes most of a second under TCG.
ssh_command() {
	local node=$1
	ssh_command=(ssh -p "$(<"$run_dir/node$node.port")" -i "$run_dir/node$node.guest/id_ed25519" \
		-o IdentitiesOnly=yes -o UserKnownHostsFile="$run_dir/node$node.guest/known_hosts" -o LogLevel=ERROR \
		-o StrictHostKeyChecking=yes -o ConnectTimeout=10 -o ServerAliveInterval=15 -o ServerAliveCountMax=20 -F none \
		-o ControlPath="$run_dir/node$node.mux" -o ControlMaster=auto -o ControlPersist=yes \
		root@127.0.0.1)
}

# node_ssh N [ARG...]: ssh into node N.
node_ssh() {
	ssh_command "$1"
	shift
	"$top/scripts/in-root" "${ssh_command[@]}" "$@"
}

# shellcheck shell=sh
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# What demo and bench share: node 1 asks node 2, over nupanet0, to serve, and measures. To be sourced.
# shellcheck disable=SC2034 # what is set here is used there

set -u
other=10.77.0.2
device=nupa_rdma0

# Ends the demonstration; the line is what it says outside.
fail() {
	echo "@$*"
	exit 1
}

# Runs a shell command on node 2. The first log-in leaves a connection for the others.
on_other() {
	ssh -F none -o BatchMode=yes -o LogLevel=ERROR -o ControlMaster=auto -o ControlPath=/run/mux -o ControlPersist=yes "$other" "$@"
}

await_other() {
	tries=0
	until ping -n -q -c 1 -W 1 "$other" >/dev/null 2>&1; do
		tries=$((tries + 1))
		[ $tries -lt 120 ] || fail "node 2 does not answer"
	done
	tries=0
	until on_other "ss -Hltn 'sport = :5201' | grep -q . && ss -Hltn 'sport = :12865' | grep -q ." 2>/dev/null; do
		tries=$((tries + 1))
		[ $tries -lt 120 ] || fail "node 2 does not serve"
		sleep 0.5
	done
}

# serve COMMAND LISTENING: starts a server on node 2, and waits until a command there finds that it listens.
serve() {
	on_other "{ timeout 100 $1; } >/run/server.log 2>&1 </dev/null & for i in \$(seq 100); do $2 && exit 0; sleep 0.1; done
		cat /run/server.log; exit 1" || fail "node 2 cannot run: $1"
}

# perftest PROGRAM SIZE COLUMN DEVICE ADDRESS COUNT [OPTION...]: one figure of one of perftest's programs, by its column.
perftest() {
	program=$1 size=$2 column=$3 address=$5
	command="$program -d $4 -F -s $size -n $6"
	shift 6
	command="$command $*"
	serve "$command" "ss -Hltn 'sport = :18515' | grep -q ."
	# shellcheck disable=SC2086 # it is words
	timeout 100 $command "$address" >/run/client.log 2>&1 || { cat /run/client.log && fail "$command failed"; }
	awk -v "size=$size" -v "column=$column" '$1 == size { value = $column } END { if (value == "") exit 1; print value }' /run/client.log ||
		fail "$program printed no result"
}

# tcp STREAMS ADDRESS SECONDS: Gb/s that arrived.
tcp() {
	timeout $(($3 + 60)) iperf3 -f g -c "$2" -P "$1" -t "$3" >/run/client.log 2>&1 || { cat /run/client.log && fail "iperf3 failed"; }
	awk '/receiver/ { for (i = 2; i <= NF; i++) if ($i == "Gbits/sec") value = $(i - 1) } END { print value }' /run/client.log
}

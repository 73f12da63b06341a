# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0 OR MIT
#
# Whether this machine has room for nodes: memory, and space where a pool's file lies. To be sourced after vms/lib.sh.
# shellcheck disable=SC2154 # what vms/lib.sh sets

case $NUPA_KERNEL in
stock) default_mem=1G ;;
# It keeps a byte for each eight of memory and a record of each allocation.
debug) default_mem=3G ;;
esac

default_pool=256M

# megabytes SIZE NAME: a size as QEMU takes it (512M, 2G), which the variable NAME was set to, in MiB.
megabytes() {
	[[ $1 =~ ^[1-9][0-9]{0,8}[MG]$ ]] || die "$2 is a number with M or G, such as $3, not '$1'"
	local number=${1%[MG]}
	if [[ $1 == *G ]]; then number=$((number * 1024)); fi
	printf '%d\n' "$number"
}

# control_group_room: MiB that the memory limits of this process's control groups leave; nothing where there is none.
control_group_room() {
	local path top_dir dir limit used cache least='' names
	# Version 1 has a hierarchy of its own for memory. Its "no limit" is a number that no machine has.
	path=$(sed -nE 's/^[0-9]+:([a-z_,]+,)?memory(,[a-z_,]+)?://p' /proc/self/cgroup 2>/dev/null) || :
	if [[ $path ]]; then
		top_dir=/sys/fs/cgroup/memory names=(memory.limit_in_bytes memory.usage_in_bytes total_inactive_file)
	else
		path=$(sed -n 's/^0:://p' /proc/self/cgroup 2>/dev/null) || :
		top_dir=/sys/fs/cgroup names=(memory.max memory.current inactive_file)
	fi
	# In a container the path may be the host's, and what is mounted its own group.
	dir=$top_dir${path%/}
	while [[ $dir == "$top_dir"* ]]; do
		limit=$(cat "$dir/${names[0]}" 2>/dev/null) || limit=max
		if [[ $limit != max ]]; then
			used=$(<"$dir/${names[1]}")
			# What of it is only a copy of files goes when memory is wanted.
			cache=$(sed -n "s/^${names[2]} //p" "$dir/memory.stat")
			limit=$(((limit - used + ${cache:-0}) / 1048576))
			if [[ -z $least ]] || ((limit < least)); then least=$limit; fi
		fi
		dir=${dir%/*}
	done
	printf '%s\n' "$least"
}

# free_memory: MiB that can be had, swap included.
free_memory() {
	local free limit
	free=$(awk '/^(MemAvailable|SwapFree):/ { sum += $2 } END { print int(sum / 1024) }' /proc/meminfo)
	limit=$(control_group_room)
	if [[ $limit ]] && ((limit < free)); then free=$limit; fi
	printf '%d\n' "$free"
}

# need_room FABRIC COUNT POOLS: ends the script where COUNT more nodes and POOLS new pools do not fit.
need_room() {
	local fabric=$1 count=$2 pools=$3 mem pool=0 need free where who
	mem=$(megabytes "${MEM:-$default_mem}" MEM "$default_mem") || exit
	if [[ $fabric =~ ^(cxl|ivshmem)$ ]] && ((pools > 0)); then
		pool=$(megabytes "${POOL:-$default_pool}" POOL "$default_pool") || exit
		pool=$((pool * pools))
		where=${pool_file%/*}
		until [[ -d $where ]]; do where=$(dirname "$where"); done
		where=$(stat -c %m "$where") # where it is mounted
		free=$(($(stat -f -c '%a * %S' "$where") / 1048576))
		((free >= pool)) || die "the pool needs $pool MB in $where, and $free MB are free there: $(more_space "$where" "$pool" "$free")"
	fi
	# A stock node of 1 GiB was seen to take 330 to 390 MB in the middle of the tests, QEMU included; the rest is for what is done there.
	need=$((count * (mem / 4 + 256) + pool))
	free=$(free_memory)
	who="$count nodes need"
	if ((count == 1)); then who="a node needs"; fi
	((free >= need)) || die "$who $need MB of memory, and $free MB are free:" \
		"stop something, start fewer nodes, or smaller ones (MEM=512M)"
}

# more_space DIR NEED FREE: what to do where DIR has not enough space.
more_space() {
	local dir=$1 need=$2 free=$3 type size
	type=$(stat -f -c %T "$dir")
	if [[ $type != tmpfs ]]; then
		say "remove something there, or take a smaller pool (POOL=256M is the least for cxl)"
		return
	fi
	size=$(($(stat -f -c '%b * %S' "$dir") / 1048576 + need - free + 64))
	say "as root, 'mount -o remount,size=${size}M $dir' makes it larger (for a container, --shm-size=${size}m when it is started)," \
		"'vms/stop all' removes a pool that nodes left, or take a smaller one (POOL=)"
}

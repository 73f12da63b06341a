# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a node's kernel has allocated, by slab cache."""

# Shrunk first, so that caches hold what is in use and little more.
SLABS = "sync; echo 3 >/proc/sys/vm/drop_caches; for each in /sys/kernel/slab/*/shrink; do echo 1 >$each; done 2>/dev/null; " \
        "awk 'NR > 2 {print $1, $2, $4}' /proc/slabinfo; awk '$1 == \"MemAvailable:\" {print \"available\", $2, 1024}' /proc/meminfo"


def of(node):
    """{name of the cache: bytes in use}, with `available` for all memory that is."""
    lines = (line.split() for line in node.run(SLABS, timeout=60).out.splitlines())
    return {name: int(objects) * int(size) for name, objects, size in lines}


def grown(before, after, least=64 << 10):
    """(Name, bytes before, bytes after) of caches that have grown by so much, the most first."""
    found = [(name, before.get(name, 0), now) for name, now in after.items() if name != "available" and now - before.get(name, 0) >= least]
    return sorted(found, key=lambda each: each[1] - each[2])

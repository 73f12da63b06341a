# SPDX-License-Identifier: GPL-2.0 OR MIT
"""How much memory a node has, exactly enough to see what a driver takes."""

# Free pages wait on lists of each CPU too, which /proc/meminfo counts as used.
AVAILABLE = (
    "sync; echo 3 >/proc/sys/vm/drop_caches; sleep 0.2; echo 3 >/proc/sys/vm/drop_caches; "
    "awk '/^(MemFree|Cached|Buffers|SReclaimable):/ {sum += $2} $1 == \"count:\" {sum += 4 * $2} "
    "END {print sum}' /proc/meminfo /proc/zoneinfo"
)


def available(node):
    """KB that are free or could be, the best of three looks."""
    return max(int(node.run(AVAILABLE).out) for _ in range(3))

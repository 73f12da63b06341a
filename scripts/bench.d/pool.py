# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The memory that nodes share, as programs on two nodes see it without a driver of ours: userspace/poolbench."""

import results

PROGRAM = "/run/poolbench"


def file_of(node):
    """Where a node's programs find the pool."""
    if node.fabric == "cxl":
        return "/dev/" + node.run("nupa-pool device_dax", timeout=60).out.strip()
    directory = node.device_directory()
    node.run(f"echo 1 >{directory}/enable")
    return f"{directory}/resource2"


def visible(nodes):
    """Microseconds from a store of 8 bytes on one node until a load on the other has them: the median of many.

    It writes to the pool's front, so that this has to be formatted anew.
    """
    one, two = nodes
    for node in nodes:
        node.run(f"cp /nupa/build/bin/poolbench {PROGRAM} && chmod +x {PROGRAM}")
    files = {node: file_of(node) for node in nodes}
    answering = two.spawn(f"{PROGRAM} --file {files[two]} pong >/run/pong.log 2>&1")
    two.run("for i in $(seq 100); do grep -q ready /run/pong.log && exit 0; sleep 0.1; done; cat /run/pong.log; exit 1")
    found = one.run(f"{PROGRAM} --file {files[one]} ping", timeout=120).json()
    answering.wait(30)
    one.run('nupa-pool format "$(nupa-pool device)" --yes', timeout=60)
    print(f"store to visible: {found}", flush=True)
    return found["median"]


def entry(mode, latency, write_latencies):
    """The entry of it, next to what a WRITE of as many bytes takes over the same memory."""
    return results.entry("8 B store to visible in the pool", mode, "us", latency, write_latencies, "our ib_write_lat 8 B",
                         1, higher_is_better=False)

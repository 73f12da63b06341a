# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs that open a path and map it: a memory device (Documentation/memory.md), which both nodes have."""

import contextlib
import json

from messages import HERE
from modes import POOLS
from stage import OURS, Failed
from work import Work, number

NUPACTL = "/nupa/build/bin/nupactl memory"
PATH = "/dev/nupa/kv"
BYTES = 8 << 20
CHUNKS = 16
# PyPI's programs look for PyTorch's libraries under other names than Debian's have.
TORCH = "LD_LIBRARY_PATH=/usr/lib/python3/dist-packages/torch/lib"
GOOD = "works; the other node has the same bytes"


@contextlib.contextmanager
def device(stage):
    """The same memory at PATH on both nodes meanwhile."""
    stage.one.run(f"{NUPACTL} create kv {BYTES}")
    try:
        handle = stage.one.run(f"{NUPACTL} handle kv").out.strip()
        stage.two.run(f"{NUPACTL} attach kv {handle}")
        yield
    finally:
        for node in (stage.two, stage.one):
            node.run(f"{NUPACTL} remove --force kv", check=False)


def lmcache(stage):
    """lmcache_work.py on one node; what it has put there is on the other one, too."""
    with device(stage):
        out = stage.run(f"{TORCH} python3 -B {HERE}/lmcache_work.py {PATH} {BYTES} 2>&1", seconds=300)
        kept = next((json.loads(line) for line in out.splitlines() if line.startswith('{"slot"')), None)
        if not kept or len(kept["sha256"]) != CHUNKS:
            raise Failed(f"it did not print where {CHUNKS} chunks lie")
        there = stage.run(f"python3 -B {HERE}/slots.py {PATH} {kept['slot']} {len(kept['sha256'])}", node=stage.two)
    if json.loads(there) != kept["sha256"]:
        raise Failed("the other node finds other bytes")
    return number(r"^compared; ([\d.]+) MB/s", out, "figure")


def fio(stage):
    """Writes blocks with checksums on one node, and compares them on the other one."""
    command = f"fio --name=kv --filename={PATH} --size={BYTES} --ioengine=mmap --bs=4k --verify=crc32c --output-format=json"
    with device(stage):
        out = stage.run(f"{command} --rw=write --do_verify=0", seconds=120)
        stage.run(f"{command} --rw=read --verify_fatal=1", seconds=120, node=stage.two)
    return json.loads(out[out.index("{"):])["jobs"][0]["write"]["bw_bytes"] / 1e6


WORKS = [
    Work("LMCache: DAX backend", "pypi:lmcache", "16 chunks of 512 KiB kept in a memory device, read 5 times, compared on both nodes", "MB/s", lmcache,
         (OURS,), POOLS, GOOD),
    Work("fio", "fio", "`--ioengine=mmap` on a memory device: 8 MB written on one node, checksums compared on the other one", "MB/s", fio,
         (OURS,), POOLS, GOOD),
]

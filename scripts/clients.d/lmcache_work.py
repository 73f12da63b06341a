# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program of LMCache, as scripts/clients starts it on a node:  lmcache_work.py PATH BYTES

Has LMCache's DAX backend keep chunks of a KV cache in the first BYTES of a memory device, and take them from there again. Compares all, and prints
where they lie, with a checksum each, for whoever looks there from another node; then the figure.
"""

import asyncio
import hashlib
import json
import sys
import threading
import time

import torch
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from lmcache.v1.storage_backend.plugins.dax_backend import DaxBackend

# A small model: layers, keys and values, tokens of a chunk, heads, and the size of one; 2 bytes each: 512 KiB.
SHAPE = (4, 2, 256, 4, 32)
DTYPE = torch.float16
ROUNDS = 5


def backend_on(path, size):
    """LMCache's backend, made as its engine makes it."""
    config = LMCacheEngineConfig.from_defaults(chunk_size=SHAPE[2], local_cpu=False, max_local_cpu_size=0.1, extra_config={
        "dax.device_path": path, "dax.max_dax_size": size / 2**30, "dax.retrieve_staging_slab_bytes": 8 << 20})
    metadata = LMCacheMetadata(model_name="model", world_size=1, local_world_size=1, worker_id=0, local_worker_id=0,
                               kv_dtype=DTYPE, kv_shape=SHAPE, chunk_size=SHAPE[2])
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    memory = LocalCPUBackend(config, metadata, "cpu")
    return memory, DaxBackend(config, metadata, memory, loop, "cpu")


def main(path, size):
    memory, backend = backend_on(path, int(size))
    count = int(size) // backend.slot_bytes
    shape = torch.Size((2, SHAPE[0], SHAPE[2], SHAPE[3] * SHAPE[4]))
    keys = [CacheEngineKey("model", 1, 0, number, DTYPE) for number in range(count)]
    chunks = []
    for _ in keys:
        chunk = memory.allocate(shape, DTYPE, MemoryFormat.KV_2LTD)
        chunk.tensor.copy_(torch.rand(shape).to(DTYPE))
        chunks.append(chunk)
    backend.batched_submit_put_task(keys, chunks)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        for key, chunk in zip(keys, chunks):
            found = backend.get_blocking(key)
            if found is None or not torch.equal(found.tensor, chunk.tensor):
                sys.exit(f"chunk {key.chunk_hash} differs")
            found.ref_count_down()
    taken = time.perf_counter() - start
    sums = [hashlib.sha256(chunk.byte_array).hexdigest() for chunk in chunks]
    print(json.dumps({"slot": backend.slot_bytes, "sha256": sums}), flush=True)
    for chunk in chunks:
        chunk.ref_count_down()
    print(f"compared; {ROUNDS * count * backend.slot_bytes / taken / 1e6:.2f} MB/s", flush=True)
    backend.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program of PyTorch for two ranks, which gloo joins, as scripts/clients starts it on two nodes:  gloo_work.py

Ranks find each other by PyTorch's own variables (MASTER_ADDR, RANK ...). Compares all sums, and prints its figure.
"""

import sys
import time

import torch
import torch.distributed as ranks

ROUNDS = 5
LARGEST = 1 << 20


def main():
    ranks.init_process_group("gloo")
    mine = ranks.get_rank()
    for count in (1, 1000, 65536, LARGEST):
        numbers = torch.arange(count, dtype=torch.float32) % 1000 + mine
        ranks.all_reduce(numbers)
        if not torch.equal(numbers, 2 * (torch.arange(count, dtype=torch.float32) % 1000) + 1):
            sys.exit(f"a sum of {count} numbers differs")
    numbers = torch.ones(LARGEST)
    ranks.barrier()
    start = time.perf_counter()
    for _ in range(ROUNDS):
        ranks.all_reduce(numbers)
    taken = time.perf_counter() - start
    ranks.destroy_process_group()
    print(f"compared; {ROUNDS * 4 * LARGEST / taken / 1e6:.2f} MB/s", flush=True)


if __name__ == "__main__":
    main()

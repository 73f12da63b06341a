# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Prints the SHA-256 of each slot of a file that can be mapped, as JSON:  slots.py PATH BYTES_OF_A_SLOT SLOTS"""

import hashlib
import json
import mmap
import os
import sys

path, size, count = sys.argv[1], *map(int, sys.argv[2:])
with mmap.mmap(os.open(path, os.O_RDONLY), size * count, prot=mmap.PROT_READ) as memory:
    print(json.dumps([hashlib.sha256(memory[at : at + size]).hexdigest() for at in range(0, size * count, size)]))

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""A program of Mooncake's transfer engine, as scripts/clients starts it on two nodes:

  mooncake_work.py PROTOCOL ADDRESS          serves memory to one client
  mooncake_work.py PROTOCOL ADDRESS SERVER   writes all of the server's memory and reads it back, compares both, prints its figure

The two tell each other by a socket where the memory is, and what it holds.
"""

import ctypes
import hashlib
import json
import os
import socket
import sys
import time

from mooncake.engine import TransferEngine

PORT = 18600
LENGTH = 4 << 20
PIECE = 1 << 16
ROUNDS = 5


def engine_of(protocol, address):
    """An engine without a metadata server, that finds its devices by itself, and memory that it has registered."""
    engine = TransferEngine()
    if engine.initialize(address, "P2PHANDSHAKE", protocol, ""):
        sys.exit("TransferEngine.initialize failed")
    memory = ctypes.create_string_buffer(LENGTH)
    if engine.register_memory(ctypes.addressof(memory), LENGTH):
        sys.exit("TransferEngine.register_memory failed")
    return engine, memory


def serve(protocol, address):
    engine, memory = engine_of(protocol, address)
    with socket.create_server((address, PORT)) as listener:
        client, _ = listener.accept()
    stream = client.makefile("rw")
    for line in stream:
        answer = {"session": f"{address}:{engine.get_rpc_port()}", "address": ctypes.addressof(memory)}
        if line.strip() == "hash":
            answer = hashlib.sha256(memory.raw).hexdigest()
        print(json.dumps(answer), file=stream, flush=True)
    engine.unregister_memory(ctypes.addressof(memory))


def pieces(transfer, session, mine, theirs):
    """Moves all memory in pieces; ends the program if one cannot be moved."""
    for at in range(0, LENGTH, PIECE):
        if transfer(session, mine + at, theirs + at, PIECE):
            sys.exit(f"a transfer failed at {at}")


def ask(protocol, address, server):
    engine, memory = engine_of(protocol, address)
    mine = ctypes.addressof(memory)
    stream = socket.create_connection((server, PORT)).makefile("rw")

    def told(question):
        print(question, file=stream, flush=True)
        return json.loads(stream.readline())

    there = told("where")
    sent = os.urandom(LENGTH)
    ctypes.memmove(mine, sent, LENGTH)
    start = time.perf_counter()
    for _ in range(ROUNDS):
        pieces(engine.transfer_sync_write, there["session"], mine, there["address"])
    taken = time.perf_counter() - start
    if told("hash") != hashlib.sha256(sent).hexdigest():
        sys.exit("what was written differs")
    ctypes.memset(mine, 0, LENGTH)
    pieces(engine.transfer_sync_read, there["session"], mine, there["address"])
    if memory.raw != sent:
        sys.exit("what was read differs")
    engine.unregister_memory(mine)
    print(f"compared; {ROUNDS * LENGTH / taken / 1e6:.2f} MB/s", flush=True)


if __name__ == "__main__":
    (serve if len(sys.argv) == 3 else ask)(*sys.argv[1:])

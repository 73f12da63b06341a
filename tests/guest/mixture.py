# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Every kind of transfer at the same time, again and again, until something ends it: what goes on when a node dies.

Each byte that arrives is compared as soon as its completion says that it is there.
"""

import struct
import time

from pattern import difference, pattern

# Requests of a kind that wait at the same time. Atomics are one by one, so that each result is known.
DEPTH = 4


class Mixture:
    """Part of a program; `objects`, `post_send`, `post_recv` and `poll_once` are the program's.

    A kind is described by its queue pair (`qp`), the slots that it takes bytes from or to (`buffer`, `address`, `lkey`,
    `slots`, `stride`, of which `header` are what a datagram is put behind and `size` are its own), what it wants at the
    other side (`remote`, `handle`), the seed of what it has to find (`seed`), and what an atomic begins with and adds
    (`start`, `step`).
    """

    def mix(self, cq, kinds, limit=60):
        """Requests of all kinds until each connection has failed, or `limit` seconds.

        Returns how each ended and how many of it were right before; words on what was wrong.
        """
        self.ends, self.counts, self.wrong = {}, dict.fromkeys(kinds, 0), []
        waiting = dict.fromkeys(kinds, 0)
        for name, kind in kinds.items():
            for slot in range(1 if "ATOMIC" in name else DEPTH):
                self.request(list(kinds).index(name), name, kind, slot)
                waiting[name] += 1
        deadline = time.monotonic() + limit
        connected = [name for name in kinds if name != "DATAGRAM"]
        datagrams = []
        while any(waiting[name] for name in connected) and time.monotonic() < deadline:
            for found in self.poll_once(self.objects[cq], 16):
                place, slot = divmod(found["wr_id"], 100)
                name = list(kinds)[place]
                waiting[name] -= 1
                if found["status"] != "SUCCESS":
                    self.ends.setdefault(name, found["status"])
                elif name == "DATAGRAM":
                    # These are complete at once, and would leave the others no time.
                    self.counts[name] += 1
                    datagrams.append(slot)
                else:
                    self.compare(name, kinds[name], slot)
                    if name not in self.ends:
                        self.request(place, name, kinds[name], slot)
                        waiting[name] += 1
                    if datagrams and "DATAGRAM" not in self.ends:
                        self.request(list(kinds).index("DATAGRAM"), "DATAGRAM", kinds["DATAGRAM"], datagrams.pop())
                        waiting["DATAGRAM"] += 1
        return {"ends": self.ends, "counts": self.counts, "wrong": self.wrong[:5],
                "waiting": {name: count for name, count in waiting.items() if count and name in connected}}

    def request(self, place, name, kind, slot):
        """Posts one request of a kind; its slot and its place tell which it was when it is complete."""
        own = [kind["address"] + slot * kind["stride"], kind["size"], kind["lkey"]]
        request = {"wr_id": 100 * place + slot, "sges": [own]}
        match name:
            case "SEND":
                self.post_send(kind["qp"], "SEND", **request)
            case "DATAGRAM":
                self.post_send(kind["qp"], "SEND", address=list(kind["handle"]), **request)
            case "RDMA_WRITE" | "RDMA_READ":
                self.post_send(kind["qp"], name, remote=kind["remote"], **request)
            case "ATOMIC_FETCH_AND_ADD":
                self.post_send(kind["qp"], name, remote=kind["remote"], add=kind["step"], **request)
            case "ATOMIC_CMP_AND_SWP":
                now = kind["start"] + kind["step"] * self.counts[name]
                self.post_send(kind["qp"], name, remote=kind["remote"], compare=now, swap=now + kind["step"], **request)

    def compare(self, name, kind, slot):
        """Looks at what a request that succeeded has brought."""
        offset = slot * kind["stride"]
        memory = self.objects[kind["buffer"]].memory
        found = memory[offset : offset + kind["size"]]
        wanted = None
        if name == "RDMA_READ":
            wanted = pattern(kind["seed"], kind["size"])
            memory[offset : offset + kind["size"]] = bytes(kind["size"])
        elif "ATOMIC" in name:
            wanted = struct.pack("<Q", kind["start"] + kind["step"] * self.counts[name])
        if wanted is not None and found != wanted:
            self.wrong.append(f"{name}: {difference(found, wanted)}")
        self.counts[name] += 1

    def serve(self, cq, kinds, idle=6):
        """Receives of some kinds until each queue pair has failed, or nothing comes for `idle` seconds.

        Datagrams have no connection that could fail.
        """
        self.ends, self.counts, self.wrong = {}, dict.fromkeys(kinds, 0), []
        for place, (name, kind) in enumerate(kinds.items()):
            for slot in range(kind["slots"]):
                self.receive_into(place, kind, slot)
        last = time.monotonic()
        connected = [name for name in kinds if name != "DATAGRAM"]
        while time.monotonic() - last < idle and not all(name in self.ends for name in connected):
            for found in self.poll_once(self.objects[cq], 16):
                last = time.monotonic()
                place, slot = divmod(found["wr_id"], 100)
                name = list(kinds)[place]
                if found["status"] != "SUCCESS":
                    self.ends.setdefault(name, found["status"])
                    continue
                self.received(name, kinds[name], slot, found["byte_len"])
                self.receive_into(place, kinds[name], slot)
        return {"ends": self.ends, "counts": self.counts, "wrong": self.wrong[:5]}

    def receive_into(self, place, kind, slot):
        start = kind["address"] + slot * kind["stride"]
        self.post_recv(kind["qp"], [[start, kind["header"] + kind["size"], kind["lkey"]]], wr_id=100 * place + slot)

    def received(self, name, kind, slot, length):
        """Compares a message, and wipes it out for the next."""
        offset = slot * kind["stride"] + kind["header"]
        memory = self.objects[kind["buffer"]].memory
        wanted = pattern(kind["seed"], kind["size"])
        found = memory[offset : offset + kind["size"]]
        if length != kind["header"] + kind["size"] or found != wanted:
            self.wrong.append(f"{name}, {length} bytes: {difference(found, wanted)}")
        memory[offset : offset + kind["size"]] = bytes(kind["size"])
        self.counts[name] += 1

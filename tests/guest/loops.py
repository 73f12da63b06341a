# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a verbs program does very often in a row: one call of the test each would take too long."""

import time

import pyverbs.enums as e
from pyverbs.qp import QP, QPCap, QPInitAttr

SMALL = (16, 16, 1, 1, 0)


class Loops:
    """Part of a program; `objects` and the single steps are the program's."""

    def small_qp(self, pd, cq):
        cq = self.objects[cq]
        return QP(self.objects[pd], QPInitAttr(e.IBV_QPT_RC, scq=cq, rcq=cq, cap=QPCap(*SMALL)))

    def churn(self, pd, cq, count):
        """Makes and destroys so many queue pairs, 100 at a time; returns the seconds it took."""
        start = time.monotonic()
        for _ in range(count // 100):
            for queue in [self.small_qp(pd, cq) for _ in range(100)]:
                queue.close()
        return time.monotonic() - start

    def many(self, pd, cq, count):
        """Makes so many queue pairs; returns their (id, number)."""
        queues = [self.small_qp(pd, cq) for _ in range(count)]
        return [(self.add(queue)["id"], queue.qp_num) for queue in queues]

    def connect_many(self, ours, theirs, gid, sgid_index):
        """Brings queue pairs to RTS, each towards its counterpart in the other list."""
        for (queue, _), (_, peer) in zip(ours, theirs):
            self.to_init(queue)
            self.to_rtr(queue, peer, gid, sgid_index)
            self.to_rts(queue)

    def write_from_each(self, queues, element, target, stride):
        """Posts a write on each queue pair, to places that are `stride` apart."""
        address, key = target
        for number, (queue, _) in enumerate(queues):
            self.post_send(queue, "RDMA_WRITE", sges=[element], remote=[address + number * stride, key])

    def write_often(self, qp, cq, element, target, count):
        """Writes so many times, each when the one before is complete."""
        for _ in range(count):
            self.post_send(qp, "RDMA_WRITE", sges=[element], remote=target)
            (found,) = self.poll(cq)
            assert found["status"] == "SUCCESS", found

    def write_and_drain(self, qp, cq, element, target, count):
        """Writes so many times and drains the send queue; returns the completions that there are then."""
        self.post_send(qp, "RDMA_WRITE", sges=[element], remote=target, count=count)
        self.to_state(qp, "SQD")
        return self.poll_once(self.objects[cq], count)

    def write_for(self, qp, cq, element, target, seconds):
        """Writes for so long, each when the one before is complete; returns how many and the longest time of one."""
        count, longest, end = 0, 0.0, time.monotonic() + seconds
        while (start := time.monotonic()) < end:
            self.post_send(qp, "RDMA_WRITE", sges=[element], remote=target)
            (found,) = self.poll(cq, timeout=seconds)
            assert found["status"] == "SUCCESS", found
            count, longest = count + 1, max(longest, time.monotonic() - start)
        return count, longest

    def write_endlessly(self, qp, cq, element, target):
        """Writes until it fails or the device is lost; tells what ended it and how much was flushed in what time."""
        depth = 16
        self.post_send(qp, "RDMA_WRITE", sges=[element], remote=target, count=depth)
        while True:
            found = self.poll(cq, timeout=0.2)
            if not found and self.async_event(0) == "DEVICE_FATAL":
                return {"status": "DEVICE_FATAL"}
            if found and found[0]["status"] != "SUCCESS":
                break
            if found:
                self.post_send(qp, "RDMA_WRITE", sges=[element], remote=target)
        start = time.monotonic()
        rest = self.poll(cq, depth - 1)
        return {"status": found[0]["status"], "flushed": len(rest), "seconds": time.monotonic() - start}

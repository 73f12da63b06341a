# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Timestamps of completions, and the clock that they are taken from."""

import time

import pyverbs.enums as e
from pyverbs.cq import PollCqAttr


class Stamps:
    """Part of a program; `context` and `objects` are the program's."""

    def clocks(self):
        """The device's clock; the node's monotonic one before and afterwards, and the time of day, in nanoseconds."""
        before = time.monotonic_ns()
        seconds, rest = self.context.query_rt_values_ex()
        return {"device": seconds * 10**9 + rest, "before": before, "after": time.monotonic_ns(), "wall": time.time_ns()}

    def stamps(self, cq, count, timeout=5.0, wall=True):
        """When so many completions of an extended queue were written: by the device's clock, and by the time of day."""
        found, deadline = [], time.monotonic() + timeout
        cq = self.objects[cq]
        while len(found) < count and time.monotonic() < deadline:
            if cq.start_poll(PollCqAttr()) == 0:
                more = 0
                while more == 0:
                    assert cq.status == e.IBV_WC_SUCCESS, cq.status
                    found.append([cq.read_timestamp(), cq.read_completion_wallclock_ns() if wall else 0])
                    more = cq.poll_next()
                cq.end_poll()
        return found

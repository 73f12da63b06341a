# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Transfers of all kinds, one after the other, that are compared byte for byte on both sides."""

import time

from pattern import difference, pattern

# The message that ends an exchange is shorter than any other.
LAST = 8


class Exchange:
    """Part of a program; `objects` and the single steps are the program's."""

    def exchange_for(self, qp, cq, local, back, word, far, counter, seconds):
        """A WRITE of new bytes, a READ of them, a FETCH_ADD and a SEND, again and again for so long; returns how many rounds, and
        the longest time of a transfer.

        `local`, `back` and `word` are [buffer, element]; the counter is 0 at first.
        """
        rounds, longest, end = 0, 0.0, time.monotonic() + seconds
        size = self.objects[back[0]].size
        while time.monotonic() < end:
            self.fill(local[0], rounds + 1)
            for request in (dict(opcode="RDMA_WRITE", sges=[local[1]], remote=far), dict(opcode="RDMA_READ", sges=[back[1]], remote=far),
                            dict(opcode="ATOMIC_FETCH_AND_ADD", sges=[word[1]], remote=counter, add=1),
                            dict(opcode="SEND", sges=[local[1]])):
                longest = max(longest, self.transfer(qp, cq, request))
            wrong = difference(self.objects[back[0]].memory[:], pattern(rounds + 1, size))
            assert wrong is None, f"round {rounds}: read back: {wrong}"
            found = int.from_bytes(self.objects[word[0]].memory[:8], "little")
            assert found == rounds, f"the counter was {found} in round {rounds}"
            rounds += 1
        self.transfer(qp, cq, dict(opcode="SEND", sges=[[local[1][0], LAST, local[1][2]]]))
        return rounds, longest

    def transfer(self, qp, cq, request):
        """One request; the seconds until it was complete."""
        start = time.monotonic()
        self.post_send(qp, **request)
        found = self.poll(cq, timeout=30)
        assert found and found[0]["status"] == "SUCCESS", (request["opcode"], found)
        return time.monotonic() - start

    def take_messages(self, qp, cq, buffer, element, timeout):
        """Takes the messages of an exchange and compares each; returns how many there were."""
        size, count = self.objects[buffer].size, 0
        while True:
            self.post_recv(qp, [element])
            found = self.poll(cq, timeout=timeout)
            assert found and found[0]["status"] == "SUCCESS", found
            if found[0]["byte_len"] == LAST:
                return count
            count += 1
            wrong = difference(self.objects[buffer].memory[:], pattern(count, size))
            assert wrong is None, f"message {count}: {wrong}"

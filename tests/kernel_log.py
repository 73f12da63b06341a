# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a node's kernel printed, read from the serial console that QEMU writes to a file."""

import contextlib
import re

# A healthy node prints none of these, whatever a test does to it.
TROUBLE = re.compile(
    r"WARNING:|\bBUG\b|\bOops\b|Call Trace|RIP:|refcount_t|unable to handle|general protection"
    r"|hung_task|blocked for more than|soft lockup|hard LOCKUP|rcu.*(stall|self-detected)"
    r"|NETDEV WATCHDOG|transmit queue \d+ timed out|Kernel panic|page allocation failure"
    r"|kernel tried to execute|UBSAN|KASAN|kmemleak|scheduling while atomic|sleeping function"
    r"|possible circular locking|bad page state|hw csum failure|page_pool.*stalled"
    r"|INFO: task|lockdep is turned off|DMA-API: .*disabling|ODEBUG"
    r"|unregister_netdevice: waiting|irq \d+: nobody cared|rust_kernel: panicked",
    re.IGNORECASE,
)
# How a complaint begins, not what belongs to one.
BEGINS = re.compile(r"WARNING:|\bBUG\b|\bOops\b|KASAN|UBSAN|INFO:|Call Trace|refcount_t")
# TCG on shared cores makes clocks look unstable; that says nothing about the drivers.
HARMLESS = re.compile(r"clocksource|perf: interrupt took too long|TSC found unstable|hrtimer: interrupt took|8254 timer")


# Lines between a complaint and its trace at most, and those of a trace.
FEW, LONGEST = 10, 80


class KernelLog:
    """One node's console, over all its boots, with a mark up to which it was checked."""

    def __init__(self, path):
        self.path = path
        self.checked = 0
        # What a test asks for: lines like this, with the traces behind them, are no trouble.
        self.excused = None

    @contextlib.contextmanager
    def excusing(self, lines):
        """Lines like these are no trouble meanwhile, nor are the traces behind them."""
        self.excused = lines
        try:
            yield
        finally:
            self.excused = None

    def text(self):
        """All that was printed so far."""
        try:
            return self.path.read_bytes().decode(errors="replace").replace("\r", "")
        except FileNotFoundError:
            return ""

    def lines(self):
        """All lines, the one that a node may be in the middle of as well."""
        return self.text().removesuffix("\n").split("\n")

    def ended(self):
        """The lines whose end was printed too."""
        return self.text().split("\n")[:-1]

    def tail(self, count=40):
        return "\n".join(self.lines()[-count:])

    def position(self):
        """A mark to be given to `since`. What is printed next may go on in a line that was begun, behind a prompt."""
        return len(self.ended())

    def since(self, position):
        return "\n".join(self.ended()[position:])

    def new_trouble(self):
        """Lines since the last call that a healthy kernel does not print, with what follows each."""
        lines = self.ended()
        if len(lines) < self.checked:  # the node was started afresh
            self.checked = 0
        new = lines[self.checked :]
        self.checked = len(lines)
        return complaint(without_traces(new, self.excused) if self.excused else new)

    def last_words(self, count):
        """The end of a node whose end was not expected: its kernel's unseen complaint, or else what it printed last."""
        lines = self.lines()
        return "\n".join(complaint(lines[self.checked :])[:count] or lines[-count:])


def without_traces(lines, beginning):
    """The lines without those that match, and without the trace that one of the next few begins.

    A trace is over at its last line, or at the next complaint: that line can be lost on a console.
    """
    kept, matched, ends = [], -FEW, 0
    for at, line in enumerate(lines):
        if beginning.search(line):
            matched, ends = at, 0
            continue
        begins = "Call Trace" in line and at - matched < FEW
        if begins:
            ends = at + LONGEST
        another = not begins and BEGINS.search(line)
        if at >= ends or another:
            ends, matched = 0, -FEW if another else matched
            kept.append(line)
        elif "</TASK>" in line:
            ends = 0
    return kept


def complaint(lines):
    """The first line that a healthy kernel does not print, with what is around it; nothing if there is none."""
    for at, line in enumerate(lines):
        if TROUBLE.search(line) and not HARMLESS.search(line):
            return lines[max(0, at - 3) : at + 60]
    return []

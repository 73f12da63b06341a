# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What a guest's kernel does from a packet's interrupt until the CPU is idle again, step by step, with times."""

import collections
import re
import statistics

TRACING = "/sys/kernel/tracing"
EVENTS = ("irq/irq_handler_entry", "irq/irq_handler_exit", "irq/softirq_entry", "irq/softirq_exit", "napi/napi_poll",
          "net/napi_gro_receive_entry", "net/netif_receive_skb", "net/net_dev_start_xmit", "net/net_dev_xmit",
          "sched/sched_waking", "sched/sched_switch", "raw_syscalls/sys_enter", "raw_syscalls/sys_exit")
START = (f"cd {TRACING} && echo 8192 >buffer_size_kb && echo nop >current_tracer && for e in {' '.join(EVENTS)}; do echo 1 >events/$e/enable; done"
         " && echo >trace && echo 1 >tracing_on")
# Read while the recording is off, or the reading is in it.
STOP = f"cd {TRACING} && echo 0 >tracing_on && for e in {' '.join(EVENTS)}; do echo 0 >events/$e/enable; done; cat trace; echo >trace; echo 1 >tracing_on"
LINE = re.compile(r"\s*\S+-\d+\s+\[\d+\] \S+\s+(?P<time>[\d.]+): (?P<event>\w+):\s*(?P<what>.*)")
# What tells apart events of one name.
DETAIL = {
    "irq_handler_entry": r"name=(\S+)",
    "softirq_entry": r"action=(\w+)",
    "softirq_exit": r"action=(\w+)",
    "sched_waking": r"comm=(\S+)",
    "sched_switch": r"next_comm=(\S+)",
    "sys_enter": r"(NR \d+)",
    "sys_exit": r"(NR \d+)",
    "napi_poll": r"(work \d+)",
}
IDLE = "sched_switch swapper/0"


def events(text):
    """(time in us, event with its detail) of each line of a trace."""
    for line in text.splitlines():
        found = LINE.match(line)
        if found:
            detail = re.search(DETAIL.get(found["event"], "$^"), found["what"])
            yield float(found["time"]) * 1e6, found["event"] + (f" {detail.group(1)}" if detail else "")


def rounds(text, interrupts):
    """Lists of (event, time), each from an interrupt whose handler has such a name until the CPU is idle."""
    one = None
    for time, event in events(text):
        if one is None and event.startswith("irq_handler_entry") and re.search(interrupts, event):
            one = []
        if one is not None:
            one.append((event, time))
            if event == IDLE:
                yield one
                one = None


def described(text, interrupts):
    """Lines on the steps of the rounds that are most common: median time since the interrupt, and since the step before."""
    every = list(rounds(text, interrupts))
    if not every:
        return ["no interrupt was seen"]
    steps, times = collections.Counter(tuple(event for event, _ in one) for one in every).most_common(1)[0]
    same = [[time for _, time in one] for one in every if tuple(event for event, _ in one) == steps]
    lines = [f"{times} of {len(every)} interrupts went like this; us since the interrupt, us since the step before:"]
    for at, step in enumerate(steps):
        since, last = (statistics.median(one[at] - one[start] for one in same) for start in (0, max(0, at - 1)))
        lines.append(f"  {since:8.1f} {last:+8.1f}  {step}")
    return lines


class Steps:
    """Traces guests meanwhile; then `text` has the steps of each. Tracing makes each step some us longer."""

    def __init__(self, nodes, interrupts):
        self.nodes, self.interrupts, self.text = nodes, interrupts, ""

    def __enter__(self):
        for node in self.nodes:
            node.run(START)
        return self

    def __exit__(self, *_):
        lines = []
        for node in self.nodes:
            trace = node.run(STOP, timeout=90).out
            lines += [f"  {node.name}:", *(f"    {line}" for line in described(trace, self.interrupts))]
        self.text = "\n".join(lines)

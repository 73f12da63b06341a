# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The page that a soak ends with."""

import memory_of


def table(heads, rows):
    """A table of Markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def memory(before, after, rounds):
    """Lines on what the memory of each node did."""
    for number, now in sorted(after.items()):
        was = before.get(number)
        if was is None:
            yield f"Node {number} has not run for enough rounds since it was started for its memory to be compared.\n"
            continue
        rows = [(name, f"{old >> 10:,}", f"{new >> 10:,}") for name, old, new in memory_of.grown(was, now)[:15]]
        yield (f"Node {number}, since {rounds} rounds after it was started: {was['available'] >> 20:,} MB were available before, "
               f"{now['available'] >> 20:,} after. Slab caches that grew by 64 KB or more:\n")
        yield (table(("cache", "KB before", "KB after"), rows) if rows else "none") + "\n"


def text(stage, rounds, seconds, after, failure):
    """The whole page. `stage` has what was counted; `failure` says what went wrong in the round after the last, if something did."""
    loads = [(name, f"{stage.moved[name]:,}", f"{stage.operations[name]:,}") for name in sorted(stage.moved)]
    return "\n".join([
        f"# Soak, MODE={stage.mode}, SEED={stage.seed}\n",
        f"{rounds} rounds in {seconds / 60:.0f} minutes. " + (f"**Failed**: {failure}\n" if failure else
                                                             "Nothing failed: no byte was wrong, nothing was lost that no event cut, and no kernel complained.\n"),
        "What was moved, and compared; of loads that an event ended, only what they could tell:\n",
        table(("load", "bytes", "operations"), loads) + "\n",
        "What happened meanwhile, and all worked afterwards:\n",
        table(("event", "times"), sorted(stage.happened.items())) + "\n",
        *memory(stage.before, after, stage.WARM_UP),
    ])

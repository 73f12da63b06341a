# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Results: one entry a work, written as JSON and as a Markdown table."""

import json
import re
import statistics
import sys

from modes import MODES


def entry(work, mode, unit, ours, peer, peer_name, runs, higher_is_better=True):
    """An entry; `ours` and `peer` are lists of runs, or single numbers. The ratio is above 1 where ours is better."""
    ours, peer = (statistics.median(side) if isinstance(side, list) else side for side in (ours, peer))
    ratio = ours / peer if higher_is_better else peer / ours
    return {"work": work, "mode": mode, "unit": unit, "ours": round(ours, 3), "peer": round(peer, 3),
            "peer_name": peer_name, "ratio": round(ratio, 3), "runs": runs}


def figure(value):
    """Six digits, and never an exponent."""
    return f"{value:,.0f}" if value >= 1e6 else f"{value:,.6g}"


def table(entries):
    lines = ["| work | mode | ours | peer | unit | ratio | peer is | runs |", "|---|---|---:|---:|---|---:|---|---:|"]
    for item in entries:
        ours, peer = (figure(item[side]) for side in ("ours", "peer"))
        lines.append("| {work} | {mode} | {0} | {1} | {unit} | **{ratio:.2f}** | {peer_name} | {runs} |".format(ours, peer, **item))
    return "\n".join(lines)


def earlier(file):
    """Entries that were written before."""
    try:
        return json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return []


def write(directory, entries, notes):
    """Writes results.json and results.md, with what is there of other runs; returns the latter's text."""
    directory.mkdir(parents=True, exist_ok=True)
    merged = {(item["mode"], item["work"], item["peer_name"]): item
              for item in earlier(directory / "results.json") + entries}
    if len(merged) > len(entries):
        notes = [*notes, "rows that this run did not measure are of the last one that did"]
    entries = sorted(merged.values(), key=lambda item: MODES.index(item["mode"]))
    (directory / "results.json").write_text(json.dumps(entries, indent=1) + "\n")
    text = table(entries) + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    (directory / "results.md").write_text(text)
    return text


def into_readme(directory, readme):
    """Puts the text of the last results between the marks in the readme."""
    try:
        results = (directory / "results.md").read_text()
    except FileNotFoundError:
        sys.exit(f"bench: there are no results in {directory}; run 'make bench' first")
    text, count = re.subn(r"(<!-- bench:begin -->\n).*(<!-- bench:end -->)", lambda m: m[1] + results + m[2],
                          readme.read_text(), flags=re.DOTALL)
    if count != 1:
        sys.exit(f"bench: {readme} does not have the marks bench:begin and bench:end")
    readme.write_text(text)

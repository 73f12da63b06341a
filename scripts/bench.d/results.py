# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Results: one entry a work, written as JSON and as Markdown: a table of all, and a few lines of it."""

import json
import re
import statistics
import sys

from modes import MODES

# Peers that are figures of ours. A ratio to one says nothing about anybody else, so the table has none.
ALONE = "the same alone"
OUR = "our "
HEAD = "| work | mode | ours | peer | unit | ratio | peer is | runs |"
# The works that README shows, and what it calls them.
LINES = {
    "ib_send_lat 64 B": "RDMA SEND of 64 bytes",
    "ib_write_lat 8 B": "RDMA WRITE of 8 bytes",
    "ib_write_bw 64 KB": "RDMA WRITE of 64 KB",
    "TCP one stream": "TCP, one stream",
    "TCP_RR 1 byte": "TCP, 1 byte there and back",
    "UDP 64 B received": "UDP of 64 bytes, received",
}
# Of the peers that a work has been measured against, the one that README shows.
SHOWN = ("soft RoCE", "virtio-net")


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
    lines = [HEAD, "|---|---|---:|---:|---|---:|---|---:|"]
    for item in entries:
        ours, peer = (figure(item[side]) for side in ("ours", "peer"))
        own = item["peer_name"] == ALONE or item["peer_name"].startswith(OUR)
        ratio = "" if own else f"**{item['ratio']:.2f}**"
        lines.append("| {work} | {mode} | {0} | {1} | {unit} | {2} | {peer_name} | {runs} |".format(ours, peer, ratio, **item))
    return "\n".join(lines)


def rows(text):
    """The entries of a table that `table` wrote, as exact as it shows them."""
    found = []
    for line in text.partition(HEAD)[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        work, mode, ours, peer, unit, ratio, peer_name, runs = (cell.strip() for cell in line.strip("|").split("|"))
        found.append({"work": work, "mode": mode, "unit": unit, "ours": float(ours.replace(",", "")),
                      "peer": float(peer.replace(",", "")), "peer_name": peer_name,
                      "ratio": float(ratio.strip("*")) if ratio else None, "runs": int(runs)})
    return found


def short(value):
    """Three digits."""
    value = float(f"{value:.3g}")
    return f"{value:,.0f}" if value >= 100 else f"{value:g}"


def lines(entries):
    """What README shows: one line a work, ours and in brackets the peer's, for each mode."""
    text = [f"| ours (peer) | unit | {' | '.join(MODES)} | peer |", f"|---|---|{'---:|' * len(MODES)}---|"]
    for work, name in LINES.items():
        found = {item["mode"]: item for item in entries
                 if item["work"].partition(" (")[0] == work and item["peer_name"].startswith(SHOWN)}
        if not found:
            continue
        cells = [f"{short(found[mode]['ours'])} ({short(found[mode]['peer'])})" if mode in found else "" for mode in MODES]
        units, peers = ({item[key].partition(",")[0] for item in found.values()} for key in ("unit", "peer_name"))
        text.append(f"| {name} | {' / '.join(sorted(units))} | {' | '.join(cells)} | {' / '.join(sorted(peers))} |")
    return "\n".join(text) + "\n"


def earlier(directory, page):
    """Entries that were written before: on the page, and later in the file of results."""
    try:
        results = json.loads((directory / "results.json").read_text())
    except (FileNotFoundError, ValueError):
        results = []
    return rows(page.read_text()) + results


def write(directory, page, entries, notes):
    """Writes results.json and results.md, with what is there of other runs; returns the latter's text."""
    directory.mkdir(parents=True, exist_ok=True)
    merged = {(item["mode"], item["work"], item["peer_name"]): item for item in earlier(directory, page) + entries}
    if len(merged) > len(entries):
        notes = [*notes, "rows that this run did not measure are of the last one that did"]
    entries = sorted(merged.values(), key=lambda item: MODES.index(item["mode"]))
    (directory / "results.json").write_text(json.dumps(entries, indent=1) + "\n")
    text = table(entries) + "\n\n" + "\n".join(f"- {note}" for note in notes) + "\n"
    (directory / "results.md").write_text(text)
    return text


def between(page, mark, new):
    """Replaces what is between the marks of a page."""
    text, count = re.subn(rf"(<!-- {mark}:begin -->\n).*(<!-- {mark}:end -->)", lambda m: m[1] + new + m[2],
                          page.read_text(), flags=re.DOTALL)
    if count != 1:
        sys.exit(f"{page} does not have the marks {mark}:begin and {mark}:end")
    page.write_text(text)


def into_pages(directory, page, readme):
    """Puts the table of the last results into the page of benchmarks, and a few lines of it into the readme."""
    try:
        entries = json.loads((directory / "results.json").read_text())
        notes = re.findall(r"^- .*\n", (directory / "results.md").read_text(), re.MULTILINE)
    except FileNotFoundError:
        sys.exit(f"bench: there are no results in {directory}; run 'make bench' first")
    between(page, "bench", table(entries) + "\n\n" + "".join(notes))
    between(readme, "figures", lines(entries))

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The tables of clients in Documentation/clients.md. An entry is what a client did in a mode; a row has those of all modes. All cells are text."""

import itertools
import json

import results
from modes import MODES
from stage import OURS, ROCE, TCP

PATHS = (OURS, TCP, ROCE)
HEAD = f"| client | version | what was done | {' | '.join(MODES)} | unit | {OURS} | {TCP} on nupanet0 | {ROCE} on nupanet0 |"
WORKS, FAILED = "works", "**failed**"
# Between figures of the modes, and for one that there is none of.
NEXT, NONE = " / ", "–"


def cell(text):
    """Text as a cell of a table."""
    return " ".join(str(text).replace("|", "\\|").split())


def row(work, mode, version, outcomes):
    """What a client did; `outcomes` by path: (figure or None, note, failed)."""
    figure, note, failed = outcomes[work.own]
    result = FAILED if failed else work.good
    cells = {path: shown(*outcomes[path]) if path in outcomes else "" for path in PATHS}
    found = {"client": work.client, "version": version, "done": work.done, "mode": mode, "result": f"{result}: {note}" if note else result,
             "unit": work.unit} | cells
    return {name: cell(text) for name, text in found.items()}


def shown(figure, note, failed):
    if failed:
        return "failed"
    return WORKS if figure is None else results.short(figure)


def table(found):
    groups = {}
    for item in found:
        groups.setdefault((item["client"], item["done"]), {})[item["mode"]] = item
    lines = [HEAD, f"|---|---|---|{'---|' * len(MODES)}---|---:|---:|---:|"]
    return "\n".join([*lines, *(line(entries) for entries in groups.values())]) + "\n"


def line(entries):
    """A row of the entries of a client, by mode."""
    last = list(entries.values())[-1]
    figures = [[entries.get(mode, {}).get(path) or NONE for mode in MODES] for path in PATHS]
    cells = [last["client"], last["version"], last["done"], *(entries.get(mode, {}).get("result", "") for mode in MODES), last["unit"],
             *(NEXT.join(each) if set(each) != {NONE} else "" for each in figures)]
    return f"| {' | '.join(cells)} |"


def rows(text):
    """The entries of tables that `table` wrote."""
    return [item for part in text.split(HEAD)[1:] for line in itertools.takewhile(lambda line: line.startswith("|"), part.splitlines()[2:])
            for item in entries_of(line)]


def entries_of(line):
    cells = line.strip().removeprefix("|").removesuffix("|").replace("\\|", "\0").split("|")
    client, version, done, *results, unit, ours, tcp, roce = (text.strip().replace("\0", "\\|") for text in cells)
    for place, (mode, result) in enumerate(zip(MODES, results)):
        if result:
            figures = {path: shown_in(text, place) for path, text in zip(PATHS, (ours, tcp, roce))}
            yield {"client": client, "version": version, "done": done, "mode": mode, "result": result, "unit": unit} | figures


def shown_in(text, place):
    """The figure of a mode in a cell that has those of all."""
    figure = text.split(NEXT)[place] if text else NONE
    return "" if figure == NONE else figure


def key(item):
    return item["client"], item["done"], item["mode"]


def tried_before(item, earlier):
    """A row with what an earlier run had over paths that this one did not try."""
    kept = {path: earlier[path] for path in PATHS if earlier and not item[path]}
    return item | kept


def merge(before, new, order):
    """Rows of this run, and those of others of what it did not do. `order` has the clients as they are tried."""
    earlier = {key(item): item for item in before}
    merged = earlier | {key(item): tried_before(item, earlier.get(key(item))) for item in new}
    place = {name: number for number, name in enumerate(order)}
    known = [item for item in merged.values() if key(item)[:2] in place]
    return sorted(known, key=lambda item: (place[key(item)[:2]], MODES.index(item["mode"])))


def worse(before, new):
    """Entries of what worked before, and does not now."""
    worked = {key(item) for item in before if not item["result"].startswith(FAILED)}
    return [item for item in new if item["result"].startswith(FAILED) and key(item) in worked]


def write(directory, page, before, new, sections, note):
    """Puts the entries into the page, and what this run found into a file. `sections` has the order of each part of the page, by its name."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "results.json").write_text(json.dumps(new, indent=1) + "\n")
    for name, order in sections.items():
        if any(key(item)[:2] in order for item in new):
            results.between(page, name, f"{table(merge(before, new, order))}\n{note}\n")

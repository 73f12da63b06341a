# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What becomes of the results of `make test-clients`: rows of other runs stay, the page shows what was seen. No node."""

import sys

import pytest

from modes import only
from nodes import TOP

sys.path.append(str(TOP / "scripts" / "clients.d"))
sys.path.append(str(TOP / "scripts" / "bench.d"))
import connections  # noqa: E402 (the paths come first)
import disks  # noqa: E402
import failures  # noqa: E402
import kernel_users  # noqa: E402
import mappers  # noqa: E402
import messages  # noqa: E402
import perftest  # noqa: E402
import plumbing  # noqa: E402
import senders  # noqa: E402
import services  # noqa: E402
import sockets  # noqa: E402
import table  # noqa: E402
from stage import OURS, ROCE, TCP  # noqa: E402

pytestmark = only("pcie", why="no node is needed, so once is enough")
WORKS = [*perftest.WORKS, *connections.WORKS, *messages.WORKS, *mappers.WORKS, *kernel_users.WORKS, *disks.WORKS, *sockets.WORKS, *services.WORKS]
PLUMBING = [*plumbing.WORKS, *senders.WORKS]
SECTIONS = {"clients": WORKS, "plumbing": PLUMBING, "failures": failures.WORKS}


def order(works):
    return [(table.cell(work.client), table.cell(work.done)) for work in works]


ORDER = order([*WORKS, *PLUMBING, *failures.WORKS])


def found(work, mode="pcie", note="", failed=False):
    """A row of a client, with a figure of 12.345 over all that it can go over."""
    outcome = (None if failed else 12.345, note, failed)
    return table.row(work, mode, "1.0-1", {path: outcome for path in work.paths})


@pytest.fixture
def page(tmp_path):
    """A page whose table has a row of the first client, and one of a client that there is no more."""
    gone = found(WORKS[0]) | {"client": "gone"}
    file = tmp_path / "clients.md"
    file.write_text(f"before\n<!-- clients:begin -->\n{table.table([found(WORKS[0]), gone])}\nold\n<!-- clients:end -->\nbehind\n")
    return file


def test_rows_of_other_runs_stay(tmp_path, page, saw):
    """A run replaces what it tried, keeps what it did not, and drops what is tried no more."""
    before = table.rows(page.read_text())
    assert [item["client"] for item in before] == [WORKS[0].client, "gone"]
    new = [found(WORKS[1], "cxl"), found(WORKS[1], note="exit 1: no such|device", failed=True)]
    table.write(tmp_path / "build", page, before, new, {"clients": order(WORKS), "failures": order(failures.WORKS)}, "Last run: today.")
    text = page.read_text()
    rows = table.rows(text)
    assert [(item["client"], item["mode"]) for item in rows] == [(WORKS[0].client, "pcie"), (WORKS[1].client, "pcie"), (WORKS[1].client, "cxl")]
    assert rows[1]["result"] == "**failed**: exit 1: no such\\|device" and rows[1][OURS] == "failed" and rows[2][OURS] == "12.3"
    assert text.startswith("before\n") and text.endswith("Last run: today.\n<!-- clients:end -->\nbehind\n") and "old" not in text
    saw(f"{len(rows)} rows")


def test_what_worked_before_and_fails_now_is_told():
    """That is what the command's exit status is about; what failed before may fail again."""
    before = [found(WORKS[0]), found(WORKS[1], failed=True)]
    new = [found(WORKS[0], note="exit 1", failed=True), found(WORKS[1], failed=True), found(WORKS[2], failed=True)]
    assert [item["client"] for item in table.worse(before, new)] == [WORKS[0].client]
    assert not table.worse(before, [found(WORKS[0]), found(WORKS[1])])


def test_figures_of_modes_stand_in_one_row():
    """A row has the figure of each mode that was tried, and says which was not."""
    new = [found(WORKS[0], "ivshmem"), found(WORKS[0], note="exit 1", failed=True)]
    text = table.table(table.merge([], new, order(WORKS)))
    assert text.count("\n") == 3 and "| **failed**: exit 1 |  | works |" in text and "| failed / – / 12.3 |" in text
    assert table.rows(text) == table.merge([], new, order(WORKS))


def test_cells_are_about_what_a_client_can_go_over():
    """A client of sockets has a figure over TCP alone, one of verbs none there."""
    verbs, plain = found(perftest.WORKS[0]), found(sockets.WORKS[0])
    assert verbs[TCP] == "" and verbs[OURS] == verbs[ROCE] == "12.3"
    assert plain[OURS] == plain[ROCE] == "" and plain[TCP] == "12.3"


def test_what_is_shown_is_read_back(saw):
    """The table of this tree is the one that its rows make, and all of them are of clients that are tried."""
    text = (TOP / "Documentation" / "clients.md").read_text()
    rows = table.rows(text)
    for works in SECTIONS.values():
        part = [item for item in rows if (item["client"], item["done"]) in order(works)]
        assert part and table.table(part) in text
    assert len(ORDER) == len(set(ORDER)), "two works have the same name"
    assert not [item for item in rows if (item["client"], item["done"]) not in ORDER]
    saw(f"{len(rows)} rows")

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What becomes of measured figures: rows of other runs stay, and the pages show what was measured. No node."""

import json
import sys

import pytest

from modes import only
from nodes import TOP

sys.path.insert(0, str(TOP / "scripts" / "bench.d"))
import results  # noqa: E402 (the path comes first)
import steps  # noqa: E402

pytestmark = only("pcie", why="no node is needed, so once is enough")
VIRTIO = "virtio-net, tap and bridge, MTU 9000"
ROCE = f"soft RoCE, {VIRTIO}"


def row(work, ours, peer, peer_name=VIRTIO, mode="pcie"):
    return results.entry(work, mode, "us", ours, peer, peer_name, 1, higher_is_better=False)


@pytest.fixture
def page(tmp_path):
    """A page of benchmarks whose table has a row of ping."""
    file = tmp_path / "benchmarks.md"
    file.write_text(f"before\n<!-- bench:begin -->\n{results.table([row('ping', 1.5, 3)])}\n\n- old\n<!-- bench:end -->\nbehind\n")
    return file


def test_rows_of_other_runs_stay(tmp_path, page, saw):
    """A run keeps what the page has, and what a run before it measured; its own figures replace older ones."""
    build = tmp_path / "build"
    results.write(build, page, [row("ib_write_lat 8 B", 10, 20, ROCE)], ["one"])
    results.write(build, page, [row("TCP one stream (MTU 65520)", 4, 8), row("ping", 2, 3)], ["two"])
    found = {item["work"]: item["ours"] for item in json.loads((build / "results.json").read_text())}
    assert found == {"ping": 2, "ib_write_lat 8 B": 10, "TCP one stream (MTU 65520)": 4}
    assert "rows that this run did not measure" in (build / "results.md").read_text()
    saw(", ".join(found))


def test_pages_show_what_was_measured(tmp_path, page, saw):
    """The table and README's lines come from the results; a ratio to a figure of our own is in neither."""
    build, readme = tmp_path / "build", tmp_path / "README.md"
    readme.write_text("before\n<!-- figures:begin -->\nold\n<!-- figures:end -->\nbehind\n")
    results.write(build, page, [row("ib_write_lat 8 B", 13.105, 1846.6, ROCE), row("ib_write_lat 8 B", 384, 1424, ROCE, mode="cxl"),
                                row("late", 30, 7, results.ALONE)], ["note"])
    results.into_pages(build, page, readme)
    table = page.read_text()
    assert "| late | pcie | 30 | 7 | us |  | the same alone | 1 |" in table and "**2.00**" in table and "- old" not in table
    assert table.startswith("before\n") and table.endswith("behind\n")
    assert "| RDMA WRITE of 8 bytes | us | 13.1 (1,850) | 384 (1,420) |  | soft RoCE |" in readme.read_text()
    saw(f"{len(results.rows(table))} rows")


def test_what_is_shown_is_read_back(saw):
    """The table of this tree is the one that its rows make."""
    text = (TOP / "Documentation" / "benchmarks.md").read_text()
    rows = results.rows(text)
    assert rows and results.table(rows) in text
    assert results.lines(rows) in (TOP / "README.md").read_text(), "README shows other figures: scripts/bench --readme"
    saw(f"{len(rows)} rows")


# Three packets of an interface, the last unlike the others, and an interrupt of another device, as tracefs prints them.
TRACE = """# tracer: nop
          <idle>-0       [000] d.h1.    40.000001: irq_handler_entry: irq=30 name=virtio0
          <idle>-0       [000] d.h1.    40.000100: irq_handler_entry: irq=36 name=nupa_fabric
          <idle>-0       [000] ..s1.    40.000110: netif_receive_skb: dev=nupanet0 skbaddr=00000000d2412bd8 len=53 net_cookie=7
      netserver-187      [000] d..2.    40.000130: sched_switch: prev_comm=netserver prev_pid=187 ==> next_comm=swapper/0 next_pid=0
          <idle>-0       [000] d.h1.    40.000200: irq_handler_entry: irq=36 name=nupa_fabric
          <idle>-0       [000] ..s1.    40.000220: netif_receive_skb: dev=nupanet0 skbaddr=00000000d2412bd8 len=53 net_cookie=7
      netserver-187      [000] d..2.    40.000230: sched_switch: prev_comm=netserver prev_pid=187 ==> next_comm=swapper/0 next_pid=0
          <idle>-0       [000] d.h1.    40.000300: irq_handler_entry: irq=36 name=nupa_fabric
      netserver-187      [000] d..2.    40.000390: sched_switch: prev_comm=netserver prev_pid=187 ==> next_comm=swapper/0 next_pid=0
"""


def test_steps_of_a_packet(saw):
    """Times are medians of those rounds that are most common."""
    first, *lines = steps.described(TRACE, "nupa")
    assert first.startswith("2 of 3 interrupts")
    assert [line.split() for line in lines] == [["0.0", "+0.0", "irq_handler_entry", "nupa_fabric"], ["15.0", "+15.0", "netif_receive_skb"],
                                               ["30.0", "+15.0", "sched_switch", "swapper/0"]]
    assert steps.described(TRACE, "mlx5") == ["no interrupt was seen"]
    saw(first)

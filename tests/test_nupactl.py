# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl: what it says of controllers, links and nodes, to people, to programs, and to users without rights."""

import contextlib
import json
import re

import traffic
from modes import POOLS, emulator_only, long, only
from nodes import DEVICES, INTERFACE
from test_pool_memory import FOREIGN, Memory, digest
from verbs import DEVICE
from waiting import wait_until

NUPACTL = "/nupa/build/bin/nupactl"
# Exit codes (nupactl --help).
FINE, TROUBLE, USAGE, NOTHING, FAILED = range(5)
# Shows a directory /etc/nupa with a file of names to one command; the nodes' root is read-only.
NAMED = """
unshare -m sh -c '
    mkdir -p /run/names/upper/nupa /run/names/work && printf "%b" "$1" >/run/names/upper/nupa/nodes.conf
    mount -t overlay overlay -o lowerdir=/etc,upperdir=/run/names/upper,workdir=/run/names/work /etc && shift && exec "$@"
' sh"""


def told(node, verb):
    """What `nupactl --json` says."""
    return json.loads(node.run(f"{NUPACTL} --json {verb}").out)


@contextlib.contextmanager
def printed(node, arguments):
    """Runs nupactl with such arguments meanwhile; gives a function that says which lines it has printed. The first two are there."""
    output = "/run/nupactl.out"
    # What one before it printed is not taken for its own.
    node.run(f"rm -f {output}")
    running = node.spawn(f"timeout 120 {NUPACTL} {arguments} >{output}")

    def lines():
        return node.run(f"cat {output}", check=False).out.splitlines()

    wait_until(f"nupactl {arguments} to begin", lambda: len(lines()) >= 2)
    try:
        yield lines
    finally:
        # It may have ended by itself.
        node.run("pkill -x nupactl", check=False)
        running.wait(10)


def debugfs_peers(node):
    """Node ids and epochs of debugfs, this node first."""
    text = node.run("cat /sys/kernel/debug/nupa_fabric-*/peers").out
    return [(int(number), int(epoch)) for number, epoch in re.findall(r"^ *(\d+) [0-9a-f]{16} +(\d+)", text, re.MULTILINE)]


def test_status(settled, saw):
    for node in settled:
        (controller,) = told(node, "status")
        (number, epoch), *_ = debugfs_peers(node)
        assert (controller["node"], controller["epoch"]) == (number, epoch)
        assert (controller["state"], controller["link_up"], controller["trouble"]) == ("running", True, None)
        assert controller["netdevs"] == [INTERFACE] and controller["rdma"] == [DEVICE]
        assert controller["device"] == node.device()
    text = node.run(f"{NUPACTL} status").out
    assert re.search(rf"^{re.escape(node.device())} +running +up", text, re.MULTILINE), text
    saw(text.splitlines()[-1])


def test_peers_and_their_names(settled, saw):
    for node in settled:
        own, *others = debugfs_peers(node)
        listed = [(peer["node"], peer["epoch"]) for peer in told(node, "peers")]
        assert listed == others and listed
    text = node.run(f"{NAMED} '# the first rack\\n{own[0]} alpha\\n{others[0][0]} beta\\n' {NUPACTL} peers").out
    assert f"{own[0]} (alpha), this one" in text and f"{others[0][0]} (beta)" in text, text
    done = node.run(f"{NAMED} 'one alpha\\n' {NUPACTL} peers", check=False)
    assert done.code == FAILED and "/etc/nupa/nodes.conf: line 1: `one` is not a node id" in done.err, done
    saw(f"{len(listed)} as in debugfs, with their names")


def test_topology(settled, saw):
    one, _ = settled
    own, *others = (number for number, _ in debugfs_peers(one))
    topology = told(one, "topo")
    assert [controller["node"] for controller in topology["controllers"]] == [own]
    assert [peer["node"] for peer in topology["peers"]] == others
    text = one.run(f"{NUPACTL} topo").out
    assert re.findall(r"node (\d+)", text) == [str(number) for number in (own, *others)], text
    graph = one.run(f"{NUPACTL} topo --dot").out
    assert graph.startswith("graph nupa {") and graph.rstrip().endswith("}")
    fabric = topology["controllers"][0]["fabric"]
    assert graph.count(f'-- "fabric {fabric}"') == 1 + len(others), graph
    saw(text.splitlines()[-1].strip())


def test_stats(settled, saw):
    one, two = settled
    (before,) = told(one, "stats")
    ethtool = one.run(f"ethtool -S {INTERFACE}").out
    assert set(before["counters"]) == set(re.findall(r"port_(\w+):", ethtool))
    with printed(one, "--json stats --watch --delta") as lines:

        def changes():
            return [json.loads(line)[0]["counters"]["tx_bytes"] for line in lines()]

        traffic.tcp(one, two.ip, size=4 << 20)
        wait_until("the bytes to be told of", lambda: sum(changes()) >= 4 << 20)
    (after,) = told(one, "stats")
    sent = after["counters"]["tx_bytes"] - before["counters"]["tx_bytes"]
    assert sum(changes()) <= sent
    (twice,) = zip(*(json.loads(line) for line in one.run(f"{NUPACTL} --json stats --count 2").out.splitlines()))
    assert len(twice) == 2
    text = one.run(f"{NUPACTL} stats").out
    assert re.search(rf"^{re.escape(one.device())} +tx_bytes +\d+$", text, re.MULTILINE), text
    assert not re.search(r" 0$", text, re.MULTILINE), text
    assert len(one.run(f"{NUPACTL} stats --all").out.splitlines()) == 1 + len(after["counters"])
    saw(f"{sent} bytes in {len(changes())} steps")


def test_events_tell_of_nodes(pair, saw):
    one, two = pair
    (controller,) = told(two, "status")
    number = controller["node"]
    with printed(one, "--json events --follow") as lines:
        two.run("nupa-down", timeout=60)
        two.run("nupa-up", timeout=120)

        def events():
            return [json.loads(line) for line in lines()]

        def of_node():
            return [event["event"] for event in events() if event.get("node") == number and event["event"].startswith("peer")]

        wait_until("the node to be told of", lambda: len(of_node()) >= 3)
    assert of_node() == ["peer-up", "peer-down", "peer-up"], events()
    assert events()[0]["event"] == "controller" and events()[0]["state"] == "running"
    first, last = (event["epoch"] for event in events() if event["event"] == "peer-up" and event["node"] == number)
    assert last > first
    saw(f"down and up again, epoch {first} to {last}")


def test_events_tell_of_the_driver(pair, saw):
    """Who follows goes on over the end of the module: the group that it listens to goes with that."""
    one, _ = pair
    with printed(one, "events --follow") as lines:

        def text():
            return "\n".join(lines())

        for rounds in (1, 2):
            one.run("nupa-down", timeout=60)
            wait_until("the end of the driver to be told of", lambda: text().count("the driver was unloaded") == rounds)
            one.run("nupa-up", timeout=120)
            wait_until("the controller to be told of", lambda: f"{one.device()} is running" in text().rpartition("loaded again")[2])
            wait_until("the node to be told of", lambda: re.search(r"node \d+ is up", text().rpartition("loaded again")[2]))
    assert text().count("the driver was loaded again") == 2, text()
    assert text().count(f"{one.device()} is gone: its driver was unbound") == 2, text()
    saw("unloaded and loaded again, twice")


@emulator_only
def test_link_that_is_down(fabric, pair, saw):
    one, _ = pair
    with printed(one, "events --follow") as lines:

        def links():
            return [line.split()[-1] for line in re.findall(r"its link \w+", "\n".join(lines()))]

        fabric.switch.link(one.number, up=False)
        try:
            wait_until("the link to be down", lambda: not told_of(one)["link_up"])
            controller = told_of(one)
            done = one.run(f"{NUPACTL} status", check=False)
            exported = one.run(f"{NUPACTL} export")
            link = one.run(f"{NUPACTL} link", check=False)
        finally:
            fabric.switch.link(one.number, up=True)
        wait_until("the link to be up", lambda: told_of(one)["link_up"])
        wait_until("that to be told", lambda: len(links()) >= 3)
    assert done.code == TROUBLE and "the link is down" in done.out, done
    assert link.code == TROUBLE and re.search(rf"^{re.escape(one.device())} +down", link.out, re.MULTILINE), link
    assert re.search(r"^nupa_link_up\{.*\} 0$", exported.out, re.MULTILINE), exported
    assert controller["link_age"] < 60_000 and "the link is down" in controller["trouble"]
    assert links() == ["up", "down", "up"], lines()
    saw(link.out.splitlines()[-1].strip())


@emulator_only
def test_events_over_a_reset(pair, saw):
    """A controller that is reset reaches nobody meanwhile."""
    one, two = pair
    other = told(two, "status")[0]["node"]
    with printed(one, "--json events --follow") as lines:
        one.run(f"echo 1 >{one.device_directory()}/reset", timeout=60)

        def events():
            """Events of the other node, and states of the controller."""
            found = [json.loads(line) for line in lines()]
            return [event.get("state") or event["event"] for event in found if event.get("node") == other or "state" in event]

        wait_until("the node to be told of", lambda: events().count("peer-up") >= 2)
    assert events() == ["running", "peer-up", "paused", "peer-down", "running", "peer-up"], lines()
    saw(", ".join(events()))


# Asks for what the controller is asked for in turn, until it is told to stop; says with which exit codes.
ASKER = """
while ! [ -e /run/asked ]; do
    for verb in peers stats status; do
        nice timeout 60 %s $verb >/dev/null 2>&1
        echo $?
    done
done | sort -u
""" % NUPACTL


@long
def test_unbind_while_others_ask(pair, saw):
    """Those who ask of a controller meanwhile get an answer, and unbinding waits for no more than that."""
    one, _ = pair
    device, driver = one.device(), one.driver_directory()
    one.run("rm -f /run/asked")
    asking = [one.spawn(ASKER) for _ in range(2)]
    for _ in range(10):
        one.run(f"echo {device} >{driver}/unbind && echo {device} >{driver}/bind", timeout=60)
    one.run("touch /run/asked")
    codes = {int(code) for running in asking for code in running.wait(120).out.split()}
    assert FINE in codes and codes <= {FINE, TROUBLE, NOTHING}, codes
    one.up()
    assert told(one, "status")[0]["state"] == "running"
    saw(f"exit codes {sorted(codes)}")


def told_of(node):
    """What is said of the only controller, whatever state it is in."""
    done = node.run(f"{NUPACTL} --json status", check=False)
    assert done.code in (FINE, TROUBLE), done
    return json.loads(done.out)[0]


def test_metrics(settled, saw):
    """OpenMetrics text: what `stats` and `status` say, by name."""
    one, _ = settled
    text = one.run(f"{NUPACTL} export").out
    device = one.device()
    (stats,) = told(one, "stats")
    for name in stats["counters"]:
        assert re.search(rf'^nupa_{name}_total{{device="{re.escape(device)}"}} \d+$', text, re.MULTILINE), name
    types = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    assert len(types) == len(set(types)) == len(stats["counters"]) + 6 and text.endswith("# EOF\n")
    assert "\nnupa_up 1\n" in text
    _, *others = debugfs_peers(one)
    expected = [f'nupa_link_up{{device="{device}"}} 1', f'nupa_peers{{device="{device}"}} {len(others)}']
    assert set(expected) <= set(text.splitlines()), text
    saw(f"{len(types)} metrics")


def test_user_without_rights(settled, saw):
    one, _ = settled
    for verb in ("status", "peers", "topo", "stats"):
        as_user = one.run(f"setpriv --reuid=65534 --clear-groups {NUPACTL} --json {verb}")
        assert json.loads(as_user.out), as_user
    saw("reads the same")


def test_wrong_arguments(settled, saw):
    one, _ = settled
    wrong = ("", "stat", "status extra", "stats --watch 0", "stats --watch x", "topo --dot --json", "stats --count 0", "stats --by node",
             "stats --by peer --histogram", "drain --undo --timeout 1", "poll --cpu 0 --off", "poll --cpu", "poll --cpu x")
    for arguments in wrong:
        done = one.run(f"{NUPACTL} {arguments}", check=False)
        assert done.code == USAGE and done.err.strip() and not done.out, done
    reader = one.run(f"{NUPACTL} stats --all | head -n 1; echo ${{PIPESTATUS[0]}}")
    assert reader.out.splitlines()[-1] == "0" and not reader.err, reader
    saw(f"{len(wrong)} refused")


def test_without_the_module(pair, saw):
    one, _ = pair
    one.run("nupa-down", timeout=60)
    done = one.run(f"{NUPACTL} status", check=False)
    assert done.code == NOTHING and "modprobe nupa_fabric" in done.err, done
    # What runs by a timer has nothing to complain of.
    exported = one.run(f"{NUPACTL} export")
    assert "\nnupa_up 0\n" in exported.out and exported.out.endswith("# EOF\n") and not exported.err, exported
    saw(done.err.strip())


def test_device_that_is_unbound(pair, saw):
    one, _ = pair
    one.run(f"echo {one.device()} >{one.driver_directory()}/unbind", timeout=60)
    done = one.run(f"{NUPACTL} status", check=False)
    assert done.code == NOTHING and "no device is bound" in done.out, done
    for verb, empty in ("peers", []), ("topo", {"controllers": [], "peers": []}), ("stats", []), ("qp", []), ("mr", []), (
            "queues", {"completion_queues": [], "interfaces": []}):
        nothing = one.run(f"{NUPACTL} --json {verb}", check=False)
        assert nothing.code == NOTHING and json.loads(nothing.out) == empty, nothing
    exported = one.run(f"{NUPACTL} export", check=False)
    assert exported.code == FINE and "\nnupa_up 1\n" in exported.out and exported.out.endswith("# EOF\n"), exported
    saw(done.out.strip())


def test_schema_describes_what_is_printed(settled, saw):
    one, _ = settled
    schema = json.loads(one.run(f"{NUPACTL} schema").out)

    def fields(name):
        return set(schema["$defs"][name]["properties"])

    assert fields("Controller") == set(told(one, "status")[0])
    assert fields("Peer") == set(told(one, "peers")[0])
    assert fields("Counters") == set(told(one, "stats")[0])
    assert fields("Histogram") == set(told(one, "stats --histogram")[0])
    assert fields("Usage") == set(told(one, "stats --by process")[0])
    assert fields("Drained") == set(told(one, "drain --undo"))
    assert fields("Polled") == set(told(one, "poll")[0])
    assert set(schema["properties"]) == {"status", "link", "peers", "topo", "stats", "stats_by", "stats_histogram", "events", "qp", "mr",
                                         "queues", "ping", "lat", "bw", "selftest", "drain", "poll", "emulator", "memory_list", "memory_create", "memory_attach",
                                         "memory_remove", "pool_show", "pool_fsck", "version"}
    saw(f"{len(schema['$defs'])} kinds of objects")


def test_manual(settled, saw):
    """Man pages and completions are made of the same description as the command line."""
    one, _ = settled
    one.run(f"{NUPACTL} generate /run/generated")
    verbs = ["status", "link", "peers", "topo", "stats", "qp", "mr", "queues", "ping", "lat", "bw", "selftest", "serve", "top", "events",
             "version", "dump", "schema", "export", "drain", "poll", "pool", "emulator", "emulator-show", "emulator-link", "emulator-fault", "pool-show",
             "pool-format", "pool-discard", "pool-fsck", "pool-attach", "pool-detach", "memory", "memory-list", "memory-create", "memory-attach",
             "memory-remove", "memory-handle"]
    pages = ["nupactl.8", *(f"nupactl-{verb}.8" for verb in verbs)]
    assert set(one.run("ls /run/generated").out.split()) == {"_nupactl", "nupactl.bash", "nupactl.fish", *pages}
    written = dict(re.findall(r"==> (\S+) <==\n(.*?)(?=\n==> |\Z)", one.run("cd /run/generated && tail -v -n +1 *").out, re.DOTALL))
    for verb in verbs:
        assert f"nupactl {verb.replace('-', ' ')}" in written[f"nupactl-{verb}.8"].replace("\\-", "-")
        for shell in ("nupactl.bash", "_nupactl", "nupactl.fish"):
            assert verb.split("-")[-1] in written[shell]
    saw(f"{len(verbs)} verbs")


# Drivers that may have the memory of a pool before it is attached, the one that has it afterwards first.
NOT_OURS = {"cxl": ("device_dax", "none"), "ivshmem": ("none",)}


def give(node, driver):
    """Hands the memory to a driver that is not ours, as an administrator does."""
    if node.fabric == "cxl":
        node.run(f"nupa-pool {driver}", timeout=60)


def driver_of(node, device):
    link = node.run(f"readlink /sys/bus/{DEVICES[node.fabric][0]}/devices/{device}/driver", check=False).out.strip()
    return link.rpartition("/")[2] or "none"


def other_version(backing, minor):
    """Makes the memory one that holds a pool of another version, or of the right one."""
    with backing.open("r+b") as file:
        file.seek(8)
        file.write((0x0002_0000 + minor).to_bytes(4, "little"))


@only(*POOLS, why="about the memory of pools")
def test_pool(fabric, saw):
    one, _ = fabric.bare(1, 2)
    memory = Memory(one)
    device = memory.device
    backing = memory.fill(FOREIGN)
    before = digest(backing)

    def pool(command, code):
        done = one.run(f"{NUPACTL} pool {command}", check=False, timeout=60)
        assert done.code == code, done
        return done.out + done.err

    assert "No pool, but something else" in pool(f"show {device}", TROUBLE)
    assert "without --yes" in pool(f"format {device}", FAILED)
    assert "it is not blank" in pool(f"format {device} --if-blank", FAILED)
    assert "modprobe nupa_fabric" in pool(f"attach {device}", FAILED)
    one.run("insmod /nupa/build/modules/nupa_fabric.ko")
    for driver in NOT_OURS[one.fabric]:
        give(one, driver)
        told = pool(f"attach {device}", FAILED)
        assert "holds no pool, but something else" in told and f"nupactl pool show {device}" in told, told
        assert driver_of(one, device) == driver
    assert digest(backing) == before, "memory changed that nobody gave up"
    one.run("rmmod nupa_fabric")
    memory = Memory(one)
    assert "formatted as pool" in pool(f"format {device} --yes --nodes 4", FINE)
    shown = json.loads(one.run(f"{NUPACTL} --json pool show {device}").out)
    assert (shown["holds"], shown["slots"], shown["live"], shown["dead"]) == ("pool", 4, [], [])
    other_version(backing, 1)
    # An ivshmem device that holds a pool would be taken at once.
    one.run("insmod /nupa/build/modules/nupa_fabric.ko")
    told = pool(f"attach {device}", FAILED)
    assert "version 2.1" in told and f"`nupactl pool discard {device}` gives it up" in told, told
    assert driver_of(one, device) == NOT_OURS[one.fabric][0]
    other_version(backing, 0)
    for driver in NOT_OURS[one.fabric]:
        give(one, driver)
        assert "attached" in pool(f"attach {device}", FINE)
        assert driver_of(one, device) == DEVICES[one.fabric][1]
        assert "detached" in pool(f"detach {device}", FINE)
        assert driver_of(one, device) == NOT_OURS[one.fabric][0]
        assert json.loads(pool(f"show {device} --json", FINE))["fabric"] == shown["fabric"]
    assert "attached" in pool(f"attach {device}", FINE)
    assert "it is attached already" in pool(f"attach {device}", FINE)
    assert told_of(one)["fabric"] == shown["fabric"]
    assert "has it" in pool(f"show {device}", FAILED)
    assert "has it" in pool(f"format {device} --yes", FAILED)
    assert "detached" in pool(f"detach {device}", FINE)
    assert "not attached" in pool(f"detach {device}", FINE)
    assert "attached" in pool(f"attach {device}", FINE)
    one.run("rmmod nupa_fabric")
    saw(f"pool {shown['fabric']} made, attached and detached")


@only(*POOLS, why="about the memory of pools")
def test_pool_that_is_given_up(pair, fabric, saw):
    """Nobody may use it; after that the memory holds none, whatever its version was."""
    one, two = pair
    device = one.run("nupa-pool device").out.strip()
    one.run("nupa-down", timeout=60)
    backing = Memory(one).backing()

    def discard(options, code):
        done = one.run(f"{NUPACTL} pool discard {device} {options}", check=False, timeout=60)
        assert done.code == code, done
        return done.out + done.err

    assert "use the pool; nothing is discarded" in discard("--yes --force", FAILED)
    two.run("nupa-down", timeout=60)
    before = digest(backing)
    assert "nothing is discarded without --yes" in discard("", FAILED)
    other_version(backing, 1)
    assert "without --force" in discard("--yes", FAILED)
    other_version(backing, 0)
    assert digest(backing) == before
    assert "holds no pool any more" in discard("--yes", FINE)
    assert "nothing is discarded" in discard("--yes", FAILED)
    Memory(one).format("--yes")
    other_version(backing, 1)
    again = one.run(f"cp -u /nupa/build/bin/nupa-mkpool /run/ && /run/nupa-mkpool {device} --discard --force --yes", timeout=60)
    assert "holds no pool any more" in again.out, again
    Memory(one).format("--yes")
    fabric.ensure(1, 2)
    assert one.pings(two.ip, 3) == 3
    saw(again.out.splitlines()[-1])


def damaged(backing, values):
    """Changes bytes of the memory: by offset, the value."""
    with backing.open("r+b") as file:
        for offset, value in values.items():
            file.seek(offset)
            file.write(bytes([value]))


@only(*POOLS, why="about the memory of pools")
def test_pool_that_is_damaged(pair, fabric, saw):
    """Each place is told of, with the nodes that use the pool undisturbed, and nothing is written."""
    one, two = pair
    device = one.run("nupa-pool device").out.strip()
    one.run("nupa-down", timeout=60)
    memory = Memory(one)
    backing = memory.backing()

    def fsck(code):
        done = one.run(f"{NUPACTL} --json pool fsck {device}", check=False, timeout=60)
        assert done.code == code, done
        return [(problem["offset"], problem["area"]) for problem in json.loads(done.out)["problems"]]

    assert fsck(FINE) == []
    (own, _), *_ = debugfs_peers(two)
    free = next(number for number in range(8) if number != own)
    slot = 0x1000 + 256 * free + 0x10
    # The last reserved byte, and what it does to the check; a reserved field of a slot.
    damaged(backing, {0x7f: 1, slot: 1})
    assert fsck(TROUBLE) == [(0xc, "superblock"), (0x50, "superblock"), (slot, f"slot of node {free}")]
    text = one.run(f"{NUPACTL} pool fsck {device}", check=False, timeout=60)
    assert text.code == TROUBLE and "has to be 0x0" in text.out, text
    damaged(backing, {0x7f: 0, slot: 0})
    assert fsck(FINE) == []
    fabric.ensure(1, 2)
    assert one.pings(two.ip, 3) == 3
    saw(text.out.splitlines()[0])


@long
def test_pool_with_wrong_names(settled, saw):
    one, _ = settled
    for verb in "show", "format --yes", "discard --yes", "fsck", "attach", "detach":
        for name in "dax9.9", "../0000:00:00.0", "''":
            done = one.run(f"{NUPACTL} pool {verb} {name}", check=False)
            assert done.code == FAILED and done.err.startswith("nupactl: ") and not done.out, done
    # What is there, and no memory that hosts share.
    other = one.run("lspci -Dn | head -n 1 | cut -d' ' -f1").out.strip()
    for verb in "show", "format --yes":
        done = one.run(f"{NUPACTL} pool {verb} {other}", check=False)
        assert done.code == FAILED and "no ivshmem device" in done.err, done
    done = one.run(f"{NUPACTL} pool attach {other}", check=False)
    assert done.code == FAILED, done
    why = "is a fabric controller" if one.fabric == "pcie" else "takes root"
    as_user = one.run(f"setpriv --reuid=65534 --clear-groups {NUPACTL} pool detach {one.device()}", check=False)
    assert as_user.code == FAILED and why in as_user.err, as_user
    saw(as_user.err.strip())

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Memory devices: programs of several nodes open a path and map the same memory of a pool, without verbs."""

import errno

import pytest

from modes import POOLS, long, only
from test_nupactl import FAILED, NUPACTL, told
from test_pool_poison import SECOND_REFUSAL, poison, slot
from test_power import SLEEP
from verbs import build_share_library
from waiting import wait_until

pools = only(*POOLS, why="nodes share memory on pools only; test_a_controllers_memory_is_its_own says what others answer")

MIB = 1 << 20
PAGE = 4096
COUNTS = 100_000


@pytest.fixture(scope="module", autouse=True)
def library():
    build_share_library()


def without_devices(settled):
    """What fixtures yield: two nodes without memory devices, before and after."""
    assert [told(node, "memory list") for node in settled] == [[], []]
    yield settled
    for node in settled:
        for device in told(node, "memory list"):
            node.run(f"{NUPACTL} memory remove --force {device['name']}")
    assert [node.run("ls /dev/nupa 2>/dev/null", check=False).out for node in settled] == ["", ""]


@pytest.fixture
def nodes(settled):
    yield from without_devices(settled)


def create(node, name, size):
    """The handle."""
    node.run(f"{NUPACTL} memory create {name} {size}")
    return node.run(f"{NUPACTL} memory handle {name}").out.strip()


def attach(node, name, handle):
    node.run(f"{NUPACTL} memory attach {name} {handle}")


def refused(node, arguments):
    """What nupactl says when it cannot do something."""
    done = node.run(f"{NUPACTL} memory {arguments}", check=False)
    assert done.code == FAILED, done
    return done.err


class Mapping:
    """A program that has mapped a device."""

    def __init__(self, rdma, node, name, user=None):
        self.program = rdma.program(node, device=None)
        if user:
            self.program.become_user(user, 1 << 20)
        self.file = self.program.map_open(f"/dev/nupa/{name}")
        self.mapping = self.program.map_map(self.file, self.file.size)

    def __getattr__(self, name):
        method = getattr(self.program, f"map_{name}")
        return lambda *arguments, **options: method(self.mapping, *arguments, **options)

    def check(self, seed, **place):
        difference = self.program.map_check(self.mapping, seed, **place)
        assert difference is None, f"{self.program.node.name}: {difference}"


@pools
def test_programs_of_two_nodes_map_the_same_bytes(nodes, rdma, saw):
    one, two = nodes
    handle = create(one, "cache", "4M")
    attach(two, "other.name", handle)
    a, b = Mapping(rdma, one, "cache"), Mapping(rdma, two, "other.name")
    assert (a.file.size, b.file.size) == (4 * MIB, 4 * MIB)
    assert a.left() is None
    # Both by huge pages: with others it would be a thousand.
    faults = a.fill(1), b.fill(2, offset=MIB)
    assert max(faults) < 16, faults
    b.check(1, size=MIB)
    a.check(2, offset=MIB)
    # A part, by an offset that is no multiple of a huge page.
    part = a.program.map_map(a.file, 2 * MIB, offset=MIB)
    assert a.program.map_check(part, 2, size=2 * MIB) is None
    (created,), (attached,) = (told(node, "memory list") for node in nodes)
    assert created["handle"] == attached["handle"] == handle
    assert [device["attached"] for device in (created, attached)] == [False, True]
    assert [device["opens"] for device in (created, attached)] == [1, 1]
    saw(f"4 MiB each way, {faults} page faults")


@pools
def test_a_counter_of_both_nodes_is_exact(nodes, rdma, saw):
    """Atomic instructions of programs on two nodes. QEMU emulates those of nodes with more than one CPU by real ones."""
    assert all(node.cpus > 1 for node in nodes)
    one, two = nodes
    attach(two, "counter", create(one, "counter", PAGE))
    mappings = [Mapping(rdma, node, "counter") for node in nodes]
    for mapping in mappings:
        mapping.program.begin("map_count", mapping.mapping.id, COUNTS)
    for mapping in mappings:
        mapping.program.result(60)
    assert [mapping.word() for mapping in mappings] == [2 * COUNTS] * 2
    saw(f"{2 * COUNTS} counted")


@pools
def test_mappings_that_are_refused(nodes, rdma, saw):
    one, _ = nodes
    create(one, "m", 3 * PAGE - 5)
    program = rdma.program(one, device=None)
    file, reader = program.map_open("/dev/nupa/m"), program.map_open("/dev/nupa/m", write=False)
    assert file.size == 3 * PAGE

    def fails(*arguments, of=file, **options):
        return program.fails("map_map", of, *arguments, **options)

    found = [fails(4 * PAGE), fails(PAGE, offset=3 * PAGE), fails(2 * PAGE, offset=2 * PAGE), fails(PAGE, private=True),
             fails(PAGE, private=True, of=reader), fails(PAGE, protection="RX"), fails(PAGE, protection="RW", of=reader)]
    assert found == [errno.EINVAL] * 5 + [errno.EPERM, errno.EACCES]
    program.map_map(reader, 3 * PAGE, protection="R")
    saw("beyond the end, private, for code, and for writing by a file that is not")


@pools
def test_who_may_do_what(nodes, rdma, saw):
    one, two = nodes
    handle = create(one, "m", PAGE)
    user = rdma.program(one, device=None)
    user.become_user(65534, 1 << 20)
    assert user.fails("map_open", "/dev/nupa/m") == errno.EACCES
    one.run("chmod 666 /dev/nupa/m")
    a = Mapping(rdma, one, "m", user=65534)
    a.fill(1)
    as_user = f"setpriv --reuid=65534 --clear-groups {NUPACTL} memory"
    for arguments in ("list", "handle m", "create n 4096", f"attach n {handle}", "remove m"):
        done = one.run(f"{as_user} {arguments}", check=False)
        assert done.code == FAILED and "CAP_NET_ADMIN" in done.err, done
    wrong = handle[:1].translate(str.maketrans("0123456789abcdef", "123456789abcdef0")) + handle[1:]
    assert "ENOENT" in refused(two, f"attach m {wrong}") or "nothing" in refused(two, f"attach m {wrong}")
    attach(two, "m", handle)
    assert "m" in refused(two, f"attach m {handle}")
    assert "m" in refused(one, "create m 4096")
    assert len(told(two, "memory list")) == len(told(one, "memory list")) == 1
    a.check(1)
    saw("root, or whom root lets; a wrong handle names nothing; names are taken once")


@long
@pools
def test_removal(nodes, rdma, saw):
    """A device that is open stays unless it is forced; then programs lose it, and those of other nodes do not."""
    one, two = nodes
    handle = create(one, "m", 64 * 1024)
    attach(two, "m", handle)
    a, b = Mapping(rdma, one, "m"), Mapping(rdma, two, "m")
    a.fill(1)
    busy = refused(one, "remove m")
    assert a.touch() is None
    one.run(f"{NUPACTL} memory remove --force m")
    assert a.touch() == "SIGBUS"
    assert a.program.fails("map_map", a.file, PAGE) == errno.ENODEV
    assert a.program.fails("map_open", "/dev/nupa/m") == errno.ENOENT
    refused(two, f"attach late {handle}")
    # The name is free, the memory is not.
    create(one, "m", 64 * 1024)
    again = Mapping(rdma, one, "m")
    assert again.left() is None
    again.fill(2)
    b.check(1)
    b.fill(3)
    again.check(2)
    assert a.touch() == "SIGBUS"
    # Without a program that has it open it goes at once.
    again.program.end(kill=True)
    one.run(f"{NUPACTL} memory remove m")
    b.check(3)
    saw(busy.strip().splitlines()[-1])


@long
@pools
def test_all_memory_comes_back(nodes, rdma, saw):
    """What was removed and is attached by nobody can be had again, by devices and by verbs."""
    one, two = nodes
    total = rdma.program(one).device()["max_dm_size"]
    for _ in range(2):
        attach(two, "all", create(one, "all", total))
        assert "memory" in refused(one, "create more 4096")
        a = Mapping(rdma, two, "all")
        assert a.left() is None
        a.fill(9)
        one.run(f"{NUPACTL} memory remove all")
        refused(one, "create all 4096")
        two.run(f"{NUPACTL} memory remove --force all")
        assert a.touch() == "SIGBUS"
        a.program.end()
    create(one, "all", total)
    saw(f"{total >> 10} KiB, twice")


@pools
def test_the_end_of_a_driver_ends_devices(nodes, rdma, saw):
    """Unbinding takes memory away from programs that have it open; those of other nodes keep what they have."""
    one, two = nodes
    handle = create(one, "m", PAGE)
    attach(two, "m", handle)
    a, b = Mapping(rdma, one, "m"), Mapping(rdma, two, "m")
    a.fill(1)
    mark = one.log.position()
    device, driver = one.device(), one.driver_directory()
    one.run(f"echo {device} >{driver}/unbind")
    try:
        assert a.touch() == "SIGBUS"
        assert a.program.fails("map_open", "/dev/nupa/m") == errno.ENOENT
        b.check(1)
    finally:
        one.run(f"echo {device} >{driver}/bind")
    assert told(one, "memory list") == []
    refused(two, f"attach late {handle}")
    b.fill(2)
    b.check(2)
    assert a.touch() == "SIGBUS"
    two.run(f"{NUPACTL} memory remove --force m")
    assert b.touch() == "SIGBUS"
    text = "memory device /dev/nupa/m ends, because the driver is being unbound: programs that have mapped it get SIGBUS"
    assert text in one.log.since(mark)
    one.up()
    one.await_ping(two.ip)
    saw(text)


@pools
def test_a_reset_ends_devices(nodes, rdma, saw):
    """Node 1 refuses node 2, which starts anew: it has none of its devices any more. Those of node 1 are as they were."""
    one, two = nodes
    # Who is refused comes back at once the first time, and then after pauses that grow.
    two.run("nupa-down && nupa-up", timeout=60)
    one.await_ping(two.ip)
    handles = create(one, "near", PAGE), create(two, "far", PAGE)
    attach(two, "near", handles[0])
    attach(one, "far", handles[1])
    a, b = Mapping(rdma, one, "near"), Mapping(rdma, two, "near")
    far, own = Mapping(rdma, one, "far"), Mapping(rdma, two, "far")
    for mapping, seed in ((a, 1), (far, 2)):
        mapping.fill(seed)
    mark = two.log.position()
    line, _ = slot(one, two)
    poison(one, line)
    try:
        wait_until("node 2 to lose its devices", lambda: b.touch() == own.touch() == "SIGBUS", 30)
    finally:
        poison(one, "none")
    for name in ("near", "far"):
        assert f"memory device /dev/nupa/{name} ends, because the controller is reset" in two.log.since(mark)
    a.check(1)
    far.check(2)
    one.await_ping(two.ip, SECOND_REFUSAL + 30)
    assert told(two, "memory list") == []
    # Its own memory is new; node 1's can be attached again.
    attach(two, "near", handles[0])
    Mapping(rdma, two, "near").check(1)
    refused(one, f"attach again {handles[1]}")
    saw("SIGBUS for both; one of them attached again")


@long
@pools
def test_sleep_ends_devices(nodes, rdma, saw):
    one, two = nodes
    handle = create(one, "m", PAGE)
    attach(two, "m", handle)
    a, b = Mapping(rdma, one, "m"), Mapping(rdma, two, "m")
    a.fill(1)
    slept = two.spawn(SLEEP).wait(90)
    assert slept.code == 0, f"it did not sleep:\n{slept}"
    assert b.touch() == "SIGBUS" and told(two, "memory list") == []
    a.check(1)
    one.await_ping(two.ip)
    attach(two, "m", handle)
    Mapping(rdma, two, "m").check(1)
    saw("SIGBUS; attached again")


@long
@pools
def test_devices_come_and_go_while_programs_use_them(nodes, rdma, saw):
    """Removal, mapping, page faults, opens and exports at the same time: each either works or is refused."""
    one, two = nodes
    keep = create(one, "keep", PAGE)
    loops = [(one, f"for n in $(seq 20); do {NUPACTL} memory create m 64K >/dev/null || exit; "
                   f"{NUPACTL} memory remove --force m || exit; done"),
             (two, f"for n in $(seq 20); do {NUPACTL} memory attach m {keep} >/dev/null || exit; "
                   f"{NUPACTL} memory remove --force m || exit; done")]
    users = [rdma.program(node, device=None) for node in nodes for _ in range(2)]
    running = [node.spawn(loop) for node, loop in loops]
    for number, user in enumerate(users):
        user.begin("map_race", "/dev/nupa/m", 15, dmabuf=number % 2 == 1)
    done = [each.wait(120) for each in running]
    assert all(each.code == 0 for each in done), done
    counts = [user.result(60) for user in users]
    # Some got to the memory, or this has tried nothing.
    assert all(count["opened"] > 0 for count in counts), counts
    assert sum(count["SIGBUS"] for count in counts) + sum(count["touched"] for count in counts) > 0, counts
    saw(f"{counts}")


@pools
def test_children_lose_it_as_their_parents_do(nodes, rdma, saw):
    """A process forks all the time while the device that it has mapped by huge pages is removed. Children have what the parent has until then."""
    one, _ = nodes
    create(one, "m", "4M")
    a = Mapping(rdma, one, "m")
    a.fill(1)
    pid = a.program.pid()
    a.program.begin("map_fork", a.mapping.id, "/dev/nupa/m", 60)
    wait_until("children", lambda: one.run(f"pgrep -P {pid}", check=False).out)
    one.run(f"{NUPACTL} memory remove --force m")
    ends = a.program.result(90)
    assert ends["SIGBUS"] == 50, ends
    saw(f"{ends}")


@pools
def test_a_node_of_a_device_that_is_gone_opens_no_other(nodes, rdma, saw):
    """As a container has it, which keeps the numbers of the device that it was given."""
    one, _ = nodes
    create(one, "a", 4096)
    numbers = one.run("stat -c '%Hr %Lr' /dev/nupa/a").out.strip()
    one.run(f"rm -f /run/kept && mknod /run/kept c {numbers}")
    kept = rdma.program(one, device=None)
    mapping = kept.map_map(kept.map_open("/run/kept"), 4096)
    a = Mapping(rdma, one, "a")
    a.fill(1)
    assert kept.map_check(mapping, 1) is None
    one.run(f"{NUPACTL} memory remove --force a")
    # The file was opened by another inode than the others use.
    assert kept.map_touch(mapping) == a.touch() == "SIGBUS"
    for name in ("b", "c"):
        create(one, name, 4096)
    # The inode knows the device as long as somebody has that open.
    assert kept.fails("map_open", "/run/kept") == errno.ENODEV
    kept.end()
    a.program.end()
    assert rdma.program(one, device=None).fails("map_open", "/run/kept") == errno.ENXIO
    one.run("rm /run/kept")
    saw(f"ENXIO for {numbers}")


@only("pcie", why="about what controllers answer")
def test_a_controllers_memory_is_its_own(nodes, saw):
    one, _ = nodes
    said = refused(one, "create m 4096"), refused(one, f"attach m {'00' * 32}")
    saw(said[0].strip())

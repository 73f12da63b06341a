# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the pages tell people to type on hosts, on nodes that share nothing but that: each command as the page has it."""

import os
import subprocess

from modes import only
from nodes import INTERFACE, TOP, CommandFailed
from pages import follows
from test_nupactl import debugfs_peers
from test_nupactl_measure import serving
from test_pages import shell
from verbs import DEVICE
from waiting import PATIENCE, wait_until

# What makes verbs of nupactl short. How fast this machine is, is not the question.
SHORT = {"ping": "-c 3 -i 0.1", "lat": "-d 0.1", "bw": "-d 0.1", "selftest": "-d 0.1 --factor 1000000"}
MODULES = "/nupa/build/modules"
# Where a page has programs that packages install.
PROGRAMS = "export PATH=$PATH:/nupa/build/bin"
one_mode = only("pcie", why="what is typed is the same in all modes")
ivshmem = only("ivshmem", why="the page is about ivshmem")
cxl = only("cxl", why="the page is about CXL memory")


def typed(node, command, timeout=60, directory=MODULES):
    """Types a command on a node, which has to end well."""
    return node.run(f"{PROGRAMS}; cd {directory} && {command}", timeout=timeout).out


def answered(node, command, answer="y\n"):
    """Types a command at a terminal, and an answer to what it asks."""
    *login, what = node.ssh(f"{PROGRAMS}; {command}")
    done = subprocess.run([login[0], "-tt", *login[1:], what], env=node.environment(), input=answer, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=60 * PATIENCE, check=False)
    if done.returncode != 0:
        raise CommandFailed(f"{node.name}# {command}\n{done.stdout}[exit {done.returncode}]")
    return done.stdout


def for_a_while(node, command, happens):
    """Types a command that goes on until it is stopped, does something, and returns what it had printed by then."""
    output = "/run/guide.out"
    node.run(f"rm -f {output}")
    running = node.spawn(f"{PROGRAMS}; timeout 60 {command} >{output} 2>&1 & echo $! >/run/guide.pid; wait")

    def printed():
        return node.run(f"cat {output}", check=False).out

    try:
        return happens(printed)
    finally:
        node.run("kill $(cat /run/guide.pid)", check=False)
        running.wait(20)


@one_mode
@follows("Documentation/networking.md")
def test_networking(fabric, said, saw):
    """From bare nodes to a network, and the settings that the page has."""
    nodes = one, two = fabric.bare(1, 2)
    for command in said.commands("Bring it up"):
        for node in nodes:
            if command.text.startswith("ip "):
                wait_until(INTERFACE, lambda: node.run(f"test -e /sys/class/net/{INTERFACE}", check=False).code == 0)
            typed(node, command.text.replace("10.77.0.1", node.ip))
    one.await_ping(two.ip)
    for command in said.commands("MTU"):
        typed(one, command.text)
    assert one.link()["mtu"] == 9000
    for command in said.commands("BIG TCP"):
        assert "204800" not in command.comment or one.link()["tso_max_size"] == 204800, "the page has another value"
        typed(one, command.text)
    for command in said.commands("XDP"):
        typed(one, command.text)
    assert (one.link()["gso_max_size"], one.link()["gso_ipv4_max_size"]) == (204800, 204800)
    saw(f"{one.link()['tso_max_size']} bytes in a super-frame")


@one_mode
@follows("README.md", "Uninstall", fenced=True)
def test_uninstall(fabric, said):
    """A host that had the modules loaded by hand has none of them, and no provider."""
    node, _ = fabric.ensure(1, 2)
    for command in said.commands():
        typed(node, command.text)
    assert "nupa" not in node.run("lsmod").out
    assert DEVICE not in node.run("ibv_devices", check=False).out
    left = node.run("find / -xdev -name '*nupa*' -path '*libibverbs*' -not -path '/nupa/*'").out
    assert not left, left


def tells_of_events(node, command):
    """`events --follow`: nothing has to happen for its first line, which says what is there."""
    def happens(printed):
        wait_until("the first event", lambda: printed().strip(), 20)
        return printed()
    return for_a_while(node, command, happens)


@one_mode
@follows("Documentation/nupactl.md", "What it tells")
@follows("Documentation/nupactl.md", "Names of nodes")
@follows("Documentation/nupactl.md", "Metrics")
def test_nupactl(pair, said, saw):
    """Each verb says something, and knows the options that are named beside it; names and metrics as the page has them."""
    one, two = pair
    number = debugfs_peers(two)[0][0]
    verbs = []
    with serving(one), serving(two):
        for command in said.commands("What it tells", {"NODE": str(number), "[FILE]": "/run/guide.tar.gz"}):
            verb = command.text.split()[1]
            if "--follow" in command.text:
                told = tells_of_events(one, command.text)
            elif verb == "serve":
                assert command.text == "nupactl serve"
                told = "runs on both"
            else:
                told = typed(one, f"{command.text} {SHORT.get(verb, '')}")
            assert told.strip(), command
            options = [word.strip(",;") for word in command.comment.split() if word.startswith("-")]
            known = typed(one, f"nupactl {verb} --help") if options else ""
            assert all(option in known for option in options), f"nupactl {verb} does not know all of {options}"
            verbs.append(verb)
    assert one.run("tar -tf /run/guide.tar.gz | grep -c MANIFEST").out.strip() == "1"
    names = "".join(f"{command.text}\n" for command in said.commands("Names of nodes"))
    one.run("mkdir -p /etc/nupa && cat >/etc/nupa/nodes.conf", stdin=names)
    try:
        told = typed(one, "nupactl peers")
        assert "alpha" in told + typed(one, "nupactl status") and "beta" in told, told
    finally:
        one.run("rm -r /etc/nupa")
    directory, *commands = said.commands("Metrics")
    one.run(f"mkdir -p {directory.text.split()[1]}")
    typed(one, "; ".join(command.text for command in commands), directory=directory.text.split()[1])
    metrics = one.run(f"cat {directory.text.split()[1]}/nupa.prom").out
    assert "nupa_up 1" in metrics and metrics.endswith("# EOF\n"), metrics[-300:]
    saw(", ".join(verbs))


@one_mode
@follows("Documentation/nupactl.md", "Maintenance")
def test_maintenance(settled, said):
    """A controller that nobody uses is out of service at once, and back in it."""
    node, _ = settled
    replaced = {"[CONTROLLER]": node.device()}
    for command, draining in zip(said.commands(replaced=replaced), (True, False)):
        typed(node, command.text)
        assert ("draining" in typed(node, "nupactl link")) == draining, command
        assert "--timeout" not in command.comment or "--timeout" in typed(node, "nupactl drain --help")


@ivshmem
@follows("Documentation/nupactl.md", "Memory that hosts share")
def test_nupactl_pool(fabric, said, saw):
    """What makes a pool, uses it and gives it up. The page has what ends it before what uses it."""
    node, _ = fabric.bare(1, 2)
    device = node.device()
    node.run(f"insmod {MODULES}/nupa_fabric.ko")
    if node.run(f"test -e {node.device_directory()}/driver", check=False).code == 0:
        typed(node, f"nupactl pool detach {device}")
    commands = {command.text.split()[2]: command.text for command in said.commands(replaced={"DEVICE": device})}
    for verb, expected in (("format", "formatted as pool"), ("show", "Pool"), ("fsck", ""), ("attach", "attached"),
                           ("detach", "detached"), ("discard", "holds no pool any more")):
        command = commands.pop(verb)
        told = answered(node, command) if verb in ("format", "discard") else typed(node, command)
        assert expected.lower() in told.lower(), f"{command}\n{told}"
    assert not commands, commands
    answered(node, f"nupactl pool format {device}")
    saw(device)


@ivshmem
@follows("Documentation/pool.md", "ivshmem")
def test_pool_of_ivshmem(fabric, said, saw):
    """From memory that holds nothing to a node of a pool, whether the driver was loaded before or after."""
    one, two = fabric.bare(1, 2)
    device = one.device()
    commands = list(said.commands(replaced={"0000:00:04.0": device}))
    look, make, load, bind = (command.text for command in commands)
    assert device in typed(one, look)
    assert "formatted as pool" in answered(one, make)
    for node, command in ((one, load), (two, "insmod nupa_fabric.ko")):
        typed(node, command)
        wait_until("the device to be taken", lambda: node.run(f"test -e {node.driver_directory()}/{node.device()}", check=False).code == 0)
    one.run(f"echo {device} >{one.driver_directory()}/unbind")
    typed(one, bind)
    one.run(f"test -e {one.driver_directory()}/{device}")
    saw(device)


@cxl
@follows("Documentation/pool.md", "CXL memory")
@follows("Documentation/development.md", "Nodes that share memory")
def test_pool_of_cxl_memory(fabric, said, saw):
    """From a memory device without a region to nodes of a pool; before that what measures the memory."""
    one, two = fabric.bare(1, 2)
    for command in said.commands("CXL memory"):
        text = command.text
        if text.startswith("cxl create-region"):
            for node in (one, two):
                # What nodes that were up before have made already.
                node.run("nupa-pool none && cxl disable-region -f region0 && cxl destroy-region -f region0", check=False, timeout=60)
        if text.startswith("modprobe device_dax"):
            wait_until("the DAX device", lambda: one.run("ls /sys/bus/dax/devices").out.strip() == "dax0.0")
        if text.startswith("nupa-mkpool"):
            measure(one, two, said)
            typed(two, "nupa-pool none && rmmod device_dax || true")
            assert "formatted as pool" in answered(one, text)
            for node in (one, two):
                node.run(f"insmod {MODULES}/nupa_fabric.ko")
            continue
        told = typed(one, text)
        if text.startswith("readlink"):
            assert told.strip().endswith("/nupa_fabric"), told
    two.up()
    one.up()
    one.await_ping(two.ip)
    saw("a region, a DAX device, a pool")


def measure(one, two, said):
    """poolbench on both nodes; none prints nothing."""
    prepare, pong, ping, copy = (command.text for command in said.commands("Nodes that share memory"))
    for node in (one, two):
        typed(node, f"{prepare}")
    answering = two.spawn(f"timeout 60 {pong} >/dev/null")
    try:
        for command in (ping, copy):
            assert typed(one, f"timeout 60 {command}").strip(), command
    finally:
        # One that still answers would write to the memory while the next test looks at it.
        two.run("pkill -x poolbench", check=False)
        answering.abandon()


@one_mode
@follows("Documentation/tracing.md", "Tracing")
def test_tracing(settled, said, saw):
    """Each tool that nodes have sees what happens meanwhile: an admin command."""
    node, _ = settled

    def command_is_seen(printed):
        def seen():
            node.run(f"ethtool -S {INTERFACE} >/dev/null")
            return "nupa_admin_cmd" in printed()
        wait_until("an event", seen, 20)
        return printed()

    tools = []
    for command in said.commands():
        text = command.text
        tools.append(text.split()[0])
        if text.startswith("cat "):
            for_a_while(node, text, command_is_seen)
            node.run("echo 0 >/sys/kernel/tracing/events/nupa/enable")
        elif text.startswith("perf "):
            # Not for ten seconds, and with something that happens meanwhile.
            done = f"sh -c 'sleep 0.3; ethtool -S {INTERFACE} >/dev/null'"
            # At a terminal: perf writes to its output otherwise.
            told = answered(node, "cd /run && " + text.replace("sleep 10", done), "")
            assert "nupa:nupa_admin_cmd" in told, told
        else:
            typed(node, text)
    node.run("echo 0 >/sys/kernel/tracing/events/nupa/nupa_admin_cmd/filter; echo >/sys/kernel/tracing/trace")
    saw(", ".join(tools))


@one_mode
@follows("Documentation/troubleshooting.md", "`Invalid module format`, `Unknown symbol in module`")
@follows("Documentation/troubleshooting.md", "There is no `nupanet0`")
def test_troubleshooting(settled, said):
    """What the page has compared is the same on a node that works."""
    node, _ = settled
    told = [typed(node, command.text) for command in said.commands("`Invalid module format`, `Unknown symbol in module`")]
    assert told[1].split()[0] == told[0].strip(), told
    devices, log = (typed(node, command.text) for command in said.commands("There is no `nupanet0`"))
    assert "[1af4:10f0]" in devices and "Kernel driver in use: nupa_fabric" in devices, devices
    assert "nupa_fabric" in log, log


@one_mode
@follows("Documentation/rdma.md", "What one user may take")
def test_limit_of_a_group(settled, said):
    """The line for a group, in one that is made for it."""
    node, _ = settled
    group = "/run/guide-cgroups/guide"
    node.run("mkdir -p /run/guide-cgroups && mount -t cgroup2 none /run/guide-cgroups && "
             f"echo +rdma >/run/guide-cgroups/cgroup.subtree_control && mkdir {group}")
    try:
        for command in said.commands(replaced={"/sys/fs/cgroup/GROUP": group, "nupa_rdma0": DEVICE}):
            typed(node, command.text)
        told = node.read(f"{group}/rdma.max")
        assert f"{DEVICE} hca_handle=64 hca_object=10000" in told, told
    finally:
        node.run(f"rmdir {group}; umount /run/guide-cgroups")


PROGRAM = """
#include <infiniband/verbs.h>
#include <stdio.h>
int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	return list && list[0] ? puts(ibv_get_device_name(list[0])) < 0 : 1;
}
"""


@one_mode
@follows("Documentation/rdma.md", "Your own program")
def test_your_own_program(settled, said, tmp_path, monkeypatch, saw):
    """Compiled in the build root, and run on a node by both ways that the page has."""
    node, _ = settled
    monkeypatch.setenv("NUPA_RUN", str(node.run_dir))
    # The page: the source may lie in /tmp.
    (tmp_path / "prog.c").write_text(PROGRAM)
    program = TOP / "build" / "mine" / f"prog-{os.getpid()}"
    replaced = {" prog.c": f" {tmp_path}/prog.c", "/mine/prog": f"/mine/{program.name}", "<prog": f"<build/mine/{program.name}"}
    try:
        told = [shell(command.text, TOP) for command in said.commands(replaced=replaced)]
    finally:
        program.unlink(missing_ok=True)
    assert told.count(f"{DEVICE}\n") == 2, told
    saw(DEVICE)

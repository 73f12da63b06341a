# SPDX-License-Identifier: GPL-2.0 OR MIT
"""The nodes of a test session, the switch where there is one, and how they get back to a known state."""

import shutil

import reaper
from nodes import INTERFACE, TOP, CommandFailed, Node, NodeGone, Switch, make_run_dir, stop_all
from verbs import Agent
from waiting import wait_until

NETCHECK = "/nupa/build/bin/netcheck"

# Leaves a node as `nupa-up` would on a fresh one, whatever a failed test left behind. It runs before most tests, so it
# starts few programs: each takes a twentieth of a second.
TIDY = f"""
echo 7 >/proc/sys/kernel/printk
serves=
for p in /proc/[0-9]*; do
    {{ read -r name <$p/comm; }} 2>/dev/null || continue
    case $name in
    # Those of network namespaces go with them.
    netcheck) [ $p/ns/net -ef /proc/self/ns/net ] && serves=1 ;;
    tcpdump|iperf3|ping) kill ${{p#/proc/}} ;;
    bash)
        program='' option=''
        {{ read -r -d '' program; read -r -d '' option; }} 2>/dev/null <$p/cmdline
        [ "$program $option" != 'bash -c' ] || [ ${{p#/proc/}} = $$ ] || kill -9 ${{p#/proc/}} ;;
    esac
done
for n in /run/netns/*; do
    [ -e "$n" ] && {{ ip netns pids "${{n##*/}}" | xargs -r kill -9; ip netns del "${{n##*/}}"; }}
done
for l in br0 {INTERFACE}.100 veth0; do [ ! -e /sys/class/net/$l ] || ip link del $l; done
# A driver that is loaded may have found its device unfit, and does not look again by itself.
[ -e /sys/class/net/{INTERFACE} ] || {{ nupa-down; nupa-up; }} || exit 1
ip -force -batch - <<END
link set {INTERFACE} xdp off
link set {INTERFACE} nomaster mtu 9000 promisc off up
address flush dev {INTERFACE} scope global
route flush cache
END
nupa-up || exit 1
[ "$serves" ] || {{
    cp -u {NETCHECK} /run/netcheck && chmod +x /run/netcheck
    ln -sf /run/netcheck /usr/local/bin/netcheck
    setsid netcheck serve >/run/netcheck.log 2>&1 </dev/null &
    for i in $(seq 100); do grep -q ready /run/netcheck.log && break; sleep 0.1; done
}}
true
"""


class Fabric:
    """Up to four nodes of a mode, started when first needed and kept for the session.

    `switch` is None where nodes share memory; what such nodes need beside them, `vms/start` starts.
    """

    def __init__(self, mode="pcie", keep_logs=None):
        self.mode = mode
        self.run_dir = make_run_dir(f"nupa-test-{mode}-")
        self.keep_logs = keep_logs
        self.switch = Switch(self.run_dir, nodes=63) if mode == "pcie" else None
        self.nodes = {number: Node(number, self.run_dir, fabric=mode) for number in range(1, 5)}
        self.agents = {}
        self.settled = set()

    def running(self):
        return [node for node in self.nodes.values() if node.alive()]

    def ensure(self, *numbers, settled=False):
        """Nodes that run with modules loaded, default settings, addresses and a netcheck server.

        `settled` says that the caller changes no settings; so what one such caller found, the next one finds.
        """
        nodes, starting = self.start(*numbers)
        self.settled -= {node.number for node in starting} if settled else set(numbers)
        if not self.settled.issuperset(numbers):
            self.tidy(nodes)
        if settled:
            self.settled |= set(numbers)
        return nodes

    def start(self, *numbers):
        """Starts those of the nodes that do not run, without any module of ours; returns all, and those it started."""
        if self.switch and not self.switch.running():
            for node in self.running():  # a node does not survive its switch
                node.kill()
            self.switch.start()
        nodes = [self.nodes[number] for number in numbers]
        starting = [node for node in nodes if not node.alive()]
        for node in starting:
            node.begin_start()
        try:
            for node in starting:
                node.finish_start()
        except (AssertionError, NodeGone):
            for node in starting:  # one that did not come up would be taken for one that has
                node.stop()
            raise
        return nodes, starting

    def bare(self, *numbers):
        """Nodes that run without any module of ours, as do all others that run."""
        nodes, _ = self.start(*numbers)
        self.settled.clear()
        for node in self.running():
            node.run("nupa-down", timeout=60)
        return nodes

    def tidy(self, nodes):
        """Brings nodes that run into their default state."""
        for node in nodes if self.switch else ():
            self.switch.fault(node.number)
            self.switch.link(node.number, up=True)
        tidying = [(node, node.spawn(TIDY)) for node in nodes]
        for node, tidy in tidying:
            result = tidy.wait(90)
            if not node.alive():
                raise NodeGone(node, "tidying up")
            if result.code != 0:
                raise CommandFailed(f"{node.name} cannot be brought to its default state:\n{result}")
        for node in nodes[1:]:
            nodes[0].await_ping(node.ip)

    def agent(self, node):
        """The agent that runs verbs programs on a node, started when first needed on this boot."""
        agent = self.agents.get(node.number)
        if agent is None or not agent.alive():
            if agent:
                agent.close()
            agent = self.agents[node.number] = Agent(node)
        return agent

    def trouble(self):
        """Complaints of the nodes' kernels since the last look: {name: lines}."""
        found = {node.name: node.log.new_trouble() for node in self.nodes.values()}
        return {name: lines for name, lines in found.items() if lines}

    def close(self):
        """Ends everything; fails if something does not end."""
        try:
            for agent in self.agents.values():
                agent.close()
            if self.switch:
                self.switch.stop()
        finally:
            stop_all(self.run_dir)
            self.save_logs()
        wait_until("all processes of the fabric to be gone", lambda: not reaper.belonging(self.run_dir))
        shutil.rmtree(self.run_dir, ignore_errors=True)

    def save_logs(self):
        """Copies the nodes' consoles, what their QEMUs said, and the switch's log to where logs are kept."""
        if not self.keep_logs:
            return
        self.keep_logs.mkdir(parents=True, exist_ok=True)
        for pattern in ("node*.log", "node*.qemu", "switch.log", "ivshmem.log"):
            for log in self.run_dir.glob(pattern):
                shutil.copy(log, self.keep_logs)


LOGS = TOP / "build" / "test-logs"

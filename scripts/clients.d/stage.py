# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Two nodes with the image of clients, and what joins them: RDMA over NUPA, soft RoCE, or sockets alone."""

import contextlib
import os
import re
import shlex

from fabric import LOGS, Fabric
from nodes import INTERFACE, CommandFailed
from waiting import PATIENCE

# Where a node has the image's root directory.
ROOT = "/clients"
OURS, ROCE, TCP = "NUPA", "soft RoCE", "TCP"
# The RDMA device that joins the nodes, if one does.
RDMA_DEVICE = {OURS: "nupa_rdma0", ROCE: "rxe0"}
PATHS = (OURS, TCP, ROCE)

# The image is read-only, so what clients write is in memory. They see the node's devices, its /run and /tmp, the tree, all modules of the
# kernel, and the provider where Documentation/rdma.md says to put it.
EQUIP = f"""set -e
dmesg -n 7
mkdir -p {ROOT} /run/postgresql /mnt/lower /mnt/memory
mountpoint -q {ROOT} || {{
    mount -t erofs -o ro /dev/vdb /mnt/lower
    mount -t tmpfs tmpfs /mnt/memory
    mkdir /mnt/memory/upper /mnt/memory/work
    mount -t overlay -o lowerdir=/mnt/lower,upperdir=/mnt/memory/upper,workdir=/mnt/memory/work overlay {ROOT}
    for each in dev proc sys run tmp nupa; do mount --rbind /$each {ROOT}/$each; done
    mkdir -p {ROOT}/usr/lib/modules/$(uname -r)
    mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=readahead modules {ROOT}/usr/lib/modules/$(uname -r)
    cp -r /root/.ssh {ROOT}/root/
    printf '127.0.0.1 localhost\\n10.77.0.1 node1\\n10.77.0.2 node2\\n' >{ROOT}/etc/hosts
}}
cp /usr/lib/x86_64-linux-gnu/libibverbs/libnupa-rdmav34.so {ROOT}/usr/lib/x86_64-linux-gnu/libibverbs/
cp /etc/libibverbs.d/nupa.driver {ROOT}/etc/libibverbs.d/
"""
# What joins the nodes, by path; at most one RDMA device is there at a time, because clients with default settings take the first.
TAKE = {
    OURS: "! rdma link show rxe0/1 2>/dev/null || rdma link delete rxe0; nupa-up",
    ROCE: "[ ! -d /sys/module/nupa_rdma ] || rmmod nupa_rdma; modprobe -a rdma_rxe rdma_ucm && "
          f"{{ rdma link show rxe0/1 2>/dev/null || rdma link add rxe0 type rxe netdev {INTERFACE}; }}",
    TCP: "[ ! -d /sys/module/nupa_rdma ] || rmmod nupa_rdma; ! rdma link show rxe0/1 2>/dev/null || rdma link delete rxe0",
}
# Processes in the image's root directory.
PROCESSES = f"find /proc -maxdepth 2 -path '/proc/[0-9]*/root' -lname {ROOT} 2>/dev/null | cut -d/ -f3"
# How many objects of RDMA there are. Of completion queues those of programs alone count: the RDMA core keeps a pool of its own for users in the kernel.
OBJECTS = "echo $(rdma resource show | sed 's/ cq [0-9]*//') cq $(rdma resource show cq | grep -c ' pid ')"
# What has gone through the network interface: bytes, packets.
TRAFFIC = f"cd /sys/class/net/{INTERFACE}/statistics && cat rx_bytes tx_bytes rx_packets tx_packets"
# Requests that a node's RDMA device of ours has made and served.
MESSAGES = f"cd /sys/class/infiniband/{RDMA_DEVICE[OURS]}/ports/1/hw_counters && cat rx_messages tx_messages"


ERROR = re.compile(r"error|fail|refused|denied|cannot|invalid|unable|no such|not ", re.IGNORECASE)


class Failed(Exception):
    """A client did not do what was asked of it; the text is one line on what was seen."""


def seen(result):
    """The last line about an error that a command printed that failed, or else its last line, and how it ended."""
    lines = [line.strip() for text in (result.out, result.err) for line in text.replace("\r", "\n").splitlines()
             if any(map(str.isalnum, line))]
    lines = [line for line in lines if ERROR.search(line) and "End of error message" not in line] or lines
    end = "did not end in time" if result.code == 124 else f"exit {result.code}"
    return f"{end}: {lines[-1][:160]}" if lines else end


class Stage:
    """Nodes 1 and 2: clients run on `one`, their servers on `two`, in the image's root directory."""

    def __init__(self, mode, image, log, modules):
        self.mode, self.log = mode, log
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        # On the bus that they name, because QEMU would take that of the pool's memory in cxl mode.
        os.environ["QEMU_ARGS"] = (f"-drive if=none,id=clients,file={image}/root.erofs,format=raw,readonly=on "
                                   "-device virtio-blk-pci,drive=clients,bus=pcie.0,disable-legacy=on "
                                   f"-fsdev local,id=modules,path={modules},security_model=none,readonly=on,multidevs=remap "
                                   "-device virtio-9p-pci,fsdev=modules,mount_tag=modules,bus=pcie.0,disable-legacy=on")
        os.environ.setdefault("MEM", "2G")
        self.fabric = Fabric(mode, keep_logs=LOGS / f"clients-{mode}")
        self.path = None
        self.into = ""

    def __enter__(self):
        self.boot()
        return self

    def __exit__(self, *_):
        self.fabric.close()

    def boot(self):
        """Starts the nodes that do not run, with default settings and nothing but the clients beside them."""
        (self.one, self.two), _ = self.fabric.start(1, 2)
        for node in (self.one, self.two):
            node.up()
            node.run(EQUIP, timeout=60)
        self.one.await_ping(self.two.ip)
        self.server = self.two.ip

    def take(self, path):
        """Has nothing but this path between the nodes."""
        for node in (self.one, self.two):
            node.run(TAKE[path], timeout=60)
        self.path = path
        self.one.await_ping(self.two.ip)
        self.objects = [self.resources(node) for node in (self.one, self.two)]

    def keep_history(self, title):
        """Writes into the log what was typed on the nodes since the last time."""
        with open(self.log, "a", encoding="utf-8") as log:
            print(f"==== {self.path}: {title}", file=log)
            for node in (self.one, self.two):
                for result in node.history:
                    print(result, file=log)
                node.history.clear()

    def version(self, package):
        """The version of a package in the image, one of Debian or, with `pypi:` before its name, of PyPI; empty if it is not there."""
        name = package.removeprefix("pypi:")
        ask = f"dpkg-query -W -f '${{Version}}' {name}"
        if name != package:
            ask = f"python3 -c 'import importlib.metadata; print(importlib.metadata.version(\"{name}\"))'"
        return self.one.run(f"chroot {ROOT} {ask}", check=False).out.strip()

    def inside(self, command, seconds):
        """A command of the node that runs one in the image's root directory, for so long at most."""
        return (f"{self.into}chroot {ROOT} env PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "
                f"timeout -k 5 {seconds * PATIENCE} sh -c {shlex.quote(command)}")

    @contextlib.contextmanager
    def within(self, namespace):
        """Clients run in the nodes' network namespaces of that name meanwhile; no name is where they run otherwise."""
        self.into = f"ip netns exec {namespace} " if namespace else ""
        try:
            yield
        finally:
            self.into = ""

    def run(self, command, seconds=60, node=None):
        """What a client printed, which has to end well."""
        result = self.result(command, seconds, node)
        if result.code != 0:
            raise Failed(seen(result))
        return result.out

    def result(self, command, seconds=60, node=None):
        """How a client ended."""
        try:
            return (node or self.one).run(self.inside(command, seconds), timeout=seconds + 30, check=False)
        except CommandFailed as late:
            raise Failed(str(late).splitlines()[0]) from None

    @contextlib.contextmanager
    def serving(self, command, port=None, ends=False, seconds=400, ready=None):
        """Runs a server on node 2 meanwhile, from when it listens on a TCP port, or at the connection manager if there is none.

        `ready`: a command of the node that succeeds when the server is ready, for one that listens nowhere.
        `ends`: it has to end by itself, and well; another is told to end.
        """
        server = self.two.spawn(self.inside(command, seconds))
        try:
            self.await_listening(server, port, ready)
            yield server
            if ends:
                result = self.ended(server)
                if result.code != 0:
                    raise Failed(f"its server: {seen(result)}")
        finally:
            self.stop(self.two)
            with contextlib.suppress(CommandFailed):
                server.wait(10)  # so that what it printed is in the log

    def ended(self, server):
        try:
            return server.wait(20)
        except CommandFailed as late:
            raise Failed(f"its server did not end: {str(late).splitlines()[0]}") from None

    def await_listening(self, server, port, ready):
        listens = ready or (f"{self.into}ss -Hltn 'sport = :{port}' | grep -q ." if port else "rdma -j resource show cm_id | grep -q LISTEN")
        for _ in range(30 * PATIENCE):
            waited = self.two.run(f"for i in $(seq 10); do {listens} && exit 0; sleep 0.1; done; exit 1", timeout=60, check=False)
            if waited.code == 0:
                return
            if not server.running():
                raise Failed(f"its server does not listen: {seen(self.ended(server))}")
        raise Failed("its server does not listen, though it runs")

    def stop(self, node):
        """Tells all that runs in the image's root directory to end, and waits for it."""
        node.run(f"{PROCESSES} | xargs -r kill 2>/dev/null; for i in $(seq 100); do [ \"$({PROCESSES})\" ] || break; sleep 0.1; done",
                 timeout=60, check=False)

    def resources(self, node):
        """How many objects of RDMA there are on a node."""
        return node.run(OBJECTS).out.split()

    def moved(self):
        """What node 1 has sent and received so far: bytes and packets of the network interface, and messages of our RDMA device."""
        received, sent, *packets = map(int, self.one.run(TRAFFIC).out.split())
        messages = map(int, self.one.run(MESSAGES).out.split()) if self.path == OURS else ()
        return received + sent, sum(packets), sum(messages)

    def complaints(self):
        """What a client left on the nodes, and what their kernels said. The next one is not blamed for that."""
        found = []
        for place, node in enumerate((self.one, self.two)):
            before = self.objects[place]
            names = self.processes(node)
            if names:
                found.append(f"left on {node.name}: {' '.join(sorted(set(names)))}")
            elif not self.settled(node, before):
                self.objects[place] = self.resources(node)
                found.append(f"RDMA objects left on {node.name}: {' '.join(self.objects[place])}, before: {' '.join(before)}")
        for name, lines in self.fabric.trouble().items():
            found.append(f"{name}'s kernel printed: {lines[min(3, len(lines) - 1)]}")
        return found

    def processes(self, node):
        """Names of processes that are left on a node after five seconds; they are killed."""
        return node.run(f"for i in $(seq {50 * PATIENCE}); do [ \"$({PROCESSES})\" ] || exit 0; sleep 0.1; done; "
                        f"for p in $({PROCESSES}); do cat /proc/$p/comm; kill -9 $p; done 2>/dev/null", timeout=60, check=False).out.split()

    def settled(self, node, before):
        """Whether a node has as many objects as before, in five seconds at the latest."""
        want = shlex.quote(" ".join(before))
        return node.run(f"for i in $(seq {50 * PATIENCE}); do [ \"$({OBJECTS})\" = {want} ] && exit 0; sleep 0.1; done; exit 1",
                        timeout=60, check=False).code == 0

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What clients do when something is not as they expect: an address that nobody has, and a server, a node or a driver that goes under them.

Each would work on for ever. It has to end by itself, and not by a fault of memory; some say success then. Unloading the driver may be refused instead, and then the client has to go on.
"""

import contextlib
import dataclasses
import re
import textwrap
import time
from typing import Callable

import lost_kernel_servers as kernel
from messages import HERE, devices
from stage import OURS, PROCESSES, TCP, Failed, seen
from waiting import PATIENCE
from work import Work

NOBODY = "10.77.0.99"
# Seconds that a client has to end in.
LIMIT = 100
# TCP by itself tries for a quarter of an hour to reach a peer that is gone; here, for some seconds.
IMPATIENT = "sysctl -q -w net.ipv4.tcp_retries2=4 net.ipv4.tcp_syn_retries=2"
PATIENT = "sysctl -q -w net.ipv4.tcp_retries2=15 net.ipv4.tcp_syn_retries=6"
# What has to have gone over the network interface, or by RDMA, before something is done to a client: bytes, messages.
BUSY = {TCP: (1 << 20, 0), OURS: (0, 50)}
# What UCX prints before its words.
STAMP = re.compile(r"\[[\d.]+\] \[\S+ *\S*\]\s+\S+\s+(?=UCX)")
BACKTRACE = re.compile(r"^.*(?:\.so\.|/bin/).*\n?|^[-=]{5,}.*\n?", re.MULTILINE)
KILL = f"kill -9 $({PROCESSES})"


@dataclasses.dataclass(frozen=True)
class Case:
    """A client that would work on for longer than it is let."""

    client: str
    package: str
    path: str
    asked: Callable
    """The client's command, from a stage and the address that it asks."""
    served: Callable
    """What serves it meanwhile: a context manager of a stage."""
    kill: str = KILL
    """Ends the server on node 2."""
    killed: str = "the server is killed"
    """That, in words."""


def server(command, port=None):
    return lambda stage: stage.serving(command.replace("NODE", stage.server).replace("DEVICES", devices(stage)), port)


@contextlib.contextmanager
def nothing(_stage):
    """For a client that starts its server by itself, or asks one that every node has."""
    yield


def asks(command):
    return lambda stage, address: command.replace("NODE", address).replace("DEVICES", devices(stage))


def mpi(stage, address):
    return (f"{devices(stage)} PRTE_MCA_plm_ssh_agent={HERE}/into-image PRTE_MCA_prte_if_include=nupanet0 OMPI_MCA_btl_tcp_if_include=nupanet0 "
            f"mpirun --allow-run-as-root -x UCX_NET_DEVICES --mca pml ucx --host node1,{address} -np 2 python3 -B {HERE}/mpi_work.py endless")


class Asking:
    """A client at work in the background."""

    def __init__(self, stage, command):
        self.stage = stage
        stage.one.run(IMPATIENT)
        self.start = time.monotonic()
        self.moved = stage.moved()
        self.process = stage.one.spawn(stage.inside(command, 4 * LIMIT))

    def await_busy(self):
        """Waits until the client works."""
        size, messages = BUSY[self.stage.path]
        while True:
            now = self.stage.moved()
            if now[0] - self.moved[0] >= size and now[2] - self.moved[2] >= messages:
                return
            if not self.process.running():
                raise Failed(f"it ended before anything was done to it: {seen(self.process.wait(10))}")
            if time.monotonic() - self.start > 40 * PATIENCE:
                raise Failed("it moves nothing")
            time.sleep(0.3)

    def end(self):
        """How the client ended, and in how many seconds."""
        start = time.monotonic()
        while self.process.running() and time.monotonic() - start < LIMIT:
            time.sleep(0.2)
        took = time.monotonic() - start
        if self.process.running():
            states = self.stage.one.run("rdma resource show qp | grep -v 'comm \\[' | grep -oE ' state [A-Z0-9]*' | sort | uniq -c", check=False).out
            raise Failed(f"it does not end in {LIMIT} s" + (f"; its queue pairs: {' '.join(states.split())}" if states else ""))
        result = self.process.wait(10)
        if result.code in (139, 135, 132):
            raise Failed(f"it crashed: {seen(result)}")
        result.out, result.err = (BACKTRACE.sub("", text) for text in (result.out, result.err))
        return round(took, 1), textwrap.shorten(STAMP.sub("", seen(result)), 120, placeholder=" …")

    def goes_on(self):
        """Fails unless the client still works."""
        self.moved, self.start = self.stage.moved(), time.monotonic()
        self.await_busy()

    def close(self):
        """Ends what is left of it."""
        self.stage.stop(self.stage.one)
        self.process.abandon()
        self.stage.one.run(PATIENT)


def asking(case, stage, address=None):
    return contextlib.closing(Asking(stage, case.asked(stage, address or stage.server)))


def wrong(case):
    def run(stage):
        with asking(case, stage, NOBODY) as client:
            return client.end()
    return run


def killed(case):
    def run(stage):
        with case.served(stage), asking(case, stage) as client:
            client.await_busy()
            stage.two.run(case.kill)
            return client.end()
    return run


def powered_off(case):
    """The other node's QEMU is killed. It is started again before anything else is asked of it."""
    def run(stage):
        try:
            with case.served(stage), asking(case, stage) as client:
                client.await_busy()
                stage.two.kill()
                try:
                    return client.end()
                finally:
                    client.close()
                    stage.boot()
        finally:
            stage.take(stage.path)
    return run


def unloaded(case):
    """The driver is asked to go on the client's node."""
    def run(stage):
        try:
            with case.served(stage), asking(case, stage) as client:
                client.await_busy()
                down = stage.one.run("nupa-down", timeout=LIMIT, check=False)
                if down.code == 0:
                    return client.end()
                if "in use" not in down.err:
                    raise Failed(f"nupa-down: {seen(down)}")
                client.goes_on()
                return None, "refused (in use), the client goes on"
        finally:
            stage.one.up()
            stage.take(stage.path)
    return run


CASES = [
    Case("UCX: ucx_perftest", "ucx-utils", OURS, asks("DEVICES ucx_perftest -P 0 -e NODE -t tag_bw -s 65536 -n 100000000"), server("DEVICES ucx_perftest -P 0 -e", 13337)),
    Case("Open MPI", "openmpi-bin", OURS, mpi, nothing, "pkill -9 -f 'mpi_work.py endles[s]'", "the other rank is killed"),
    Case("rping", "rdmacm-utils", OURS, asks("rping -c -a NODE -V -C 100000000"), server("rping -s -a NODE -V -C 100000000")),
    Case("rstream", "rdmacm-utils", OURS, asks("rstream -S 65536 -C 100000000 -I 2 -s NODE"), server("rstream -S 65536 -C 100000000 -I 2")),
    Case("qperf", "qperf", OURS, asks("qperf -cm 1 -t 300 NODE rc_bw"), server("qperf", 19765)),
    Case("perftest: ib_send_bw", "perftest", OURS, asks("ib_send_bw -D 300 NODE"), server("ib_send_bw -D 300", 18515)),
    Case("libfabric: fi_pingpong", "libfabric-bin", OURS, asks("fi_pingpong -p verbs -e msg -I 100000000 -S 65536 NODE"),
         server("fi_pingpong -p verbs -e msg -I 100000000 -S 65536", 47592)),
    Case("NVMe over RDMA (kernel)", "python3", OURS, kernel.nvme, kernel.nvme_target, kernel.NVME_END, "the disk is taken away"),
    Case("NFS 4 over RDMA (kernel)", "nfs-kernel-server", OURS, kernel.nfs, kernel.nfs_server, kernel.NFS_END, "the server is stopped"),
    Case("iSER (kernel)", "open-iscsi", OURS, kernel.iser, kernel.iser_target, kernel.ISER_END, "the target is stopped"),
    Case("iperf3", "iperf3", TCP, asks("iperf3 -t 300 -c NODE"), server("iperf3 -s -1", 5201)),
    Case("redis", "redis-server", TCP, asks("redis-benchmark -h NODE -t set -d 10000 -n 100000000"),
         server("redis-server --bind 0.0.0.0 --protected-mode no --save ''", 6379)),
    Case("ssh", "openssh-client", TCP, asks("ssh NODE 'exec cat >/dev/null' </dev/zero"), nothing, "kill -9 $(ps -o ppid= -C cat)", "its session is killed"),
]
WORKS = [Work(case.client, case.package, done, "s", act(case), (case.path,), "ended")
         for case in CASES
         for done, act in (("an address that nobody has", wrong), (case.killed, killed), ("the other node is powered off", powered_off),
                           ("`nupa-down` under it", unloaded))]

# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Verbs programs on the nodes (tests/guest), told by the test what to do."""

import contextlib
import ipaddress
import json
import os
import select
import subprocess
import time
from types import SimpleNamespace

from modes import POOLS
from nodes import INTERFACE, START, TOP, CommandFailed, NodeGone
from waiting import PATIENCE

# The tests can be tried on another device, such as a soft RoCE one that is then made over nupanet0.
DEVICE = os.environ.get("NUPA_TEST_RDMA", "nupa_rdma0")
# Its port, as rdma(8) names it.
LINK = f"link {DEVICE}/1"
ALL_ACCESS = "LOCAL_WRITE|REMOTE_WRITE|REMOTE_READ|REMOTE_ATOMIC"


def build_share_library():
    """Builds what programs that share memory load on nodes, which see the tree."""
    lib = TOP / "build" / "lib"
    made = lib / "libnupa-share-test.so"
    new = lib / f"{made.name}.{os.getpid()}"
    where = "/usr/lib/x86_64-linux-gnu/libibverbs"
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{os.environ['NUPA_RDMA_CORE']}/include",
                    f"-I{TOP}/userspace/provider", f"{TOP}/tests/guest/share.c", f"-o{new}", f"-L{lib}",
                    "-l:libnupa-rdmav34.so", "-l:libibverbs.so.1", f"-Wl,-rpath,{where}"], check=True)
    new.rename(made)


class VerbFailed(AssertionError):
    """A verb returned an error; `errno` is None where the program itself failed."""

    def __init__(self, text, errno):
        super().__init__(text)
        self.errno = errno


class Agent:
    """The process on a node that programs are forked from."""

    def __init__(self, node):
        self.node = node
        self.boot = node.pid
        self.programs = 0
        self.answers = {}
        self.text = b""
        self.process = subprocess.Popen(node.ssh("python3 -B /nupa/tests/guest/agent.py"), env=node.environment(),
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.line(START)

    def alive(self):
        return self.process.poll() is None and self.node.pid == self.boot and self.node.alive()

    def line(self, timeout):
        """The next line of the agent's output."""
        timeout *= PATIENCE
        deadline = time.monotonic() + timeout
        while b"\n" not in self.text:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise CommandFailed(f"{self.node.name}: no answer of a verbs program in {timeout} s")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                if not self.node.alive():
                    raise NodeGone(self.node, "a verbs program")
                raise CommandFailed(f"{self.node.name}: the agent ended: {self.process.stderr.read().decode()}")
            self.text += data
        line, _, self.text = self.text.partition(b"\n")
        return line.decode()

    def send(self, number, request):
        self.process.stdin.write(f"{number} {json.dumps(request, default=lambda made: made.id)}\n".encode())
        self.process.stdin.flush()

    def receive(self, number, timeout):
        """The answer to the last request to a program."""
        while number not in self.answers:
            sender, _, text = self.line(timeout).partition(" ")
            self.answers[int(sender)] = json.loads(text)
        return self.answers.pop(number)

    def program(self):
        """A new program."""
        self.programs += 1
        return Program(self, self.programs)

    def close(self):
        self.process.kill()
        self.process.communicate()


class Program:
    """One program. Its methods are those of tests/guest/program.py; what they make can be given to further calls."""

    def __init__(self, agent, number):
        self.agent, self.number = agent, number
        self.node = agent.node
        self.ended = False

    def __getattr__(self, method):
        def call(*args, wait=20, **options):
            self.begin(method, *args, **options)
            return self.result(wait)

        return call

    def begin(self, method, *args, **options):
        """Starts a call; `result` waits for its end. A program does one thing at a time."""
        self.call = f"{method}{args}{options or ''}"
        self.agent.send(self.number, {"method": method, "args": args, "options": options})

    def result(self, wait=20):
        answer = self.agent.receive(self.number, wait)
        if "error" in answer:
            raise VerbFailed(f"{self.node.name}: {self.call[:200]}: {answer['error']}", answer["errno"])
        value = answer["value"]
        return SimpleNamespace(**value) if isinstance(value, dict) and "id" in value else value

    def fails(self, method, *args, **options):
        """The errno of a call that must fail."""
        try:
            value = getattr(self, method)(*args, **options)
        except VerbFailed as failure:
            if failure.errno is None:
                raise
            return failure.errno
        raise AssertionError(f"{self.node.name}: {method}{args}{options} did not fail but returned {value}")

    def end(self, kill=False):
        """Ends the program, after closing all it has or by SIGKILL."""
        self.ended = True
        self.agent.send(self.number, {"kill" if kill else "end": True})
        answer = {}
        while "ended" not in answer:  # what comes before answers a call that was left alone
            answer = self.agent.receive(self.number, 30)
        return answer["ended"]

    def exit(self):
        """Ends the program without closing anything."""
        self.begin("leave")
        self.ended = True
        self.agent.receive(self.number, 30)

    def gid(self, address=None):
        """Index and text of the RoCE v2 entry for an address of the node."""
        wanted = gid_of(address or self.node.ip)
        for entry in self.gids():
            if entry["gid"] == wanted and entry["type"] == ROCE_V2:
                return entry["index"], wanted
        raise AssertionError(f"{self.node.name} has no RoCE v2 GID {wanted}: {self.gids()}")


ROCE_V2 = 2


def gid_of(address):
    """The GID of an IP address, in the form of libibverbs."""
    if ":" not in address:
        address = f"::ffff:{address}"
    return ipaddress.ip_address(address).packed.hex(":", 2)


class Rdma:
    """The verbs programs of one test."""

    def __init__(self, fabric):
        self.fabric = fabric
        self.programs = []

    def program(self, node, device=DEVICE):
        """A new program on a node; it has opened the device unless that is None."""
        install(node)
        agent = self.fabric.agent(node)
        program = agent.program()
        self.programs.append(program)
        if device:
            program.open(device)
        return program

    def kill_all(self):
        """Kills the programs that did not end; none of them may stay."""
        for program in self.programs:
            if not program.ended and program.agent.alive():
                program.end(kill=True)

    def rc(self, one, two, access=ALL_ACCESS, rd_atomic=16, rts=None, **options):
        """Two connected queue pairs, of new programs on two nodes (or on one).

        `options` are for the completion queues and queue pairs, `rts` for the transition to RTS.
        """
        sides = [Side(self.program(node), **options) for node in (one, two)]
        connect(*sides, access, rd_atomic, rts)
        return sides


class Side:
    """One end of a connection: a program with a protection domain, a completion queue and a queue pair.

    `events` gives the completion queue a channel, `extended` makes it an extended one that tells `more` than the standard fields, `overrun`
    one that ignores overruns, `shared` makes a shared receive queue of so many entries; further options are the queue pair's.
    """

    def __init__(self, program, entries=512, events=False, extended=False, shared=0, overrun=False, more="", **options):
        self.program = program
        self.pd = program.pd()
        self.channel = program.channel() if events else None
        self.cq = program.cq(entries, self.channel, extended, overrun, more)
        self.srq = program.srq(self.pd, shared) if shared else None
        self.qp = self.another_qp(**options)

    def another_qp(self, **options):
        return self.program.qp(self.pd, self.cq, srq=self.srq, **options)

    def region(self, size, seed, access=ALL_ACCESS):
        """A buffer of its own and a region of exactly that: `.buffer`, `.address`, `.lkey`, `.rkey`, `.size`."""
        buffer = self.program.buffer(size, seed)
        region = self.program.region(self.pd, buffer, access)
        region.buffer, region.size = buffer, size
        return region

    def check(self, region, patches=()):
        """Fails unless each byte of a region's buffer is what the model says."""
        difference = self.program.check(region.buffer, patches)
        assert difference is None, f"{self.program.node.name}'s buffer is wrong: {difference}"

    def post_recv(self, sges=(), **options):
        self.program.post_recv(self.srq or self.qp, sges, **options)

    def post_send(self, opcode, **request):
        return self.program.post_send(self.qp, opcode, **request)

    def poll(self, count=1, timeout=5.0):
        """Completions, of which there must be so many in time."""
        found = self.program.poll(self.cq, count, timeout, wait=timeout + 20)
        assert len(found) == count, f"{self.program.node.name}: {len(found)} completions in {timeout} s: {found}"
        return found

    def done(self, opcode, wr_id=None, **fields):
        """The next completion, which must be a success of this kind."""
        (found,) = self.poll()
        wanted = {"status": "SUCCESS", "opcode": opcode, **fields} | ({} if wr_id is None else {"wr_id": wr_id})
        assert {name: found[name] for name in wanted} == wanted, f"{self.program.node.name}: {found}, wanted {wanted}"
        return found

    def failed(self, status):
        """The next completion, which must have this status."""
        (found,) = self.poll()
        assert found["status"] == status, f"{self.program.node.name}: {found}, wanted {status}"
        return found

    def quiet(self, seconds=0.2):
        """Fails if there is a completion."""
        found = self.program.poll(self.cq, 1, seconds)
        assert not found, f"{self.program.node.name}: unexpected {found}"

    def state(self):
        return self.program.state(self.qp)


def connect(a, b, access=ALL_ACCESS, rd_atomic=16, rts=None, psns=(0, 0), told=None, rnr_timers=(12, 12)):
    """Brings two sides' queue pairs up to RTS, towards each other.

    Each side's requests begin with a packet sequence number of `psns`, which the other is told, or that of `told`. `rnr_timers` are
    codes, one of each side.
    """
    ends = {side: side.program.gid() for side in (a, b)}
    for side, other, psn, rnr_timer in zip((a, b), (b, a), reversed(told or psns), rnr_timers):
        side.program.to_init(side.qp, access)
        side.program.to_rtr(side.qp, other.qp.qpn, ends[other][1], ends[side][0], rd_atomic, rnr_timer, psn)
    for side, psn in zip((a, b), psns):
        side.program.to_rts(side.qp, psn=psn, **(rts or {}))


def sge(region, offset=0, length=None):
    """An element of a request: address, length, key."""
    return [region.address + offset, region.size - offset if length is None else length, region.lkey]


def remote(region, offset=0):
    """What a request names of the other side's region: address, key."""
    return [region.address + offset, region.rkey]


def send_requests(node, qp):
    """Requests that the send queue of a program's connection holds, as the kernel knows it. Where there are process rings, the provider keeps two for itself."""
    return qp.max_sends + (2 if node.fabric in POOLS else 0)


@contextlib.contextmanager
def counted_by_type(nodes):
    """Has nodes count what queue pairs do, all of a type together."""
    for node in nodes:
        node.run(f"rdma statistic qp set {LINK} auto type on")
    yield
    for node in nodes:
        node.run(f"rdma statistic qp set {LINK} auto off", check=False)


def install(node):
    """Makes the soft RoCE device if the tests are tried on that; ours is there when the modules are loaded."""
    if DEVICE.startswith("rxe"):
        node.run(f"modprobe -a rdma_rxe rdma_ucm; rdma link show {DEVICE}/1 >/dev/null 2>&1 || "
                 f"rdma link add {DEVICE} type rxe netdev {INTERFACE}")


def serve(node, command, port):
    """Starts a server program on a node and waits until it listens on a TCP port."""
    running = node.spawn(f"timeout {100 * PATIENCE} {command}")
    node.run(f"for i in $(seq {100 * PATIENCE}); do ss -Hltn 'sport = :{port}' | grep -q . && exit 0; sleep 0.1; done; exit 1")
    return running

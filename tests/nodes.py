# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Nodes (QEMU guests) and the switch that some are joined by, as the scripts in vms/ run them."""

import json
import os
import pathlib
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time

import reaper
from kernel_log import KernelLog
from waiting import PATIENCE, wait_until

TOP = pathlib.Path(__file__).resolve().parent.parent
VMS = TOP / "vms"
INTERFACE = "nupanet0"
# Which messages of all programs on nodes go past the engines, where tests do not say (Documentation/process-rings.md).
RINGS_VARIABLE = "NUPA_PROCESS_RINGS"
RINGS = os.environ.get(RINGS_VARIABLE)
# Where a node has what joins it to others, by mode: the bus, the name of our driver there, a command that prints the
# device's name on the bus.
DEVICES = {
    "pcie": ("pci", "nupa_fabric", "lspci -Dn -d 1af4:10f0 | cut -d' ' -f1"),
    "cxl": ("dax", "nupa_fabric", "ls /sys/bus/dax/devices"),
    "ivshmem": ("pci", "nupa_ivshmem", "lspci -Dn -d 1af4:1110 | cut -d' ' -f1"),
}


class CommandFailed(AssertionError):
    """A command on a node did not do what the test relies on."""


class NodeGone(Exception):
    """A node is not there any more, though no test ended it. No waiting makes that good, so it is no AssertionError."""

    def __init__(self, node, during):
        super().__init__(f"{node.name} ended by itself, at the latest during: {during}\n{node.last_words(20)}")


# Before this, nothing is of this run. Clocks of the kernel's log and of programs part by seconds in a long time.
BEFORE = time.monotonic() - 120


def fatal_here(count=5, since=BEFORE):
    """What this machine's kernel said last of processes that a fault or a lack of memory ended; in this run, if it is not said since when."""
    said = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace", check=False).stdout
    fatal = re.findall(r"^\[ *([0-9.]+)\] (?=.*(?:segfault|general protection|trap |Killed process))(.*)$", said, re.MULTILINE)
    return [line for time_said, line in fatal if float(time_said) >= since][-count:]


class Result:
    """What a command on a node left."""

    def __init__(self, node, command, code, out, err):
        self.node, self.command, self.code, self.out, self.err = node, command, code, out, err

    def __str__(self):
        return f"{self.node.name}# {self.command}\n{self.out}{self.err}[exit {self.code}]"

    def json(self):
        return json.loads(self.out)


class Background:
    """A command that runs on a node while the test goes on."""

    def __init__(self, node, command, process):
        self.node, self.command, self.process = node, command, process

    def running(self):
        return self.process.poll() is None

    def wait(self, timeout):
        """Result of the command, which must end within `timeout` seconds."""
        timeout *= PATIENCE
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            text = Result(self.node, self.command, "still running", out, err)
            raise CommandFailed(f"no end after {timeout} s:\n{text}") from None
        return self.node.record(Result(self.node, self.command, self.process.returncode, out, err))

    def abandon(self):
        """Ends the local end of it; the node may be gone."""
        if self.running():
            self.process.kill()
        self.process.communicate()


def process_alive(pid):
    """Whether a process runs (one that only waits to be reaped does not)."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


# Seconds for a node to start, and for Python with pyverbs, which takes a node that has just started 6 s where nothing else runs. Neither is what is tested,
# and on two processors three pairs of nodes start beside each other.
START = 120


class Node:
    """One guest; `number` counts from 1 and gives its socket, addresses and log."""

    def __init__(self, number, run_dir, cpus=2, peernet="none", fabric="pcie"):
        self.number = number
        self.name = f"node{number}"
        self.run_dir = pathlib.Path(run_dir)
        self.cpus = cpus
        self.peernet = peernet
        self.fabric = fabric
        self.ip = f"10.77.0.{number}"
        self.ip6 = f"fd77::{number}"
        self.log = KernelLog(self.run_dir / f"{self.name}.log")
        self.history = []
        self._login = (None, [])

    # Starting and ending.

    @property
    def pid(self):
        try:
            return int((self.run_dir / f"{self.name}.pid").read_text())
        except (OSError, ValueError):
            return None

    def alive(self):
        pid = self.pid
        return pid is not None and process_alive(pid)

    def begin_start(self):
        """Starts QEMU; `finish_start` waits for the guest."""
        command = [str(VMS / "start"), "--fabric", self.fabric, "--background", str(self.number)]
        self._starter = subprocess.Popen(
            command, env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )

    def finish_start(self, timeout=START):
        try:
            out, _ = self._starter.communicate(timeout=timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            self._starter.kill()
            raise CommandFailed(f"{self.name} did not start in {timeout} s\n{self.log.tail()}") from None
        if self._starter.returncode != 0:
            raise CommandFailed(f"{self.name} did not start:\n{out}\n{self.log.tail()}")
        wait_until(f"ssh into {self.name}", lambda: self.run("test -e /run/ready", timeout=20, check=False).code == 0,
                   timeout=timeout)
        self.log.checked = 0

    def start(self):
        self.begin_start()
        self.finish_start()

    def kill(self):
        """Ends QEMU as a crash of the host would: SIGKILL."""
        pid = self.pid
        os.kill(pid, signal.SIGKILL)
        wait_until(f"{self.name}'s QEMU to be gone", lambda: not process_alive(pid), timeout=10)

    def stop(self):
        subprocess.run([str(VMS / "stop"), str(self.number)], env=self.environment(), timeout=60, check=False,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stand_still(self):
        """Stops its processors and its clock, until `go_on`."""
        self.monitor("stop")

    def go_on(self):
        """Has it go on, under TCG as if no time had passed."""
        self.monitor("cont")

    def monitor(self, command):
        """Has its QEMU carry out a command of the monitor protocol (QMP), and returns what that gives."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30 * PATIENCE)
            connection.connect(str(self.run_dir / f"{self.name}.qmp"))
            answers = connection.makefile()
            answers.readline()  # its greeting
            for each in ("qmp_capabilities", command):
                connection.sendall(json.dumps({"execute": each}).encode())
                # Events may come before the answer.
                answer = next((found for found in map(json.loads, answers) if "event" not in found), None)
                if answer is None or "return" not in answer:
                    raise CommandFailed(f"{self.name}: QEMU's answer to {each}: {answer}")
            return answer["return"]

    def environment(self):
        """Variables that tell the scripts in vms/ which node is meant."""
        return dict(os.environ, NUPA_RUN=str(self.run_dir), CPUS=str(self.cpus), PEERNET=self.peernet)

    def last_words(self, count=25):
        """What QEMU said and what the guest printed last, up to so many lines."""
        try:
            said = (self.run_dir / f"{self.name}.qemu").read_text(errors="replace").strip()[-1500:]
        except OSError:
            said = ""
        ended = "\n".join(fatal_here()) or "nothing"
        return f"QEMU said: {said or 'nothing'}\nThis machine's kernel said of processes that it ended: {ended}\nThe guest printed:\n{self.log.last_words(count)}"

    # Commands.

    def ssh(self, command):
        """The local command that runs a shell command on the node.

        It is asked for once a boot: the script takes twenty times as long as what it runs.
        """
        script, pid = str(VMS / "ssh"), self.pid
        if self._login[0] != pid:
            found = subprocess.run([script, "--print", str(self.number)], env=self.environment(), capture_output=True,
                                   text=True, check=False)
            self._login = pid if found.returncode == 0 else None, found.stdout.splitlines()
        if RINGS is not None:
            command = f"export {RINGS_VARIABLE}={RINGS}; {command}"
        if pid is None or self._login[0] != pid or not process_alive(pid):
            return [script, str(self.number), command]
        return [*self._login[1], command]

    def record(self, result):
        """Keeps a result for the report of a failure."""
        self.history.append(result)
        return result

    def run(self, command, timeout=30, check=True, stdin=None):
        """Runs a shell command on the node; fails unless it ends in time, and with 0 if `check`."""
        timeout *= PATIENCE
        try:
            done = subprocess.run(self.ssh(command), env=self.environment(), input=stdin, capture_output=True,
                                  text=True, errors="replace", timeout=timeout, check=False,
                                  stdin=subprocess.DEVNULL if stdin is None else None)
        except subprocess.TimeoutExpired as late:
            self.history.append(Result(self, command, "timeout", str(late.stdout or ""), str(late.stderr or "")))
            raise CommandFailed(f"{self.name}: no end after {timeout} s: {command}") from None
        result = self.record(Result(self, command, done.returncode, done.stdout, done.stderr))
        if result.code == 255 and not self.alive():
            raise NodeGone(self, command)
        if check and result.code != 0:
            raise CommandFailed(f"failed:\n{result}")
        return result

    def spawn(self, command):
        """Starts a shell command on the node and returns at once."""
        process = subprocess.Popen(self.ssh(command), env=self.environment(), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        return Background(self, command, process)

    # What tests ask for again and again.

    def up(self):
        """Loads the modules where they are missing, and gives the interface its addresses."""
        self.run("nupa-up", timeout=60)

    def carrier(self):
        return self.run(f"cat /sys/class/net/{INTERFACE}/carrier", check=False).out.strip() == "1"

    def read(self, path):
        return self.run(f"cat {path}").out.strip()

    def device(self):
        """Name of the device that the driver is for, on its bus: a PCI function's address, or daxX.Y."""
        return self.run(DEVICES[self.fabric][2]).out.split()[0]

    def device_directory(self):
        """Directory of the device in sysfs."""
        return f"/sys/bus/{DEVICES[self.fabric][0]}/devices/{self.device()}"

    def driver_directory(self):
        """Directory in sysfs of the driver that the device is bound to."""
        bus, driver, _ = DEVICES[self.fabric]
        return f"/sys/bus/{bus}/drivers/{driver}"

    def link(self, interface=INTERFACE):
        """`ip -j -d -s link show` of an interface."""
        return self.run(f"ip -j -d -s link show dev {interface}").json()[0]

    def pings(self, address, count=3, options="", deadline=15):
        """Pings until so many answers came; returns how many did, at most `count`: on a slow machine ping has sent more by then."""
        result = self.run(f"ping -n -q -c {count} -i 0.05 -w {deadline} {options} {shlex.quote(address)}",
                          timeout=deadline + 15, check=False)
        for line in result.out.splitlines():
            if "received" in line:
                return min(count, int(line.split(" received")[0].split(",")[-1].split()[0]))
        return 0

    def await_ping(self, address, timeout=30):
        """Waits until an address answers, and returns how many seconds that took."""
        start = time.monotonic()
        wait_until(f"{self.name} to reach {address}", lambda: self.pings(address, 1, deadline=1), timeout)
        return time.monotonic() - start


def make_run_dir(prefix):
    """A directory for sockets and logs, in memory: a disk that is slow to take a log line would stall the guest.

    What runs there ends with this process, unless `reaper.release` is told otherwise.
    """
    memory = pathlib.Path("/dev/shm")
    run_dir = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=memory if os.access(memory, os.W_OK) else None))
    reaper.watch(run_dir)
    return run_dir


def stop_all(run_dir):
    """Ends every process that belongs to a run directory."""
    subprocess.run([str(VMS / "stop"), "all"], env=dict(os.environ, NUPA_RUN=str(run_dir)), timeout=60, check=False)


class Switch:
    """The emulated fabric: its process and its control socket."""

    def __init__(self, run_dir, nodes=4, options=()):
        self.run_dir = pathlib.Path(run_dir)
        self.nodes = nodes
        self.options = list(options)
        self.process = None

    def start(self):
        program = TOP / "build" / "bin" / "nupa-switch"
        output = open(self.run_dir / "switch.log", "ab")
        self.process = subprocess.Popen(
            [str(program), "--dir", str(self.run_dir), "--nodes", str(self.nodes), *self.options],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=dict(os.environ, NUPA_RUN=str(self.run_dir)),
        )
        output.close()
        (self.run_dir / "switch.pid").write_text(f"{self.process.pid}\n")
        wait_until("the switch to answer or to give up", self._answers_or_ended, timeout=10)
        if self.process.poll() is not None:
            raise CommandFailed(f"the switch ended at once:\n{self.log_tail()}")

    def running(self):
        return self.process is not None and self.process.poll() is None

    def _answers_or_ended(self):
        return self.process.poll() is not None or self.control("stats")["ok"]

    def control(self, command):
        """Sends one command to the control socket; returns its answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(10)
            connection.connect(str(self.run_dir / "control.sock"))
            connection.sendall(command.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                data = connection.recv(65536)
                if not data:
                    break
                answer += data
        reply = json.loads(answer)
        if not reply.get("ok"):
            raise CommandFailed(f"switch: {command}: {reply.get('error', reply)}")
        return reply

    def link(self, number, up):
        self.control(f"link {number} {'up' if up else 'down'}")

    def fault(self, number, word="none"):
        self.control(f"fault {number} {word}")

    def stats(self, number):
        """Counters of one node."""
        return next(node for node in self.control("stats")["nodes"] if node["node"] == number)

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=10)

    def stop(self):
        """Ends it as a person would; it must go by itself."""
        if self.running():
            self.process.terminate()
            return self.process.wait(timeout=10)
        return 0

    def log_tail(self, count=30):
        try:
            return "\n".join((self.run_dir / "switch.log").read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return ""

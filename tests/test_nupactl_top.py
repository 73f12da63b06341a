# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl top: links, nodes and queues, as a page and on a terminal."""

import contextlib
import re

from nodes import INTERFACE
from test_nupactl import FINE, NAMED, NOTHING, NUPACTL, USAGE
from test_nupactl_ping import USER, node_id
from verbs import DEVICE
from waiting import wait_until

# Runs a command on a terminal of 80x24. What is written to the fifo is typed; what is shown goes to a file without the codes
# that move the cursor. In the end it says how the command ended, and whether the terminal is as it was.
TERMINAL = """rm -f /run/top.keys /run/top.out; mkfifo /run/top.keys; exec timeout 120 python3 -c '
import fcntl, os, pty, re, select, struct, sys, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
before = termios.tcgetattr(slave)
child = os.fork()
if child == 0:
    os.close(master)
    os.login_tty(slave)
    os.environ["TERM"] = "xterm"
    os.execvp(sys.argv[1], sys.argv[1:])
keys = os.open("/run/top.keys", os.O_RDWR)
out = open("/run/top.out", "w")
while True:
    ready = select.select([master, keys], [], [], 0.1)[0]
    if keys in ready:
        os.write(master, os.read(keys, 100))
    if master in ready:
        text = os.read(master, 65536).decode(errors="replace")
        out.write(re.sub("\\x1b\\\\[[0-9;?]*[A-Za-z]", " ", text))
        out.flush()
    elif os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        break
ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
same = "as it was" if termios.tcgetattr(slave) == before else "changed"
print(f"ended with {ended}, the terminal is {same}")
' """


@contextlib.contextmanager
def terminal(node, arguments):
    """Runs `nupactl top` on a terminal meanwhile; gives functions that type, and that return what was shown, and the run."""
    node.run("rm -f /run/top.keys /run/top.out")
    running = node.spawn(f"{TERMINAL} {NUPACTL} top {arguments}")

    def shown():
        return node.run("cat /run/top.out", check=False).out

    def types(keys):
        node.run(f"printf '%b' '{keys}' >/run/top.keys")

    wait_until("the first page", lambda: "q quit" in shown())
    try:
        yield types, shown, running
    finally:
        if running.running():
            node.run("pkill -x nupactl", check=False)
        running.wait(15)


def test_a_page(settled, rdma, saw):
    one, two = settled
    number = node_id(two)
    a, _ = rdma.rc(one, two)
    page = one.run(f"{NAMED} '{number} beta\\n' {NUPACTL} top --once -i 0.1").out
    as_user = one.run(f"{USER} {NUPACTL} top -i 0.1").out
    for text in page, as_user:
        # What it shows at all is the same for everybody.
        assert re.search(rf"^{re.escape(one.device())} +{node_id(one)} +up", text, re.MULTILINE), text
        assert re.search(rf"^{a.qp.qpn} +{DEVICE} +RC +RTS +{number}", text, re.MULTILINE), text
        assert re.search(rf"^{INTERFACE} +\d+ ", text, re.MULTILINE) and re.search(rf"^{DEVICE} +\d+ +\d+ +\d+ ", text, re.MULTILINE), text
        assert all(len(line) <= 80 for line in text.splitlines()), text
    assert f"{number} (beta)" in page and "\x1b" not in page
    for wrong in "top --json", "top --sort x", "top -i 0":
        done = one.run(f"{NUPACTL} {wrong}", check=False)
        assert done.code == USAGE and not done.out and done.err, done
    saw(page.splitlines()[1])


def test_a_terminal(pair, saw):
    """It goes on when the module is unloaded, and puts the terminal back."""
    one, two = pair
    with terminal(one, "-i 0.2") as (types, shown, running):
        assert "SENT/S" in shown() and one.device() in shown() and "NODE UP" in shown()
        types("sa\\e[B")
        one.run("nupa-down", timeout=60)
        wait_until("a word", lambda: "The driver is not loaded" in shown())
        seen = len(shown())
        one.up()
        wait_until("the controller", lambda: one.device() in shown()[seen:], 30)
        types("q")
        done = running.wait(20)
        assert done.out == "ended with 0, the terminal is as it was\n", done
    with terminal(one, "") as (types, _, running):
        one.run("pkill -x nupactl")
        done = running.wait(20)
        assert done.out == "ended with 0, the terminal is as it was\n", done
    one.run("nupa-down", timeout=60)
    nothing = one.run(f"{NUPACTL} top --once", check=False)
    assert nothing.code == NOTHING and "`modprobe nupa_fabric`" in nothing.err, nothing
    assert two.run(f"{NUPACTL} top --once -i 0.1", check=False).code == FINE
    saw(done.out.strip())


def test_unloads_beside_readers(pair, saw):
    """A module that somebody reads from just then is unloaded once that is done. perf holds it for as long as it counts."""
    one, _ = pair
    one.up()

    def references():
        return one.run("cat /sys/module/nupa_fabric/refcnt").out

    before = references()
    reader = one.spawn("perf stat -a -e nupa:nupa_link -- sleep 3 2>/run/perf.out; echo done")
    wait_until("the reader", lambda: references() != before)
    one.run("nupa-down", timeout=60)
    assert reader.wait(10).out == "done\n"
    saw("unloaded after the reader")

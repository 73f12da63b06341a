# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Ways of a kernel to send and receive past copies, or past its protocols: MSG_ZEROCOPY, io_uring, AF_PACKET, AF_XDP."""

import re

from nodes import INTERFACE
from sockets import BLOB, COPY, blob, compare, work
from stage import Failed

HERE = "/nupa/scripts/clients.d"
SIZE = 8 << 20
PORT = 9000


def sender(how):
    """send_work.py sends a file to socat."""
    def run(stage):
        sent = blob(stage, stage.one, SIZE)
        stage.run(f"rm -f {COPY}", node=stage.two)
        with stage.serving(f"socat -u TCP-LISTEN:{PORT},reuseaddr CREATE:{COPY}", port=PORT, ends=True):
            told = stage.run(f"python3 -B {HERE}/send_work.py {how} {BLOB} {stage.server} {PORT} 2>&1", seconds=120)
        compare(stage, stage.two, sent)
        counted = re.search(r"(\d+) pieces sent, (\d+) of them copied", told)
        if not counted:
            raise Failed(f"it printed: {told.strip()[-100:]}")
        if how != "uring" and counted[2] != "0":
            raise Failed(f"{counted[2]} of {counted[1]} pieces were copied")
    return run


def frames(how, mtu, undo="true"):
    """frames_work.py has frames sent back by node 2, one queue of whose interface is in use then."""
    def run(stage):
        mac, told = stage.two.read(f"/sys/class/net/{INTERFACE}/address"), "/tmp/clients.frames"
        queues = stage.two.run(f"ethtool -l {INTERFACE} | sed -n 's/^Combined:[^0-9]*//p' | tail -1").out.strip()
        stage.two.run(f"rm -f {told}; ethtool -L {INTERFACE} combined 1; mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf", check=False)
        try:
            with stage.serving(f"exec python3 -B {HERE}/frames_work.py {how} {INTERFACE} >{told}", ready=f"grep -q ready {told}"):
                stage.run(f"python3 -B {HERE}/frames_work.py ask {INTERFACE} {mac} {mtu or stage.one.read(f'/sys/class/net/{INTERFACE}/mtu')} 2>&1")
        finally:
            stage.two.run(f"{undo}; ethtool -L {INTERFACE} combined {queues or 1}", check=False)
            stage.one.await_ping(stage.two.ip)
    return run


WORKS = [
    work("MSG_ZEROCOPY (kernel)", "python3", "8 MB sent, compared; no piece copied", "", sender("zerocopy")),
    work("io_uring (kernel)", "liburing2", "`io_uring_prep_send`: 8 MB, compared", "", sender("uring")),
    work("io_uring (kernel)", "liburing2", "`io_uring_prep_send_zc`: 8 MB, compared; no piece copied", "", sender("uring-zerocopy")),
    work("AF_PACKET (kernel)", "python3", "frames of 60 bytes up to the MTU there and back, compared", "", frames("echo-packet", None)),
    work("AF_XDP (kernel)", "libxdp1", "generic mode, copying: frames of 60 to 1514 bytes there and back, compared", "",
         frames("echo-xdp", 1500, f"ip link set {INTERFACE} xdpgeneric off")),
]

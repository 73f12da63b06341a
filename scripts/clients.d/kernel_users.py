# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Users of RDMA in the kernel: NFS and RDS. Their modules come from the kernel's own directory, which the stage has nodes see."""

import contextlib
import re

from perftest import qperf_figure
from sockets import BLOB, COPY, blob, compare
from stage import OURS, ROOT, TCP, Failed
from work import Work

MOUNTED = "/mnt"
EXPORTED = "/export"
# NFS version 4 alone, which needs no rpcbind. A server that has just started waits for clients of its life before, here as short as can be.
SERVE = f"""set -e
mkdir -p {EXPORTED}
mount -t tmpfs tmpfs {EXPORTED}
mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
exportfs -o rw,no_root_squash,insecure,fsid=0 '*:{EXPORTED}'
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd -N 3 RDMA 2
exec rpc.mountd -F -N 3
"""
STOP = f"exportfs -ua; rpc.nfsd 0; umount {EXPORTED}"


def modules(stage, *names):
    """Loads modules on both nodes, of which one may be what a user of RDMA there needs."""
    for node in (stage.one, stage.two) if names else ():
        loaded = node.run(f"modprobe -d {ROOT} -a {' '.join(names)}", timeout=60, check=False)
        if loaded.code != 0:
            raise Failed(f"modprobe: {(loaded.err.strip().splitlines() or ['no message'])[-1]}")


@contextlib.contextmanager
def unloading(stage, *names):
    """Unloads modules afterwards, with all that they have of RDMA."""
    try:
        yield
    finally:
        for node in (stage.one, stage.two):
            node.run(f"for m in {' '.join(names)}; do [ ! -d /sys/module/$m ] || rmmod $m; done", timeout=60, check=False)


def nfs(stage):
    """A file is written to another node's memory, compared there, and read back, past the caches."""
    by_rdma = stage.path != TCP
    modules(stage, "nfsd", "nfsv4", "rpcrdma")
    try:
        with stage.serving(SERVE.replace("RDMA", "--rdma=20049" if by_rdma else ""), port=2049):
            stage.run(f"mount -t nfs4 -o sec=sys,{'rdma,port=20049' if by_rdma else 'proto=tcp'} {stage.server}:/ {MOUNTED}", seconds=120)
            try:
                return through(stage)
            finally:
                stage.run(f"umount {MOUNTED}", seconds=120)
    finally:
        stage.run(STOP, node=stage.two)
        with unloading(stage, "nfsv4", "nfsd", "rpcrdma"):
            pass


def through(stage):
    sent = blob(stage, stage.one, 32 << 20)
    stage.run(f"dd if={BLOB} of={MOUNTED}/blob bs=1M oflag=direct status=none")
    stage.run(f"cp {EXPORTED}/blob {COPY}", node=stage.two)
    compare(stage, stage.two, sent)
    told = stage.run(f"rm -f {COPY}; dd if={MOUNTED}/blob of={COPY} bs=1M iflag=direct 2>&1")
    compare(stage, stage.one, sent)
    seconds = re.search(r"copied, ([\d.]+) s", told)
    if not seconds:
        raise Failed(f"dd printed no time: {told.strip()[-100:]}")
    return (32 << 20) / float(seconds[1]) / 1e6


def rds(test, what, unit):
    """A test of qperf over sockets of RDS, whose transport is the one whose module is there."""
    def run(stage):
        with unloading(stage, "rds_rdma", "rds_tcp", "rds"):
            modules(stage, "rds_tcp" if stage.path == TCP else "rds_rdma")
            # Its client may ask for a second connection before its server listens there, so it is asked three times.
            with stage.serving("qperf", port=19765):
                out = stage.run(f"for i in 1 2 3; do qperf {stage.server} {test} && exit; sleep 1; done; exit 1")
            return qperf_figure(out, what)
    # Not over soft RoCE: a kernel of this version ends there when the module is unloaded.
    return Work("RDS (kernel)", "qperf", f"`qperf NODE {test}`", unit, run, (OURS, TCP))


WORKS = [
    Work("NFS 4 (kernel)", "nfs-kernel-server", "32 MB written and read past the caches, compared; read shown", "MB/s", nfs),
    rds("rds_bw", "bw", "MB/s"),
    rds("rds_lat", "latency", "us"),
]

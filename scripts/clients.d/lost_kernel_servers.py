# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Disks and files of the other node for failures.py: what reads them has to end with an error when they go.

By default these wait for minutes or for ever for a server to come back, as people want it. Here they are told to give up after some seconds.
"""

import contextlib

import disks
import kernel_users
from kernel_users import EXPORTED, MOUNTED, modules, unloading
from stage import ROOT, Failed

READ = "while dd if={} of=/dev/null bs=64k iflag=direct status=none; do :; done; exit 1"

NVMET = "/sys/kernel/config/nvmet"
NVME_SERVE = f"""set -e
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
truncate -s 32M /run/clients.disk
cd {NVMET}
mkdir subsystems/test subsystems/test/namespaces/1 ports/1
echo 1 >subsystems/test/attr_allow_any_host
printf /run/clients.disk >subsystems/test/namespaces/1/device_path
echo 1 >subsystems/test/namespaces/1/enable
cd ports/1
echo rdma >addr_trtype; echo ipv4 >addr_adrfam; echo ADDRESS >addr_traddr; echo 4420 >addr_trsvcid
ln -s {NVMET}/subsystems/test subsystems/test
"""
NVME_END = f"rm -f {NVMET}/ports/1/subsystems/test"
NVME_STOP = f"""cd {NVMET} 2>/dev/null || exit 0
rm -f ports/1/subsystems/test; rmdir ports/1
echo 0 >subsystems/test/namespaces/1/enable; rmdir subsystems/test/namespaces/1 subsystems/test; rm -f /run/clients.disk
"""
NVME_NAMES = ("nvme_rdma", "nvme_fabrics", "nvme_core", "nvmet_rdma", "nvmet")


@contextlib.contextmanager
def nvme_target(stage):
    with unloading(stage, *NVME_NAMES):
        modules(stage, "nvmet_rdma", "nvme_rdma")
        stage.two.run(NVME_SERVE.replace("ADDRESS", stage.server))
        try:
            yield
        finally:
            stage.one.run("for each in /sys/class/nvme/nvme*/delete_controller; do [ ! -e $each ] || echo 1 >$each; done", timeout=90, check=False)
            stage.two.run(NVME_STOP, timeout=60, check=False)


def nvme(stage, address):
    modules(stage, "nvme_rdma")
    return (f"set -e; echo transport=rdma,traddr={address},trsvcid=4420,nqn=test,nr_io_queues=1,reconnect_delay=1,ctrl_loss_tmo=5,fast_io_fail_tmo=3 "
            f">/dev/nvme-fabrics; for i in $(seq 50); do [ -b /dev/nvme0n1 ] && break; sleep 0.1; done; set +e; {READ.format('/dev/nvme0n1')}")


NFS_END = f"chroot {ROOT} env PATH=/usr/sbin:/usr/bin:/sbin:/bin rpc.nfsd 0"


@contextlib.contextmanager
def nfs_server(stage):
    modules(stage, "nfsd", "nfsv4", "rpcrdma")
    with unloading(stage, "nfsv4", "nfsd", "rpcrdma"):
        try:
            with stage.serving(kernel_users.SERVE.replace("RDMA", "--rdma=20049"), port=2049):
                stage.run(f"truncate -s 32M {EXPORTED}/blob", node=stage.two)
                yield
        finally:
            stage.one.run(f"umount -f /clients{MOUNTED} || umount -l /clients{MOUNTED}", timeout=90, check=False)
            stage.result(kernel_users.STOP, node=stage.two)


def nfs(stage, address):
    modules(stage, "nfsv4", "rpcrdma")
    return (f"mount -t nfs4 -o sec=sys,rdma,port=20049,soft,timeo=20,retrans=1,retry=0 {address}:/ {MOUNTED} || exit; {READ.format(f'{MOUNTED}/blob')}")


ISER_END = f"echo 0 >{disks.TARGET}/iscsi/{disks.ISCSI}/tpgt_1/enable"


@contextlib.contextmanager
def iser_target(stage):
    place, portal = f"{disks.TARGET}/iscsi/{disks.ISCSI}/tpgt_1", f"np/{stage.server}:3260"
    names = ("ib_iser", "libiscsi", "scsi_transport_iscsi", "sd_mod", "ib_isert", "iscsi_target_mod", "target_core_mod")
    with unloading(stage, *names):
        modules(stage, "sd_mod", "ib_iser", "ib_isert", "iscsi_target_mod")
        listen = f"mkdir {place}/{portal}\necho 1 >{place}/{portal}/iser\n"
        with disks.target(stage, place, disks.AUTHENTICATION.replace("PLACE", place), listen):
            try:
                yield
            finally:
                found = stage.result("pgrep iscsid >/dev/null || { iscsid -f >/dev/null 2>&1 & sleep 1; }; iscsiadm -m node -u; "
                                     "iscsiadm -m node -o delete; iscsiadm -k 0", seconds=90)
                if found.code == 124:
                    raise Failed("its session cannot be ended")


def iser(stage, address):
    """The daemon that an initiator has beside it goes with the client. It must not have the client's output, which does not end before it then.
    Another daemon cannot end a session whose target is gone, so this one does.
    """
    modules(stage, "sd_mod", "ib_iser")
    node = f"iscsiadm -m node -T {disks.ISCSI} -p {address}:3260"
    told = {"node.session.timeo.replacement_timeout": 5, "node.session.initial_login_retry_max": 1, "node.conn[0].timeo.login_timeout": 5,
            "iface.transport_name": "iser"}
    updates = " && ".join(f"{node} -o update -n '{name}' -v {value}" for name, value in told.items())
    return ("printf 'InitiatorName=iqn.2026-01.test:one\\n' >/etc/iscsi/initiatorname.iscsi; mkdir -p /run/lock/iscsi; iscsid -f >/dev/null 2>&1 & "
            f"for i in $(seq 50); do iscsiadm -m session >/dev/null 2>&1; [ $? = 21 ] && break; sleep 0.2; done; {node} -o new && {updates} && {node} --login || exit; "
            "for i in $(seq 50); do for d in /sys/block/sd*; do [ ! -e $d ] || break 2; done; sleep 0.2; done; " + READ.format("/dev/${d##*/}").replace("exit 1", f"{node} -u; exit 1"))

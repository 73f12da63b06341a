# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Disks of SCSI that the other node has in its memory, by SRP and iSER, and by iSCSI over TCP beside that."""

import contextlib

from kernel_users import modules, unloading
from sockets import BLOB, COPY, blob, compare
from stage import OURS, RDMA_DEVICE, ROCE, ROOT, TCP, Failed
from work import Work

SIZE = 8 << 20
TARGET = "/sys/kernel/config/target"
DISK = f"""set -e
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
mkdir -p {TARGET}/core/rd_mcp_0/disk
echo rd_pages=4096 >{TARGET}/core/rd_mcp_0/disk/control
echo 1 >{TARGET}/core/rd_mcp_0/disk/enable
"""
# Lists the disk at a place, which has directories as configfs has them.
SERVE = f"""mkdir -p PLACE/lun/lun_0
ln -s {TARGET}/core/rd_mcp_0/disk PLACE/lun/lun_0/disk
echo 1 >PLACE/enable
"""
# Undoes all of that, from the inside outwards.
STOP = f"""cd {TARGET} || exit 0
for each in iscsi/*/tpgt_* srpt/*/tpgt_*; do
    [ -d $each ] || continue
    echo 0 >$each/enable
    for acl in $each/acls/*; do
        [ -d $acl ] || continue
        rm -f $acl/lun_0/disk
        rmdir $acl/lun_0 $acl
    done
    rm -f $each/lun/lun_0/disk
    for inner in $each/lun/lun_0 $each/np/*; do [ ! -d $inner ] || rmdir $inner; done
    rmdir $each $(dirname $each)
done
[ ! -d srpt ] || echo 0 >srpt/discovery_auth/rdma_cm_port
for each in iscsi srpt core/rd_mcp_0/disk core/rd_mcp_0; do [ ! -d $each ] || rmdir $each; done
"""
ISCSI = "iqn.2026-01.test:disk"
AUTHENTICATION = "echo 0 >PLACE/attrib/authentication; echo 1 >PLACE/attrib/generate_node_acls; echo 0 >PLACE/attrib/demo_mode_write_protect\n"


@contextlib.contextmanager
def target(stage, place, before="", after=""):
    """Node 2 has a disk in its memory meanwhile, and a target's portal group at `place` that has it."""
    try:
        stage.two.run(DISK + f"mkdir -p {place}\n" + before + SERVE.replace("PLACE", place) + after, timeout=60)
        yield
    finally:
        stage.two.run(STOP, timeout=60, check=False)


def disk_of(stage):
    """Waits for the disk on node 1, and returns its device."""
    found = stage.one.run("for i in $(seq 100); do for d in /sys/block/sd*; do [ ! -e $d ] || { echo /dev/${d##*/}; exit; }; done; sleep 0.1; done",
                          timeout=40, check=False).out.strip()
    if not found:
        raise Failed("the disk does not appear")
    return found


def through(stage):
    """Writes a file to the disk and reads it back, past the caches."""
    sent = blob(stage, stage.one, SIZE)
    disk = disk_of(stage)
    stage.run(f"rm -f {COPY}; dd if={BLOB} of={disk} bs=256k oflag=direct status=none && "
              f"dd if={disk} of={COPY} bs=256k count={SIZE >> 18} iflag=direct status=none", seconds=120)
    compare(stage, stage.one, sent)


def iscsi(stage):
    by_rdma = stage.path != TCP
    place, portal = f"{TARGET}/iscsi/{ISCSI}/tpgt_1", f"np/{stage.server}:3260"
    with unloading(stage, "ib_iser", "iscsi_tcp", "libiscsi_tcp", "libiscsi", "scsi_transport_iscsi", "sd_mod", "ib_isert", "iscsi_target_mod", "target_core_mod"):
        modules(stage, "sd_mod", "ib_iser" if by_rdma else "iscsi_tcp", *(["ib_isert"] if by_rdma else []), "iscsi_target_mod")
        listen = f"mkdir {place}/{portal}\n" + (f"echo 1 >{place}/{portal}/iser\n" if by_rdma else "")
        with target(stage, place, AUTHENTICATION.replace("PLACE", place), listen):
            stage.run("printf 'InitiatorName=iqn.2026-01.test:one\\n' >/etc/iscsi/initiatorname.iscsi; mkdir -p /run/lock/iscsi")
            daemon = stage.one.spawn(stage.inside("iscsid -f", 300))
            try:
                node = f"iscsiadm -m node -T {ISCSI} -p {stage.server}:3260"
                stage.run(f"for i in $(seq 50); do iscsiadm -m session >/dev/null 2>&1; [ $? = 21 ] && break; sleep 0.2; done; {node} -o new && "
                          f"{node} -o update -n iface.transport_name -v {'iser' if by_rdma else 'tcp'} && {node} --login", seconds=90)
                try:
                    through(stage)
                finally:
                    stage.run(f"{node} --logout; {node} -o delete", seconds=90)
            finally:
                stage.stop(stage.one)
                daemon.abandon()


# Whom a target of SRP lets in, and what that one sees of it. By rdma_cm it takes its own address for the initiator's (srpt_rdma_cm_req_recv).
ADMIT = f"""mkdir PLACE/acls/ADDRESS PLACE/acls/ADDRESS/lun_0
ln -s PLACE/lun/lun_0 PLACE/acls/ADDRESS/lun_0/disk
echo 5555 >{TARGET}/srpt/discovery_auth/rdma_cm_port
"""


def srp(stage):
    device = RDMA_DEVICE[stage.path]
    with unloading(stage, "ib_srp", "scsi_transport_srp", "sd_mod", "ib_srpt", "target_core_mod"):
        modules(stage, "sd_mod", "ib_srp")
        stage.two.run(f"modprobe -d {ROOT} ib_srpt", timeout=60)
        # A target is named by the second half of its port's first GID, and its service by the device's GUID.
        port = ":".join(stage.two.read(f"/sys/class/infiniband/{device}/ports/1/gids/0").split(":")[4:])
        service = stage.two.read("/sys/module/ib_srpt/parameters/srpt_service_guid").removeprefix("0x")
        place = f"{TARGET}/srpt/{port}/tpgt_1"
        with target(stage, place, after=ADMIT.replace("PLACE", place).replace("ADDRESS", stage.server)):
            stage.one.run(f"echo id_ext={service},ioc_guid={service},dest={stage.server}:5555 >/sys/class/infiniband_srp/srp-{device}-1/add_target", timeout=60)
            try:
                through(stage)
            finally:
                stage.one.run("for each in /sys/class/srp_remote_ports/*/delete; do echo 1 >$each; done", timeout=60, check=False)


WORKS = [
    Work("SRP (kernel)", "srptools", "8 MB written to a disk of the other node and read back, compared", "", srp, (OURS, ROCE)),
    Work("iSER (kernel)", "open-iscsi", "8 MB written to a disk of the other node and read back, compared (TCP: iSCSI)", "", iscsi),
]

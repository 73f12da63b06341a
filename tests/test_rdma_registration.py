# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What cannot be used later is refused when it is registered: memory out of reach, flushes to persistence of what is lost."""

import errno

from fabric import Fabric
from modes import long, only
from verbs import ALL_ACCESS, Rdma, remote, sge

PAGE = 4096
MIB = 1 << 20
# Of device_cap_flags_ex (enum ib_device_cap_flags).
FLUSH_GLOBAL, FLUSH_PERSISTENT = 1 << 38, 1 << 39


def test_memory_of_the_kernel(settled, rdma, saw):
    """Pages of the kernel's own that processes have mapped to read are a source of requests as any others."""
    a, b = rdma.rc(*settled)
    source = a.program.region_of_vdso(a.pd)
    target = b.region(source.size, 1)
    a.post_send("RDMA_WRITE", sges=[sge(source)], remote=remote(target))
    a.done("RDMA_WRITE")
    saw("registered, and read")


def test_flush_to_persistence(settled, rdma, saw):
    """Memory of these nodes is lost with the power, so nothing offers to flush to persistence, and no region can ask for it."""
    program = rdma.program(settled[0])
    caps = program.device()["cap_flags_ex"]
    assert (caps & FLUSH_GLOBAL, caps & FLUSH_PERSISTENT) == (FLUSH_GLOBAL, 0)
    pd, access = program.pd(), f"{ALL_ACCESS}|FLUSH_GLOBAL"
    buffer, memory = program.buffer(PAGE), program.device_memory(PAGE)
    program.region(pd, buffer, access)
    program.device_region(pd, memory, PAGE, access)
    for call in (("region", pd, buffer), ("device_region", pd, memory, PAGE)):
        assert program.fails(*call, f"{access}|FLUSH_PERSISTENT") == errno.EOPNOTSUPP
    saw("EOPNOTSUPP for regions of both kinds")


# Makes two DAX devices of the region; the first will be the pool.
SPLIT = """
device=$(nupa-pool none) && cd -P "/sys/bus/dax/devices/$device"
half=$(($(cat size) / 2))
echo $half >size
echo 1 >../dax_region/create
echo $half >../dax0.1/size
modprobe device_dax
echo dax0.1 >/sys/bus/dax/drivers/device_dax/new_id
"""


@long
@only("cxl", why="a node there has memory of a kind that the kernel's allocators do not give out")
def test_memory_of_a_dax_device(fabric, saw):
    """Pages that can be pinned, but not reached by an engine that is software, are refused at once."""
    assert fabric.mode == "cxl"
    own = Fabric("cxl")
    try:
        (node,), _ = own.start(1)
        node.run(f"set -e; {SPLIT}", timeout=60)
        node.run("nupa-up", timeout=60)
        program = Rdma(own).program(node)
        pd = program.pd()
        program.region(pd, program.buffer(PAGE), ALL_ACCESS)
        assert program.fails("region_of_file", pd, "/dev/dax0.1", 2 * MIB, ALL_ACCESS) == errno.EOPNOTSUPP
    finally:
        own.close()
    saw("EOPNOTSUPP when registered")

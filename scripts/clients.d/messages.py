# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Libraries of messages that choose by themselves what they go over: UCX, Open MPI, OpenSHMEM, MPICH, libfabric."""

from nodes import INTERFACE
from stage import RDMA_DEVICE, TCP, Failed, seen
from work import Work, number

LATENCY, BANDWIDTH = 3, 5
MIB = 1.048576
HERE = "/nupa/scripts/clients.d"


def devices(stage):
    """What UCX may use: all but the network that nodes are logged in by, where both have the same address."""
    names = [f"{RDMA_DEVICE[stage.path]}:1"] if stage.path in RDMA_DEVICE else []
    return f"UCX_NET_DEVICES={','.join([*names, INTERFACE])}"


def ucx(test, size, rounds, column):
    """One test of ucx_perftest, not started by MPI (`-P 0`). Its last line has the rounds, three latencies, two bandwidths and two rates."""
    def run(stage):
        with stage.serving(f"{devices(stage)} ucx_perftest -P 0", port=13337, ends=True):
            out = stage.run(f"{devices(stage)} ucx_perftest -P 0 {stage.server} -t {test} -s {size} -n {rounds} -w 100", seconds=90)
        last = next((line.split()[1:] for line in out.splitlines() if line.startswith("Final:")), [])
        if len(last) <= column:
            raise Failed(f"it printed no figure; its last line: {(out.strip().splitlines() or ['none'])[-1][:120]}")
        return float(last[column]) * (MIB if column == BANDWIDTH else 1)
    return Work("UCX: ucx_perftest", "ucx-utils", f"`-P 0 -t {test} -s {size} -n {rounds}`", "MB/s" if column == BANDWIDTH else "us", run)


def mpi(client, starter, test, program, options=""):
    """A program of two ranks, one on each node."""
    def run(stage):
        settings = f"{devices(stage)} PRTE_MCA_plm_ssh_agent={HERE}/into-image PRTE_MCA_prte_if_include=nupanet0 OMPI_MCA_btl_tcp_if_include=nupanet0"
        out = stage.run(f"{settings} {starter} --allow-run-as-root -x UCX_NET_DEVICES {options} --host node1,node2 -np 2 python3 -B {HERE}/{program}", seconds=120)
        return number(r"^compared; ([\d.]+) us", out, "figure")
    return Work(client, "openmpi-bin", f"{test}, compared{f' (`{options}`)' if options else ''}", "us", run)


def mpich(stage):
    """NetPIPE between two ranks: once it checks what it gets, once it measures. Its last line is about 64 KB."""
    start = f"mpiexec.hydra -launcher-exec {HERE}/into-image -iface nupanet0 -hosts node1,node2 -n 2 NPmpich2 -p 0 -u 65536 -o /tmp/clients.np"
    checked = stage.run(f"{start} -i -n 10 2>&1", seconds=120)
    if "fail" in checked.lower():
        raise Failed(next(line.strip() for line in checked.splitlines() if "fail" in line.lower()))
    return number(r"Mbps in\s+([\d.]+) usec", stage.run(f"{start} 2>&1", seconds=120), "figure")


def mooncake(stage):
    """mooncake_work.py on both nodes, by RDMA where there is any."""
    program = f"python3 -B {HERE}/mooncake_work.py {'tcp' if stage.path == TCP else 'rdma'}"
    with stage.serving(f"{program} {stage.server}", port=18600, ends=True):
        out = stage.run(f"{program} {stage.one.ip} {stage.server} 2>&1", seconds=120)
    return number(r"^compared; ([\d.]+) MB/s", out, "figure")


def pingpong(provider, kind, options=""):
    """libfabric's fi_pingpong, which checks its bytes."""
    def run(stage):
        name = "tcp" if stage.path == TCP else provider
        command = f"stdbuf -oL fi_pingpong -p '{name}' -e {kind} {options} -c -I 200 -S 65536"
        with stage.serving(command, port=47592):
            result = stage.result(f"{command} {stage.server}", seconds=40)
        words = next((line.split() for line in result.out.splitlines() if line.split()[1:3] == ["200", "=200"]), None)
        if not words:
            raise Failed(seen(result))
        # Closing an endpoint of ofi_rxm drops completions that were not read yet, on any device (tests/test_rdma_libfabric.py).
        return float(words[-2]), "" if result.code == 0 else f"all data was exchanged and compared, then: {seen(result).partition(':')[0]}"
    asked = " ".join(f"fi_pingpong -p {provider} -e {kind} {options} -c -S 65536".split())
    return Work("libfabric: fi_pingpong", "libfabric-bin", f"`{asked}`", "us", run)


WORKS = [
    ucx("tag_lat", 8, 1000, LATENCY),
    ucx("tag_bw", 65536, 2000, BANDWIDTH),
    ucx("stream_lat", 8, 1000, LATENCY),
    ucx("stream_bw", 65536, 2000, BANDWIDTH),
    ucx("ucp_put_lat", 8, 1000, LATENCY),
    ucx("ucp_put_bw", 65536, 2000, BANDWIDTH),
    ucx("ucp_get", 65536, 1000, BANDWIDTH),
    ucx("ucp_fadd", 8, 1000, LATENCY),
    ucx("ucp_cswap", 8, 1000, LATENCY),
    ucx("ucp_am_lat", 8, 1000, LATENCY),
    ucx("ucp_am_bw", 65536, 2000, BANDWIDTH),
    mpi("Open MPI", "mpirun", "point to point", "mpi_work.py pt2pt"),
    mpi("Open MPI", "mpirun", "collectives", "mpi_work.py collectives"),
    mpi("Open MPI", "mpirun", "one-sided", "mpi_work.py one-sided"),
    mpi("Open MPI", "mpirun", "point to point", "mpi_work.py pt2pt", "--mca pml ucx"),
    mpi("Open MPI", "mpirun", "collectives", "mpi_work.py collectives", "--mca pml ucx"),
    mpi("Open MPI", "mpirun", "one-sided", "mpi_work.py one-sided", "--mca pml ucx --mca osc ucx"),
    mpi("OpenSHMEM of Open MPI", "oshrun", "put and quiet of 8 B shown; put, get, atomics, signal", "shmem_work.py"),
    Work("MPICH", "mpich", "`NPmpich2 -i`, data compared; then `NPmpich2`, 64 KB shown", "us", mpich),
    Work("Mooncake transfer engine", "pypi:mooncake-transfer-engine-non-cuda", "4 MB in pieces of 64 KB, written and read, compared", "MB/s", mooncake),
    pingpong("verbs", "msg"),
    pingpong("verbs;ofi_rxm", "rdm"),
    pingpong("verbs;ofi_rxm", "rdm", "-m tagged"),
]

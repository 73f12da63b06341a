# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Programs of sockets, over nupanet0."""

import json

from stage import Failed
from work import SOCKETS, Work, number

BLOB = "/tmp/clients.blob"
COPY = "/tmp/clients.copy"


def blob(stage, node, size):
    """A file of random bytes on a node, in the image's /tmp; returns its hash."""
    return stage.run(f"rm -f {COPY}; head -c {size} /dev/urandom >{BLOB} && chmod 644 {BLOB} && sha256sum <{BLOB}", node=node)


def compare(stage, node, expected):
    """Fails unless the copy on a node is what was sent."""
    if stage.run(f"sha256sum <{COPY}", node=node) != expected:
        raise Failed("the data is not what was sent")


def iperf(stage, options="", to=None):
    with stage.serving("iperf3 -s -1", port=5201):
        out = stage.run(f"iperf3 -J -c {to or stage.server} -t 5 {options}", seconds=60)
    return json.loads(out)["end"]["sum_received"]["bits_per_second"] / 1e9


def iperf_with(options):
    return lambda stage: iperf(stage, options=options)


def scp(stage):
    """A copy to the other node's own sshd, whose /tmp is the image's."""
    sent = blob(stage, stage.one, 8 << 20)
    stage.run(f"rm -f {COPY}", node=stage.two)
    stage.run(f"scp -q {BLOB} node2:{COPY}")
    compare(stage, stage.two, sent)


def iperf_udp(stage):
    with stage.serving("iperf3 -s -1", port=5201):
        report = json.loads(stage.run(f"iperf3 -J -c {stage.server} -u -b 20M -t 5"))["end"]["sum"]
    if report["lost_packets"]:
        raise Failed(f"{report['lost_packets']} of {report['packets']} datagrams were lost")
    return report["bits_per_second"] / 1e6


def copied(stage):
    """socat sends a file to another, which writes it down."""
    sent = blob(stage, stage.one, 8 << 20)
    stage.run(f"rm -f {COPY}", node=stage.two)
    with stage.serving(f"socat -u TCP-LISTEN:9000,reuseaddr CREATE:{COPY}", port=9000, ends=True):
        stage.run(f"socat -u OPEN:{BLOB} TCP:{stage.server}:9000")
    compare(stage, stage.two, sent)


def netperf(test, field):
    def run(stage):
        with stage.serving("netserver -D", port=12865):
            out = stage.run(f"netperf -H {stage.server} -t {test} -l 5 -P 0")
        try:
            return float(out.splitlines()[0].split()[field])
        except (IndexError, ValueError):
            raise Failed(f"it printed no figure: {out.strip()[-120:]}") from None
    return run


def redis(stage):
    """A value is stored and read back, then redis-benchmark measures."""
    with stage.serving("redis-server --bind 0.0.0.0 --protected-mode no --save ''", port=6379):
        sent = blob(stage, stage.one, 1 << 20)
        stage.run(f"redis-cli -h {stage.server} -x set blob <{BLOB} && redis-cli -h {stage.server} --raw get blob | head -c {1 << 20} >{COPY}")
        compare(stage, stage.one, sent)
        out = stage.run(f"redis-benchmark -h {stage.server} -t get -n 20000 --csv", seconds=120)
    return number(r'^"GET","([\d.]+)"', out, "figure")


def web(command, pattern):
    """nginx with Debian's settings hands out a file, which is compared; then a client measures requests for the page of Debian."""
    def run(stage):
        sent = blob(stage, stage.two, 8 << 20)
        stage.run(f"cp {BLOB} /var/www/html/blob", node=stage.two)
        with stage.serving("nginx -g 'daemon off;'", port=80):
            stage.run(f"rm -f {COPY}; curl -sSf -o {COPY} http://{stage.server}/blob")
            compare(stage, stage.one, sent)
            out = stage.run(command.replace("NODE", stage.server), seconds=120)
        if "Failed requests:" in out and number(r"Failed requests:\s+(\d+)", out, "count"):
            raise Failed("requests failed")
        return number(pattern, out, "figure")
    return run


def memcached(stage):
    """A value is stored and read back, then memcslap measures."""
    with stage.serving("memcached -u memcache -l 0.0.0.0", port=11211):
        sent = blob(stage, stage.one, 512 << 10)
        name = BLOB.rpartition("/")[2]
        stage.run(f"memccp --servers={stage.server} {BLOB} && memccat --servers={stage.server} {name} | head -c {512 << 10} >{COPY}")
        compare(stage, stage.one, sent)
        stage.run(f"memcslap --servers={stage.server} --concurrency=4 --execute-number=1000 --test=get", seconds=120)


PG = "/usr/lib/postgresql/17/bin"


def postgres(stage):
    """pgbench with its own transactions; the sums that they leave in two tables have to be the same."""
    setting = "/etc/postgresql/17/main"
    hba = f"{setting}/pg_hba.conf"
    stage.run(f"chown postgres: /run/postgresql; grep -q 10.77 {hba} || echo 'host all all 10.77.0.0/24 trust' >>{hba}", node=stage.two)
    served = f"setpriv --reuid postgres --regid postgres --init-groups {PG}/postgres -D /var/lib/postgresql/17/main " \
             f"-c config_file={setting}/postgresql.conf -c 'listen_addresses=*'"
    to = f"-h {stage.server} -U postgres"
    with stage.serving(served, port=5432):
        stage.run(f"{PG}/pgbench {to} -i -s 1 postgres", seconds=180)
        out = stage.run(f"{PG}/pgbench {to} -c 4 -T 10 postgres", seconds=120)
        sums = stage.run(f"{PG}/psql {to} -Atc 'select (select sum(abalance) from pgbench_accounts), (select sum(delta) from pgbench_history)' postgres")
    if len(set(sums.strip().split("|"))) != 1:
        raise Failed(f"sums differ: {sums.strip()}")
    return number(r"^tps = ([\d.]+)", out, "figure")


def sockperf(stage):
    with stage.serving(f"sockperf server -i {stage.server} --tcp", port=11111):
        out = stage.run(f"sockperf ping-pong -i {stage.server} --tcp -t 5")
    return number(r"Latency is ([\d.]+)", out, "figure")


def work(client, package, done, unit, run):
    return Work(client, package, done, unit, run, SOCKETS)


WORKS = [
    work("iperf3", "iperf3", "`iperf3 -c NODE -t 5`", "Gb/s", iperf),
    work("iperf3", "iperf3", "`iperf3 -c NODE -t 5 -P 4`", "Gb/s", iperf_with("-P 4")),
    work("iperf3", "iperf3", "`iperf3 -c NODE -t 5 -R -Z`: from a file, the other way", "Gb/s", iperf_with("-R -Z")),
    work("iperf3", "iperf3", "`iperf3 -c NODE -u -b 20M -t 5`, no datagram lost", "Mb/s", iperf_udp),
    work("netperf", "netperf", "`netperf -H NODE -t TCP_STREAM -l 5`", "Mb/s", netperf("TCP_STREAM", 4)),
    work("netperf", "netperf", "`netperf -H NODE -t TCP_RR -l 5`", "transactions/s", netperf("TCP_RR", 5)),
    work("netperf", "netperf", "`netperf -H NODE -t UDP_RR -l 5`", "transactions/s", netperf("UDP_RR", 5)),
    work("socat", "socat", "a file of 8 MB, compared", "", copied),
    work("ssh", "openssh-client", "`scp` of 8 MB, compared", "", scp),
    work("sockperf", "sockperf", "`sockperf ping-pong -i NODE --tcp -t 5`", "us", sockperf),
    work("redis", "redis-server", "1 MB compared; `redis-benchmark -t get -n 20000`", "requests/s", redis),
    work("nginx, ab", "nginx", "8 MB compared; `ab -n 1000 -c 10`", "requests/s", web("ab -n 1000 -c 10 http://NODE/", r"Requests per second:\s+([\d.]+)")),
    work("nginx, wrk", "nginx", "8 MB compared; `wrk -t 2 -c 10 -d 5`", "requests/s", web("wrk -t 2 -c 10 -d 5 http://NODE/", r"Requests/sec:\s+([\d.]+)")),
    work("memcached", "memcached", "512 KB compared; `memcslap --test=get`", "", memcached),
    work("PostgreSQL", "postgresql-17", "`pgbench -i -s 1`, `pgbench -c 4 -T 10`, sums compared", "transactions/s", postgres),
]

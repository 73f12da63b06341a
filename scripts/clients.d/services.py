# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Servers that people run, with their own clients, over nupanet0."""

from nodes import INTERFACE
from sockets import BLOB, COPY, blob, compare, iperf, work
from stage import ROOT, Failed
from work import number

SIZE = 4 << 20
FILES = "/tmp/clients.files"


def fresh(stage, node, commands=""):
    """An empty directory on a node, in which the commands are run then."""
    stage.run(f"rm -rf {FILES} {COPY} && mkdir -m 777 {FILES} && cd {FILES} && {commands or 'true'}", node=node)


def settings(name, text):
    """A command that writes a file of settings into the directory."""
    return f"printf '{text}' >{name}"


def there_and_back(stage, put, get):
    """Has a client put a file to the server and get it back as another, which is compared."""
    sent = blob(stage, stage.one, SIZE)
    stage.run(f"rm -f {COPY}")
    for command in filter(None, (put, get)):
        stage.run(command.replace("NODE", stage.server), seconds=120)
    compare(stage, stage.one, sent)


def rsync(stage):
    fresh(stage, stage.two, settings("conf", f"[files]\\npath={FILES}\\nread only=no\\nuse chroot=no\\nuid=0\\ngid=0\\n"))
    with stage.serving(f"rsync --daemon --no-detach --config={FILES}/conf", port=873):
        there_and_back(stage, f"rsync -a {BLOB} rsync://NODE/files/", f"rsync -a rsync://NODE/files/clients.blob {COPY}")


def samba(stage):
    fresh(stage, stage.two, settings("conf", f"[global]\\nmap to guest=bad user\\nguest account=root\\n[files]\\npath={FILES}\\nguest ok=yes\\nread only=no\\n"))
    stage.run("mkdir -p /run/samba", node=stage.two)
    with stage.serving(f"smbd -F --no-process-group -s {FILES}/conf </dev/null", port=445):
        there_and_back(stage, None, f"smbclient -N //NODE/files -c 'put {BLOB} blob; get blob {COPY}'")


def mqtt(stage):
    """A message that the broker keeps is received by a subscriber that comes later."""
    fresh(stage, stage.two, settings("conf", "listener 1883 0.0.0.0\\nallow_anonymous true\\n"))
    with stage.serving(f"mosquitto -c {FILES}/conf", port=1883):
        there_and_back(stage, f"mosquitto_pub -h NODE -t blob -q 1 -r -f {BLOB}", f"mosquitto_sub -h NODE -t blob -q 1 -N -C 1 >{COPY}")


def etcd(stage):
    """Keys are put and all are got back."""
    fresh(stage, stage.two)
    served = f"etcd --data-dir {FILES}/data --log-level error --listen-client-urls http://0.0.0.0:2379 --advertise-client-urls http://{stage.server}:2379"
    with stage.serving(served, port=2379):
        told = stage.run(f"export ETCDCTL_ENDPOINTS=http://{stage.server}:2379 ETCDCTL_API=3; "
                         "for i in $(seq 10); do etcdctl put key$i value$i >/dev/null || exit 1; done; etcdctl get --prefix key --print-value-only", seconds=180)
    if sorted(told.split()) != sorted(f"value{i}" for i in range(1, 11)):
        raise Failed(f"it got back: {told.strip()[:100]}")


def haproxy(stage):
    """Requests through a balancer to nginx behind it."""
    sent = blob(stage, stage.two, SIZE)
    lines = ("global\\nmaxconn 200\\ndefaults\\nmode http\\ntimeout connect 9s\\ntimeout client 9s\\ntimeout server 9s\\n"
             "frontend in\\nbind :8080\\ndefault_backend web\\nbackend web\\nserver one 127.0.0.1:80\\n")
    fresh(stage, stage.two, f"cp {BLOB} /var/www/html/blob && {settings('conf', lines)}")
    with stage.serving(f"nginx && exec haproxy -db -f {FILES}/conf", port=8080):
        stage.run(f"rm -f {COPY}; curl -sSf -o {COPY} http://{stage.server}:8080/blob")
        compare(stage, stage.one, sent)
        out = stage.run(f"ab -n 500 -c 10 http://{stage.server}:8080/", seconds=120)
    if number(r"Failed requests:\s+(\d+)", out, "count"):
        raise Failed("requests failed")
    return number(r"Requests per second:\s+([\d.]+)", out, "figure")


def mariadb(stage):
    """sysbench's own transactions; the server's own check of the table afterwards."""
    stage.run("mkdir -p /run/mysqld && chown mysql: /run/mysqld", node=stage.two)
    to = f"--mysql-host={stage.server} --mysql-user=root --mysql-db=test --table-size=1000"
    with stage.serving("mariadbd --user=mysql --skip-grant-tables --skip-ssl --bind-address=0.0.0.0", port=3306):
        stage.run(f"mariadb --skip-ssl -h {stage.server} -u root -e 'create database if not exists test'")
        stage.run(f"sysbench oltp_read_write {to} prepare", seconds=120)
        out = stage.run(f"sysbench oltp_read_write {to} --threads=4 --time=10 run", seconds=120)
        checked = stage.run(f"mariadb --skip-ssl -h {stage.server} -u root -N -e 'check table test.sbtest1; select count(*) from test.sbtest1; drop database test'")
    if "OK" not in checked or "1000" not in checked.split():
        raise Failed(f"its table is not whole: {' '.join(checked.split())}")
    return number(r"transactions:.*\(([\d.]+) per sec", out, "figure")


def dns(stage):
    """Names asked for by UDP and by TCP."""
    with stage.serving("dnsmasq --keep-in-foreground --user=root --no-resolv --no-hosts --port=5300 --address=/nupa.test/192.0.2.7", port=5300):
        for way in ("+notcp", "+tcp"):
            told = stage.run(f"dig +short {way} -p 5300 @{stage.server} some.nupa.test")
            if told.split() != ["192.0.2.7"]:
                raise Failed(f"{way}: it was told: {told.strip()[:100]}")


def nbd(stage):
    """A disk of the other node: a file is written to it and read back, past the caches."""
    fresh(stage, stage.two, f"truncate -s 16M disk && {settings('conf', f'[generic]\\n[disk]\\nexportname={FILES}/disk\\n')}")
    stage.one.run(f"modprobe -d {ROOT} nbd", timeout=60)
    try:
        with stage.serving(f"nbd-server -d -C {FILES}/conf", port=10809):
            stage.run(f"nbd-client {stage.server} /dev/nbd0 -N disk")
            try:
                there_and_back(stage, f"dd if={BLOB} of=/dev/nbd0 bs=256k oflag=direct status=none",
                               f"dd if=/dev/nbd0 of={COPY} bs=256k count={SIZE >> 18} iflag=direct status=none")
            finally:
                stage.run("nbd-client -d /dev/nbd0")
    finally:
        stage.one.run("rmmod nbd", timeout=60)


WIREGUARD = """set -e
modprobe -d ROOT wireguard
ip link add wg0 type wireguard
chroot ROOT wg genkey >/run/wg.key
chroot ROOT wg set wg0 private-key /run/wg.key listen-port 51820
ip address add 10.78.0.$(hostname | tr -d a-z)/24 dev wg0
ip link set wg0 up
chroot ROOT wg show wg0 public-key
""".replace("ROOT", ROOT)


def wireguard(stage):
    """iperf3 through a tunnel of WireGuard between the nodes."""
    nodes = (stage.one, stage.two)
    try:
        keys = [node.run(WIREGUARD, timeout=60).out.strip() for node in nodes]
        for node, peer, key in zip(nodes, reversed(nodes), reversed(keys)):
            node.run(f"chroot {ROOT} wg set wg0 peer {key} allowed-ips 10.78.0.0/24 endpoint {peer.ip}:51820")
        return iperf(stage, to="10.78.0.2")
    finally:
        for node in nodes:
            node.run("rm -f /run/wg.key; ip link del wg0; rmmod wireguard", check=False)


def tcpdump(stage):
    """What goes over the interface is seen: requests and replies of ping."""
    stage.two.run("rm -f /tmp/clients.told /tmp/clients.pcap")
    with stage.serving("tcpdump -Z root -n -i nupanet0 -w /tmp/clients.pcap --immediate-mode -U icmp 2>/tmp/clients.told",
                       ready="grep -q 'listening on' /tmp/clients.told"):
        if stage.one.pings(stage.two.ip, 5) != 5:
            raise Failed("pings were not answered")
    told = stage.run("tcpdump -n -r /tmp/clients.pcap 2>/dev/null", node=stage.two)
    if told.count("echo request") < 5 or told.count("echo reply") < 5:
        raise Failed(f"it saw {told.count('echo request')} requests and {told.count('echo reply')} replies of 5")


def iperf2(stage):
    with stage.serving("iperf -s", port=5001):
        out = stage.run(f"iperf -c {stage.server} -t 5 -y C")
    return number(r",(\d+)$", out, "figure") / 1e9


def dhcp(stage):
    """dnsmasq gives node 1 an address, which leads to node 2."""
    lease = "10.79.0.50"
    stage.two.run(f"ip address add 10.79.0.2/24 dev {INTERFACE}")
    fresh(stage, stage.two)
    try:
        served = f"dnsmasq --keep-in-foreground --user=root --port=0 --interface={INTERFACE} --bind-interfaces --no-ping " \
                 f"--dhcp-authoritative --dhcp-leasefile={FILES}/leases --dhcp-range={lease},{lease},10m"
        with stage.serving(served, ready="ss -Hlun 'sport = :67' | grep -q ."):
            stage.run(f"udhcpc -i {INTERFACE} -n -q -f -t 5 -T 2")
            told = stage.one.run(f"ip -4 -o address show dev {INTERFACE}").out
            if f" {lease}/" not in told:
                raise Failed(f"its address is not {lease}: {' '.join(told.split())[:100]}")
            if not stage.one.pings("10.79.0.2", 3, options=f"-I {lease}"):
                raise Failed(f"nothing is reached from {lease}")
    finally:
        for node in (stage.one, stage.two):
            node.run(f"ip -4 address flush dev {INTERFACE}; ip address add {node.ip}/24 dev {INTERFACE}")


AVAHI = f"""printf '[server]\\nallow-interfaces={INTERFACE}\\nuse-ipv6=no\\n' >/run/avahi.conf
mkdir -p /run/dbus /run/avahi-daemon; rm -f /run/dbus/pid
dbus-daemon --system --fork && exec avahi-daemon --no-drop-root --no-chroot --no-rlimits -f /run/avahi.conf"""
RUNS = "[ -S /run/avahi-daemon/socket ]"


def mdns(stage):
    """avahi on both nodes: one finds the other's address by its name, by multicast."""
    with stage.serving(AVAHI, ready=RUNS):
        asking = stage.one.spawn(stage.inside(AVAHI, 100))
        try:
            told = stage.run(f"for i in $(seq 50); do {RUNS} && break; sleep 0.2; done; "
                             "for i in 1 2 3; do avahi-resolve -4 -n node2.local 2>&1 | grep '^node2' && exit; done; exit 1")
        finally:
            stage.stop(stage.one)
            asking.abandon()
    if stage.server not in told.split():
        raise Failed(f"it was told: {told.strip()[:100]}")


def chrony(stage):
    """chronyd asks another for the time by NTP, and says how far its own is from that."""
    fresh(stage, stage.two, settings("conf", f"local stratum 8\\nallow 10.77.0.0/24\\ndriftfile {FILES}/drift\\ncmdport 0\\n"))
    with stage.serving(f"chronyd -d -x -u root -f {FILES}/conf", ready="ss -Hlun 'sport = :123' | grep -q ."):
        out = stage.run(f"chronyd -Q -u root -t 40 'server {stage.server} iburst' 'cmdport 0' 2>&1")
    number(r"System clock wrong by (-?[\d.]+) seconds", out, "offset")


def gloo(stage):
    """PyTorch's all-reduce by gloo, of which each node has one rank."""
    program = "python3 -B /nupa/scripts/clients.d/gloo_work.py"
    where = f"MASTER_ADDR={stage.server} MASTER_PORT=29500 WORLD_SIZE=2 USE_LIBUV=0 GLOO_SOCKET_IFNAME={INTERFACE}"
    with stage.serving(f"{where} RANK=0 {program} 2>&1", port=29500, ends=True):
        out = stage.run(f"{where} RANK=1 {program} 2>&1", seconds=150)
    return number(r"^compared; ([\d.]+) MB/s", out, "figure")


WORKS = [
    work("iperf", "iperf", "`iperf -c NODE -t 5`", "Gb/s", iperf2),
    work("rsync", "rsync", "4 MB to `rsync --daemon` and back, compared", "", rsync),
    work("Samba", "samba", "`smbclient`: 4 MB put and got, compared", "", samba),
    work("NBD", "nbd-server", "`nbd-client`: 4 MB written and read past the caches, compared", "", nbd),
    work("Mosquitto (MQTT)", "mosquitto", "a message of 4 MB published and received, compared", "", mqtt),
    work("etcd", "etcd-server", "`etcdctl`: 10 keys put and got, compared", "", etcd),
    work("HAProxy", "haproxy", "before nginx: 4 MB compared; `ab -n 500 -c 10`", "requests/s", haproxy),
    work("MariaDB", "mariadb-server", "`sysbench oltp_read_write --threads=4 --time=10`, table checked", "transactions/s", mariadb),
    work("dnsmasq", "dnsmasq-base", "`dig` by UDP and by TCP", "", dns),
    work("dnsmasq, udhcpc", "udhcpc", "an address by DHCP, which leads to the other node", "", dhcp),
    work("Avahi (mDNS)", "avahi-daemon", "`avahi-resolve -4 -n node2.local`", "", mdns),
    work("chrony", "chrony", "`chronyd -Q` tells how far it is from the other's time", "", chrony),
    work("PyTorch: gloo", "python3-torch", "`all_reduce` of up to 4 MB, compared; 4 MB shown", "MB/s", gloo),
    work("WireGuard (kernel)", "wireguard-tools", "`iperf3 -t 5` through a tunnel", "Gb/s", wireguard),
    work("tcpdump", "tcpdump", "`tcpdump -i nupanet0 icmp` sees five pings and their replies", "", tcpdump),
]

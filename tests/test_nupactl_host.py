# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl: what it says of the host that it runs on."""

import json
import re

from modes import MODES, long, only
from nodes import INTERFACE
from test_nupactl import FAILED, FINE, NAMED, NUPACTL, TROUBLE, told
from verbs import DEVICE

PROVIDER = "/usr/lib/x86_64-linux-gnu/libibverbs/libnupa-rdmav34.so"
# Has one command see another file in the place of one.
INSTEAD = """unshare -m sh -c 'mount --bind "$1" "$2" && shift 2 && exec "$@"' sh"""
# Changes the ABI or the version that a provider's file says, in a copy of it.
FORGE = f"""python3 -c '
import sys
data = bytearray(open("{PROVIDER}", "rb").read())
at = data.index(b"\\x7fnupa-provider")
data[at + 16:at + 16 + len(sys.argv[2])] = sys.argv[2].encode()
open(sys.argv[1], "wb").write(data)'"""


def versions(node, prefix=""):
    """What `nupactl version` says, and its exit code."""
    done = node.run(f"{prefix} {NUPACTL} --json version", check=False)
    assert not done.err, done
    return json.loads(done.out), done.code


def test_versions_fit(settled, saw):
    one, _ = settled
    said, code = versions(one)
    assert (code, said["mismatches"]) == (FINE, []), said
    assert said["kernel"] == one.run("uname -r").out.strip()
    assert said["nupactl"] == one.run(f"{NUPACTL} --version").out.split()[-1]
    for module in said["modules"]:
        assert module["loaded"] and module["version"] == said["nupactl"], module
        notes = one.run(f"od -An -v -tx1 /sys/module/{module['name']}/notes/.note.gnu.build-id | tr -d ' \\n'").out
        assert notes.endswith(module["build"]) and len(module["build"]) == 40
    assert [module["name"] for module in said["modules"]] == ["nupa_fabric", "nupa_net", "nupa_rdma"]
    (controller,) = said["controllers"]
    assert controller == {name: told(one, "status")[0][name] for name in ("device", "firmware")}
    assert said["abi"] == int(one.read("/sys/class/infiniband_verbs/uverbs0/abi_version"))
    (provider,) = said["verbs"]["providers"]
    assert (provider["file"], provider["interface"]) == (PROVIDER, said["verbs"]["interface"])
    assert (provider["version"], provider["abi"]) == (said["nupactl"], said["abi"])
    as_user, code = versions(one, "setpriv --reuid=65534 --clear-groups")
    assert (as_user, code) == (said, FINE)
    saw(f"{said['nupactl']}, ABI {said['abi']}, interface {provider['interface']}")


@only(*MODES[:1], why="the same in all modes: it is about files")
def test_versions_that_do_not_fit(settled, saw):
    one, _ = settled
    one.run("mkdir -p /run/version/lib")

    def mismatch(where, instead):
        said, code = versions(one, f"{INSTEAD} {instead} {where}")
        assert code == TROUBLE and len(said["mismatches"]) == 1, said
        return said["mismatches"][0]

    one.run(f"{FORGE} /run/version/abi.so '\x04'")
    assert "speaks ABI 4, and nupa_rdma ABI" in mismatch(PROVIDER, "/run/version/abi.so")
    one.run("printf 'driver other\\n' >/run/version/nupa.driver")
    assert "`driver nupa`" in mismatch("/etc/libibverbs.d/nupa.driver", "/run/version/nupa.driver")
    one.run(f"cp {PROVIDER} /run/version/lib/libnupa-rdmav99.so")
    assert "no libnupa-rdmav34.so" in mismatch(PROVIDER.rpartition("/")[0], "/run/version/lib")
    one.run("echo 0.0.9 >/run/version/module")
    text = one.run(f"{INSTEAD} /run/version/module /sys/module/nupa_net/version {NUPACTL} version", check=False)
    assert text.code == TROUBLE and "The module nupa_net is version 0.0.9, and nupactl is" in text.out, text
    # The module that modprobe would take is not the one that is loaded.
    kernel = one.run("uname -r").out.strip()
    one.run("cp /nupa/build/modules/nupa_net.ko /run/version/nupa_fabric.ko"
            " && echo '/run/version/nupa_fabric.ko:' >/run/version/modules.dep")
    said = mismatch(f"/lib/modules/{kernel}/modules.dep", "/run/version/modules.dep")
    assert "nupa_fabric that is loaded is not the one that is installed" in said, said
    saw(said)


def test_versions_without_the_module(pair, saw):
    one, _ = pair
    one.run("nupa-down", timeout=60)
    said, code = versions(one)
    assert (code, said["mismatches"], said["controllers"], said["abi"]) == (FINE, [], [], None), said
    assert not any(module["loaded"] for module in said["modules"])
    text = one.run(f"{NUPACTL} version").out
    assert text.count("not loaded") == 3, text
    saw("not loaded")


def unpacked(node, command="", prefix="", where="/run/dump"):
    """Files of an archive that is written on a node, by their names, and what was printed."""
    node.run(f"rm -rf {where} && mkdir -m 777 {where}")
    done = node.run(f"{prefix} {NUPACTL} dump {where}/it.tar.gz {command}", timeout=60)
    assert not done.err, done
    assert node.run(f"stat -c %a {where}/it.tar.gz").out.strip() == "600"
    # A file name before each file's text; there are no such lines in them.
    shown = node.run(f"cd {where} && tar -xzf it.tar.gz && cd nupa-dump && find . -type f -printf '%P\\n' | while read -r file; do"
                     " echo \"=== $file\"; cat \"$file\"; echo; done").out
    parts = re.split(r"^=== (.+)$", shown, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text[1:-1] for text in parts[2::2]))), done.out


def test_dump(settled, rdma, saw):
    one, two = settled
    a, _ = rdma.rc(one, two)
    region = a.region(10000, 1)
    # Lines of a module that have addresses of the kernel in them are kept without these.
    one.run("echo 'nupa: a test of 0xffff888004bc3000' >/dev/kmsg")
    files, out = unpacked(one, prefix=f"{NAMED} '7 seven\\n'")
    assert json.loads(files["nupactl/status.json"])[0]["device"] == one.device()
    assert json.loads(files["nupactl/version.json"])["mismatches"] == []
    assert a.qp.qpn in [qp["number"] for qp in json.loads(files["nupactl/qp.json"])]
    assert 10000 in [entry["bytes"] for entry in json.loads(files["nupactl/mr.json"])]
    assert json.loads(files["nupactl/queues.json"])["interfaces"][0]["netdev"] == INTERFACE
    assert json.loads(files["nupactl/peers.json"]) and json.loads(files["nupactl/stats.json"])[0]["counters"]
    assert files["etc/nupa/nodes.conf"].strip() == "7 seven"
    assert "nupa: a test of 0x(address)" in files["kernel.log"] and f"{INTERFACE}: node" in files["kernel.log"]
    assert all("nupa" in line for line in files["kernel.log"].splitlines() if line)
    assert "queue0_" in files[f"net/{INTERFACE}/ethtool-S"] and "rx_bytes: " in files[f"net/{INTERFACE}/statistics"]
    assert "ports/1/state: 4: ACTIVE" in files[f"infiniband/{DEVICE}/attributes"]
    assert "version: 0.1.0" in files["modules/nupa_fabric/attributes"]
    assert "CPU0" in files["interrupts"] and "uevent: " in files[f"devices/{one.device()}/attributes"]
    assert any(name.startswith("debugfs/nupa_fabric-") and "this node" in text for name, text in files.items())
    everything = "\n".join(files.values())
    assert not re.search(r"\bffff[0-9a-f]{12}\b", everything)
    for key in region.lkey, region.rkey:
        assert not re.search(rf"\b({key}|0*{key:x})\b", everything), key
    # The account names each file, and what is missing with the reason.
    there, missing = files["MANIFEST"].split("What could not be read")
    assert {line.split(None, 1)[1] for line in there.splitlines()[2:] if line} == set(files) - {"MANIFEST"}
    assert "modules/nupa_fabric/parameters: the module shows none" in missing
    assert f"{len(files) - 1} files; " in out
    saw(out.splitlines()[0])


@long
def test_dump_without_rights_and_without_the_driver(pair, saw):
    one, _ = pair
    one.run("echo 1 >/proc/sys/kernel/dmesg_restrict")  # as Debian's kernel has it from the start
    as_user, _ = unpacked(one, prefix="setpriv --reuid=65534 --clear-groups")
    assert json.loads(as_user["nupactl/status.json"]) and "kernel.log" not in as_user
    assert re.search(r"^kernel.log: cannot open /dev/kmsg, which takes root", as_user["MANIFEST"], re.MULTILINE)
    assert re.search(r"^debugfs: it is for root", as_user["MANIFEST"], re.MULTILINE)
    one.run("nupa-down", timeout=60)
    bare, out = unpacked(one)
    assert "modprobe nupa_fabric" in bare["MANIFEST"] and "modules/nupa_fabric: it is not loaded" in bare["MANIFEST"]
    assert "nupactl/version.json" in bare and "kernel.log" in bare
    saw(out.splitlines()[0])


def test_dump_leaves_what_is_there(settled, saw):
    one, _ = settled
    one.run("rm -rf /run/dump && mkdir /run/dump && echo precious >/run/dump/file && ln -s /run/dump/nowhere /run/dump/link")
    for name, part in ("file", "is there already"), ("link", "is there already"), ("none/file", "cannot make"), (".", "is there already"):
        done = one.run(f"{NUPACTL} dump /run/dump/{name}", check=False)
        assert done.code == FAILED and part in done.err and not done.out, done
    assert one.read("/run/dump/file") == "precious" and one.run("ls /run/dump").out.split() == ["file", "link"]
    # A file system that is full: nothing is left of the archive.
    one.run("mkdir /run/dump/small && mount -t tmpfs -o size=4k tmpfs /run/dump/small"
            " && head -c 4096 /dev/zero >/run/dump/small/filler")
    full = one.run(f"{NUPACTL} dump /run/dump/small/it", check=False)
    left = one.run("ls /run/dump/small && umount /run/dump/small").out
    assert full.code == FAILED and "cannot write /run/dump/small/it" in full.err and left.split() == ["filler"], full
    # Without a name it has one of host and time, in the directory where it is called.
    out = one.run(f"cd /run/dump && {NUPACTL} dump").out
    assert re.match(r"nupa-node1-\d{8}-\d{6}\.tar\.gz: ", out), out
    saw(full.err.strip())

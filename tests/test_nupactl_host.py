# SPDX-License-Identifier: GPL-2.0 OR MIT
"""nupactl: what it says of the host that it runs on."""

import json

from modes import MODES, only
from test_nupactl import FINE, NUPACTL, TROUBLE, told

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

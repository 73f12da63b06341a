# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Two guests of a mode, with an interface of the peer that NUPA is compared with between them."""

import shutil

from nodes import Node, Switch, make_run_dir, stop_all

PEER = "peer0"


class Pair:
    """A run directory, the switch where there is one, and nodes. Ends all of it with the `with` statement."""

    def __init__(self, mode, cpus):
        self.mode, self.cpus = mode, cpus
        self.run_dir = make_run_dir(f"nupa-bench-{mode}-")
        self.switch = Switch(self.run_dir, nodes=4) if mode == "pcie" else None
        self.nodes = []
        self.peer_name = None

    def __enter__(self):
        print(f"starting two nodes (MODE={self.mode})", flush=True)
        if self.switch:
            self.switch.start()
        return self

    def __exit__(self, *_):
        try:
            if self.switch:
                self.switch.stop()
        finally:
            stop_all(self.run_dir)
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def node(self, number, **options):
        """A further node."""
        return Node(number, self.run_dir, fabric=self.mode, **options)

    def boot(self):
        """Starts the two guests, without any module of ours, with the best peer that can be had."""
        for peernet, name in (("tap", "virtio-net, tap and bridge"), ("stream", "virtio-net, stream socket")):
            nodes = [self.node(number, cpus=self.cpus, peernet=peernet) for number in (1, 2)]
            try:
                for node in nodes:
                    node.begin_start()
                for node in nodes:
                    node.finish_start()
            except AssertionError as error:
                print(f"bench: no {name}: {str(error).splitlines()[0]}", flush=True)
                for node in nodes:
                    node.stop()
                continue
            self.nodes, self.peer_name = nodes, f"{name}, MTU 9000"
            return
        raise SystemExit("bench: neither tap nor stream netdev can be had for the peer")

    def up(self):
        """Brings both interfaces up; returns the nodes."""
        for node in self.nodes:
            node.up()
            node.run(f"ip address replace 10.78.0.{node.number}/24 dev {PEER} && ip link set {PEER} mtu 9000 up")
        one, two = self.nodes
        one.await_ping("10.78.0.2")
        one.await_ping(two.ip)
        return self.nodes

    def processes(self):
        """What runs on the host for it: {name: process id}."""
        switch = {"switch": self.switch.process.pid} if self.switch else {}
        return switch | {node.name: node.pid for node in self.nodes}

    def stop_nodes(self):
        for node in self.nodes:
            node.stop()
        self.nodes = []

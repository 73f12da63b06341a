# SPDX-License-Identifier: GPL-2.0 OR MIT
"""What the kernel's own tests of network drivers say of the interface (tests/test_selftests.py), and why not all of them pass.

Each program of tools/testing/selftests/drivers/net is in RUN or in NOT_RUN, so that one that a new kernel brings is noticed. A case that
RUN does not name passes. Others have what they end with, and the reason.
"""

SKIP, XFAIL, FAIL = "skip", "xfail", "fail"

ONE_TABLE = "the controller has one table"
NO_HASH = "the hash of a flow is its sender's, so there is neither a key nor a choice of fields"
NO_OFFLOAD = "the controller runs no programs"
ONE_BUFFER = "wants an MTU of 9000 to be too much for a program without fragments"
NO_PAUSE = "frames wait for receive buffers, and there are no pause frames"
NO_FEC = "the link has no error correction of its own"
NO_NTUPLE = "the controller has no rules for flows"
FEW_QUEUES = "wants more than the two queues of a node with two processors"
TUNNELS = "packets in tunnels are segmented by the stack"
OPEN_CHECKSUM = "between nodes checksums stay open, which the receiver's stack knows; what the test reads from a packet socket is not filled in"
OLD_ETHTOOL = "starts `ethtool --json -l`, which ethtool of Debian 13 does not know"

RUN = {
    "ping.py": {"test_xdp_offload": (SKIP, NO_OFFLOAD)},
    "xdp.py": {"test_xdp_native_update_mb_to_sb": (SKIP, ONE_BUFFER)},
    "stats.py": {"check_pause": (SKIP, NO_PAUSE), **{case: (SKIP, NO_FEC) for case in ("check_fec", "check_fec_hist")}},
    "queues.py": {},
    "napi_id.py": {},
    "napi_threaded.py": {case: (FAIL, OLD_ETHTOOL) for case in ("napi_init", "change_num_queues", "enable_dev_threaded_disable_napi_threaded")},
    "ring_reconfig.py": {"reconfig_tx_stall": (SKIP, "the nodes' image has no tc flower")},
    "hw/irq.py": {},
    "hw/csum.py": {f"ipv{version}_tx_udp_{what}": (FAIL, OPEN_CHECKSUM) for version in (4, 6) for what in ("csum_offload", "zero_checksum")},
    "hw/tso.py": {f"{tunnel}{outer}_ipv{inner}": (SKIP, TUNNELS)
                  for tunnel in ("vxlan", "vxlan_csum", "gre", "ip") for outer in (4, 6) for inner in (4, 6)},
    "hw/uso.py": {},
    "hw/rss_api.py": {
        "test_rxfh_nl_set_indir_ctx": (FAIL, ONE_TABLE),
        "test_rxfh_indir_ctx_ntf": (FAIL, ONE_TABLE),
        "test_rxfh_nl_set_key": (FAIL, NO_HASH),
        "test_rxfh_fields": (FAIL, NO_HASH),
        "test_rxfh_fields_set": (FAIL, NO_HASH),
        "test_rxfh_fields_set_xfrm": (FAIL, NO_HASH),
        "test_rxfh_fields_ntf": (FAIL, NO_HASH),
        "test_rss_ctx_add": (FAIL, ONE_TABLE),
        "test_rss_ctx_ntf": (FAIL, ONE_TABLE),
    },
    "hw/rss_ctx.py": {
        "test_rss_key_indir": (SKIP, FEW_QUEUES),
        "test_rss_queue_reconfigure": (SKIP, FEW_QUEUES),
        "test_hitless_key_update": (FAIL, NO_HASH),
        "test_rss_context_dump": (SKIP, ONE_TABLE),
        **{case: (SKIP, NO_NTUPLE) for case in (
            "test_rss_context", "test_rss_context4", "test_rss_context32", "test_rss_context_queue_reconfigure", "test_rss_context_overlap",
            "test_rss_context_overlap2", "test_rss_context_out_of_order", "test_rss_context4_create_with_cfg", "test_flow_add_context_missing",
            "test_delete_rss_context_busy", "test_rss_ntuple_addition", "test_rss_default_context_rule", "test_rss_context_flow_hash",
            "test_rss_context_persist_create_and_ifdown", "test_rss_context_persist_ifdown_and_create")},
    },
}

# They end commands on the remote end by ending ssh, which with a connection that others use leaves them running.
ENDS_COMMANDS = ("ring_reconfig.py", "hw/rss_ctx.py")

NOT_CLAIMED = "is about what the device does not claim: "
NOT_RUN = {
    "gro.py": "is about the stack's GRO; on emulated processors its hundreds of cases take an hour",
    "hds.py": NOT_CLAIMED + "headers in buffers of their own",
    "macsec.py": NOT_CLAIMED + "MACsec offload",
    "netpoll_basic.py": "wants bpftrace, which would make the nodes' image larger by a half; tests/test_traffic.py has netconsole",
    "psp.py": NOT_CLAIMED + "PSP",
    "shaper.py": NOT_CLAIMED + "shapers",
    "so_txtime.py": "is about the stack's queueing disciplines, and about times, which emulated processors do not keep",
    "hw/devlink_port_split.py": NOT_CLAIMED + "ports that can be split",
    "hw/devlink_rate_tc_bw.py": NOT_CLAIMED + "rates",
    "hw/devmem.py": NOT_CLAIMED + "receive buffers in a device's memory",
    "hw/devmem_lib.py": "is part of others",
    "hw/gro_hw.py": NOT_CLAIMED + "GRO in hardware",
    "hw/iou-zcrx.py": NOT_CLAIMED + "receive buffers of io_uring",
    "hw/ipsec_vxlan.py": NOT_CLAIMED + "IPsec offload",
    "hw/nk_devmem.py": NOT_CLAIMED + "receive buffers in a device's memory",
    "hw/nk_netns.py": "is about netkit",
    "hw/nk_qlease.py": NOT_CLAIMED + "queues that can be leased",
    "hw/nic_timestamp.py": NOT_CLAIMED + "time stamps of hardware",
    "hw/ntuple.py": NOT_CLAIMED + "rules for flows",
    "hw/pp_alloc_fail.py": "wants a kernel with fault injection, which Debian's is not",
    "hw/rss_drv.py": FEW_QUEUES,
    "hw/rss_flow_label.py": NOT_CLAIMED + "a choice of fields that are hashed",
    "hw/rss_input_xfrm.py": NOT_CLAIMED + "a hash that is the same both ways",
    "hw/toeplitz.py": NOT_CLAIMED + "a hash function: the sender's stack computes the hash",
    "hw/userns_devmem.py": NOT_CLAIMED + "receive buffers in a device's memory",
    "hw/xdp_metadata.py": NOT_CLAIMED + "hashes that programs can ask for",
    "hw/xsk_reconfig.py": NOT_CLAIMED + "AF_XDP without copies",
}

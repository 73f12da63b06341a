// SPDX-License-Identifier: GPL-2.0
//! What a device and its port are.

use crate::{bindings, DeviceCaps};

/// Attributes of a device (`struct ib_device_attr`); what is not here is 0: not supported.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceAttributes {
    /// Firmware version; its format is the driver's own.
    pub firmware: u64,
    /// GUID of the machine that the device is part of.
    pub sys_image_guid: u64,
    /// PCI vendor.
    pub vendor: u32,
    /// PCI device.
    pub part: u32,
    /// PCI revision.
    pub revision: u32,
    /// What it can do.
    pub caps: DeviceCaps,
    /// Page sizes of memory regions, a bit each.
    pub page_sizes: u64,
    /// Bytes of a memory region.
    pub max_mr_size: u64,
    /// Queue pairs.
    pub max_qp: u32,
    /// Requests in a send or receive queue.
    pub max_qp_wr: u32,
    /// Scatter/gather entries of a send request.
    pub max_send_sge: u32,
    /// Scatter/gather entries of a receive request.
    pub max_recv_sge: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Requests in a shared receive queue.
    pub max_srq_wr: u32,
    /// Scatter/gather entries of a request in a shared receive queue.
    pub max_srq_sge: u32,
    /// Queue pairs of a multicast group, and attachments in all; a group has one at least.
    pub max_mcast: (u32, u32),
    /// READs and atomics in flight per queue pair, as responder and as requester.
    pub max_rd_atomic: u32,
    /// Pages of a fast registration.
    pub max_fast_reg_pages: u32,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Whether completion events can be moderated, and by how much: events, microseconds.
    pub cq_moderation: (u16, u16),
    /// kHz of the clock that 64-bit timestamps of completions are taken from; 0: there are none.
    pub clock_khz: u32,
}

/// Counts are `int` in the core.
fn count(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

impl DeviceAttributes {
    pub(crate) fn to_raw(self, attr: &mut bindings::ib_device_attr) {
        attr.fw_ver = self.firmware;
        attr.sys_image_guid = self.sys_image_guid.to_be();
        attr.vendor_id = self.vendor;
        attr.vendor_part_id = self.part;
        attr.hw_ver = self.revision;
        attr.device_cap_flags = self.caps.to_raw();
        attr.kernel_cap_flags = u64::from(bindings::ib_kernel_cap_flags_IBK_LOCAL_DMA_LKEY);
        attr.page_size_cap = self.page_sizes;
        attr.max_mr_size = self.max_mr_size;
        attr.max_qp = count(self.max_qp);
        attr.max_qp_wr = count(self.max_qp_wr);
        attr.max_send_sge = count(self.max_send_sge);
        attr.max_recv_sge = count(self.max_recv_sge);
        attr.max_sge_rd = count(self.max_send_sge);
        attr.max_cq = count(self.max_cq);
        attr.max_cqe = count(self.max_cqe);
        attr.max_mr = count(self.max_mr);
        attr.max_mw = count(self.max_mw);
        attr.max_pd = count(self.max_pd);
        attr.max_ah = count(self.max_ah);
        attr.max_srq = count(self.max_srq);
        attr.max_srq_wr = count(self.max_srq_wr);
        attr.max_srq_sge = count(self.max_srq_sge);
        let (members, attachments) = self.max_mcast;
        attr.max_mcast_grp = count(attachments);
        attr.max_mcast_qp_attach = count(members);
        attr.max_total_mcast_qp_attach = count(attachments);
        attr.max_qp_rd_atom = count(self.max_rd_atomic);
        attr.max_qp_init_rd_atom = count(self.max_rd_atomic);
        attr.max_res_rd_atom = count(self.max_rd_atomic.saturating_mul(self.max_qp));
        attr.atomic_cap = bindings::ib_atomic_cap_IB_ATOMIC_HCA;
        attr.max_fast_reg_page_list_len = self.max_fast_reg_pages;
        attr.max_dm_size = self.max_dm_size;
        attr.max_pkeys = 1;
        let (events, micros) = self.cq_moderation;
        attr.cq_caps.max_cq_moderation_count = events;
        attr.cq_caps.max_cq_moderation_period = micros;
        attr.hca_core_clock = self.clock_khz.into();
        attr.timestamp_mask = if self.clock_khz == 0 { 0 } else { u64::MAX };
    }
}

/// Lanes and speed of a port (`enum ib_port_width`, `enum ib_port_speed`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSpeed {
    width: bindings::ib_port_width,
    speed: bindings::ib_port_speed,
}

impl PortSpeed {
    /// The slowest combination of the InfiniBand specification that carries `mbps` megabits per second, else the
    /// fastest.
    pub fn from_mbps(mbps: u32) -> Self {
        // As `ib_get_width_and_speed()` of the core, from which these come for Ethernet devices.
        let (width, speed) = match mbps {
            0..=2_500 => (1, bindings::ib_port_speed_IB_SPEED_SDR),
            2_501..=10_000 => (1, bindings::ib_port_speed_IB_SPEED_FDR10),
            10_001..=25_000 => (1, bindings::ib_port_speed_IB_SPEED_EDR),
            25_001..=40_000 => (4, bindings::ib_port_speed_IB_SPEED_FDR10),
            40_001..=100_000 => (4, bindings::ib_port_speed_IB_SPEED_EDR),
            100_001..=200_000 => (4, bindings::ib_port_speed_IB_SPEED_HDR),
            _ => (4, bindings::ib_port_speed_IB_SPEED_NDR),
        };
        let width = match width {
            1 => bindings::ib_port_width_IB_WIDTH_1X,
            _ => bindings::ib_port_width_IB_WIDTH_4X,
        };
        Self { width, speed }
    }
}

/// Attributes of a RoCE port (`struct ib_port_attr`).
#[derive(Clone, Copy, Debug)]
pub struct PortAttributes {
    /// Whether it can send and receive.
    pub active: bool,
    /// Whether new users had better take another one, if it can (`IB_PORT_ACTIVE_DEFER`).
    pub deferred: bool,
    /// Entries of the GID table.
    pub gids: u32,
    /// Bytes of the longest message.
    pub max_message: u32,
    /// Lanes and speed.
    pub speed: PortSpeed,
}

impl PortAttributes {
    pub(crate) fn to_raw(self, attr: &mut bindings::ib_port_attr) {
        (attr.state, attr.phys_state) = if self.active {
            (
                match self.deferred {
                    true => bindings::ib_port_state_IB_PORT_ACTIVE_DEFER,
                    false => bindings::ib_port_state_IB_PORT_ACTIVE,
                },
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_LINK_UP as u8,
            )
        } else {
            (
                bindings::ib_port_state_IB_PORT_DOWN,
                bindings::ib_port_phys_state_IB_PORT_PHYS_STATE_DISABLED as u8,
            )
        };
        attr.max_mtu = bindings::ib_mtu_IB_MTU_4096;
        attr.active_mtu = bindings::ib_mtu_IB_MTU_4096;
        attr.phys_mtu = 4096;
        attr.gid_tbl_len = count(self.gids);
        attr.set_ip_gids(1);
        attr.max_msg_sz = self.max_message;
        attr.pkey_tbl_len = 1;
        attr.max_vl_num = 1;
        attr.active_width = self.speed.width as u8;
        attr.active_speed = self.speed.speed as u16;
        attr.port_cap_flags = bindings::nk_rdma_const_NK_RDMA_PORT_CM_SUP;
    }
}

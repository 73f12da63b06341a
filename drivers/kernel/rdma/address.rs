// SPDX-License-Identifier: GPL-2.0
//! Addresses: GIDs and what address handles hold.

use crate::bindings;

/// An entry of the GID table (`struct ib_gid_attr`).
#[derive(Clone, Copy, Debug)]
pub struct GidAttributes {
    /// GID in network order; an IPv4 address is mapped.
    pub gid: [u8; 16],
    /// Its index.
    pub index: u16,
    /// VLAN of the interface that has the address.
    pub vlan_id: Option<u16>,
}

/// VLAN id that stands for none (`rdma_read_gid_l2_fields()`).
const NO_VLAN: u16 = 0xffff;

impl GidAttributes {
    pub(crate) fn from_raw(attr: &bindings::ib_gid_attr) -> Self {
        let mut vlan_id = NO_VLAN;
        // SAFETY: The core passed the entry to a callback, and the address of a MAC address may be null. This fails for
        // one whose interface has gone, which leaves no VLAN.
        let _ =
            unsafe { bindings::rdma_read_gid_l2_fields(attr, &mut vlan_id, core::ptr::null_mut()) };
        Self {
            // SAFETY: All variants of the union are 16 bytes without meaning of their own.
            gid: unsafe { attr.gid.raw },
            index: attr.index,
            vlan_id: Some(vlan_id).filter(|id| *id != NO_VLAN),
        }
    }
}

/// An address on a RoCE network (`struct rdma_ah_attr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct AhAttributes {
    /// GID of the destination, in network order.
    pub dgid: [u8; 16],
    /// MAC address of the destination.
    pub dmac: [u8; 6],
    /// Index of the own GID.
    pub sgid_index: u16,
    /// Flow label.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Service level.
    pub service_level: u8,
    /// Rate limit (`enum ib_rate`).
    pub static_rate: u8,
}

impl AhAttributes {
    /// `None` for an address that is not one on a RoCE network, or has no global route.
    pub(crate) fn from_raw(attr: &bindings::rdma_ah_attr) -> Option<Self> {
        let roce = attr.type_ == bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        let global = u32::from(attr.ah_flags) & bindings::ib_ah_flags_IB_AH_GRH != 0;
        if !roce || !global {
            return None;
        }
        let grh = &attr.grh;
        let sgid_index = if grh.sgid_attr.is_null() {
            u16::from(grh.sgid_index)
        } else {
            // SAFETY: The core holds a reference to the entry for the time of the call.
            unsafe { (*grh.sgid_attr).index }
        };
        Some(Self {
            // SAFETY: All variants of the union are 16 bytes without meaning of their own.
            dgid: unsafe { grh.dgid.raw },
            // SAFETY: The type was checked above, and any bytes will do.
            dmac: unsafe { attr.__bindgen_anon_1.roce.dmac },
            sgid_index,
            flow_label: grh.flow_label,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            service_level: attr.sl,
            static_rate: attr.static_rate,
        })
    }

    pub(crate) fn to_raw(self, attr: &mut bindings::rdma_ah_attr) {
        attr.type_ = bindings::rdma_ah_attr_type_RDMA_AH_ATTR_TYPE_ROCE;
        attr.ah_flags = bindings::ib_ah_flags_IB_AH_GRH as u8;
        attr.port_num = crate::device::PORT;
        attr.sl = self.service_level;
        attr.static_rate = self.static_rate;
        attr.grh.dgid.raw = self.dgid;
        attr.grh.flow_label = self.flow_label;
        // The core's tables are shorter than this.
        attr.grh.sgid_index = u8::try_from(self.sgid_index).unwrap_or(u8::MAX);
        attr.grh.hop_limit = self.hop_limit;
        attr.grh.traffic_class = self.traffic_class;
        attr.__bindgen_anon_1.roce.dmac = self.dmac;
    }
}

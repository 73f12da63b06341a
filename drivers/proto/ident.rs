// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Identities: PCI IDs, nodes, keys, MAC addresses.

/// An integer from outside that no defined value of a wire enumeration stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownValue(pub u32);

/// PCI vendor ID (Red Hat/Qumranet, whose 10f0-10ff range is reserved for experiments).
pub const PCI_VENDOR_ID: u16 = 0x1af4;
/// PCI device ID of the fabric controller.
pub const PCI_DEVICE_ID: u16 = 0x10f0;
/// PCI device ID, of the same vendor, of memory that virtual machines share (QEMU's ivshmem).
pub const PCI_IVSHMEM_ID: u16 = 0x1110;
/// PCI class code: network controller, other.
pub const PCI_CLASS: u32 = 0x02_80_00;
/// PCI revision ID of a controller that follows this specification.
pub const PCI_REVISION: u8 = 1;

/// Largest number of nodes one fabric can have; node ids are below this.
pub const MAX_NODES: u16 = 1024;
/// Destination of a raw frame that is offered to every node but the sender, whose receive filter decides; and of a datagram for
/// [`MULTICAST_QPN`], which the sender's own node is offered as well.
pub const NODE_FLOOD: u16 = 0xffff;

/// Local key that stands for all of the function's DMA address space, addresses being DMA addresses.
/// Only a queue pair created with [`crate::admin::QP_FLAG_PRIVILEGED`] may use it, and only as a local key.
pub const DMA_LKEY: u32 = u32::MAX;

/// Bits of a memory key's variant, the lowest ones: drawn at random for a region, chosen by the owner when a key is
/// bound by FAST_REG or BIND_MW, as `ib_update_fast_reg_key()` and `ibv_inc_rkey()` expect.
pub const KEY_VARIANT_BITS: u32 = 8;
/// Mask of the variant of a memory key.
pub const KEY_VARIANT_MASK: u32 = (1 << KEY_VARIANT_BITS) - 1;
/// Bits of a memory key that index the region table; they follow the variant. The bits above them are a random tag,
/// drawn when the key is created.
pub const KEY_INDEX_BITS: u32 = 18;
/// Mask of the index part of a memory key, shifted down.
pub const KEY_INDEX_MASK: u32 = (1 << KEY_INDEX_BITS) - 1;
/// Bits of the random tag.
pub const KEY_TAG_BITS: u32 = 32 - KEY_INDEX_BITS - KEY_VARIANT_BITS;

/// Region table index that a memory key names.
#[inline]
pub const fn key_index(key: u32) -> u32 {
    (key >> KEY_VARIANT_BITS) & KEY_INDEX_MASK
}

/// Composes a memory key from a region table index and random bits for variant (the low ones) and tag.
#[inline]
pub const fn make_key(index: u32, random: u32) -> u32 {
    let tag = random >> (KEY_INDEX_BITS + KEY_VARIANT_BITS) << (KEY_INDEX_BITS + KEY_VARIANT_BITS);
    tag | ((index & KEY_INDEX_MASK) << KEY_VARIANT_BITS) | (random & KEY_VARIANT_MASK)
}

/// Whether two keys differ in their variant at most, so that the owner of one may bind the other.
#[inline]
pub const fn same_key_slot(a: u32, b: u32) -> bool {
    (a ^ b) & !KEY_VARIANT_MASK == 0
}

/// Queue pair number of the general services interface (InfiniBand volume 1, 3.9.4): connection management.
pub const GSI_QPN: u32 = 1;
/// Destination of a datagram that goes to the queue pairs that are attached to its multicast group (InfiniBand volume 1, 10.5).
pub const MULTICAST_QPN: u32 = 0xff_ffff;
/// Queue key of [`GSI_QPN`] (InfiniBand volume 1, 10.2.5).
pub const GSI_QKEY: u32 = 0x8001_0000;
/// Receive completions of datagrams begin with this many bytes of global route header.
pub const GRH_SIZE: u32 = 40;

/// First four bytes of every node's own MAC address: locally administered, unicast, then "NUP".
pub const MAC_PREFIX: [u8; 4] = [0x02, 0x4e, 0x55, 0x50];

/// MAC address of a node; it depends on nothing but the node id, so it is stable over reboots.
#[inline]
pub const fn node_mac(node: u16) -> [u8; 6] {
    let [hi, lo] = node.to_be_bytes();
    [
        MAC_PREFIX[0],
        MAC_PREFIX[1],
        MAC_PREFIX[2],
        MAC_PREFIX[3],
        hi,
        lo,
    ]
}

/// Node whose own MAC address this is, if it has the form of one.
///
/// A frame for such an address goes straight to that node; any other unicast address is flooded
/// ([`NODE_FLOOD`]), since the machine that owns it may sit behind a bridge on any node.
#[inline]
pub fn mac_node(mac: &[u8; 6]) -> Option<u16> {
    let [a, b, c, d, hi, lo] = *mac;
    let node = u16::from_be_bytes([hi, lo]);
    ([a, b, c, d] == MAC_PREFIX && node < MAX_NODES).then_some(node)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mac_round_trip_and_foreign_addresses() {
        for node in [0, 1, 255, 256, MAX_NODES - 1] {
            assert_eq!(mac_node(&node_mac(node)), Some(node));
        }
        assert_eq!(mac_node(&node_mac(MAX_NODES)), None);
        assert_eq!(mac_node(&[0x02, 0x4e, 0x55, 0x51, 0, 1]), None);
        assert_eq!(mac_node(&[0xff; 6]), None);
    }

    #[test]
    fn key_keeps_index_and_tag_apart() {
        let key = make_key(KEY_INDEX_MASK, 0x0400_0001);
        assert_eq!(key_index(key), KEY_INDEX_MASK);
        assert_eq!(key & KEY_VARIANT_MASK, 1);
        assert_eq!(key >> (KEY_INDEX_BITS + KEY_VARIANT_BITS), 1);
        assert!(same_key_slot(key, key ^ 0xff) && !same_key_slot(key, key ^ 0x100));
    }
}

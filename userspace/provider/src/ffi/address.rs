// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Address handles: where datagrams go.

use core::ffi::c_int;

use nupa_proto::uabi::CreateAhResponse;
use nupa_proto::wqe::{DatagramSegment, GrhSegment};
use rustix::io::Errno;

use super::command::exchange;
use super::errno::{check, code, pointer};
use super::object::{Object, Pending};
use super::sys;

/// What descriptors say of an address, but for queue pair and key.
pub(super) struct Address {
    node: u16,
    grh: GrhSegment,
}

pub(super) type AhObject = Object<sys::ibv_ah, Address>;

impl Address {
    /// An address: a node, and the header that datagrams to it get.
    pub(super) const fn new(node: u16, grh: GrhSegment) -> Self {
        Self { node, grh }
    }

    /// The address of a handle.
    ///
    /// # Safety
    ///
    /// `ah` is one of this provider's and exists as long as the reference is used.
    pub(super) unsafe fn of<'a>(ah: *mut sys::ibv_ah) -> &'a Self {
        // SAFETY: the caller's word.
        unsafe { AhObject::of(ah) }
    }

    /// The segments of a datagram to a queue pair there.
    pub(super) fn segments(&self, qpn: u32, qkey: u32) -> (DatagramSegment, GrhSegment) {
        let to = DatagramSegment {
            qpn: qpn.into(),
            qkey: qkey.into(),
            node: self.node.into(),
            reserved: [0; 6],
        };
        (to, self.grh)
    }
}

/// `verbs_context_ops::create_ah`
pub(super) unsafe extern "C" fn create_ah(
    pd: *mut sys::ibv_pd,
    attr: *mut sys::ibv_ah_attr,
) -> *mut sys::ibv_ah {
    // SAFETY: the program passes its attributes.
    let grh = unsafe { (*attr).grh };
    // SAFETY: as above.
    if unsafe { (*attr).is_global } == 0 {
        return pointer(Err(Errno::INVAL));
    }
    let pending = Pending::new();
    let answer = exchange((), |_: *mut (), _, response, size| {
        // SAFETY: `pd` and `attr` are the caller's; the structure lives across the call, and the size is its.
        unsafe { sys::ibv_cmd_create_ah(pd, pending.base(), attr, response, size) }
    });
    pointer(answer.map(|answer: CreateAhResponse| {
        let header = GrhSegment {
            // SAFETY: the union is 16 bytes, whichever way they are read.
            dgid: unsafe { grh.dgid.raw },
            flow_label: grh.flow_label.into(),
            sgid_index: answer.sgid_index,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            reserved: [0; 8],
        };
        pending.finish(Address::new(answer.node.get(), header))
    }))
}

/// `verbs_context_ops::destroy_ah`
pub(super) unsafe extern "C" fn destroy_ah(ah: *mut sys::ibv_ah) -> c_int {
    // SAFETY: `ah` is one of this provider's, and the program gives it up.
    let result = check(unsafe { sys::ibv_cmd_destroy_ah(ah) });
    if result.is_ok() {
        // SAFETY: as above; the kernel has forgotten it.
        unsafe { AhObject::free(ah) };
    }
    code(result)
}

// SPDX-License-Identifier: GPL-2.0
//! XDP: programs that see frames before the stack does.
//!
//! C header: `include/net/xdp.h`

mod buff;
mod frame;
mod program;

pub use self::{
    buff::XdpBuff,
    frame::{XdpFrame, XdpFrames},
    program::{ExtAck, Program, Verdict},
};

use crate::bindings;
use kernel::page::PAGE_SIZE;

/// Bytes in front of a frame in the receive buffers of an XDP queue: `XDP_PACKET_HEADROOM` (256) for programs, and room for
/// `struct xdp_frame` and a VLAN tag.
pub(super) const HEADROOM: u32 = 384;
/// Bytes behind it, for the list of its fragments.
const TAILROOM: u32 = bindings::nk_xdp_const_NK_XDP_TAILROOM;

/// Bytes of a page that are not for the frame.
pub(super) const RESERVED: u32 = HEADROOM + TAILROOM;

/// Bytes of a frame that a receive buffer of an XDP queue takes, whose pages are 2^`order` of the processor's.
pub const fn room(order: u32) -> u32 {
    ((PAGE_SIZE as u32) << order).saturating_sub(RESERVED)
}

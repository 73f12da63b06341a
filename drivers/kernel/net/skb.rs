// SPDX-License-Identifier: GPL-2.0
//! Socket buffers: packets to send, packets being received.
//!
//! C header: `include/linux/skbuff.h`

use super::{offload::Gso, page_pool::RxBuffer};
use crate::bindings;
use core::{mem::ManuallyDrop, ptr::NonNull};
use kernel::{error::from_err_ptr, prelude::*};

/// Most fragments of a packet beside its linear part.
pub const MAX_FRAGS: usize = bindings::MAX_SKB_FRAGS as usize;

/// The fields that `skb_copy_header()` copies, where bindgen puts them.
macro_rules! headers {
    ($skb:expr) => {
        (*$skb).__bindgen_anon_4.headers.as_ref()
    };
    (mut $skb:expr) => {
        (*$skb).__bindgen_anon_4.headers.as_mut()
    };
}

/// An owned packet; dropping it counts as a dropped packet (`kfree_skb()`), [`SkBuff::consume`] as a finished one.
///
/// # Invariants
///
/// The pointer is to a valid `struct sk_buff` that nobody else owns.
pub struct SkBuff(NonNull<bindings::sk_buff>);

// SAFETY: An skb has no ties to a thread.
unsafe impl Send for SkBuff {}

impl SkBuff {
    /// # Safety
    ///
    /// The caller passes the ownership of a valid `skb`.
    #[inline]
    pub(super) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        // INVARIANT: By the safety requirements.
        Self(skb)
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::sk_buff {
        self.0.as_ptr()
    }

    /// Gives up ownership without freeing.
    #[inline]
    pub(super) fn into_raw(self) -> *mut bindings::sk_buff {
        ManuallyDrop::new(self).as_raw()
    }

    #[inline]
    fn shared_info(&self) -> *mut bindings::skb_shared_info {
        // SAFETY: `end` is the offset of the shared info from `head` on 64-bit machines
        // (NET_SKBUFF_DATA_USES_OFFSET), and every skb has one.
        unsafe {
            (*self.as_raw())
                .head
                .add((*self.as_raw()).end as usize)
                .cast()
        }
    }

    /// Bytes between the start of the buffer and the packet.
    #[inline]
    fn headroom(&self) -> usize {
        // SAFETY: By the type invariants; `data` is never below `head`.
        unsafe { ((*self.as_raw()).data as usize).wrapping_sub((*self.as_raw()).head as usize) }
    }

    /// Bytes of the packet.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "packets are not containers")]
    pub fn len(&self) -> u32 {
        // SAFETY: By the type invariants.
        unsafe { (*self.as_raw()).len }
    }

    /// Bytes of the packet's linear part.
    #[inline]
    pub fn linear_len(&self) -> u32 {
        // SAFETY: By the type invariants.
        unsafe { (*self.as_raw()).len.wrapping_sub((*self.as_raw()).data_len) }
    }

    /// The packet's linear part: headers, and payload if there are no fragments.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        // SAFETY: `data` points to that many bytes, and the owner of an skb may read them.
        unsafe { core::slice::from_raw_parts((*self.as_raw()).data, self.linear_len() as usize) }
    }

    /// Page fragments behind the linear part.
    #[inline]
    pub fn frags(&self) -> usize {
        // SAFETY: By the type invariants.
        usize::from(unsafe { (*self.shared_info()).nr_frags })
    }

    /// Bytes of fragment `index`, 0 if there is none.
    #[inline]
    pub(super) fn frag_len(&self, index: usize) -> u32 {
        // SAFETY: By the type invariants; the shared info is initialised up to `nr_frags`.
        unsafe {
            (*self.shared_info())
                .frags
                .get(index)
                .map_or(0, |frag| frag.len)
        }
    }

    /// Sets the protocol that the Ethernet header names.
    ///
    /// # Safety
    ///
    /// `protocol` is what `eth_type_trans()` returned for this packet.
    #[inline]
    pub(super) unsafe fn set_protocol(&mut self, protocol: bindings::__be16) {
        // SAFETY: By the type invariants.
        unsafe { headers!(mut self.as_raw()).protocol = protocol };
    }

    /// Segmentation that is left to whoever sends the packet on: `None` if there is none to do, `Err` for a kind that
    /// [`Gso`] does not know.
    #[inline]
    pub fn gso(&self) -> Result<Option<Gso>> {
        let info = self.shared_info();
        // SAFETY: By the type invariants.
        let (size, kind) = unsafe { ((*info).gso_size, (*info).gso_type) };
        if size == 0 {
            return Ok(None);
        }
        Gso::from_raw(kind, size).map(Some).ok_or(EINVAL)
    }

    /// Where the transport checksum starts and, counted from there, goes, if it is left to be done
    /// (`CHECKSUM_PARTIAL`).
    #[inline]
    pub fn partial_checksum(&self) -> Option<(u16, u16)> {
        // SAFETY: By the type invariants; with CHECKSUM_PARTIAL the union holds start and offset.
        unsafe {
            if u32::from(headers!(self.as_raw()).ip_summed()) != bindings::CHECKSUM_PARTIAL {
                return None;
            }
            let csum = &headers!(self.as_raw()).__bindgen_anon_1.__bindgen_anon_1;
            Some((
                usize::from(csum.csum_start).wrapping_sub(self.headroom()) as u16,
                csum.csum_offset,
            ))
        }
    }

    /// The out-of-band 802.1Q tag, if there is one.
    #[inline]
    pub fn vlan_tag(&self) -> Option<u16> {
        // SAFETY: By the type invariants; both members of the union are plain integers.
        unsafe {
            let vlan = &headers!(self.as_raw()).__bindgen_anon_2;
            (vlan.vlan_all != 0).then_some(vlan.__bindgen_anon_1.vlan_tci)
        }
    }

    /// The packet's flow hash and whether it covers the transport header; 0 if nobody has computed one yet.
    #[inline]
    pub fn known_hash(&self) -> (u32, bool) {
        // SAFETY: By the type invariants.
        unsafe {
            (
                headers!(self.as_raw()).hash,
                headers!(self.as_raw()).l4_hash() != 0,
            )
        }
    }

    /// The packet's flow hash, computed from its headers if need be.
    #[inline]
    pub fn hash(&mut self) -> (u32, bool) {
        // SAFETY: By the type invariants.
        let hash = unsafe { bindings::nk_skb_get_hash(self.as_raw()) };
        // SAFETY: As above.
        (hash, unsafe { headers!(self.as_raw()).l4_hash() } != 0)
    }

    /// Takes a software time stamp if the sender asked for one; call it right before the packet goes out.
    #[inline]
    pub fn tx_timestamp(&mut self) {
        // SAFETY: By the type invariants.
        unsafe {
            if (*self.shared_info()).tx_flags != 0 {
                bindings::nk_skb_tx_timestamp(self.as_raw());
            }
        }
    }

    /// Frees a packet that did what it was for (`consume_skb()`). Any context.
    #[inline]
    pub fn consume(self) {
        // SAFETY: Ownership goes to the function.
        unsafe { bindings::nk_skb_consume(self.into_raw()) };
    }
}

impl Drop for SkBuff {
    fn drop(&mut self) {
        // SAFETY: Owned by the type invariants, and not used after this.
        unsafe { bindings::nk_skb_drop(self.as_raw()) };
    }
}

/// A received packet under construction; [`super::NapiContext::receive`] hands it to the stack.
pub struct RxSkb(SkBuff);

impl RxSkb {
    pub(super) fn new(skb: SkBuff) -> Self {
        Self(skb)
    }

    pub(super) fn into_inner(self) -> SkBuff {
        self.0
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::sk_buff {
        self.0.as_raw()
    }

    /// The segments of a super-frame ([`set_gso`](Self::set_gso)), complete with checksums; they share its fragments.
    ///
    /// `EINVAL` if it has no Ethernet header in its linear part or is none, or another error if its headers are not what they are said to be.
    pub fn segment(&mut self) -> Result<Segments> {
        if self.linear().len() < bindings::ETH_HLEN as usize || !matches!(self.0.gso(), Ok(Some(_)))
        {
            return Err(EINVAL);
        }
        // SAFETY: By the invariants of `SkBuff`; it has an Ethernet header.
        let first = from_err_ptr(unsafe { bindings::nk_skb_segment(self.as_raw()) })?;
        if first.is_null() || core::ptr::eq(first, self.as_raw()) {
            return Err(EINVAL);
        }
        // INVARIANT: The list is ours.
        Ok(Segments(NonNull::new(first)))
    }

    /// Bytes so far.
    #[allow(clippy::len_without_is_empty, reason = "packets are not containers")]
    pub fn len(&self) -> u32 {
        self.0.len()
    }

    /// Frees a packet that did what it was for ([`SkBuff::consume`]).
    pub fn consume(self) {
        self.0.consume();
    }

    /// The linear part: a private copy, which the device cannot change any more.
    #[inline]
    pub fn linear(&self) -> &[u8] {
        self.0.linear()
    }

    /// Copies `len` bytes at `offset` of `buffer` to the end of the linear part.
    ///
    /// `EINVAL` if they do not lie in the buffer, `ENOSPC` if there is no room or there are fragments already.
    #[inline]
    pub fn copy_from(&mut self, buffer: &RxBuffer, offset: u32, len: u32) -> Result {
        let source = buffer.bytes(offset, len)?;
        let skb = self.0.as_raw();
        // SAFETY: By the invariants of `SkBuff`; `end` is never below `tail`.
        let (tailroom, fragmented) =
            unsafe { ((*skb).end.wrapping_sub((*skb).tail), (*skb).data_len != 0) };
        if len > tailroom || fragmented {
            return Err(ENOSPC);
        }
        // SAFETY: There are `len` bytes of tailroom, so `skb_put()` returns a pointer to as many that are ours alone;
        // `source` is as long, lies in another allocation, and may change underfoot, which a raw copy tolerates.
        unsafe {
            core::ptr::copy_nonoverlapping(source, bindings::skb_put(skb, len).cast(), len as usize)
        };
        Ok(())
    }

    /// Appends `len` bytes at `offset` of `buffer` as a fragment, without a copy. The buffer goes to the packet, which is charged
    /// its size, and once that is freed back to its pool.
    ///
    /// `EINVAL` if they do not lie in the buffer, `ENOSPC` if the packet has [`MAX_FRAGS`] fragments already.
    #[inline]
    pub fn add_buffer(&mut self, buffer: RxBuffer, offset: u32, len: u32) -> Result {
        buffer.bytes(offset, len)?;
        if self.0.frags() >= MAX_FRAGS {
            return Err(ENOSPC);
        }
        let size = buffer.size();
        let (page, start) = buffer.into_raw();
        let offset = start.wrapping_add(offset);
        // SAFETY: The range was checked and there is a free fragment; the page's reference goes to the skb, which is
        // marked so that it returns it to the pool.
        unsafe {
            bindings::nk_skb_add_page(self.0.as_raw(), page, offset, len, size);
        }
        Ok(())
    }

    /// Says that the transport checksum over everything from `start` is missing and goes to `start + offset`.
    ///
    /// `EINVAL` if that is not within the linear part.
    #[inline]
    pub fn set_partial_checksum(&mut self, start: u16, offset: u16) -> Result {
        // SAFETY: By the invariants of `SkBuff`; the function checks the range.
        match unsafe { bindings::skb_partial_csum_set(self.0.as_raw(), start, offset) } {
            true => Ok(()),
            false => Err(EINVAL),
        }
    }

    /// Says that the transport checksum is known to be right (`CHECKSUM_UNNECESSARY`).
    #[inline]
    pub fn set_checksum_valid(&mut self) {
        // SAFETY: By the invariants of `SkBuff`.
        unsafe {
            headers!(mut self.0.as_raw()).set_ip_summed(bindings::CHECKSUM_UNNECESSARY as u8)
        };
    }

    /// Says how the packet is segmented should it ever be sent on.
    #[inline]
    pub fn set_gso(&mut self, gso: Gso) {
        let info = self.0.shared_info();
        // SAFETY: By the invariants of `SkBuff`; the shared info of a packet under construction is ours alone.
        unsafe {
            (*info).gso_size = gso.size;
            (*info).gso_type = gso.to_raw();
            // Left to whoever needs it, together with the check of the headers.
            (*info).gso_segs = 0;
        }
    }

    /// Sets the out-of-band 802.1Q tag.
    #[inline]
    pub fn set_vlan_tag(&mut self, tag: u16) {
        // SAFETY: By the invariants of `SkBuff`.
        unsafe { bindings::nk_skb_set_vlan(self.0.as_raw(), tag) };
    }

    /// Sets the flow hash; `l4` if it covers the transport header.
    #[inline]
    pub fn set_hash(&mut self, hash: u32, l4: bool) {
        // SAFETY: By the invariants of `SkBuff`.
        unsafe { bindings::nk_skb_set_hash(self.0.as_raw(), hash, l4) };
    }

    /// Notes which receive queue the packet came in on.
    #[inline]
    pub fn set_queue(&mut self, queue: u16) {
        // SAFETY: By the invariants of `SkBuff`. As `skb_record_rx_queue()`: 0 stands for "none".
        unsafe { (*self.0.as_raw()).queue_mapping = queue.wrapping_add(1) };
    }
}

/// Packets that were made of one. Those that are not taken are dropped with it.
///
/// # Invariants
///
/// The pointer is to a list of packets that nobody else owns.
pub struct Segments(Option<NonNull<bindings::sk_buff>>);

impl Iterator for Segments {
    type Item = SkBuff;

    fn next(&mut self) -> Option<SkBuff> {
        let first = self.0?;
        // SAFETY: By the type invariants; what follows is the list now.
        self.0 = NonNull::new(unsafe { bindings::nk_skb_unlink(first.as_ptr()) });
        // SAFETY: As above; it is in no list any more.
        Some(unsafe { SkBuff::from_raw(first) })
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        if let Some(first) = self.0 {
            // SAFETY: By the type invariants.
            unsafe { bindings::nk_skb_drop_list(first.as_ptr()) };
        }
    }
}

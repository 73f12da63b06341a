// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Checked pieces of memory, and the one copy from source to destination.

use crate::{
    hal::{AccessError, Memory, Storage, Undone},
    state::mr::Mrs,
};

/// Most pieces that a message is gathered from or scattered to.
pub(crate) const MAX_SPANS: usize = 64;

/// A piece of memory that was checked: key, range and rights are in order.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Region that `addr` is an offset into; without one it is a DMA address.
    mr: Option<u32>,
    len: u32,
    addr: u64,
}

impl Span {
    const EMPTY: Self = Self {
        mr: None,
        len: 0,
        addr: 0,
    };

    #[inline(always)]
    pub(crate) fn direct(addr: u64, len: u32) -> Self {
        Self {
            mr: None,
            len,
            addr,
        }
    }

    /// DMA address of its first byte.
    pub(crate) fn locate<S: Storage>(&self, mrs: &Mrs<S>) -> Option<u64> {
        Some(self.contiguous::<S>(mrs)?.0)
    }

    /// DMA address of its first byte, and how many bytes are contiguous from there.
    pub(crate) fn contiguous<S: Storage>(&self, mrs: &Mrs<S>) -> Option<(u64, u64)> {
        match self.mr {
            None => Some((self.addr, u64::MAX)),
            Some(number) => mrs.get(number)?.locate(self.addr),
        }
    }

    #[inline(always)]
    pub(crate) fn in_mr(mr: u32, offset: u64, len: u32) -> Self {
        Self {
            mr: Some(mr),
            len,
            addr: offset,
        }
    }
}

/// More pieces than [`MAX_SPANS`], or more bytes than 32 bits count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TooLong;

/// A list of spans.
#[derive(Debug)]
pub(crate) struct Spans {
    list: [Span; MAX_SPANS],
    count: usize,
    total: u32,
}

impl Spans {
    pub(crate) const fn new() -> Self {
        Self {
            list: [Span::EMPTY; MAX_SPANS],
            count: 0,
            total: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        (self.count, self.total) = (0, 0);
    }

    /// Becomes this one.
    pub(crate) fn set(&mut self, span: Span) {
        let [first, ..] = &mut self.list;
        (*first, self.count, self.total) = (span, 1, span.len);
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, span: Span) -> Result<(), TooLong> {
        if span.len == 0 {
            return Ok(());
        }
        let total = self.total.checked_add(span.len).ok_or(TooLong)?;
        *self.list.get_mut(self.count).ok_or(TooLong)? = span;
        self.count = self.count.wrapping_add(1);
        self.total = total;
        Ok(())
    }

    /// Leaves the first `len` bytes out.
    pub(crate) fn skip(&mut self, len: u32) {
        let mut left = len;
        for span in self.list.iter_mut().take(self.count) {
            let cut = left.min(span.len);
            span.len = span.len.saturating_sub(cut);
            span.addr = span.addr.wrapping_add(u64::from(cut));
            left = left.saturating_sub(cut);
        }
        self.total = self.total.saturating_sub(len);
    }

    /// Bytes in all.
    #[inline(always)]
    pub(crate) fn total(&self) -> u32 {
        self.total
    }

    #[inline(always)]
    fn as_slice(&self) -> &[Span] {
        self.list.get(..self.count).unwrap_or(&[])
    }
}

/// One side of a transfer: memory, and the regions that spans refer to.
pub(crate) struct Side<'a, S: Storage, M> {
    pub(crate) mrs: &'a Mrs<S>,
    pub(crate) memory: &'a M,
    pub(crate) spans: &'a Spans,
}

/// The side whose memory could not be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyError {
    Source,
    Destination,
}

/// Walks over the contiguous pieces of one side.
struct Cursor<'a, S: Storage> {
    mrs: &'a Mrs<S>,
    spans: core::slice::Iter<'a, Span>,
    rest: Span,
}

impl<'a, S: Storage> Cursor<'a, S> {
    #[inline(always)]
    fn new<M>(side: &Side<'a, S, M>) -> Self {
        let mut spans = side.spans.as_slice().iter();
        let rest = spans.next().copied().unwrap_or(Span::EMPTY);
        Self {
            mrs: side.mrs,
            spans,
            rest,
        }
    }

    /// DMA address and length of what is contiguous from here; `None` at the end.
    #[inline(always)]
    fn piece(&mut self) -> Option<(u64, u32)> {
        while self.rest.len == 0 {
            self.rest = *self.spans.next()?;
        }
        match self.rest.mr {
            None => Some((self.rest.addr, self.rest.len)),
            Some(number) => {
                let (addr, contiguous) = self.mrs.get(number)?.locate(self.rest.addr)?;
                Some((
                    addr,
                    u32::try_from(contiguous)
                        .unwrap_or(u32::MAX)
                        .min(self.rest.len),
                ))
            }
        }
    }

    #[inline(always)]
    fn advance(&mut self, len: u32) {
        self.rest.len = self.rest.len.saturating_sub(len);
        self.rest.addr = self.rest.addr.wrapping_add(u64::from(len));
    }
}

/// How bytes are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stores {
    /// As ever.
    Ordinary,
    /// As [`Memory::copy_nontemporal`] does.
    NonTemporal,
}

/// Copies `len` bytes from `source` to `destination`.
#[inline(always)]
pub(crate) fn copy<S: Storage, M: Memory>(
    source: &Side<'_, S, M>,
    destination: &Side<'_, S, M>,
    len: u32,
    stores: Stores,
) -> Result<(), CopyError> {
    let (mut from, mut to) = (Cursor::new(source), Cursor::new(destination));
    let (here, there) = (source.memory, destination.memory);
    copy_pieces(&mut from, &mut to, here, len, |from, to, n| match stores {
        Stores::Ordinary => here.copy_to(from, there, to, n),
        Stores::NonTemporal => here.copy_nontemporal(from, there, to, n),
    })
}

/// Has `each` copy what is contiguous on both sides (from, to, length), until that is `len` bytes.
#[inline(always)]
fn copy_pieces<S: Storage, M: Memory>(
    from: &mut Cursor<'_, S>,
    to: &mut Cursor<'_, S>,
    here: &M,
    len: u32,
    each: impl Fn(u64, u64, usize) -> Result<(), AccessError>,
) -> Result<(), CopyError> {
    let mut left = len;
    while left > 0 {
        let (from_addr, from_len) = from.piece().ok_or(CopyError::Source)?;
        let (to_addr, to_len) = to.piece().ok_or(CopyError::Destination)?;
        let n = left.min(from_len).min(to_len);
        let copied = each(from_addr, to_addr, n as usize);
        copied.map_err(|_| blame(here, from_addr, n))?;
        from.advance(n);
        to.advance(n);
        left = left.saturating_sub(n);
    }
    Ok(())
}

/// Why submitted copies are not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmitError {
    Failed(CopyError),
    /// See [`Undone::Unfinished`].
    Unfinished,
}

/// Bytes at the end that the processor stores after all others: a program may poll for the last ones.
const LAST: u32 = 64;

/// As [`copy()`], by copies that are [submitted](Memory::submit_copy), all before the first is waited for.
#[inline(never)]
pub(crate) fn copy_submitted<S: Storage, M: Memory>(
    source: &Side<'_, S, M>,
    destination: &Side<'_, S, M>,
    len: u32,
) -> Result<(), SubmitError> {
    let (mut from, mut to) = (Cursor::new(source), Cursor::new(destination));
    let (here, there) = (source.memory, destination.memory);
    let first = len.saturating_sub(LAST);
    let submitted = copy_pieces(&mut from, &mut to, here, first, |from, to, n| {
        here.submit_copy(from, there, to, n)
    });
    // Those before one that failed, too.
    match here.finish_copies() {
        Ok(()) => {}
        // This says which side is to blame.
        Err(Undone::Failed) => {
            return copy(source, destination, len, Stores::Ordinary).map_err(SubmitError::Failed)
        }
        Err(Undone::Unfinished) => return Err(SubmitError::Unfinished),
    }
    submitted.map_err(SubmitError::Failed)?;
    let last = len.saturating_sub(first);
    copy_pieces(&mut from, &mut to, here, last, |from, to, n| {
        here.copy_to(from, there, to, n)
    })
    .map_err(SubmitError::Failed)
}

/// Bytes per read while searching for what cannot be read.
const PIECE: u32 = 256;

/// Which side of a failed copy was to blame: the source, if any of it cannot be read. In the middle of memory that is there, that
/// is a memory error.
#[cold]
fn blame(source: &impl Memory, addr: u64, len: u32) -> CopyError {
    let mut piece = [0; PIECE as usize];
    let readable = |at: u32| {
        let left = len.saturating_sub(at).min(PIECE) as usize;
        let piece = piece.get_mut(..left).unwrap_or_default();
        source.read(addr.wrapping_add(u64::from(at)), piece).is_ok()
    };
    match (0..len).step_by(PIECE as usize).all(readable) {
        true => CopyError::Destination,
        false => CopyError::Source,
    }
}

/// Writes bytes to one side: inline data, a network header, or the result of an atomic operation.
#[inline(always)]
pub(crate) fn scatter<S: Storage, M: Memory>(
    bytes: &[u8],
    destination: &Side<'_, S, M>,
) -> Result<(), CopyError> {
    let mut to = Cursor::new(destination);
    let mut rest = bytes;
    while !rest.is_empty() {
        let (addr, len) = to.piece().ok_or(CopyError::Destination)?;
        let (head, tail) = rest.split_at(rest.len().min(len as usize));
        destination
            .memory
            .write(addr, head)
            .map_err(|_| CopyError::Destination)?;
        to.advance(u32::try_from(head.len()).unwrap_or(u32::MAX));
        rest = tail;
    }
    Ok(())
}

/// Reads the first bytes of the source, as many as `buf` takes.
#[inline(always)]
pub(crate) fn peek<S: Storage, M: Memory>(
    source: &Side<'_, S, M>,
    buf: &mut [u8],
) -> Result<(), CopyError> {
    let mut from = Cursor::new(source);
    let mut rest = buf;
    while !rest.is_empty() {
        let (addr, len) = from.piece().ok_or(CopyError::Source)?;
        let (head, tail) = rest.split_at_mut(rest.len().min(len as usize));
        source
            .memory
            .read(addr, head)
            .map_err(|_| CopyError::Source)?;
        from.advance(u32::try_from(head.len()).unwrap_or(u32::MAX));
        rest = tail;
    }
    Ok(())
}

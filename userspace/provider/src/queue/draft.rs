// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Send requests that are made piece by piece, as `ibv_wr_*()` does.

use nupa_engine::rings::{Data, Head, PostError};
use nupa_proto::wqe::{DatagramSegment, GrhSegment, Sge, MAX_INLINE};

use super::bypass::Kind;
use super::size::MAX_SGE;

/// The request of a batch that was begun last.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The request without its data, and what it is to a process ring; none before the first one is begun.
    head: Option<(Head, Kind)>,
    /// Why the batch cannot be posted.
    error: Option<PostError>,
    filled: Filled,
    sges: [Sge; MAX_SGE],
    inline: [u8; MAX_INLINE],
}

/// What data a draft has.
#[derive(Clone, Copy, Debug)]
enum Filled {
    Sges(usize),
    Inline(usize),
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            head: None,
            error: None,
            filled: Filled::Sges(0),
            sges: [Sge::default(); MAX_SGE],
            inline: [0; MAX_INLINE],
        }
    }
}

impl Draft {
    /// Forgets the batch.
    pub(crate) fn start(&mut self) {
        self.head = None;
        self.error = None;
    }

    /// Begins a request without data.
    #[inline(always)]
    pub(crate) fn begin(&mut self, head: Head, kind: Kind) {
        self.head = Some((head, kind));
        self.filled = Filled::Sges(0);
    }

    /// Whether one was begun.
    #[inline(always)]
    pub(crate) fn is_begun(&self) -> bool {
        self.head.is_some()
    }

    /// Notes the first reason why the batch cannot be posted.
    pub(crate) fn refuse(&mut self, error: PostError) {
        self.error.get_or_insert(error);
    }

    /// Why the batch cannot be posted.
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }

    /// Makes a SEND one of a datagram.
    pub(crate) fn address(&mut self, to: DatagramSegment, grh: GrhSegment) {
        let head = self.head.as_mut();
        if !head.is_some_and(|(head, _)| head.address(&to, &grh)) {
            self.refuse(PostError::Invalid);
        }
    }

    /// Sets the scatter/gather entries.
    #[inline]
    pub(crate) fn set_sges(&mut self, sges: &[Sge]) {
        match self.sges.get_mut(..sges.len()) {
            Some(to) => {
                to.copy_from_slice(sges);
                self.filled = Filled::Sges(sges.len());
            }
            None => self.refuse(PostError::Invalid),
        }
    }

    /// Sets inline data, which several buffers may make up.
    #[inline]
    pub(crate) fn set_inline<'a>(&mut self, parts: impl Iterator<Item = &'a [u8]>) {
        match gather(&mut self.inline, parts) {
            Some(len) => self.filled = Filled::Inline(len),
            None => self.refuse(PostError::Invalid),
        }
    }

    /// The request, if one was begun and the batch can be posted.
    #[inline(always)]
    pub(crate) fn request(&mut self) -> Option<(&mut Head, Kind, Data<'_>)> {
        if self.error.is_some() {
            return None;
        }
        let data = match self.filled {
            Filled::Sges(count) => Data::Sges(self.sges.get(..count)?),
            Filled::Inline(len) => Data::Inline(self.inline.get(..len)?),
        };
        let (head, kind) = self.head.as_mut()?;
        Some((head, *kind, data))
    }
}

/// Copies buffers one behind the other; their length together, if they fit.
#[inline]
pub(crate) fn gather<'a>(to: &mut [u8], parts: impl Iterator<Item = &'a [u8]>) -> Option<usize> {
    let mut len = 0usize;
    for part in parts {
        let end = len.checked_add(part.len())?;
        to.get_mut(len..end)?.copy_from_slice(part);
        len = end;
    }
    Some(len)
}

#[cfg(test)]
mod tests {
    use nupa_engine::rings::Operation;

    use super::*;

    const SEND: Operation = Operation::Send { imm: None };

    fn kind() -> Kind {
        Kind::of(1, 0, &SEND)
    }

    fn head(operation: Operation) -> Head {
        Head::new(1, 0, &operation)
    }

    #[test]
    fn a_batch_that_was_refused_stays_so() {
        let mut draft = Draft::default();
        draft.start();
        assert!(draft.request().is_none());
        draft.begin(head(SEND), kind());
        draft.set_sges(&[Sge::default(); MAX_SGE]);
        assert!(draft.request().is_some());
        draft.set_sges(&[Sge::default(); MAX_SGE + 1]);
        assert_eq!(draft.error(), Some(PostError::Invalid));
        draft.begin(head(Operation::Nop), kind());
        assert!(draft.request().is_none());
        draft.start();
        assert_eq!(draft.error(), None);
    }

    #[test]
    fn inline_parts_are_put_together() {
        let mut draft = Draft::default();
        draft.begin(head(SEND), kind());
        let parts: [&[u8]; 3] = [b"ab", b"", b"cde"];
        draft.set_inline(parts.into_iter());
        let (_, _, data) = draft.request().unwrap();
        assert!(matches!(data, Data::Inline(b"abcde")));
        draft.set_inline([&[0u8; MAX_INLINE][..], &[0]].into_iter());
        assert_eq!(draft.error(), Some(PostError::Invalid));
    }

    #[test]
    fn only_sends_have_an_address() {
        let mut draft = Draft::default();
        draft.begin(head(Operation::Read { addr: 0, rkey: 0 }), kind());
        draft.address(DatagramSegment::default(), GrhSegment::default());
        assert_eq!(draft.error(), Some(PostError::Invalid));
    }
}

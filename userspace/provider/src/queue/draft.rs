// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Send requests that are made piece by piece, as `ibv_wr_*()` does.

use nupa_engine::client::{Data, Operation, PostError, SendRequest};
use nupa_proto::wqe::{DatagramSegment, GrhSegment, Sge, MAX_INLINE};

use super::size::MAX_SGE;

/// The request of a batch that was begun last.
#[derive(Debug)]
pub(crate) struct Draft {
    /// Requests begun in this batch.
    begun: u32,
    /// Why the batch cannot be posted.
    error: Option<PostError>,
    wr_id: u64,
    flags: u8,
    operation: Operation,
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
            begun: 0,
            error: None,
            wr_id: 0,
            flags: 0,
            operation: Operation::Nop,
            filled: Filled::Sges(0),
            sges: [Sge::default(); MAX_SGE],
            inline: [0; MAX_INLINE],
        }
    }
}

impl Draft {
    /// Forgets the batch.
    pub(crate) fn start(&mut self) {
        self.begun = 0;
        self.error = None;
    }

    /// Begins a request without data.
    #[inline]
    pub(crate) fn begin(&mut self, wr_id: u64, flags: u8, operation: Operation) {
        self.begun = self.begun.saturating_add(1);
        self.wr_id = wr_id;
        self.flags = flags;
        self.operation = operation;
        self.filled = Filled::Sges(0);
    }

    /// Notes the first reason why the batch cannot be posted.
    pub(crate) fn refuse(&mut self, error: PostError) {
        self.error.get_or_insert(error);
    }

    /// Why the batch cannot be posted.
    pub(crate) fn error(&self) -> Option<PostError> {
        self.error
    }

    /// Whether it is the only request of its batch.
    pub(crate) fn is_alone(&self) -> bool {
        self.begun == 1
    }

    /// Makes a SEND one of a datagram.
    pub(crate) fn address(&mut self, to: DatagramSegment, grh: GrhSegment) {
        match self.operation {
            Operation::Send { imm } | Operation::Datagram { imm, .. } => {
                self.operation = Operation::Datagram { to, grh, imm };
            }
            _ => self.refuse(PostError::Invalid),
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
    #[inline]
    pub(crate) fn request(&self) -> Option<SendRequest<'_>> {
        if self.begun == 0 || self.error.is_some() {
            return None;
        }
        let data = match self.filled {
            Filled::Sges(count) => Data::Sges(self.sges.get(..count)?),
            Filled::Inline(len) => Data::Inline(self.inline.get(..len)?),
        };
        Some(SendRequest {
            wr_id: self.wr_id,
            flags: self.flags,
            operation: self.operation,
            data,
        })
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
    use super::*;

    #[test]
    fn a_batch_that_was_refused_stays_so() {
        let mut draft = Draft::default();
        draft.start();
        assert!(draft.request().is_none());
        draft.begin(1, 0, Operation::Send { imm: None });
        draft.set_sges(&[Sge::default(); MAX_SGE]);
        assert!(draft.request().is_some() && draft.is_alone());
        draft.set_sges(&[Sge::default(); MAX_SGE + 1]);
        assert_eq!(draft.error(), Some(PostError::Invalid));
        draft.begin(2, 0, Operation::Nop);
        assert!(draft.request().is_none());
        draft.start();
        assert_eq!(draft.error(), None);
    }

    #[test]
    fn inline_parts_are_put_together() {
        let mut draft = Draft::default();
        draft.begin(1, 0, Operation::Send { imm: None });
        let parts: [&[u8]; 3] = [b"ab", b"", b"cde"];
        draft.set_inline(parts.into_iter());
        let request = draft.request().unwrap();
        assert!(matches!(request.data, Data::Inline(b"abcde")));
        draft.set_inline([&[0u8; MAX_INLINE][..], &[0]].into_iter());
        assert_eq!(draft.error(), Some(PostError::Invalid));
    }

    #[test]
    fn only_sends_have_an_address() {
        let mut draft = Draft::default();
        draft.begin(1, 0, Operation::Read { addr: 0, rkey: 0 });
        draft.address(DatagramSegment::default(), GrhSegment::default());
        assert_eq!(draft.error(), Some(PostError::Invalid));
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Payload on its way to another host: the one copy that its sender makes.

use super::GONE;
use crate::{
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        copy::{copy, CopyError, Span, Stores},
    },
};
use nupa_proto::{pool::Class, status::WcStatus, wqe::Opcode};

/// Bytes of a WRITE from which on what is granted is written with non-temporal stores. Of so much, caches keep nothing that is read again: where
/// 32 MiB of them are shared, such stores are faster from here on (`cargo bench -p guestmem --bench copy`). Less stays there for its reader.
const BULK_LEN: u32 = 8 << 20;

/// What payload is put into.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The entry that was reserved in the ring of a class to a node.
    Entry(u16, Class),
    /// Memory that a peer lets this host write to.
    Granted,
}

impl Engine {
    /// Copies the next `len` bytes of the current request.
    pub(super) fn fill_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        addr: u64,
        len: u32,
    ) -> Result<(), WcError> {
        if len != 0 {
            self.fill(nodes, place, addr, len)?;
            self.request.local.skip(len);
        }
        Ok(())
    }

    /// Copies the first `len` bytes of the current request to where they are handed over to another host.
    #[inline]
    pub(super) fn fill<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        addr: u64,
        len: u32,
    ) -> Result<(), WcError> {
        self.accepted.set(Span::direct(addr, len));
        let moved = self.move_payload(nodes, place, self.request.home, len);
        moved.map_err(|fault| match fault {
            CopyError::Source => WcError::new(WcStatus::LocalProtection, Check::LocalMemory),
            // The pool is gone, and with it everyone there.
            CopyError::Destination => GONE,
        })
    }

    /// As [`Engine::move_data`], into what another host has the data from: of what a READ reads, that is where it has its answer.
    #[inline]
    pub(super) fn move_payload<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        destination: u16,
        len: u32,
    ) -> Result<(), CopyError> {
        let nontemporal = match place {
            Place::Entry(id, _) => nodes
                .peer_mut(id)
                .is_some_and(|peer| peer.prefers_nontemporal(len)),
            Place::Granted => self.request.len >= BULK_LEN,
        };
        match nontemporal && !self.request.inline {
            true => self.move_nontemporal(nodes, place, destination, len),
            false => self.move_data(nodes, destination, len),
        }
    }

    #[inline(never)]
    fn move_nontemporal<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        destination: u16,
        len: u32,
    ) -> Result<(), CopyError> {
        self.moved = self.moved.saturating_add(len);
        let here = self.sender(nodes).ok_or(CopyError::Source)?;
        let there = self.receiver(nodes, destination);
        let there = there.ok_or(CopyError::Destination)?;
        let (from, to) = match self.request.opcode {
            Opcode::Read => (there, here),
            _ => (here, there),
        };
        copy(&from, &to, len, Stores::NonTemporal)?;
        if let Place::Entry(id, class) = place {
            if let Some(peer) = nodes.peer_mut(id) {
                peer.note_nontemporal(class);
            }
        }
        Ok(())
    }
}

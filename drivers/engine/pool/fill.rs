// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Payload on its way to another host: the one copy that its sender makes.

use super::GONE;
use crate::{
    hal::{Memory, Platform},
    link::Link,
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        copy::{copy, copy_submitted, CopyError, Side, Span, Stores, SubmitError},
    },
};
use nupa_proto::{pool::Class, status::WcStatus, wqe::Opcode};

/// Bytes of a WRITE from which on what is granted is written with non-temporal stores. Of so much, caches keep nothing that is read again: where
/// 32 MiB of them are shared, such stores are faster from here on (`cargo bench -p guestmem --bench copy`). Less stays there for its reader.
const BULK_LEN: u32 = 8 << 20;

/// One side of a transfer between nodes.
type PayloadSide<'a, N> =
    Side<'a, <N as NodeTable>::Storage, <<N as NodeTable>::Platform as Platform>::Memory>;

/// Least bytes of payload that may be submitted: for less it is not even asked.
const LEAST_SUBMITTED: u32 = 4096;

/// What payload is put into.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The entry that was reserved in the ring of a class to a node.
    Entry(u16, Class),
    /// Memory that a node lets this host write to.
    Granted(u16),
}

impl Place {
    /// Whose it is.
    fn peer(self) -> u16 {
        match self {
            Self::Entry(id, _) | Self::Granted(id) => id,
        }
    }

    /// Whether who puts payload there knows what to do if it [cannot be finished](Unmoved::Held).
    fn takes_submitted(self) -> bool {
        match self {
            Self::Entry(_, class) => matches!(class, Class::Request | Class::Response),
            Self::Granted(_) => true,
        }
    }
}

/// Why payload is not where it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unmoved<E> {
    Failed(E),
    /// Something may still be stored there: it is to be tried again, in another turn, as if there had been no room. Until then there is none to
    /// this peer.
    Held,
}

impl Engine {
    /// Copies the next `len` bytes of the current request.
    pub(super) fn fill_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        addr: u64,
        len: u32,
    ) -> Result<(), Unmoved<WcError>> {
        if len != 0 {
            self.accepted.set(Span::direct(addr, len));
            self.move_payload(nodes, place, self.request.home, len)
                .map_err(|why| match why {
                    Unmoved::Failed(fault) => Unmoved::Failed(unfilled(fault)),
                    Unmoved::Held => Unmoved::Held,
                })?;
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
        self.move_by_processor(nodes, place, self.request.home, len)
            .map_err(unfilled)
    }

    /// As [`Engine::move_data`], into what another host has the data from: of what a READ reads, that is where it has its answer.
    #[inline]
    pub(super) fn move_payload<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        destination: u16,
        len: u32,
    ) -> Result<(), Unmoved<CopyError>> {
        if len >= LEAST_SUBMITTED && self.submits(nodes, place, destination, len) {
            return self.move_submitted(nodes, place, destination, len);
        }
        self.move_by_processor(nodes, place, destination, len)
            .map_err(Unmoved::Failed)
    }

    /// As [`Engine::move_data`], of payload that another host has put into an entry: what a request brings, or the answer to a READ.
    #[inline]
    pub(super) fn move_arrived<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        home: u16,
        len: u32,
    ) -> Result<(), CopyError> {
        if len >= LEAST_SUBMITTED && !self.request.inline {
            let node = nodes.node(home);
            let from = node.map(|(_, platform)| platform.memory().submits_shared_from());
            if from.is_some_and(|from| len >= from) {
                return self.move_arrived_submitted(nodes, home, len);
            }
        }
        self.move_data(nodes, home, len)
    }

    #[inline(never)]
    fn move_arrived_submitted<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        home: u16,
        len: u32,
    ) -> Result<(), CopyError> {
        self.moved = self.moved.saturating_add(len);
        let (from, to) = self.payload_sides(nodes, home)?;
        copy_submitted(&from, &to, len).map_err(|why| match why {
            SubmitError::Failed(fault) => fault,
            // No such copy is unfinished. If one were, the data would not be where it belongs.
            SubmitError::Unfinished => CopyError::Destination,
        })
    }

    /// Whether a copy is better submitted.
    fn submits<N: NodeTable>(&self, nodes: &N, place: Place, home: u16, len: u32) -> bool {
        let from = nodes
            .node(home)
            .map(|(_, platform)| platform.memory().submits_from());
        from.is_some_and(|from| len >= from) && place.takes_submitted() && !self.request.inline
    }

    #[inline(never)]
    fn move_submitted<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        place: Place,
        destination: u16,
        len: u32,
    ) -> Result<(), Unmoved<CopyError>> {
        self.moved = self.moved.saturating_add(len);
        let (from, to) = self
            .payload_sides(nodes, destination)
            .map_err(Unmoved::Failed)?;
        copy_submitted(&from, &to, len).map_err(|why| match why {
            SubmitError::Failed(fault) => Unmoved::Failed(fault),
            SubmitError::Unfinished => {
                self.hold(nodes, place.peer());
                Unmoved::Held
            }
        })
    }

    #[inline]
    fn move_by_processor<N: NodeTable>(
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
            Place::Granted(_) => self.request.len >= BULK_LEN,
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
        let (from, to) = self.payload_sides(nodes, destination)?;
        copy(&from, &to, len, Stores::NonTemporal)?;
        if let Place::Entry(id, class) = place {
            if let Some(peer) = nodes.peer_mut(id) {
                peer.note_nontemporal(class);
            }
        }
        Ok(())
    }

    /// Source and destination of the current request's payload.
    fn payload_sides<'a, N: NodeTable>(
        &'a self,
        nodes: &'a N,
        destination: u16,
    ) -> Result<(PayloadSide<'a, N>, PayloadSide<'a, N>), CopyError> {
        let here = self.sender(nodes).ok_or(CopyError::Source)?;
        let there = self.receiver(nodes, destination);
        let there = there.ok_or(CopyError::Destination)?;
        Ok(match self.request.opcode {
            Opcode::Read => (there, here),
            _ => (here, there),
        })
    }

    /// Has nothing more be put anywhere that a peer has it from, for something may still be stored there.
    #[cold]
    fn hold<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        self.held = Some(id);
        // Who was cut off is served in the next turn.
        self.more = true;
        if let Some(peer) = nodes.peer_mut(id) {
            peer.set_held(true);
        }
    }

    /// Ends that: this is another turn, so nothing is stored there any more.
    #[cold]
    pub(super) fn release_held<N: NodeTable>(&mut self, nodes: &mut N) {
        let held = self.held.take();
        let Some(peer) = held.and_then(|id| nodes.peer_mut(id)) else {
            return;
        };
        peer.set_held(false);
        // Who wrote directly may not come back.
        if let Some(link) = peer.link_mut().direct() {
            link.end();
        }
    }

    /// Whether something may still be stored in a pool's memory until this turn is over, by copies that [could not be
    /// finished](crate::hal::Undone::Unfinished): then nothing of that memory may change hands.
    pub fn is_held(&self) -> bool {
        self.held.is_some()
    }
}

/// What becomes of a request whose payload cannot be copied.
fn unfilled(fault: CopyError) -> WcError {
    match fault {
        CopyError::Source => WcError::new(WcStatus::LocalProtection, Check::LocalMemory),
        // The pool is gone, and with it everyone there.
        CopyError::Destination => GONE,
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! WRITEs that lie in process rings and that the receiver's process does not take: when a request comes behind them, and when they have been there for a
//! while (`Documentation/process-rings.md`).

use super::{Asked, Incoming, GONE};
use crate::{
    hal::{AccessError, Clock, Platform, Storage},
    node::Node,
    nodes::NodeTable,
    path::{engine::Engine, responder::MISSING},
    state::{
        access::remote_span,
        check::{Check, WcError},
        copy::CopyError,
        nak::Nak,
        process_ring::{ProcessRing, RingAt, RingWrite},
        qp::{QueuePair, Remote},
    },
};
use nupa_proto::{admin::ACCESS_REMOTE_WRITE, process_ring::LINES, status::WcStatus, wqe::Opcode};

/// Microseconds between two polls of each ring.
const POLL_US: u64 = 10_000;
/// Rings that are polled in one turn: some microseconds, if the lines that are read are in nobody's cache.
const PIECE: u32 = 64;
/// Microseconds between two polls of a ring that was held when a request came: far longer than it takes to copy what is in a ring.
const HELD_US: u64 = 100;
/// Polls after which it is polled no more: its process may have been stopped. The requester sends its request again by itself, less often.
const HELD_POLLS: u8 = 20;

/// The ring, or the memory that a WRITE in it goes to, cannot be reached.
const UNREACHABLE: WcError = WcError::new(WcStatus::RemoteOperation, Check::RemoteMemory);

/// A ring that the engine takes entries of.
#[derive(Clone, Copy)]
struct Taken {
    /// Node and queue pair that receive from it.
    home: u16,
    qpn: u32,
    at: RingAt,
}

/// What became of a ring that was held when a request came.
enum Held {
    /// It is held, and to be looked at again soon.
    Again,
    /// It is, and has been for so long that it is not looked at until the request comes again.
    ForLong,
    /// It is not.
    NoMore,
}

/// Why no more entries of a ring are taken.
enum Left {
    /// There is no WRITE that makes sense, or it has too many lines.
    NoWrite,
    /// The queue pair may not be written to in this way.
    Refused(WcError),
    /// The ring cannot be reached, or the memory that a WRITE goes to.
    Unreachable,
    /// The queue pair does not receive from its peer.
    Nak(Nak),
}

impl From<AccessError> for Left {
    fn from(AccessError: AccessError) -> Self {
        Self::Unreachable
    }
}

impl Engine {
    /// Takes what lies in the process ring before the current request, a WRITE; that is the current one afterwards as well.
    #[inline(never)]
    pub(super) fn take_what_is_before<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        asked: &Asked<'_>,
        incoming: &Incoming,
    ) -> Result<(), Nak> {
        let taken = match incoming.arrival.offset {
            0 => self.take_up_to(nodes, self.request.bypassed),
            // That was done with its first part.
            _ => Ok(()),
        };
        self.load_request(asked, incoming);
        self.request.bypassed = 0;
        taken
    }

    /// Takes the WRITEs before line `until` of the ring of the queue pair that the current request is for.
    fn take_up_to<N: NodeTable>(&mut self, nodes: &mut N, until: u32) -> Result<(), Nak> {
        let (home, qpn) = (self.request.home, self.request.destination.qpn);
        let (node, platform) = nodes.node_mut(home).ok_or(Nak::Failed(GONE))?;
        let ring = node.qps.get(qpn).and_then(|qp| qp.recv.ring.at);
        let Some(at) = ring else {
            return Err(node.deny(platform, qpn, MISSING));
        };
        match at.hold(platform.memory()) {
            Ok(true) => {}
            Ok(false) => return Err(node.ring_is_held(platform, qpn)),
            Err(AccessError) => return Err(node.ring_lost(platform, qpn)),
        }
        let left = self.take_held(nodes, Taken { home, qpn, at }, until);
        let (node, platform) = nodes.node_mut(home).ok_or(Nak::Failed(GONE))?;
        node.let_go_of_ring(platform, qpn, at);
        left.map_err(|left| match left {
            Left::NoWrite => node.deny(platform, qpn, MISSING),
            Left::Refused(error) => node.deny(platform, qpn, error),
            Left::Unreachable => node.ring_lost(platform, qpn),
            Left::Nak(nak) => nak,
        })
    }

    /// As [`Engine::take_up_to`], with the ring held.
    fn take_held<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        ring: Taken,
        until: u32,
    ) -> Result<(), Left> {
        let (_, platform) = nodes.node(ring.home).ok_or(Left::Unreachable)?;
        let taken = ring.at.taken(platform.memory())?;
        let left = until.wrapping_sub(taken);
        if left > LINES {
            let done = taken.wrapping_sub(until) <= u32::MAX / 2;
            return done.then_some(()).ok_or(Left::NoWrite);
        }
        self.take_writes(nodes, ring, taken, left)
    }

    /// Takes WRITEs from line `taken` of a ring that is held on until they have had `most` lines. Their process has left them, so the next ones come to the
    /// engine by themselves until it says that it takes some again.
    fn take_writes<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        ring: Taken,
        taken: u32,
        most: u32,
    ) -> Result<(), Left> {
        let mut lines = 0u32;
        // Each has one line at least.
        while lines < most {
            let (line, room) = (taken.wrapping_add(lines), most.saturating_sub(lines));
            let more = self.take_write(nodes, ring, line, room)?;
            if lines == 0 {
                let (_, platform) = nodes.node(ring.home).ok_or(Left::Unreachable)?;
                ring.at.refuse_writes(platform.memory())?;
            }
            lines = lines.saturating_add(more.max(1));
        }
        Ok(())
    }

    /// Takes the WRITE at a line of a ring that is held, if it has no more than `room` lines. Returns how many it has.
    fn take_write<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        ring: Taken,
        line: u32,
        room: u32,
    ) -> Result<u32, Left> {
        let (_, platform) = nodes.node(ring.home).ok_or(Left::Unreachable)?;
        let secret = ring.at.secret(platform.memory())?;
        let write = ring.at.write_at(platform, secret, line)?;
        let write = write.filter(|write| write.lines <= room);
        let write = write.ok_or(Left::NoWrite)?;
        self.budget.spend(platform, 0);
        self.carry_out(nodes, ring, line, &write)?;
        let (_, platform) = nodes.node(ring.home).ok_or(Left::Unreachable)?;
        let behind = line.wrapping_add(write.lines);
        ring.at.set_taken(platform.memory(), behind)?;
        Ok(write.lines)
    }

    /// Carries out a WRITE that lies in a ring, as if it had just come from the peer.
    fn carry_out<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        ring: Taken,
        line: u32,
        write: &RingWrite,
    ) -> Result<(), Left> {
        let (node, platform) = nodes.node_mut(ring.home).ok_or(Left::Unreachable)?;
        let qp = node.qps.get(ring.qpn).ok_or(Left::NoWrite)?;
        let source = qp.remote.ok_or(Left::NoWrite)?;
        let destination = Remote {
            node: ring.home,
            qpn: ring.qpn,
            epoch: node.epoch(),
            psn: 0,
        };
        let (key, addr, len) = (write.key, write.addr, write.len);
        let request = &mut self.request;
        (request.opcode, request.source, request.home) = (Opcode::Write, source, ring.home);
        request.destination = destination;
        (request.solicited, request.inline, request.datagram) = (false, false, false);
        (request.len, request.imm, request.bypassed) = (len, 0, 0);
        (request.remote_addr, request.remote_key) = (addr, key);
        ring.at.data(line, len, &mut request.local);
        node.check_peer(platform, &self.request)
            .map_err(Left::Nak)?;
        let qp = node.qps.get(ring.qpn).ok_or(Left::NoWrite)?;
        let right = ACCESS_REMOTE_WRITE;
        let span = remote_span::<N::Storage>(&node.mrs, ring.qpn, qp, key, addr, len, right);
        self.accepted.set(span.map_err(Left::Refused)?);
        let moved = self.move_data(nodes, ring.home, len);
        // Whichever side it is.
        moved.map_err(|_: CopyError| Left::Unreachable)?;
        if let Some((node, _)) = nodes.node_mut(ring.home) {
            node.count_served(ring.qpn, &self.request);
        }
        Ok(())
    }

    /// Looks at the process rings of a node, some in each turn, if it is time for that: WRITEs that their processes have left there since the last look are
    /// taken.
    #[cold]
    #[inline(never)]
    pub(crate) fn poll_process_rings<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return;
        };
        let now = platform.now_us();
        let rings = &mut node.rings;
        if rings.left == 0 {
            if now < rings.poll_at {
                return;
            }
            (rings.left, rings.poll_at) = (rings.all.len(), now.saturating_add(POLL_US));
        }
        for _ in 0..PIECE {
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            let Some(left) = node.rings.left.checked_sub(1) else {
                return;
            };
            node.rings.left = left;
            // It has its turn again after all the others.
            let Some(qpn) = node.rings.all.rotate(&mut node.qps) else {
                return;
            };
            // One that only sends has nothing to take.
            if node.qps.get(qpn).is_none_or(|qp| qp.recv.ring.at.is_none()) {
                continue;
            }
            self.budget.spend(platform, 0);
            self.poll_process_ring(nodes, id, qpn);
            // One is looked at in any case, so that nothing that spends all turns holds them up.
            if self.budget.is_spent() {
                break;
            }
        }
        self.more |= nodes.node(id).is_some_and(|(node, _)| node.rings.left != 0);
    }

    /// Takes the WRITEs of a ring if the first one was there at the last look. What would be an error is left to the request that comes behind it.
    fn poll_process_ring<N: NodeTable>(&mut self, nodes: &mut N, home: u16, qpn: u32) {
        let Some((node, platform)) = nodes.node_mut(home) else {
            return;
        };
        let up = node.is_up();
        let Some(qp) = node.qps.get_mut(qpn) else {
            return;
        };
        let receives = up && qp.receives();
        let ring = &mut qp.recv.ring;
        let Some(at) = ring.at else {
            return;
        };
        let first = match receives {
            true => at.first_write(platform).unwrap_or(None),
            false => None,
        };
        let before = core::mem::replace(&mut ring.seen, first);
        if first.is_none() || first != before {
            return;
        }
        let memory = platform.memory();
        if at.hold(memory) != Ok(true) {
            return;
        }
        ring.seen = None;
        // Its process may have taken some meanwhile.
        if let Ok(taken) = at.taken(memory) {
            // What follows them, or is an error, is not for now.
            let _ = self.take_writes(nodes, Taken { home, qpn, at }, taken, LINES);
        }
        self.charge(nodes, home);
        if let Some((node, platform)) = nodes.node_mut(home) {
            node.let_go_of_ring(platform, qpn, at);
        }
    }

    /// Has those try again whose requests came while a ring of this node was held, if it is not any more.
    #[cold]
    #[inline(never)]
    pub(crate) fn wake_held_rings<N: NodeTable>(&mut self, nodes: &mut N, id: u16) {
        let Some((node, platform)) = nodes.node_mut(id) else {
            return;
        };
        let now = platform.now_us();
        if node.rings.held_at().is_none_or(|at| at > now) {
            return;
        }
        for _ in 0..node.rings.held.len().min(PIECE) {
            let Some((node, platform)) = nodes.node_mut(id) else {
                return;
            };
            let Some(qpn) = node.rings.held.pop(&mut node.qps) else {
                break;
            };
            self.budget.spend(platform, 0);
            match node.poll_held_ring(platform, qpn) {
                Held::Again => node.rings.held.push(&mut node.qps, qpn),
                Held::NoMore => self.wake(nodes, id, qpn),
                Held::ForLong => {}
            }
        }
        if let Some((node, _)) = nodes.node_mut(id) {
            node.rings.set_held_at(now.saturating_add(HELD_US));
        }
    }
}

impl<S: Storage> Node<S> {
    /// A queue pair receives from the process ring at this address from now on, or from none.
    pub(crate) fn set_ring(&mut self, platform: &impl Platform, qpn: u32, at: Option<RingAt>) {
        self.count_taken(platform, qpn);
        self.rings.all.remove(&mut self.qps, qpn);
        self.rings.held.remove(&mut self.qps, qpn);
        let qp: Option<&mut QueuePair<_>> = self.qps.get_mut(qpn);
        let Some(qp) = qp else {
            return;
        };
        qp.recv.ring = ProcessRing::new(platform, at);
        self.list_rings(qpn);
    }

    /// The engine has taken what it takes out of the ring of a queue pair: lets the process take the rest, and makes the event of the receive completion queue
    /// if its program waits for one, and may not have seen that there is a message.
    fn let_go_of_ring(&mut self, platform: &impl Platform, qpn: u32, at: RingAt) {
        at.let_go(platform.memory());
        if at.awaits_event(platform) == Ok(true) {
            self.expect_message(platform, qpn);
        }
    }

    /// The ring of a queue pair is held just now: who comes behind what is in it tries again soon.
    #[cold]
    fn ring_is_held(&mut self, clock: &impl Clock, qpn: u32) -> Nak {
        if let Some(qp) = self.qps.get_mut(qpn) {
            qp.recv.ring.held_polls = 0;
        }
        if self.rings.held.is_empty() {
            let at_us = clock.now_us().saturating_add(HELD_US);
            self.rings.set_held_at(at_us);
        }
        self.rings.held.push(&mut self.qps, qpn);
        Nak::RingHeld
    }

    /// Whether the ring still is.
    fn poll_held_ring(&mut self, platform: &impl Platform, qpn: u32) -> Held {
        let Some(qp) = self.qps.get_mut(qpn) else {
            return Held::NoMore;
        };
        let ring = &mut qp.recv.ring;
        ring.held_polls = ring.held_polls.saturating_add(1);
        let held = |at: RingAt| at.is_held(platform.memory()) == Ok(true);
        match ring.at.is_some_and(held) {
            false => Held::NoMore,
            true if ring.held_polls < HELD_POLLS => Held::Again,
            true => Held::ForLong,
        }
    }

    /// The ring of a queue pair cannot be reached, or the memory that a WRITE in it goes to.
    #[cold]
    fn ring_lost(&mut self, platform: &impl Platform, qpn: u32) -> Nak {
        self.fail(platform, qpn);
        Nak::Failed(UNREACHABLE)
    }
}

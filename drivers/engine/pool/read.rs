// SPDX-License-Identifier: GPL-2.0 OR MIT
//! READs for nodes of other hosts: the answer carries the data, in as many parts as it takes.

use super::{responder::response_to, Incoming, FRAGMENT};
use crate::{
    link::Arrival,
    nodes::NodeTable,
    path::engine::Engine,
    state::{nak::Nak, peer::Serving, request::Part},
};
use nupa_pool::{Body, Outgoing};
use nupa_proto::pool::Class;

impl Engine {
    /// Hands the next part of a READ back. Returns its length; `None` if there is no room for it.
    pub(super) fn read_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        serving: &Serving,
    ) -> Option<u32> {
        let (body, done) = (&serving.body, serving.done);
        let total = body.len.get();
        let len = total.saturating_sub(done).min(FRAGMENT);
        let peer = nodes.peer_mut(id)?;
        let (home, epoch) = (peer.home(), peer.epoch()?);
        let place = peer.reserve(Class::Response, len)?;
        // The local side is the room in the ring.
        let incoming = Incoming {
            epoch,
            home,
            arrival: Arrival {
                body: Body::Data,
                payload: place,
                len,
                offset: done,
                last: false,
            },
        };
        self.load_request(id, body, &incoming);
        match self.copy_part(nodes, home, done, len) {
            Ok(()) => {
                let last = done.saturating_add(len) >= total;
                self.hand_part(nodes, id, serving, len, last);
            }
            Err(nak) => self.break_off(nodes, id, serving, nak),
        }
        Some(len)
    }

    fn copy_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        home: u16,
        done: u32,
        len: u32,
    ) -> Result<(), Nak> {
        let gone = Nak::Failed(super::GONE);
        let (node, platform) = nodes.node_mut(home).ok_or(gone)?;
        let accepted = node.accept(platform, &self.request, Part::WHOLE, &mut self.accepted)?;
        self.accepted.skip(done);
        let moved = self.move_data(nodes, home, len);
        let (node, platform) = nodes.node_mut(home).ok_or(gone)?;
        let last = done.saturating_add(len) >= self.request.len;
        match moved {
            Ok(()) if last => {
                node.arrived(platform, &self.request, &accepted);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(fault) => {
                let error = node.transfer_failed(platform, &self.request, &accepted, fault);
                Err(Nak::Failed(error))
            }
        }
    }

    fn hand_part<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        id: u16,
        serving: &Serving,
        len: u32,
        last: bool,
    ) {
        let body = &serving.body;
        if last {
            self.set_expected(nodes, Some(body.sequence.get().wrapping_add(1)));
        }
        let Some(peer) = nodes.peer_mut(id) else {
            return;
        };
        let total = body.len.get();
        match serving.done {
            0 => peer.commit(
                Class::Response,
                &Outgoing::Response(&response_to(body)),
                total,
            ),
            _ => peer.commit(Class::Response, &Outgoing::Data, total),
        }
        peer.transit.serving = (!last).then_some(Serving {
            done: serving.done.saturating_add(len),
            ..*serving
        });
    }

    /// Ends an answer that cannot be completed, and gives another.
    fn break_off<N: NodeTable>(&mut self, nodes: &mut N, id: u16, serving: &Serving, nak: Nak) {
        if let Some(peer) = nodes.peer_mut(id) {
            peer.transit.serving = None;
            // In place of the part that there was room for.
            if serving.done != 0 && peer.reserve(Class::Response, 0).is_some() {
                peer.commit(Class::Response, &Outgoing::Abort, serving.body.len.get());
            }
        }
        self.deny(nodes, id, &serving.body, nak);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! READs for nodes of other hosts: the answer carries the data, in as many parts as it takes.

use super::{responder::answer_to, Incoming, FRAGMENT};
use crate::{
    link::Arrival,
    nodes::Fabric,
    path::engine::Engine,
    state::{peer::Serving, request::Declined},
};
use nupa_pool::{Body, Outgoing};
use nupa_proto::pool::Class;

impl Engine {
    /// Hands the next part of a READ back. Returns its length; `None` if there is no room for it.
    pub(super) fn read_part<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        serving: &Serving,
    ) -> Option<u32> {
        let (body, done) = (&serving.body, serving.done);
        let total = body.len.get();
        let len = total.saturating_sub(done).min(FRAGMENT);
        let peer = fabric.peer_mut(id)?;
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
        self.adopt(id, body, &incoming);
        match self.copy_part(fabric, home, done, len) {
            Ok(()) => {
                let last = done.saturating_add(len) >= total;
                self.hand_part(fabric, id, serving, len, last);
            }
            Err(declined) => self.break_off(fabric, id, serving, declined),
        }
        Some(len)
    }

    fn copy_part<F: Fabric>(
        &mut self,
        fabric: &mut F,
        home: u16,
        done: u32,
        len: u32,
    ) -> Result<(), Declined> {
        let gone = Declined::Refused(super::GONE);
        let (node, platform) = fabric.node_mut(home).ok_or(gone)?;
        let landing = node.accept(platform, &self.request, &mut self.landing)?;
        self.landing.skip(done);
        let moved = self.move_data(fabric, home, len);
        let (node, platform) = fabric.node_mut(home).ok_or(gone)?;
        let last = done.saturating_add(len) >= self.request.len;
        match moved {
            Ok(()) if last => {
                node.arrived(platform, &self.request, &landing);
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(fault) => {
                let refusal = node.transfer_failed(platform, &self.request, &landing, fault);
                Err(Declined::Refused(refusal))
            }
        }
    }

    fn hand_part<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        serving: &Serving,
        len: u32,
        last: bool,
    ) {
        let body = &serving.body;
        if last {
            self.set_expected(fabric, Some(body.sequence.get().wrapping_add(1)));
        }
        let Some(peer) = fabric.peer_mut(id) else {
            return;
        };
        let total = body.len.get();
        match serving.done {
            0 => peer.commit(
                Class::Response,
                &Outgoing::Response(&answer_to(body)),
                total,
            ),
            _ => peer.commit(Class::Response, &Outgoing::Data, total),
        }
        peer.progress.serving = (!last).then_some(Serving {
            done: serving.done.saturating_add(len),
            ..*serving
        });
    }

    /// Ends an answer that cannot be completed, and gives another.
    fn break_off<F: Fabric>(
        &mut self,
        fabric: &mut F,
        id: u16,
        serving: &Serving,
        declined: Declined,
    ) {
        if let Some(peer) = fabric.peer_mut(id) {
            peer.progress.serving = None;
            // In place of the part that there was room for.
            if serving.done != 0 && peer.reserve(Class::Response, 0).is_some() {
                peer.commit(Class::Response, &Outgoing::Abort, serving.body.len.get());
            }
        }
        self.deny(fabric, id, &serving.body, declined.into());
    }
}

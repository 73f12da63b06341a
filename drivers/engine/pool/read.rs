// SPDX-License-Identifier: GPL-2.0 OR MIT
//! The responder's half of READs that nodes of other hosts ask for.

use super::{
    fill::{Place, Unmoved},
    responder::{response_to, Progress},
    Asked, Incoming,
};
use crate::{
    nodes::NodeTable,
    path::engine::Engine,
    state::{nak::Nak, request::Part},
};
use nupa_pool::Outgoing;

impl Engine {
    /// Hands a piece of what a READ asks for back: its copy goes where there is room for the answer.
    pub(super) fn respond_read<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        asked: &Asked<'_>,
        incoming: &Incoming,
    ) -> Progress {
        let arrival = &incoming.arrival;
        match self.read_piece(nodes, asked, incoming) {
            Ok(()) => {
                self.note_taken(nodes, asked, arrival);
                let mut response = response_to(asked.body);
                self.set_credits(nodes, &mut response);
                if arrival.last {
                    if let Some(grant) = self.grant_for_response(nodes, asked.id) {
                        grant.write(&mut response);
                    }
                }
                if let Some(peer) = nodes.peer_mut(asked.id) {
                    peer.commit(asked.class, &Outgoing::Response(&response), arrival.offset);
                }
            }
            Err(Unmoved::Held) => return Progress::Blocked,
            Err(Unmoved::Failed(nak)) => self.deny(nodes, asked, nak),
        }
        Progress::Taken
    }

    fn read_piece<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        asked: &Asked<'_>,
        incoming: &Incoming,
    ) -> Result<(), Unmoved<Nak>> {
        let (home, arrival) = (incoming.home, &incoming.arrival);
        let gone = Unmoved::Failed(Nak::Failed(super::GONE));
        let (node, platform) = nodes.node_mut(home).ok_or(gone)?;
        let accepted = node
            .accept(platform, &self.request, Part::WHOLE, &mut self.accepted)
            .map_err(Unmoved::Failed)?;
        self.accepted.skip(arrival.offset);
        let place = Place::Entry(asked.id, asked.class);
        let moved = self.move_payload(nodes, place, home, arrival.len);
        let (node, platform) = nodes.node_mut(home).ok_or(gone)?;
        match moved {
            Ok(()) => {
                if arrival.last {
                    node.arrived(platform, &self.request, &accepted);
                }
                Ok(())
            }
            Err(Unmoved::Held) => Err(Unmoved::Held),
            Err(Unmoved::Failed(fault)) => {
                let error = node.transfer_failed(platform, &self.request, &accepted, fault);
                Err(Unmoved::Failed(Nak::Failed(error)))
            }
        }
    }
}

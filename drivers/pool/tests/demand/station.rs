// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node of a pool with inboxes that does what is due about its links.

use nupa_pool::{
    Blocked, Events, JoinOptions, Link, LinkState, Membership, Outgoing, Peer, Pool, Time, Window,
};
use nupa_proto::pool::{message::FrameBody, CAP_POOL_LINES};
use std::collections::BTreeMap;
use zerocopy::FromZeros;

/// Such a node, on a host that has the pool as `W`.
pub struct Station<W> {
    pub host: W,
    pub member: Membership<Vec<Peer>>,
    pub links: BTreeMap<u16, Link>,
    /// Frames that were taken, and who they are from.
    pub taken: Vec<(u16, Vec<u8>)>,
    /// Links that ended, in order.
    pub ended: Vec<u16>,
    /// It ends a link as soon as the other does.
    pub yields: bool,
    /// It takes out what is there, and says so when it has no more to do with a link.
    pub finishes: bool,
}

/// What a node of a host wants that had this identity.
pub fn wishes(token: u64, identity: u64) -> JoinOptions {
    JoinOptions {
        identity,
        capabilities: CAP_POOL_LINES * (token % 2),
        ..JoinOptions::new(token)
    }
}

impl<W: Window + Time + Clone> Station<W> {
    pub fn join(host: &W, pool: &Pool, options: &JoinOptions) -> Self {
        let peers = vec![Peer::UNKNOWN; pool.geometry().max_nodes().into()];
        let mut member = pool.join_with(host, host, options, peers).unwrap();
        member.enable(host);
        Self {
            host: host.clone(),
            member,
            links: BTreeMap::new(),
            taken: Vec::new(),
            ended: Vec::new(),
            yields: true,
            finishes: true,
        }
    }

    pub fn id(&self) -> u16 {
        self.member.node()
    }

    /// Looks around, and does what is due.
    pub fn step(&mut self) -> Events {
        let events = self.member.tick(&self.host, self.host.now_us());
        for node in events.down.iter() {
            self.links.remove(&node);
        }
        while let Some(node) = self.member.next_changed() {
            self.follow(node);
        }
        if self.finishes {
            self.take_all();
        }
        let linked: Vec<u16> = self.links.keys().copied().collect();
        for node in linked {
            self.follow(node);
        }
        events
    }

    /// Does what is due about the link to a node.
    pub fn follow(&mut self, node: u16) {
        let host = self.host.clone();
        let state = self.member.link_state(node);
        if !self.links.contains_key(&node) && is_there(state) {
            let link = self.member.open(&host, node).expect("it is there");
            self.links.insert(node, link);
        }
        if state == LinkState::Ending && self.yields {
            assert!(self.member.withdraw(&host, node));
        }
        if let Some(link) = self.links.get_mut(&node).filter(|_| self.finishes) {
            if self.member.finish(&host, node, link) {
                self.links.remove(&node);
                self.ended.push(node);
            }
        }
    }

    /// Takes all frames that are there.
    pub fn take_all(&mut self) {
        for (node, link) in &mut self.links {
            let ring = &mut link.receive.frame;
            while let Some(message) = ring.next(&self.host).unwrap() {
                let mut bytes = vec![0; message.payload_len() as usize];
                self.host.read(message.payload.start, &mut bytes).unwrap();
                self.taken.push((*node, bytes));
                ring.release(&self.host);
            }
            ring.publish(&self.host);
        }
    }

    /// Sends a frame by the link to a node.
    pub fn send(&mut self, node: u16, bytes: &[u8]) -> Result<(), Blocked> {
        let host = &self.host;
        let link = self.links.get_mut(&node).ok_or(Blocked::Down)?;
        let sender = &mut link.send.frame;
        let place = sender.reserve(host, bytes.len() as u32)?;
        host.write(place.payload.start, bytes);
        let frame = FrameBody::new_zeroed();
        let message = Outgoing::Frame(&frame);
        sender.commit(host, place, &message, 0, 0).unwrap();
        sender.publish(host);
        Ok(())
    }

    pub fn state(&self, node: u16) -> LinkState {
        self.member.link_state(node)
    }

    /// Begins another epoch.
    pub fn renew(&mut self) {
        self.links.clear();
        assert!(self.member.renew(&self.host));
        self.member.enable(&self.host);
    }

    pub fn leave(&mut self) {
        self.links.clear();
        self.member.leave(&self.host);
    }
}

/// Whether there is a link that can be opened.
fn is_there(state: LinkState) -> bool {
    use LinkState::{Draining, Ending, Open, Withdrawn};
    matches!(state, Open | Ending | Withdrawn | Draining)
}

// SPDX-License-Identifier: GPL-2.0
//! What events tell of the link, of other nodes, and of failures: in process context, under [`Controller::lifecycle`].

use crate::{
    controller::{attention, Controller},
    event::News,
    port::PortEvent,
};
use kernel::{prelude::*, sync::Arc};
use nk::{
    bh,
    trace::{self, ResetReason},
};
use nupa_proto::{admin::AdminOpcode, ident::MAX_NODES};

impl Controller {
    /// Notes the state of the link, and tells of it if that is new. Sleeps.
    pub(crate) fn note_link(&self, up: bool) {
        if self.set_link(up) {
            dev_info!(
                self.device(),
                "link is {}\n",
                if up { "up" } else { "down" }
            );
            self.listeners().tell(if up {
                PortEvent::LinkUp
            } else {
                PortEvent::LinkDown
            });
        }
    }

    /// Handles what is in the backlogs; if the function is broken, says why.
    pub(crate) fn handle_news(self: &Arc<Self>) -> Option<ResetReason> {
        for vector in self.vectors() {
            // Handlers raise softirqs, which run when these are let go on.
            if vector.take_unfinished() && bh::disabled(|| vector.run()) {
                self.wake(attention::NEWS);
            }
            if vector.is_broken() {
                dev_err!(
                    self.device(),
                    "controller wrote garbage into an event queue\n"
                );
                return Some(ResetReason::EventQueue);
            }
            while let Some(news) = vector.next_news() {
                if let Some(reason) = self.handle(news) {
                    return Some(reason);
                }
            }
            if vector.take_lost() {
                let read = self.read_peers(self.admin.generation(), |event| {
                    self.listeners().tell(event)
                });
                let link = self
                    .registers
                    .status()
                    .map(|status| self.note_link(status.link_up()));
                if read.and(link).is_err() {
                    return Some(ResetReason::Unreadable);
                }
            }
        }
        None
    }

    fn handle(&self, news: News) -> Option<ResetReason> {
        match news {
            News::LinkUp => self.note_link(true),
            News::LinkDown => self.note_link(false),
            News::NodeUp(node, epoch) if self.is_peer(node) => {
                self.peers().set(node, true);
                self.peers().set_epoch(node, epoch);
                trace::peer(self.device(), node, true, epoch);
                self.listeners().tell(PortEvent::NodeUp(node));
            }
            News::NodeDown(node) if self.is_peer(node) => {
                if self.note_peer(node, false) {
                    self.listeners().tell(PortEvent::NodeDown(node));
                }
            }
            News::NodeUp(..) | News::NodeDown(_) => {}
            News::CqError(cqn) => {
                dev_err!(self.device(), "completion queue {cqn} overflowed\n");
                return Some(ResetReason::Cq);
            }
            News::QpFatal(qpn) => {
                dev_err!(self.device(), "queue pair {qpn} failed\n");
                return Some(ResetReason::Qp);
            }
            News::Fatal => {
                self.log_fault();
                return Some(ResetReason::Fault);
            }
        }
        None
    }

    /// Notes that a node came or went; returns whether that is new.
    fn note_peer(&self, node: u16, up: bool) -> bool {
        let changed = self.peers().set(node, up);
        if changed {
            trace::peer(self.device(), node, up, 0);
        }
        changed
    }

    /// No node can be reached for now: tells of each that could.
    pub(crate) fn forget_peers(&self) {
        for node in 0..MAX_NODES {
            if self.note_peer(node, false) {
                self.listeners().tell(PortEvent::NodeDown(node));
            }
        }
    }

    fn is_peer(&self, node: u16) -> bool {
        let info = self.info();
        node < info.max_nodes && node != info.node
    }

    /// Reads which nodes are up, and tells of each one that came or went.
    pub(crate) fn read_peers(
        self: &Arc<Self>,
        generation: u32,
        tell: impl Fn(PortEvent),
    ) -> Result {
        let mut bits = [0u8; MAX_NODES as usize / 8];
        self.read_into(generation, AdminOpcode::ListNodes, &mut bits)?;
        self.peers().forget_epochs();
        for (byte, first) in bits.iter().zip((0u16..).step_by(8)) {
            for (bit, node) in (0..8).zip(first..) {
                let up = byte & (1 << bit) != 0 && self.is_peer(node);
                if self.note_peer(node, up) {
                    tell(if up {
                        PortEvent::NodeUp(node)
                    } else {
                        PortEvent::NodeDown(node)
                    });
                }
            }
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Frames of raw queue pairs within a host.

use crate::{
    nodes::NodeTable,
    path::engine::Engine,
    state::{
        check::{Check, WcError},
        copy::peek,
        nak::RnrPolicy,
        request::Outcome,
    },
};
use nupa_proto::{ident::NODE_FLOOD, status::WcStatus};

impl Engine {
    /// Carries the current request out, which is a frame.
    #[inline]
    pub(crate) fn execute_frame<N: NodeTable>(&mut self, nodes: &mut N) -> Outcome {
        let address = match self.frame_address(nodes) {
            Ok(address) => address,
            Err(error) => return Outcome::Failed(error),
        };
        match self.request.destination.node {
            NODE_FLOOD => self.flood(nodes, &address),
            node => self.deliver_frame(nodes, node, &address, RnrPolicy::Wait),
        }
    }

    /// Destination address of the current frame.
    #[inline]
    fn frame_address<N: NodeTable>(&self, nodes: &N) -> Result<[u8; 6], WcError> {
        let down = WcError::new(WcStatus::RetryExceeded, Check::Node);
        let side = self.sender(nodes).ok_or(down)?;
        let mut address = [0; 6];
        if self.request.inline {
            let inline = self.inline_data();
            address = inline.first_chunk().copied().unwrap_or_default();
        } else {
            let fault = WcError::new(WcStatus::LocalProtection, Check::LocalMemory);
            peek(&side, &mut address).map_err(|_| fault)?;
        }
        Ok(address)
    }

    /// Offers a frame to every node but the sender. A node that cannot take it now misses it.
    fn flood<N: NodeTable>(&mut self, nodes: &mut N, address: &[u8; 6]) -> Outcome {
        for node in 0..nodes.max_nodes() {
            if node == self.request.source.node {
                continue;
            }
            let outcome = self.deliver_frame(nodes, node, address, RnrPolicy::Drop);
            match outcome {
                Outcome::Rnr { .. } => {
                    if let Some((node, _)) = nodes.node_mut(node) {
                        node.counters.rx_no_buffer.add(1);
                    }
                }
                Outcome::RingFull { .. } => {
                    if let Some((node, _)) = nodes.node_mut(self.request.source.node) {
                        node.lost_copy();
                    }
                }
                Outcome::Failed(error) if error.status == WcStatus::LocalProtection => {
                    return outcome;
                }
                _ => {}
            }
        }
        Outcome::Done
    }

    /// Delivers a frame to one node.
    #[inline]
    fn deliver_frame<N: NodeTable>(
        &mut self,
        nodes: &mut N,
        destination: u16,
        address: &[u8; 6],
        policy: RnrPolicy,
    ) -> Outcome {
        let Some((node, platform)) = nodes.node_mut(destination) else {
            return self.send_frame(nodes, destination, policy);
        };
        let Self {
            request, accepted, ..
        } = self;
        match node.accept_frame(platform, request, address, policy, accepted) {
            Ok(accepted) => self.deliver(nodes, destination, &accepted),
            Err(nak) => nak.outcome(destination),
        }
    }
}

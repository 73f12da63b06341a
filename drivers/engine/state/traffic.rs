// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What went through a queue pair.

use crate::state::counters::Volume;
use nupa_proto::{admin::QpTraffic, wqe::Opcode};

/// Messages and bytes of a queue pair since it was made, wrapping around. Of one of frames it means nothing: those are the port's to count.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) requests: u64,
    served: u64,
    sent_bytes: u64,
    received_bytes: u64,
}

impl Traffic {
    /// Counts a request of this queue pair that is done.
    #[inline(always)]
    pub(crate) fn requested(&mut self, opcode: Opcode, len: u32) {
        self.requests = self.requests.wrapping_add(1);
        let bytes = match opcode {
            Opcode::Read => &mut self.received_bytes,
            _ => &mut self.sent_bytes,
        };
        *bytes = bytes.wrapping_add(len.into());
    }

    /// Counts a request of its peer, or a datagram, that is done.
    #[inline(always)]
    pub(crate) fn served(&mut self, opcode: Opcode, len: u32) {
        self.served = self.served.wrapping_add(1);
        let bytes = match opcode {
            Opcode::Read => &mut self.sent_bytes,
            _ => &mut self.received_bytes,
        };
        *bytes = bytes.wrapping_add(len.into());
    }

    /// Counts messages that its process has put into a process ring.
    pub(crate) fn requested_past(&mut self, volume: Volume) {
        self.requests = self.requests.wrapping_add(volume.items);
        self.sent_bytes = self.sent_bytes.wrapping_add(volume.bytes);
    }

    /// Counts messages that its process has taken out of a process ring.
    pub(crate) fn served_past(&mut self, volume: Volume) {
        self.served = self.served.wrapping_add(volume.items);
        self.received_bytes = self.received_bytes.wrapping_add(volume.bytes);
    }

    pub(crate) fn to_wire(self) -> QpTraffic {
        QpTraffic {
            requests: self.requests.into(),
            served: self.served.into(),
            sent_bytes: self.sent_bytes.into(),
            received_bytes: self.received_bytes.into(),
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Directories: what nodes grant, export and hold.

use super::{Checker, Must, Problem, WORD};
use crate::Window;
use core::{mem::offset_of, ops::Range};
use nupa_proto::pool::{
    sharing::{Export, Hold, EXPORTS, EXPORT_TABLE, HOLDS, HOLD_TABLE},
    Claim, AREA_NODES, DIRECTORY_SIZE, GRANT_BUSY, GRANT_SLOTS, GRANT_TABLE, LINE, PAGE,
};

impl<W: Window, R: FnMut(Problem)> Checker<'_, W, R> {
    /// Checks the directory of a node that has a slot. That of a node that has none may hold anything.
    pub(super) fn directory(&mut self, node: u16, claim: Claim) {
        let Some(Range { start, .. }) = self.geometry.directory(node) else {
            return;
        };
        self.window.refresh(start, DIRECTORY_SIZE);
        let nodes = self.geometry.max_nodes();
        let others = match self.geometry.inboxes() {
            None => AREA_NODES,
            // Grants are where the rings are.
            Some(_) => {
                self.zeroes(start..start.wrapping_add(EXPORT_TABLE));
                0
            }
        };
        for other in 0..others {
            let line = row(start.wrapping_add(GRANT_BUSY), other, LINE);
            let is_peer = other != node && other < nodes;
            // The word of a node that is none is as reserved as the rest of its line.
            let unused = if is_peer {
                line.wrapping_add(WORD)
            } else {
                line
            };
            self.zeroes(unused..line.wrapping_add(LINE));
            self.grants(start, other, is_peer, claim);
        }
        for index in 0..EXPORTS {
            self.export(
                row(start.wrapping_add(EXPORT_TABLE), index, LINE),
                node,
                claim,
            );
        }
        for index in 0..HOLDS {
            self.hold(row(start.wrapping_add(HOLD_TABLE), index, LINE));
        }
    }

    fn grants(&mut self, directory: u64, other: u16, is_peer: bool, claim: Claim) {
        let len = WORD.wrapping_mul(u64::from(GRANT_SLOTS));
        let start = row(directory.wrapping_add(GRANT_TABLE), other, len);
        if !is_peer {
            return self.zeroes(start..start.wrapping_add(len));
        }
        for slot in 0..GRANT_SLOTS {
            let offset = row(start, slot, WORD);
            let found = self.load(offset).unwrap_or(0);
            if found != 0 && found >> 32 != u64::from(claim.epoch) {
                let must =
                    Must::Read("0, or of the epoch of the slot's claim word in its upper half");
                self.field(offset, "grant", found, must);
            }
        }
    }

    fn export(&mut self, line: u64, node: u16, claim: Claim) {
        let at = |offset: usize| line.wrapping_add(offset as u64);
        self.zeroes(at(offset_of!(Export, reserved))..line.wrapping_add(LINE));
        let secret = self.load(at(offset_of!(Export, secret)));
        let epoch = self.load(at(offset_of!(Export, epoch)));
        // Under another epoch it does not count.
        if secret == Some(0) || epoch != Some(u64::from(claim.epoch)) {
            return;
        }
        let (start, len) = (at(offset_of!(Export, offset)), at(offset_of!(Export, len)));
        let (Some(offset), Some(bytes)) = (self.load(start), self.load(len)) else {
            return;
        };
        let memory = self.geometry.device_memory(node);
        if offset % PAGE != 0 || !memory.contains(&offset) {
            let must = Must::Read("that of a page of the node's device memory");
            self.field(start, "offset of an export", offset, must);
        } else if bytes == 0 || bytes > memory.end.saturating_sub(offset) {
            let must = Must::Lie(1, memory.end.saturating_sub(offset));
            self.field(len, "len of an export", bytes, must);
        }
    }

    fn hold(&mut self, line: u64) {
        let at = |offset: usize| line.wrapping_add(offset as u64);
        self.zeroes(at(offset_of!(Hold, reserved))..line.wrapping_add(LINE));
        let (start, len) = (at(offset_of!(Hold, offset)), at(offset_of!(Hold, len)));
        let (Some(bytes), Some(offset)) = (self.load(len), self.load(start)) else {
            return;
        };
        if bytes == 0 {
            return;
        }
        let nodes = 0..self.geometry.max_nodes();
        let mut shares = nodes.map(|node| self.geometry.device_memory(node));
        let memory = shares.find(|memory| memory.contains(&offset));
        match memory.filter(|_| offset % PAGE == 0) {
            None => {
                let must = Must::Read("that of a page of a node's device memory");
                self.field(start, "offset of a hold", offset, must);
            }
            Some(memory) if bytes % PAGE != 0 || bytes > memory.end.saturating_sub(offset) => {
                let must = Must::Read("whole pages of a node's device memory");
                self.field(len, "len of a hold", bytes, must);
            }
            Some(_) => {}
        }
    }
}

/// Where a row of a table begins.
fn row(table: u64, number: u16, len: u64) -> u64 {
    table.wrapping_add(u64::from(number).wrapping_mul(len))
}

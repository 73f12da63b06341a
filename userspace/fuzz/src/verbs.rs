// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Good verbs requests, as a starting point for bad ones.

use nupa_engine::rings::Operation;
use nupa_proto::admin::{ACCESS_ALL, ACCESS_REMOTE_WRITE};
use nupa_proto::ident::{MULTICAST_QPN, NODE_FLOOD};
use nupa_proto::wqe::{
    BindSegment, DatagramSegment, FastRegSegment, FlushSegment, GrhSegment, FLUSH_GLOBAL,
};

/// Queue key of the datagram queue pair.
pub const QKEY: u32 = 0x1111;

/// Multicast group that the datagram queue pair may be in.
pub const GROUP: [u8; 16] = [0xff; 16];

/// Objects that a hostile guest has made; 0 if it has not.
#[derive(Debug, Clone, Copy, Default)]
pub struct Objects {
    /// Queue pair that admin commands are tried on.
    pub qpn: u32,
    pub pd: u32,
    /// Key of one page of memory.
    pub region: u32,
    /// Keys without memory.
    pub fast_reg: u32,
    pub window: u32,
    pub srqn: u32,
    /// Datagram queue pair.
    pub ud: u32,
    /// The page of memory, and a list that holds its address.
    pub page: u64,
    pub list: u64,
    pub node: u16,
}

/// Kinds of requests that `Objects::request` makes.
pub const KINDS: usize = 14;

impl Objects {
    /// A request that can succeed on a connected queue pair; `seed` picks one of several forms.
    pub fn request(&self, kind: usize, seed: u32) -> Operation {
        let addr = self.page + u64::from(seed % 64) * 8;
        let rkey = match seed % 4 {
            0 | 1 => self.region,
            2 => self.fast_reg,
            _ => self.window,
        };
        let imm = (seed % 2 == 0).then_some(seed);
        match kind % KINDS {
            0 => Operation::Send { imm },
            1 => Operation::SendInv {
                key: if seed % 2 == 0 {
                    self.fast_reg
                } else {
                    self.window
                },
            },
            2 | 3 => Operation::Write { addr, rkey, imm },
            4 => Operation::Read { addr, rkey },
            5 => Operation::CompareSwap {
                addr,
                rkey,
                compare: 0,
                swap: seed.into(),
            },
            6 => Operation::FetchAdd {
                addr,
                rkey,
                add: seed.into(),
            },
            7 => Operation::AtomicWrite {
                addr,
                rkey,
                value: seed.into(),
            },
            8 => Operation::Flush(FlushSegment {
                addr: addr.into(),
                rkey: rkey.into(),
                len: 8.into(),
                kind: FLUSH_GLOBAL,
                level: (seed % 2) as u8,
                ..FlushSegment::default()
            }),
            _ => self.local_request(kind, seed),
        }
    }

    /// A request that concerns keys of the guest's own, or a datagram.
    fn local_request(&self, kind: usize, seed: u32) -> Operation {
        match kind % KINDS {
            9 => Operation::FastReg {
                key: self.fast_reg,
                pages: FastRegSegment {
                    iova: self.page.into(),
                    len: 4096.into(),
                    list: self.list.into(),
                    pages: 1.into(),
                    access: ACCESS_ALL.into(),
                    page_shift: 12,
                    ..FastRegSegment::default()
                },
            },
            10 => Operation::LocalInv {
                key: if seed % 2 == 0 {
                    self.fast_reg
                } else {
                    self.window
                },
            },
            11 => Operation::BindMw {
                key: self.window,
                bind: BindSegment {
                    addr: self.page.into(),
                    len: u64::from(seed % 3 * 1024).into(),
                    mr_key: self.region.into(),
                    access: ACCESS_REMOTE_WRITE.into(),
                },
            },
            12 => Operation::Datagram {
                to: self.destination(seed % 4),
                grh: GrhSegment {
                    dgid: GROUP,
                    ..GrhSegment::default()
                },
                imm: None,
            },
            _ => Operation::Nop,
        }
    }

    /// Where a datagram goes: to the guest itself, to the members of the group there, or to all members.
    fn destination(&self, form: u32) -> DatagramSegment {
        let (node, qpn) = match form {
            0 => (NODE_FLOOD, MULTICAST_QPN),
            1 => (self.node, MULTICAST_QPN),
            _ => (self.node, self.ud),
        };
        DatagramSegment {
            qpn: qpn.into(),
            qkey: QKEY.into(),
            node: node.into(),
            ..DatagramSegment::default()
        }
    }
}

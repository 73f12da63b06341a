// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Descriptors that are right but for what they name, and some that are not right.

use nupa_proto::ident::NODE_FLOOD;
use nupa_proto::wqe::{
    AtomicSegment, BindSegment, Control, DatagramSegment, FastRegSegment, FlushSegment, GrhSegment,
    Opcode, RecvHeader, RemoteSegment, SendSegment, Sge, BLOCK_SIZE, WQE_FENCE, WQE_INLINE,
    WQE_SIGNALED, WQE_SOLICITED,
};

use crate::bytes::Bytes;
use crate::create::UD;
use crate::draw::Draw;
use crate::objects::Objects;
use crate::shared::Shared;

/// What descriptors are made of.
pub(crate) struct Scene<'a, S> {
    pub(crate) world: &'a S,
    pub(crate) objects: &'a Objects,
}

impl<S: Shared> Scene<'_, S> {
    /// A place in memory: mostly one in a region, and of a length that fits.
    fn place(&self, draw: &mut Draw) -> (u64, u32) {
        let length = draw.lie();
        let length = draw.one_or(&[8, 8, 64, 1000, 4096, 20_000, length], 8);
        (self.world.any_address(draw) & !7, length)
    }

    fn element(&self, draw: &mut Draw) -> Sge {
        let (addr, len) = self.place(draw);
        Sge {
            addr: addr.into(),
            len: len.into(),
            lkey: self.objects.key(draw).into(),
        }
    }

    /// Messages that went past the engine: mostly none, or few.
    fn bypassed(draw: &mut Draw) -> u32 {
        match draw.small(8) {
            0 => draw.small(3),
            1 => draw.lie(),
            _ => 0,
        }
    }

    fn remote(&self, draw: &mut Draw, opcode: Opcode) -> RemoteSegment {
        let (addr, rkey) = match self.world.any_remote(draw) {
            Some(place) => place,
            None => (self.place(draw).0, self.objects.key(draw)),
        };
        RemoteSegment {
            addr: addr.into(),
            rkey: rkey.into(),
            bypassed: match opcode {
                Opcode::WriteImm => Self::bypassed(draw),
                _ => u32::from(draw.once_in(64)),
            }
            .into(),
        }
    }

    fn datagram(&self, draw: &mut Draw) -> Vec<u8> {
        let number = draw.small(64);
        let pair = draw.one(&self.objects.pairs);
        let address = DatagramSegment {
            qpn: pair.map_or(number, |pair| pair.number).into(),
            qkey: draw.one_or(&[0, 0, 0, 0x8001_0000], 1).into(),
            node: draw.small_short(6).into(),
            reserved: [0; 6],
        };
        let header = GrhSegment {
            dgid: self.world.any_gid(draw),
            flow_label: 0.into(),
            sgid_index: draw.small_short(8).into(),
            hop_limit: draw.byte(),
            traffic_class: 0,
            reserved: [0; 8],
        };
        Bytes::new().whole(&address).whole(&header).done()
    }

    /// The segment of an operation, behind the control segment.
    fn operation(&self, draw: &mut Draw, opcode: Opcode, kind: u8) -> Vec<u8> {
        let bytes = Bytes::new();
        match opcode {
            Opcode::Send | Opcode::SendImm | Opcode::SendInv if kind == UD => self.datagram(draw),
            Opcode::Send | Opcode::SendImm | Opcode::SendInv => {
                let segment = SendSegment {
                    bypassed: Self::bypassed(draw).into(),
                    ..SendSegment::default()
                };
                bytes.whole(&segment).done()
            }
            Opcode::CompareSwap | Opcode::FetchAdd => {
                let operands = AtomicSegment {
                    operand: draw.long().into(),
                    compare: u64::from(draw.small(3)).into(),
                };
                bytes
                    .whole(&self.remote(draw, opcode))
                    .whole(&operands)
                    .done()
            }
            Opcode::FastReg => bytes.whole(&self.page_list(draw)).done(),
            Opcode::BindMw => {
                let (addr, len) = self.place(draw);
                let segment = BindSegment {
                    addr: addr.into(),
                    len: u64::from(len).into(),
                    mr_key: self.objects.key(draw).into(),
                    access: draw.small(0x100).into(),
                };
                bytes.whole(&segment).done()
            }
            Opcode::Flush => {
                let (addr, len) = self.place(draw);
                let segment = FlushSegment {
                    addr: addr.into(),
                    rkey: self.objects.key(draw).into(),
                    len: len.into(),
                    kind: draw.small_byte(4),
                    level: draw.small_byte(3),
                    reserved: [0; 6],
                };
                bytes.whole(&segment).done()
            }
            Opcode::Frame => draw.bytes(16),
            _ => bytes.whole(&self.remote(draw, opcode)).done(),
        }
    }

    /// Pages that the kernel alone may name: a process has no business to.
    fn page_list(&self, draw: &mut Draw) -> FastRegSegment {
        let (iova, len) = self.place(draw);
        FastRegSegment {
            iova: iova.into(),
            len: u64::from(len).into(),
            list: self.world.any_address(draw).into(),
            pages: draw.lie().into(),
            access: draw.small(0x100).into(),
            page_shift: draw.one_or(&[12, 12, 21, 30, 63, 255], 12),
            reserved: [0; 7],
        }
    }

    /// A send descriptor for a queue pair of a type.
    pub(crate) fn send(&self, draw: &mut Draw, kind: u8) -> Vec<u8> {
        let opcode = draw.one_or(Opcode::ALL, Opcode::Nop);
        let body = self.operation(draw, opcode, kind);
        let flags = draw.byte() & (WQE_SOLICITED | WQE_FENCE) | WQE_SIGNALED;
        let (flags, count, data) = if draw.once_in(4) {
            let count = draw.below(256);
            (flags | WQE_INLINE, count, draw.bytes(count))
        } else {
            let count = draw.one_or(&[0, 1, 1, 1, 2, 5, 18], 1);
            let entries = (0..count).map(|_| self.element(draw));
            let bytes = entries.fold(Bytes::new(), |bytes, entry| bytes.whole(&entry));
            (flags, count, bytes.done())
        };
        let length = 16usize
            .saturating_add(body.len())
            .saturating_add(data.len());
        let blocks = length.div_ceil(BLOCK_SIZE);
        let control = Control {
            opcode: opcode.to_wire(),
            flags,
            blocks: u8::try_from(blocks).unwrap_or(u8::MAX),
            data_count: u8::try_from(count).unwrap_or(u8::MAX),
            imm_or_key: match opcode {
                // The node that it is for.
                Opcode::Frame => draw.one_or(&[0, 1, 2, NODE_FLOOD.into()], 0).into(),
                _ => self.objects.key(draw).into(),
            },
            wr_id: draw.long().into(),
        };
        Bytes::new().whole(&control).raw(&body).raw(&data).done()
    }

    /// A receive descriptor of an entry of 64 bytes.
    pub(crate) fn receive(&self, draw: &mut Draw) -> Vec<u8> {
        let count = draw.lie();
        let header = RecvHeader {
            wr_id: draw.long().into(),
            sge_count: draw.one_or(&[1, 1, 1, 1, 0, 2, 3, 4, count], 1).into(),
            reserved: 0.into(),
        };
        let bytes = Bytes::new().whole(&header);
        (0..3)
            .fold(bytes, |bytes, _| bytes.whole(&self.element(draw)))
            .done()
    }
}

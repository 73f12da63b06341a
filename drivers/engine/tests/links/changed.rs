// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Descriptors that their process changes while parts of the message are under way: it harms nobody but itself.

use crate::links::parts::{connect, pair, pattern, post, OK, REGION};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::QpType,
    status::WcStatus,
    wqe::{Control, Opcode, Sge, DATA_OFFSET},
};
use nupa_testing::{Host, Qp, World};

const MALFORMED: u8 = WcStatus::LocalQpOperation as u8;

/// What becomes of the descriptor.
#[derive(Clone, Copy, Debug)]
enum Change {
    Len(u32),
    Opcode(Opcode),
}

fn change(host: &Host, qp: &Qp, change: Change) {
    match change {
        Change::Len(len) => {
            let at = DATA_OFFSET + std::mem::offset_of!(Sge, len);
            host.write(qp.send_addr + at as u64, &len.to_le_bytes());
        }
        Change::Opcode(opcode) => {
            let at = std::mem::offset_of!(Control, opcode);
            host.write(qp.send_addr + at as u64, &[opcode.to_wire()]);
        }
    }
}

/// Whether no host has refused the other, which a violation of the ring's rules leads to.
fn are_friends(world: &mut World) -> bool {
    !crate::MODE.is_pooled() || world.engine.members().violations.is_empty()
}

#[test]
fn a_request_that_changes_between_its_parts_fails() {
    for (operation, what) in [
        (Opcode::Write, Change::Len(100)),
        (Opcode::Write, Change::Len(65_536)),
        (Opcode::Write, Change::Len(REGION as u32 / 2)),
        (Opcode::Write, Change::Opcode(Opcode::Read)),
        (Opcode::Write, Change::Opcode(Opcode::Nop)),
        (Opcode::Send, Change::Len(100)),
        (Opcode::Send, Change::Opcode(Opcode::Write)),
        (Opcode::Read, Change::Len(100)),
        (Opcode::Read, Change::Opcode(Opcode::Write)),
    ] {
        let (mut world, mut a, mut b) = pair();
        let [mut c, d] =
            [&mut a, &mut b].map(|end| end.host.qp(&mut world, QpType::Rc, &end.cq, 6));
        connect(&mut world, (&a.host, &c), (&b.host, &d));
        world.hold(Some(1));
        b.receive(9, 0, REGION as u32);
        let (addr, rkey) = (b.mr.iova, b.mr.key);
        let sge = a.mr.sge(0, REGION as u32);
        let request = match operation {
            Opcode::Read => Operation::Read { addr, rkey },
            Opcode::Send => Operation::Send { imm: None },
            _ => Operation::Write {
                addr,
                rkey,
                imm: None,
            },
        };
        post(&mut a.qp, 1, request, Data::Sges(&[sge]));
        // Parts of it until the ring is full, or as much of a READ as may be asked for.
        world.turns(200);
        assert_eq!(a.done(), [], "{operation:?} {what:?}: it is not over");
        change(&a.host, &a.qp, what);
        world.hold(None);
        world.pump();
        assert!(
            are_friends(&mut world),
            "{operation:?} {what:?}: the host was refused"
        );
        // What comes back of a READ may be taken for something else by its own process.
        match (operation, &a.done()[..]) {
            (Opcode::Read, [(1, _)]) | (_, [(1, MALFORMED)]) => {}
            (_, done) => panic!("{operation:?} {what:?}: {done:?}"),
        }
        // Others of both hosts go on.
        let bytes = pattern(300, 3);
        a.fill(0, &bytes);
        let operation = Operation::Write {
            addr,
            rkey,
            imm: None,
        };
        post(&mut c, 2, operation, Data::Sges(&[a.mr.sge(0, 300)]));
        world.pump();
        assert_eq!(a.done(), [(2, OK)]);
        assert!(b.bytes(0, 300) == bytes);
    }
}

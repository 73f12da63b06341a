// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A host whose engine says anything that the rings let through: it reaches what was exposed to it, and nobody else is hurt.

use crate::links::parts::{connect, end, pattern, OK};
use nupa_engine::link::Link;
use nupa_pool::Outgoing;
use nupa_proto::{
    admin::{QpStateCode, QpType},
    frame::{FrameMeta, MIN_FRAME},
    pool::{
        message::{
            is_short, max_payload, takes_entry, FrameBody, NotifyBody, Reply, RequestBody,
            ResponseBody, MAX_FRAGMENT, NOTIFY_EVENT, READ_PIECE, REQUEST_BYPASSED,
            REQUEST_DATAGRAM,
        },
        Class, MIN_LOG_BULK,
    },
    status::WcStatus,
    wqe::{Opcode, MAX_DATAGRAM, MAX_MESSAGE},
};
use nupa_testing::{World, LONGEST_FRAME};
use proptest::{collection::vec, prelude::*, sample::select};
use zerocopy::FromZeros;

/// What the hostile host does.
#[derive(Clone, Debug)]
enum Step {
    Request {
        opcode: Opcode,
        flags: u8,
        numbers: [u32; 6],
        addr: u64,
        operand: Vec<u8>,
        payload: u32,
        offset: u32,
    },
    Response {
        reply: Reply,
        status: WcStatus,
        numbers: [u32; 3],
        payload: u32,
        offset: u32,
        short: bool,
    },
    Frame {
        payload: u32,
        hash: u32,
        flags: u8,
    },
    Notify(u32),
    /// The other host runs.
    Run(usize),
    /// It posts something to the hostile one.
    Post(u8),
    Wait(u64),
}

fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0u32..8, 1 => Just(u32::MAX), 1 => any::<u32>()]
}

fn len() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..300, 60_000u32..70_000, Just(MAX_MESSAGE)]
}

/// One that says often that few messages went past the engines.
fn operand() -> impl Strategy<Value = Vec<u8>> {
    let few = (0u8..3).prop_map(|count| [vec![count], vec![0; 47]].concat());
    prop_oneof![few, vec(any::<u8>(), 48)]
}

fn step() -> impl Strategy<Value = Step> {
    use Opcode::*;
    let opcode = select(vec![
        Send,
        SendImm,
        SendInv,
        Write,
        WriteImm,
        Read,
        CompareSwap,
        FetchAdd,
        Flush,
        AtomicWrite,
    ]);
    let offset = || prop_oneof![3 => Just(0), 2 => Just(65536u32), 1 => len()];
    // The region, mostly.
    let addr = prop_oneof![
        3 => (0u64..1 << 20).prop_map(|at| 0x7000_0000_0000 + at),
        1 => any::<u64>(),
    ];
    let numbers = (number(), number(), 0u32..8, 0u32..3, len(), 0u32..3);
    let numbers = numbers.prop_map(|(a, b, c, d, e, f)| [a, b, c, d, e, f]);
    prop_oneof![
        6 => (opcode, 0u8..64, numbers, addr, operand(), len(), offset()).prop_map(
            |(opcode, flags, numbers, addr, operand, payload, offset)| Step::Request {
                opcode, flags, numbers, addr, operand, payload, offset,
            }
        ),
        4 => (select(Reply::ALL), select(WcStatus::ALL), [0u32..12, 0u32..4, 0u32..4], len(), offset(), any::<bool>())
            .prop_map(|(reply, status, numbers, payload, offset, short)| Step::Response {
                reply, status, numbers, payload, offset, short,
            }),
        1 => (MIN_FRAME..=LONGEST_FRAME, any::<u32>(), 0u8..2)
            .prop_map(|(payload, hash, flags)| Step::Frame { payload, hash, flags }),
        1 => number().prop_map(Step::Notify),
        4 => (1usize..6).prop_map(Step::Run),
        3 => (0u8..5).prop_map(Step::Post),
        1 => (0u64..20_000).prop_map(Step::Wait),
    ]
}

/// Puts an entry into a ring if there is room.
fn put(world: &mut World, class: Class, message: &Outgoing<'_>, payload: u32, offset: u32) {
    let peer = world.nodes.hosts[1].peers[0].as_mut().expect("exists");
    let link = peer.link_mut().queues();
    let payload = payload.min(max_payload(class, MIN_LOG_BULK));
    if link.reserve(class, payload).is_some() {
        link.commit(class, message, offset);
    }
}

/// Puts a part of a request into a ring if the ring's rules allow it.
fn put_request(world: &mut World, body: &RequestBody, payload: u32, offset: u32) {
    let opcode = Opcode::try_from(body.opcode).expect("it is one");
    let datagram = body.flags & REQUEST_DATAGRAM != 0;
    let (len, total) = (body.len.get(), body.payload_len());
    let class = match datagram || is_short(opcode, len) {
        true => Class::ShortRequest,
        false => Class::Request,
    };
    let (payload, offset) = match opcode {
        _ if datagram => (total, 0),
        Opcode::Read => (
            0,
            offset.min(len.saturating_sub(1)) / READ_PIECE * READ_PIECE,
        ),
        _ if total == 0 => (0, 0),
        _ => {
            let offset = offset.min(total - 1);
            let most = (total - offset).min(MAX_FRAGMENT);
            (payload.clamp(1, most), offset)
        }
    };
    put(world, class, &Outgoing::Request(body), payload, offset);
}

fn carry_out(world: &mut World, rkey: u32, step: &Step) {
    match step {
        Step::Request {
            opcode,
            flags,
            numbers: [source, target, sequence, epoch, len, key],
            addr,
            operand,
            payload,
            offset,
        } => {
            let mut body = RequestBody::new_zeroed();
            let datagram =
                matches!(opcode, Opcode::Send | Opcode::SendImm) && flags & REQUEST_DATAGRAM != 0;
            body.opcode = opcode.to_wire();
            body.flags = match datagram {
                true => flags & 7,
                false if takes_entry(*opcode) && operand[..4] != [0; 4] => {
                    flags & (9 | REQUEST_BYPASSED)
                }
                false => flags & 9,
            };
            body.source_qpn.set(*source);
            body.target_qpn.set(*target);
            body.sequence.set(*sequence);
            body.target_epoch.set(*epoch);
            let most = if datagram { MAX_DATAGRAM } else { MAX_MESSAGE };
            body.len.set((*len).min(most));
            body.remote_addr.set(*addr);
            body.remote_key
                .set(if *key == 0 { *sequence } else { rkey });
            body.imm_or_key.set(rkey);
            body.operand.copy_from_slice(operand);
            put_request(world, &body, *payload, *offset);
        }
        Step::Response {
            reply,
            status,
            numbers: [sequence, source, target],
            payload,
            offset,
            short,
        } => {
            let mut body = ResponseBody::new_zeroed();
            (body.reply, body.status) = (reply.to_wire(), status.to_wire());
            body.check = *payload as u8;
            body.sequence.set(*sequence);
            body.source_qpn.set(*source);
            body.target_qpn.set(*target);
            let class = match short {
                true => Class::ShortResponse,
                false => Class::Response,
            };
            let message = Outgoing::Response(&body);
            put(world, class, &message, *payload, *offset);
        }
        Step::Frame {
            payload,
            hash,
            flags,
        } => {
            let mut body = FrameBody::new_zeroed();
            body.flags = *flags;
            body.meta = FrameMeta::default();
            body.meta.hash.set(*hash);
            put(world, Class::Frame, &Outgoing::Frame(&body), *payload, 0);
        }
        Step::Notify(qpn) => {
            let mut body = NotifyBody::new_zeroed();
            body.qpn.set(*qpn);
            body.source_qpn.set(*qpn % 4);
            body.flags = NOTIFY_EVENT;
            put(world, Class::Response, &Outgoing::Notify(&body), 0, 0);
        }
        Step::Run(turns) => world.turns(*turns),
        Step::Post(_) => {}
        Step::Wait(us) => world.advance(*us),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn a_hostile_host_harms_only_what_is_connected_to_it(
        steps in vec(step(), 1..80),
        seed in any::<u32>(),
    ) {
        if !crate::is_about_hostile_hosts() {
            return Ok(());
        }
        let mut world = World::new(*crate::MODE, 3);
        world.shuffle(seed);
        let (mut a, b) = (end(&mut world, 0), end(&mut world, 1));
        let mut c = end(&mut world, 2);
        connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
        let cq = a.host.cq(&mut world, a.eq.eqn, 5);
        let aside = a.host.qp(&mut world, QpType::Rc, &cq, 4);
        connect(&mut world, (&a.host, &aside), (&c.host, &c.qp));
        // Not exposed.
        let end = a.host.machine.ram().end();
        a.host.write(end - 4096, &[0xa5; 4096]);
        a.receive(100, 0, 100_000);
        // Its own engine says nothing; its peer takes its entries out, which make room.
        world.hold(Some(1));
        let mr = b.mr;
        for (id, step) in (0u64..).zip(&steps) {
            if let Step::Post(kind) = step {
                if a.qp.send.free_blocks() > 8 {
                    match kind {
                        0 => a.write(id, &mr, 0, 100_000),
                        1 => a.read(id, &mr, 0, 100_000),
                        2 => a.send(id, 0, 64),
                        3 => a.read(id, &mr, 8, 8),
                        _ => a.write(id, &mr, 8, 8),
                    }
                }
            }
            carry_out(&mut world, a.mr.key, step);
        }
        world.pump();
        prop_assert!(a.host.read(end - 4096, 4096) == [0xa5; 4096]);
        // No completion but of what was posted, each once and in order.
        let done = a.done();
        let sends: Vec<u64> = done.iter().map(|(id, _)| *id).filter(|id| *id < 100).collect();
        prop_assert!(sends.is_sorted_by(|a, b| a < b), "{:?}", done);
        prop_assert!(sends.iter().all(|id| matches!(steps[*id as usize], Step::Post(_))));
        // Others are as they were.
        let state = world.node(0).query_qp(aside.qpn).expect("exists").state;
        prop_assert_eq!(state, QpStateCode::Rts.to_wire());
        c.fill(0, &pattern(200_000, 9));
        let mr = a.mr;
        c.write(1, &mr, 0, 200_000);
        world.pump();
        prop_assert_eq!(c.done(), [(1, OK)]);
        prop_assert!(a.bytes(0, 200_000) == pattern(200_000, 9));
        // All of it ends when it goes.
        world.engine.reset(&mut world.nodes, 1);
        world.pump();
        world.engine.reset(&mut world.nodes, 0);
        world.pump();
        prop_assert_eq!(world.node(0).object_counts(), [0; 6]);
    }
}

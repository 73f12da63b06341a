// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Arbitrary bytes in rings, doorbells and admin commands: no panic, no endless work, and nothing that was not exposed
//! is touched.

use nupa_engine::{
    hal::{Doorbells, SlotWord},
    NodeTable,
};
use nupa_proto::{admin::*, doorbell::SLOTS, ident::node_mac, wqe::Opcode};
use nupa_testing::{Host, Qp, World};
use proptest::{collection::vec, prelude::*};
use zerocopy::FromBytes;

/// What a hostile driver does.
#[derive(Clone, Debug)]
enum Step {
    /// Writes anything to the start of its memory, where rings, lists and buffers are.
    Poke { offset: u64, bytes: Vec<u8> },
    /// Writes a descriptor that is right but for some bytes.
    Descriptor { block: u64, bytes: [u8; 64] },
    /// Stores anything to a doorbell word.
    Doorbell { slot: u16, word: u8, value: u32 },
    /// Kicks any slot.
    Kick {
        page: u32,
        slot: u16,
        pushed: Option<u32>,
    },
    /// Gives any admin command.
    Admin { code: u8, body: [u8; 64] },
    /// Lets time pass.
    Wait(u64),
}

/// Bytes that often have values that mean something.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![Just(0), Just(1), Just(0xff), 0u8..20, any::<u8>()]
}

fn value() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..40, Just(u32::MAX), any::<u32>()]
}

/// `N` such bytes.
fn bytes<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    vec(byte(), N).prop_map(|bytes| bytes.try_into().expect("as many as asked for"))
}

/// Operation segments with what mostly exists: queue pair, queue key and node of a datagram.
fn segment() -> impl Strategy<Value = [u8; 16]> {
    prop_oneof![
        bytes::<16>(),
        (0u8..8, 0u8..3)
            .prop_map(|(qpn, node)| [qpn, 0, 0, 0, 0, 0, 0, 0, node, 0, 0, 0, 0, 0, 0, 0]),
    ]
}

fn descriptor() -> impl Strategy<Value = [u8; 64]> {
    let op = prop::sample::select(Opcode::ALL);
    let control = (op, 0u8..16, 0u8..8, 0u8..20);
    (control, segment(), 0usize..3, bytes::<64>()).prop_map(
        |((op, flags, blocks, count), segment, place, any)| {
            let mut bytes = any;
            bytes[..4].copy_from_slice(&[op.to_wire(), flags, blocks, count]);
            bytes[16..32].copy_from_slice(&segment);
            // Mostly an entry whose key and addresses exist, where one operation or another has it; the second block of a
            // datagram begins with it.
            let entry = [0, 16, 0, 16, 0, 0, 0, 0, 60, 0, 0, 0, 255, 255, 255, 255];
            let at = [0, 32, 48][place];
            bytes[at..at + 16].copy_from_slice(&entry);
            bytes
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0u64..200_000, vec(byte(), 1..64)).prop_map(|(offset, bytes)| Step::Poke { offset, bytes }),
        4 => (0u64..64, descriptor()).prop_map(|(block, bytes)| Step::Descriptor { block, bytes }),
        4 => (0u16..SLOTS_USED, 0u8..3, value())
            .prop_map(|(slot, word, value)| Step::Doorbell { slot, word, value }),
        6 => (0u32..2, prop_oneof![0u16..SLOTS_USED, 0..SLOTS + 9], prop::option::of(value()))
            .prop_map(|(page, slot, pushed)| Step::Kick { page, slot, pushed }),
        3 => (0u8..23, bytes::<64>()).prop_map(|(code, body)| Step::Admin { code, body }),
        1 => (0u64..2000).prop_map(Step::Wait),
    ]
}

/// Doorbell slots that a driver's queues have.
const SLOTS_USED: u16 = 13;
/// Queue key of the datagram queue pairs.
const QKEY: u32 = 0;

/// A driver that set everything up rightly, and its queue pairs: connected, raw, datagrams, connected on a shared queue.
struct Victim {
    host: Host,
    qps: [Qp; 4],
}

fn set_up(world: &mut World, id: u16) -> Victim {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 5);
    let rc = host.qp(world, QpType::Rc, &cq, 4);
    let raw = host.qp(world, QpType::Raw, &cq, 4);
    let datagrams = host.qp(world, QpType::Ud, &cq, 4);
    host.ready_datagrams(world, &datagrams, QKEY);
    host.gid(world, 0, [1; 16]);
    let srq = host.srq(world, 4);
    let shared = host.qp_on(world, QpType::Rc, 0, Some(&srq), &cq, 4);
    host.ready(world, &raw, None);
    host.receive_frames(world, &[node_mac(id)], &[raw.qpn]);
    Victim {
        host,
        qps: [rc, raw, datagrams, shared],
    }
}

fn carry_out(world: &mut World, id: u16, victim: &Victim, step: &Step) {
    let base = nupa_testing::BASE;
    match step {
        Step::Poke { offset, bytes } => victim.host.write(base + offset, bytes),
        Step::Descriptor { block, bytes } => {
            // Send rings of all queue pairs, 16 blocks each.
            let ring = &victim.qps[(*block / 16) as usize];
            victim.host.write(ring.send_addr + block % 16 * 64, bytes);
        }
        Step::Doorbell { slot, word, value } => {
            let word = [SlotWord::Index, SlotWord::Arm, SlotWord::Event][usize::from(*word)];
            victim.host.machine.store(0, *slot, word, *value);
        }
        Step::Kick {
            page,
            slot,
            pushed: None,
        } => {
            world.engine.kick(&mut world.nodes, id, *page, *slot);
        }
        Step::Kick {
            page,
            slot,
            pushed: Some(index),
        } => {
            world
                .engine
                .push_kick(&mut world.nodes, id, *page, *slot, *index);
        }
        Step::Admin { code, body } => admin(world, id, *code, body),
        Step::Wait(us) => world.advance(*us),
    }
}

fn parse<T: FromBytes>(body: &[u8; 64]) -> T {
    T::read_from_prefix(body)
        .map(|(value, _)| value)
        .expect("bodies are shorter")
}

/// Whether a command is accepted is all the same; that it does no harm is what counts.
fn admin(world: &mut World, id: u16, code: u8, body: &[u8; 64]) {
    let number = u32::from(body[0] & 7);
    let (node, machine) = world.nodes.node_mut(id).expect("exists");
    let _ = match code {
        0 => node.create_eq(machine, &parse::<CreateEq>(body)).map(drop),
        1 => node.create_cq(machine, &parse::<CreateCq>(body)).map(drop),
        2 => node.create_mr(machine, &parse::<CreateMr>(body)).map(drop),
        3 => node.create_qp(machine, &parse::<CreateQp>(body)).map(drop),
        4 => node.modify_cq(machine, &parse::<ModifyCq>(body)),
        5 => node.set_rss(machine, &parse::<SetRss>(body)),
        6 => node.set_rx_filter(machine, &parse::<SetRxFilter>(body)),
        7 => node.destroy_cq(number),
        8 => node.destroy_eq(number),
        9 => node.dealloc_pd(number),
        10 => node.alloc_pd().map(drop),
        11 => world.engine.destroy_qp(&mut world.nodes, id, number),
        12 => node
            .create_srq(machine, &parse::<CreateSrq>(body))
            .map(drop),
        13 => node.modify_srq(machine, &parse::<ModifySrq>(body)),
        14 => node.destroy_srq(number),
        15 => node.set_gid(&parse::<SetGid>(body)),
        16 => node.alloc_key(machine, &parse::<AllocKey>(body)).map(drop),
        17 => {
            let body = parse::<ModifyMr>(body);
            let changed = world.engine.modify_mr(&mut world.nodes, id, &body);
            changed.map(drop)
        }
        18 => world.engine.destroy_mr(&mut world.nodes, id, number),
        19 => node.query_srq(number).map(drop),
        20 => node.resize_cq(machine, &parse::<ResizeCq>(body)),
        _ => world
            .engine
            .modify_qp(&mut world.nodes, id, &parse::<ModifyQp>(body)),
    };
    world.pump();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn a_hostile_driver_harms_only_itself(steps in vec(step(), 1..80)) {
        let mut world = World::new(*crate::MODE, 3);
        let victims = [set_up(&mut world, 0), set_up(&mut world, 1)];
        let bystander = world.host(2);
        let end = bystander.machine.ram().end();
        bystander.write(end - 4096, &[0xa5; 4096]);
        let [a, b] = &victims;
        for at in [0, 3] {
            a.host.ready(&mut world, &a.qps[at], Some((1, b.qps[at].qpn, 1)));
            b.host.ready(&mut world, &b.qps[at], Some((0, a.qps[at].qpn, 1)));
        }
        for step in &steps {
            carry_out(&mut world, 0, a, step);
        }
        world.pump();
        prop_assert!(bystander.read(end - 4096, 4096) == [0xa5; 4096]);
        // The peer exposes no region and posts no buffers: only its completion and event rings may have changed.
        for qp in &b.qps {
            prop_assert!(b.host.read(qp.send_addr, 16 * 64) == [0; 16 * 64]);
        }
        world.engine.reset(&mut world.nodes, 0);
        world.pump();
        prop_assert_eq!(world.node(0).object_counts(), [0; 6]);
        prop_assert_eq!(world.next, None);
    }
}

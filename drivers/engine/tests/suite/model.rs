// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Random work against a simple model: what must be where, and who must be told.

use nupa_engine::rings::{Data, Operation, SendRequest};
use nupa_proto::{
    admin::QpType,
    frame::{FrameMeta, MIN_FRAME},
    ident::node_mac,
    status::WcStatus,
    wqe::WQE_SIGNALED,
};
use nupa_testing::{
    model::{Fault, Pair, Piece, Step, REGION},
    Cq, Host, Qp, World,
};
use proptest::{collection::vec, prelude::*, sample::select};
use std::collections::VecDeque;

fn piece() -> impl Strategy<Value = Piece> {
    (0..REGION, 0..REGION).prop_map(|(at, len)| Piece::new(at, len))
}

/// The offset of a word, mostly.
fn word() -> impl Strategy<Value = usize> {
    prop_oneof![
        9 => (0..REGION / 8).prop_map(|word| word * 8),
        1 => 0..REGION + 8,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let imm = || prop::option::of(any::<u32>());
    prop_oneof![
        2 => (piece(), 0..REGION, any::<bool>(), imm())
            .prop_map(|(from, to, inline, imm)| Step::Write { from, to, inline, imm }),
        2 => (0..REGION, piece()).prop_map(|(from, to)| Step::Read { from, to }),
        2 => (piece(), any::<bool>(), imm())
            .prop_map(|(from, inline, imm)| Step::Send { from, inline, imm }),
        1 => (word(), 0..REGION - 8, any::<u64>())
            .prop_map(|(from, to, add)| Step::FetchAdd { from, to, add }),
        3 => piece().prop_map(Step::Receive),
        3 => Just(Step::Serve),
    ]
}

/// What disturbs the work.
fn trouble() -> impl Strategy<Value = Step> {
    let faults = [Fault::QueuePair, Fault::Region, Fault::Link, Fault::Reset];
    prop_oneof![
        3 => (1u8..20).prop_map(Step::Turns),
        2 => (0..2usize, 1u8..20).prop_map(|(end, turns)| Step::Hold { end, turns }),
        1 => (1u64..3000).prop_map(Step::Wait),
        2 => (0..2usize, select(faults.to_vec())).prop_map(|(end, fault)| Step::Fault { end, fault }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn connected_pairs_do_what_the_model_does(
        steps in vec(step(), 1..60),
        seed in any::<u32>(),
        device in any::<bool>(),
    ) {
        let mut world = World::new(*crate::MODE, 2);
        world.shuffle(seed);
        let mut pair = Pair::new(world, device);
        for step in &steps {
            pair.perform(step);
        }
    }

    /// Whatever goes wrong, what is done is done, all is told once and in order, and both ends can start again.
    #[test]
    fn what_fails_leaves_no_doubt_of_what_is_done(
        steps in vec(prop_oneof![9 => step(), 2 => trouble()], 1..60),
        seed in any::<u32>(),
        device in any::<bool>(),
    ) {
        let mut world = World::new(*crate::MODE, 2);
        world.shuffle(seed);
        let mut pair = Pair::new(world, device);
        for step in &steps {
            pair.perform(step);
        }
        pair.settle();
    }

    #[test]
    fn frames_arrive_whole_in_order_or_wait(
        steps in vec(prop_oneof![
            (MIN_FRAME as usize..3000).prop_map(Ok),
            (1u32..2049).prop_map(Err),
        ], 1..80),
        seed in any::<u32>(),
    ) {
        let mut world = World::new(*crate::MODE, 2);
        world.shuffle(seed);
        let (mut a, mut b) = (raw(&mut world, 0), raw(&mut world, 1));
        let (mut frames, mut buffers) = (VecDeque::new(), VecDeque::new());
        let (mut arrived, mut told) = (0, 0);
        for (seed, step) in (0u8..).zip(steps) {
            match step {
                Ok(len) => {
                    let mut bytes: Vec<u8> = (0..len).map(|i| i as u8 ^ seed).collect();
                    bytes[..6].copy_from_slice(&node_mac(1));
                    if a.send(&bytes) {
                        frames.push_back(bytes);
                    }
                }
                Err(len) => {
                    let addr = b.host.alloc(u64::from(len));
                    if b.qp.recv.post(addr, &[b.host.dma(addr, len)]).is_ok() {
                        b.qp.recv.ring();
                        buffers.push_back((addr, len as usize));
                    }
                }
            }
            world.pump();
            // The model: the first frame goes as soon as the buffers hold it.
            while let Some(frame) = frames.front() {
                let mut left = frame.len();
                let mut used = 0;
                for (_, len) in &buffers {
                    left = left.saturating_sub(*len);
                    used += 1;
                    if left == 0 {
                        break;
                    }
                }
                if left > 0 {
                    break;
                }
                let cqe = b.cq.ring.poll().expect("frame has arrived");
                prop_assert_eq!(usize::from(cqe.buffers.get()), used);
                prop_assert_eq!(cqe.byte_len.get() as usize, frame.len());
                prop_assert_eq!(cqe.wr_id.get(), buffers[0].0);
                let mut bytes = Vec::new();
                for (addr, len) in buffers.drain(..used) {
                    bytes.extend(b.host.read(addr, len.min(frame.len() - bytes.len())));
                }
                prop_assert!(&bytes == frame);
                b.qp.recv.completed(cqe.queue_index.get()).expect("posted");
                frames.pop_front();
                arrived += 1;
            }
            prop_assert!(b.cq.ring.poll().is_none());
            for cqe in a.cq.drain() {
                prop_assert_eq!(cqe.status, WcStatus::Success.to_wire());
                a.qp.send.completed(cqe.queue_index.get()).expect("posted");
                told += 1;
            }
            // A frame for another host is done for its sender before it arrives.
            prop_assert!(told == arrived || crate::MODE.is_linked() && told > arrived);
        }
    }
}

struct Raw {
    host: Host,
    cq: Cq,
    qp: Qp,
}

fn raw(world: &mut World, id: u16) -> Raw {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 7);
    let qp = host.qp(world, QpType::Raw, &cq, 5);
    host.ready(world, &qp, None);
    host.receive_frames(world, &[node_mac(id)], &[qp.qpn]);
    Raw { host, cq, qp }
}

impl Raw {
    fn send(&mut self, bytes: &[u8]) -> bool {
        let addr = self.host.alloc(bytes.len() as u64);
        self.host.write(addr, bytes);
        let operation = Operation::Frame {
            node: 1,
            meta: FrameMeta::default(),
        };
        let sges = [self.host.dma(addr, bytes.len() as u32)];
        let data = Data::Sges(&sges);
        let request = SendRequest {
            wr_id: 0,
            flags: WQE_SIGNALED,
            operation,
            data,
        };
        let posted = self.qp.send.post(&request).is_ok();
        self.qp.send.ring();
        posted
    }
}

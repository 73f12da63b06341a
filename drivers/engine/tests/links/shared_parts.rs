// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Long messages to queue pairs that share a receive queue: each goes into one entry until it is whole.

use super::parts::{connect, pattern, post, OK};
use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::{QpStateCode, QpType},
    status::WcStatus,
};
use nupa_testing::{Host, Qp, World};
use proptest::{collection::vec, prelude::*};

/// Bytes of each entry.
const ENTRY: u32 = 300_000;
/// Entries of the shared queue.
const ENTRIES: u64 = 8;

struct Sender {
    host: Host,
    qp: Qp,
    cq: nupa_testing::Cq,
    /// Where its messages lie.
    addr: u64,
    key: u32,
}

fn sender(world: &mut World, id: u16) -> Sender {
    let mut host = world.host(id);
    let eq = host.start(world);
    let cq = host.cq(world, eq.eqn, 7);
    let qp = host.qp(world, QpType::Rc, &cq, 5);
    let mr = host.mr(world, u64::from(ENTRY), false);
    Sender {
        host,
        qp,
        cq,
        addr: mr.addr,
        key: mr.key,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Two nodes send messages of these lengths, by turns; one of them may end before all have arrived.
    #[test]
    fn entries_are_completed_with_their_message(
        lens in vec((0usize..2, prop_oneof![1u32..200, 60_000..ENTRY]), 1..8),
        seed in any::<u32>(),
        end in prop::option::of(0usize..60),
    ) {
        let mut world = World::new(*crate::MODE, 3);
        world.shuffle(seed);
        let mut senders = [sender(&mut world, 0), sender(&mut world, 1)];
        let mut there = world.host(2);
        let eq = there.start(&mut world);
        let cq = &mut there.cq(&mut world, eq.eqn, 7);
        let mut srq = there.srq(&mut world, 3);
        let qps = [0; 2].map(|_| there.qp_on(&mut world, QpType::Rc, 0, Some(&srq), cq, 4));
        let mr = there.mr(&mut world, ENTRIES * u64::from(ENTRY), false);
        for (sender, qp) in senders.iter().zip(&qps) {
            connect(&mut world, (&sender.host, &sender.qp), (&there, qp));
        }
        for entry in 0..ENTRIES {
            srq.ring.post(entry, &[mr.sge(entry * u64::from(ENTRY), ENTRY)]).expect("room");
        }
        srq.ring.ring();
        for (seed, sender) in (10u8..).zip(&senders) {
            sender.host.write(sender.addr, &pattern(ENTRY as usize, seed));
        }
        for (who, len) in &lens {
            let Sender { qp, key, .. } = &mut senders[*who];
            let sge = nupa_testing::sge(0x7000_0000_0000, *len, *key);
            post(qp, u64::from(*len), Operation::Send { imm: None }, Data::Sges(&[sge]));
        }
        if let Some(turns) = end {
            world.turns(turns);
            there.set_state(&mut world, qps[0].qpn, QpStateCode::Err).expect("allowed");
        }
        world.pump();
        // Retries to the one in the error state are exhausted by then.
        world.advance(500_000);
        // Each entry is completed once, by the queue pair that took it, in whatever order; what is free was taken.
        let mut done = Vec::new();
        let mut free = 0;
        let mut arrived = [Vec::new(), Vec::new()];
        for cqe in cq.drain() {
            let (entry, len) = (cqe.wr_id.get(), cqe.byte_len.get());
            prop_assert!(!done.contains(&entry));
            done.push(entry);
            // As many places are free as messages are complete, so no more are under way than the queue has.
            prop_assert!(cqe.queue_index.get() >= free);
            free = cqe.queue_index.get();
            prop_assert!(free as usize <= done.len());
            srq.ring.completed(free).expect("posted");
            let who = usize::from(cqe.qpn.get() == qps[1].qpn);
            if cqe.status == OK {
                let bytes = there.read(mr.addr + entry * u64::from(ENTRY), len as usize);
                prop_assert!(bytes == pattern(len as usize, 10 + who as u8));
                arrived[who].push(len);
            } else {
                prop_assert_eq!((who, cqe.status), (0, WcStatus::WrFlush as u8));
                prop_assert!(end.is_some());
            }
        }
        prop_assert_eq!(srq.ring.free() as usize, done.len());
        for (who, sender) in senders.iter_mut().enumerate() {
            let sent = lens.iter().filter(|(whose, _)| *whose == who).map(|(_, len)| *len);
            let statuses: Vec<u8> = sender.cq.drain().iter().map(|cqe| cqe.status).collect();
            prop_assert_eq!(statuses.len(), sent.clone().count());
            prop_assert!(sent.zip(&arrived[who]).all(|(sent, arrived)| sent == *arrived));
            if who == 1 || end.is_none() {
                prop_assert!(statuses.iter().all(|status| *status == OK));
                prop_assert_eq!(arrived[who].len(), statuses.len());
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What queue pairs count, and how long their requests take.

use nupa_engine::rings::{Data, Operation};
use nupa_proto::{
    admin::{QpTraffic, QpType},
    status::WcStatus,
    wqe::WQE_SIGNALED,
};
use nupa_testing::{Cq, Host, Mr, Qp, World};

const OK: u8 = WcStatus::Success as u8;

struct End {
    host: Host,
    cq: Cq,
    qp: Qp,
    mr: Mr,
}

impl End {
    fn new(world: &mut World, id: u16) -> Self {
        let mut host = world.host(id);
        let eq = host.start(world);
        let cq = host.cq(world, eq.eqn, 8);
        let qp = host.qp(world, QpType::Rc, &cq, 6);
        let mr = host.mr(world, 65536, false);
        Self { host, cq, qp, mr }
    }

    /// Has a request done, and returns its status.
    fn ask(&mut self, world: &mut World, operation: Operation, data: Data<'_>) -> u8 {
        self.qp.submit(7, WQE_SIGNALED, operation, data);
        world.pump();
        self.done()
    }

    fn done(&mut self) -> u8 {
        let cqe = *self.cq.drain().first().expect("a completion");
        let completed = self.qp.send.completed(cqe.queue_index.get());
        completed.expect("index of what is posted");
        cqe.status
    }

    fn write(&self) -> Operation {
        Operation::Write {
            addr: self.mr.iova,
            rkey: self.mr.key,
            imm: None,
        }
    }

    fn traffic(&self, world: &World) -> [u64; 4] {
        let state = world.node(self.host.id).query_qp(self.qp.qpn);
        let QpTraffic {
            requests,
            served,
            sent_bytes,
            received_bytes,
        } = state.expect("exists").traffic;
        [requests, served, sent_bytes, received_bytes].map(|count| count.get())
    }
}

fn pair() -> (World, End, End) {
    let mut world = World::new(*crate::MODE, 2);
    let (a, b) = (End::new(&mut world, 0), End::new(&mut world, 1));
    let (ea, eb) = (world.node(0).epoch(), world.node(1).epoch());
    a.host
        .ready(&mut world, &a.qp, Some((b.host.id, b.qp.qpn, eb)));
    b.host
        .ready(&mut world, &b.qp, Some((a.host.id, a.qp.qpn, ea)));
    (world, a, b)
}

#[test]
fn both_ends_count_what_went_through() {
    let (mut world, mut a, mut b) = pair();
    b.qp.recv.post(1, &[b.mr.sge(0, 16)]).expect("room");
    b.qp.recv.ring();
    let send = Operation::Send { imm: None };
    assert_eq!(a.ask(&mut world, send, Data::Inline(b"hello")), OK);
    assert_eq!(b.cq.drain().len(), 1);
    let (addr, rkey) = (b.mr.iova, b.mr.key);
    let sges = [a.mr.sge(0, 30_000)];
    assert_eq!(a.ask(&mut world, b.write(), Data::Sges(&sges)), OK);
    let read = Operation::Read { addr, rkey };
    assert_eq!(
        a.ask(&mut world, read, Data::Sges(&[a.mr.sge(0, 20_000)])),
        OK
    );
    let add = Operation::FetchAdd { addr, rkey, add: 1 };
    assert_eq!(a.ask(&mut world, add, Data::Sges(&[a.mr.sge(0, 8)])), OK);
    assert_eq!(a.traffic(&world), [4, 0, 5 + 30_000 + 8, 20_000]);
    assert_eq!(b.traffic(&world), [0, 4, 20_000, 5 + 30_000 + 8]);

    // What fails is counted by the port alone.
    let rkey = rkey ^ 1;
    let read = Operation::Read { addr, rkey };
    assert_ne!(a.ask(&mut world, read, Data::Sges(&[a.mr.sge(0, 8)])), OK);
    assert_eq!(a.traffic(&world), [4, 0, 30_013, 20_000]);
    assert_eq!(b.traffic(&world)[1], 4);
}

/// Requests that were measured, by classes of time.
fn latency(world: &World, node: u16) -> Vec<u64> {
    let classes = world.node(node).counters().tx_latency;
    classes.iter().map(|count| count.get()).collect()
}

#[test]
fn one_of_64_is_measured() {
    let (mut world, mut a, b) = pair();
    for done in 0..130u64 {
        let measured: u64 = latency(&world, 0).iter().sum();
        assert_eq!(measured, done.div_ceil(64));
        assert_eq!(a.ask(&mut world, b.write(), Data::Inline(&[1; 8])), OK);
    }
    assert_eq!(latency(&world, 0).iter().sum::<u64>(), 3);
    assert_eq!(latency(&world, 1), [0; 12]);
}

#[test]
fn the_time_is_until_completion() {
    let (mut world, mut a, mut b) = pair();
    let send = Operation::Send { imm: None };
    a.qp.submit(7, WQE_SIGNALED, send, Data::Inline(b"late"));
    world.pump();
    // It waits for a buffer.
    world.advance(700);
    b.qp.recv.post(1, &[b.mr.sge(0, 16)]).expect("room");
    b.qp.recv.ring();
    world.pump();
    assert_eq!(a.done(), OK);
    let measured = latency(&world, 0);
    // 512 us to 1023 us; between hosts it is retried after a while.
    let class = measured.iter().position(|count| *count == 1);
    assert!(class.is_some_and(|class| class >= 10), "{measured:?}");
    assert_eq!(measured.iter().sum::<u64>(), 1);
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

use nupa_proto::admin::AdminOpcode;
use rustix::io::Errno;

use super::common::World;
use super::node::{Node, Shape, TestCq, TestQp};
use crate::ffi::testing::{recv, send, sys, SendExt};

struct Client {
    node: Node,
    cq: TestCq,
    qp: TestQp,
}

fn send_from(client: &Client, wr_id: u64) {
    let mut sge = [client.node.sge(0, 32)];
    let request = send(wr_id, sys::IBV_WR_SEND, sys::IBV_SEND_SIGNALED).with(&mut sge);
    client.qp.qp.post_send(&mut [request]).unwrap();
    client.node.run();
    assert_eq!(client.cq.cq.poll(2).len(), 1);
}

/// Two queue pairs on one node with entries in common and a completion queue each, and a client for each.
#[test]
fn entries_go_to_whoever_receives_first_and_come_back() {
    let world = World::new(3);
    let server = Node::new(&world, 0);
    let srq = server.srq(64);
    let cqs = [server.cq(8), server.cq(8)];
    let clients = [1, 2].map(|id| {
        let node = Node::new(&world, id);
        let cq = node.cq(8);
        let qp = node.qp(Shape::default(), [&cq, &cq], None);
        Client { node, cq, qp }
    });
    let mut qps: Vec<_> = clients
        .iter()
        .zip(&cqs)
        .map(|(client, cq)| {
            let qp = server.qp(Shape::default(), [cq, cq], Some(&srq));
            server.ready(&qp, Some((&client.node, client.qp.qpn)));
            client.node.ready(&client.qp, Some((&server, qp.qpn)));
            qp
        })
        .collect();
    let mut sge = [server.sge(0, 64)];
    let mut post = |wr_id| srq.srq.post(&mut [recv(wr_id, &mut sge)]);
    for wr_id in 0..64 {
        post(wr_id).unwrap();
    }
    assert_eq!(post(64), Err((Errno::NOMEM.raw_os_error(), 0)));
    server.run();
    for n in 0..6 {
        send_from(&clients[n % 2], n as u64);
    }
    // The second queue's completions are polled first.
    for (cq, numbers) in [(&cqs[1], [1, 3, 5]), (&cqs[0], [0, 2, 4])] {
        assert!(cq.cq.poll(8).iter().map(|wc| wc.wr_id).eq(numbers));
    }
    for wr_id in 64..70 {
        post(wr_id).unwrap();
    }
    assert_eq!(post(70), Err((Errno::NOMEM.raw_os_error(), 0)));
    // What a queue pair used that is destroyed before its completions are polled comes back as well.
    send_from(&clients[1], 6);
    let gone = qps.pop().unwrap();
    server
        .guest
        .by_id(AdminOpcode::DestroyQp, gone.qpn)
        .unwrap();
    drop(gone);
    assert!(cqs[1].cq.poll(8).is_empty());
    post(70).unwrap();
}

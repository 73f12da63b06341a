// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which rings the engine knows, and until when.

use super::*;

#[test]
fn only_rings_that_can_be_are_known() {
    let (mut world, _, mut b, ring) = pair();
    let refused = Err(AdminStatus::InvalidField);
    let qpn = b.qp.qpn;
    let datagrams = b.host.qp(&mut world, QpType::Ud, &b.cq, 2).qpn;
    for which in [QP_MASK_RING, QP_MASK_PEER_RING] {
        for address in [1, ring.at + 8, ring.at + 64, !0xfff, u64::MAX] {
            let told = tell(&mut world, &b.host, qpn, which, address);
            assert_eq!(told, refused);
        }
        let alone = ModifyQp {
            mask: which.into(),
            ring: ring.at.into(),
            ..ModifyQp::default()
        };
        assert_eq!(b.host.modify(&mut world, qpn, alone), refused);
        for address in [0, ring.at] {
            let told = tell(&mut world, &b.host, datagrams, which, address);
            assert_eq!(told, refused);
        }
    }
    let both = QP_MASK_RING | QP_MASK_PEER_RING;
    for address in [0, ring.at] {
        assert_eq!(tell(&mut world, &b.host, qpn, both, address), refused);
    }
}

#[test]
fn reset_and_destruction_forget_the_ring() {
    for destroys in [false, true] {
        let (mut world, mut a, mut b, mut ring) = pair();
        ring.write(&b.host, &b.mr, 0, b"one");
        // Somebody waits for it, too.
        ring.set_taker(&b.host, TAKER_PROCESS);
        ask(&mut a, 1, ring.line);
        world.pump();
        for end in [&a, &b] {
            let reset = QpStateCode::Reset;
            assert_eq!(end.host.set_state(&mut world, end.qp.qpn, reset), Ok(()));
        }
        if destroys {
            let (id, qpn) = (b.host.id, b.qp.qpn);
            assert_eq!(world.engine.destroy_qp(&mut world.nodes, id, qpn), Ok(()));
            b.qp = b.host.qp(&mut world, QpType::Rc, &b.cq, 4);
        }
        ring.set_taker(&b.host, 0);
        a.qp.send.reset();
        connect(&mut world, (&a.host, &a.qp), (&b.host, &b.qp));
        for end in [&a, &b] {
            let allow = ModifyQp {
                mask: QP_MASK_PROCESS_RINGS.into(),
                ..ModifyQp::default()
            };
            assert_eq!(end.host.modify(&mut world, end.qp.qpn, allow), Ok(()));
        }
        for _ in 0..5 {
            world.advance(10_000);
        }
        assert_eq!((ring.taken(&b.host), b.bytes(0, 3)), (0, vec![0; 3]));
        ask(&mut a, 2, ring.line);
        world.pump();
        assert_eq!(a.done(), [(2, REFUSED)]);
        assert_eq!((ring.taken(&b.host), b.bytes(0, 3)), (0, vec![0; 3]));
    }
}

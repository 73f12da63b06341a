// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Receivers that are not ready: how long, and how often, a request is tried again.

use super::*;

#[test]
fn receiver_not_ready_waits_then_goes_on_or_gives_up() {
    let (mut world, mut a, mut b) = pair(false);
    a.post(Operation::Send { imm: None }, Data::Inline(b"first"));
    world.pump();
    assert_eq!(a.statuses(), []);
    assert!(world.next.is_some_and(|next| next <= 1000));
    b.post_receive(1, &[b.mr.sge(0, 16)]);
    world.pump();
    assert_eq!(a.statuses(), [OK]);
    assert_eq!(&b.region(false)[..5], b"first");
    // Some time it is looked whether another host's node is silent.
    assert!(world.next.is_none() || crate::MODE.is_linked() && world.next > Some(1_000_000));

    a.post(Operation::Send { imm: None }, Data::Inline(b"second"));
    world.pump();
    world.advance(999);
    assert_eq!(a.statuses(), []);
    world.advance(1);
    assert_eq!(a.statuses(), [WcStatus::RnrRetryExceeded as u8]);
    let state = world.node(0).query_qp(a.qp.qpn).expect("exists");
    assert_eq!(state.state, QpStateCode::Err.to_wire());
    assert_eq!(world.node(0).counters().tx_rnr_waits.get(), 2);
    assert_eq!(a.eq.drain(), [(EventType::QpFatal as u8, 0, a.qp.qpn)]);
}

/// Says how often an end retries for want of receive buffers, and how long its peer waits before it does.
fn set_rnr(
    world: &mut World,
    side: &Side,
    rnr_retry: u8,
    min_rnr_timer: u8,
) -> Result<(), AdminStatus> {
    let body = ModifyQp {
        mask: U32::new(QP_MASK_RNR_RETRY),
        rnr_retry,
        min_rnr_timer,
        ..ModifyQp::default()
    };
    side.host.modify(world, side.qp.qpn, body)
}

#[test]
fn the_target_says_how_long_and_the_requester_how_often_a_send_is_retried() {
    // Codes 0, 4 and 31 of the responder are 655.36 ms, 40 us and 491.52 ms. The requester's own is another one each time.
    for (count, responder, own, wait) in [
        (0, 31, 31, 0),
        (1, 0, 1, 655_360),
        (3, 4, 31, 120),
        (6, 31, 4, 2_949_120),
    ] {
        let (mut world, mut a, b) = pair(false);
        set_rnr(&mut world, &a, count, own).expect("allowed");
        set_rnr(&mut world, &b, 7, responder).expect("allowed");
        a.post(Operation::Send { imm: None }, Data::Inline(b"early"));
        world.pump();
        if wait != 0 {
            world.advance(wait - 1);
            assert_eq!(a.statuses(), [], "{count} retries, code {responder}");
            world.advance(1);
        }
        let given_up = WcStatus::RnrRetryExceeded as u8;
        assert_eq!(
            a.statuses(),
            [given_up],
            "{count} retries, code {responder}"
        );
        assert_eq!(
            world.node(0).counters().tx_rnr_waits.get(),
            u64::from(wait != 0)
        );
    }
}

#[test]
fn what_may_not_wait_for_a_receive_buffer_counts_as_refused_all_the_same() {
    let (mut world, mut a, b) = pair(false);
    set_rnr(&mut world, &a, 0, 1).expect("allowed");
    set_rnr(&mut world, &b, 0, 31).expect("allowed");
    a.post(Operation::Send { imm: None }, Data::Inline(b"early"));
    world.pump();
    assert_eq!(a.statuses(), [WcStatus::RnrRetryExceeded as u8]);
    assert_eq!(world.node(0).counters().tx_rnr_waits.get(), 0);
    assert_eq!(world.node(1).counters().rx_rnr_naks.get(), 1);
}

#[test]
fn seven_retries_are_for_ever_whatever_the_target_says() {
    let (mut world, mut a, mut b) = pair(false);
    set_rnr(&mut world, &a, 7, 1).expect("allowed");
    set_rnr(&mut world, &b, 0, 1).expect("allowed");
    a.post(Operation::Send { imm: None }, Data::Inline(b"early"));
    world.pump();
    world.advance(u64::from(u32::MAX));
    assert_eq!(a.statuses(), []);
    b.post_receive(1, &[b.mr.sge(0, 16)]);
    world.pump();
    assert_eq!(a.statuses(), [OK]);
}

#[test]
fn retries_and_timers_that_there_are_not_are_refused() {
    let (mut world, mut a, _) = pair(false);
    let invalid = Err(AdminStatus::InvalidField);
    assert_eq!(set_rnr(&mut world, &a, 8, 0), invalid);
    assert_eq!(set_rnr(&mut world, &a, 0, 32), invalid);
    let raw = a.host.qp(&mut world, QpType::Raw, &a.cq, 4);
    let raw = Side { qp: raw, ..a };
    assert_eq!(set_rnr(&mut world, &raw, 0, 0), invalid);
}

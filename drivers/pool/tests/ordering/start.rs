// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A node joins, or begins a new epoch, while another looks around: what that sees of it belongs together, and the two find each other.

use crate::{
    cold::Steps,
    epochs::{link, send},
    of_all_hosts, Hosts, Setup,
};
use nupa_pool::{JoinOptions, Link, Membership, Time, Window};
use nupa_proto::pool::{
    sharing::HOLD_TABLE, Slot, CAP_POOL_LINES, HEARTBEAT_US, LINE, PAGE, SLOT_SIZE,
};
use std::{cell::Cell, mem::offset_of, sync::Arc};

of_all_hosts! {
    #[test]
    fn a_node_that_is_up_has_said_what_it_knows() { join within 2 }

    #[test]
    fn a_link_is_to_the_epoch_that_is_up() { renew::<false> within 2 }

    #[test]
    fn a_link_of_lines_is_to_the_epoch_that_is_up() { renew::<true> within 2 }
}

/// Bytes of a frame that goes by a link to the first epoch, and to the second one.
const FIRST: u32 = 60;
const SECOND: u32 = 61;

/// A field of a node's slot.
fn field(node: u64, offset: usize) -> u64 {
    PAGE + node * SLOT_SIZE as u64 + offset as u64
}

/// A host gets the slot of node 1 and enables it, while node 0 looks for it. The host that had it did not know entries of lines, and left a hold.
fn join<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let pool = setup.pool;
    let [mut looks, mut former] = setup.joined(&memory, CAP_POOL_LINES);
    let capabilities = field(1, offset_of!(Slot, capabilities));
    memory.store(capabilities, 0);
    let hold = pool.geometry().directory(1).unwrap().start + HOLD_TABLE;
    memory.store(hold, PAGE);
    former.leave(&memory);
    let time = Steps(Cell::new(10 * HEARTBEAT_US));
    assert!(looks.tick(&memory, time.now_us()).down.contains(1));
    let words = [
        field(1, offset_of!(Slot, claim)),
        field(1, offset_of!(Slot, presence)),
        field(1, offset_of!(Slot, heartbeat)),
        capabilities,
        hold,
    ];
    let hosts = H::map(memory, &words);
    let [clock, other] = [0, 1].map(|host| H::clock(&hosts[host]));
    let look = move |memory: &H::Host| {
        let mut found = None;
        for _ in 0..3 {
            clock.sleep_us(HEARTBEAT_US);
            time.sleep_us(HEARTBEAT_US);
            if looks.tick(memory, time.now_us()).up.contains(1) {
                memory.refresh(hold, LINE);
                assert_eq!(memory.load(hold), Ok(0), "it has not begun yet");
                found = looks.open(memory, 1);
            }
        }
        (looks, time, found)
    };
    let begin = move |memory: &H::Host| {
        let options = JoinOptions {
            prefer: Some(1),
            capabilities: CAP_POOL_LINES,
            ..JoinOptions::new(3)
        };
        let mut joined = pool.join(memory, &other, &options).unwrap();
        joined.enable(memory);
        joined
    };
    let ((looks, time, found), joined) = H::run(&hosts, look, begin);
    let found = found.unwrap_or_else(|| link(&hosts, &time, &mut [looks, joined], 0));
    assert!(
        found.epoch == 2 && in_lines(&found),
        "it is of another epoch"
    );
}

/// Whether the entries of a link are of lines.
fn in_lines(link: &Link) -> bool {
    link.send.request.is_acknowledged()
}

/// Node 1 begins a new epoch, and waits for what comes then. Node 0 looks for it, and sends by each link that it has.
fn renew<H: Hosts, const LINES: bool>(setup: &Setup) {
    let memory = setup.memory();
    let capabilities = if LINES { CAP_POOL_LINES } else { 0 };
    let (nodes, [out, _]) = setup.opened(&memory, capabilities);
    let [mut sender, mut renews] = nodes;
    // Its heartbeat moves once more.
    let time = Steps(Cell::new(10 * HEARTBEAT_US));
    sender.tick(&memory, time.now_us());
    let ring = setup.frames(LINES);
    let arrival = if LINES {
        ring.entry(0)
    } else {
        ring.producer()
    };
    let words = [
        field(1, offset_of!(Slot, claim)),
        field(1, offset_of!(Slot, presence)),
        arrival,
        ring.consumer(),
    ];
    let hosts = H::map(memory, &words);
    let clocks = [0, 1].map(|_| Steps(Cell::new(time.now_us())));
    let [sends, waits] = clocks;
    let send_all = move |memory: &H::Host| {
        let mut link = Some(out);
        let mut woken = false;
        for _ in 0..2 {
            sends.sleep_us(HEARTBEAT_US);
            let events = sender.tick(memory, sends.now_us());
            if events.down.contains(1) {
                link = None;
            }
            if events.up.contains(1) {
                link = sender.open(memory, 1);
            }
            woken |= link
                .as_mut()
                .is_some_and(|link| send_by(memory, &sender, link));
        }
        (sender, woken)
    };
    let wait = move |memory: &H::Host| {
        assert!(renews.renew(memory));
        renews.enable(memory);
        waits.sleep_us(HEARTBEAT_US);
        renews.tick(memory, waits.now_us());
        let mut back = renews.open(memory, 0);
        let mut taken = back.as_mut().is_some_and(|link| take(memory, link));
        if !taken {
            renews.set_polling(memory, false);
            taken = back.as_mut().is_some_and(|link| take(memory, link));
        }
        (renews, back, taken)
    };
    let ((sender, woken), (renews, back, taken)) = H::run(&hosts, send_all, wait);
    finish::<H>(&hosts, [sender, renews], back, taken || woken);
}

/// Sends by a link. Returns whether that was to the second epoch, and the node is to be woken for it.
fn send_by(memory: &impl Window, sender: &Membership, link: &mut Link) -> bool {
    let len = if link.epoch == 1 { FIRST } else { SECOND };
    if link.send.frame.reserve(memory, len).is_err() {
        return false;
    }
    send(memory, link, len);
    sender.must_wake(memory, 1) && link.epoch == 2
}

/// Takes a frame, which must be to the second epoch; false if there is none.
fn take(memory: &impl Window, link: &mut Link) -> bool {
    let ring = &mut link.receive.frame;
    let Some(found) = ring.next(memory).unwrap() else {
        return false;
    };
    assert_eq!(found.payload_len(), SECOND, "it is to the epoch before");
    ring.release(memory);
    true
}

/// What has arrived was taken, or is `known` of by who sleeps; and the two can talk.
fn finish<H: Hosts>(
    hosts: &[Arc<H::Host>; 2],
    mut nodes: [Membership; 2],
    back: Option<Link>,
    known: bool,
) {
    let [one, other] = hosts;
    let time = Steps(Cell::new(100 * HEARTBEAT_US));
    let mut back = match back {
        Some(mut back) => {
            let arrived = take(&**other, &mut back);
            assert!(known || !arrived, "it sleeps, and nobody wakes it");
            back
        }
        None => link(hosts, &time, &mut nodes, 1),
    };
    // It has a link since, or gets one now.
    let [sender, _] = &mut nodes;
    if sender.peer(&**one, 1).map(|peer| peer.epoch) != Some(2) {
        let mut out = link(hosts, &time, &mut nodes, 0);
        send(&**one, &mut out, SECOND);
        assert!(take(&**other, &mut back), "it does not arrive");
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Links on demand: who is called hears of it, nothing is lost when a link ends, and an inbox that is lent anew is nobody else's.

use crate::{
    caches::Caches,
    coherent::{Coherent, Memory},
    cold::Cold,
    Hosts, Setup, BOUND,
};
use nupa_pool::{Body, Format, FormatOptions, Link, LinkState, Membership, Outgoing, Time, Window};
use nupa_proto::pool::{
    inbox::{Answer, AnswerState, Offer, OfferState},
    message::FrameBody,
    Slot, HEARTBEAT_US, LINE, PAGE,
};
use std::{mem::offset_of, sync::Arc};
use zerocopy::FromZeros;

/// Bytes of a frame, which has no room in an entry, and of one that has.
const LEN: u32 = 300;
const SHORT: u32 = 60;

/// Runs a model with a pool for three nodes that have inboxes, in each way that differs no more often from a plain one.
fn check<H: Hosts>(bound: usize, body: fn(&Setup)) {
    let options = FormatOptions {
        format: Format::Inboxes,
        ..FormatOptions::new(3, 1)
    };
    let setup = Setup {
        bound,
        ..Setup::formatted(H::COHERENT, &options)
    };
    H::check(setup, body);
}

/// Makes each test, of a function that is generic over the kind of hosts, one for each kind.
macro_rules! with_inboxes {
    ($(#[test] fn $test:ident() { $body:ident within $coherent:expr, $cached:expr })+) => {
        mod coherent_hosts {
            $(#[test] fn $test() {
                type Kind = crate::coherent::Coherent<false>;
                super::check::<Kind>($coherent, super::$body::<Kind>);
            })+
        }
        mod hosts_with_caches_of_their_own {
            $(#[test] fn $test() {
                super::check::<crate::caches::Caches>($cached, super::$body::<crate::caches::Caches>);
            })+
        }
    };
}

with_inboxes! {
    #[test]
    fn who_is_called_hears_of_it() { hear within crate::BOUND, crate::BOUND }

    #[test]
    fn a_link_is_there_for_both_or_none() { call within 2, 2 }

    #[test]
    fn nothing_is_lost_when_a_link_ends() { end within 2, 1 }

    #[test]
    fn an_inbox_that_was_taken_back_is_not_lent_twice() { take_back within crate::BOUND, crate::BOUND }
}

#[test]
fn what_was_given_up_does_not_reach_an_inbox_that_is_lent_anew() {
    check::<Caches>(2, reuse::<Caches>);
}

#[test]
fn what_was_stored_past_the_caches_does_not_reach_an_inbox_that_is_lent_anew() {
    check::<Coherent<false>>(BOUND, reuse_late);
}

/// Where a node's words about another are: its offer, and its answer.
fn pair(own: u64, other: u64) -> [u64; 2] {
    let at = 2 * PAGE + LINE * own + 16 * other;
    [at, at + 8]
}

/// Three nodes that see each other.
fn joined(setup: &Setup, memory: &Cold) -> [Membership; 3] {
    setup.all_joined(memory, 0, [1, 2, 3])
}

/// The same, of which the first two are linked.
fn linked(setup: &Setup, memory: &Cold) -> ([Membership; 3], [Link; 2]) {
    let mut nodes = joined(setup, memory);
    let [one, other, _] = &mut nodes;
    one.ask(memory, 1);
    other.look_at(memory, 0);
    one.look_at(memory, 1);
    let mut links = [one.open(memory, 1).unwrap(), other.open(memory, 0).unwrap()];
    for link in &mut links {
        assert!(link.send.frame.reserve(memory, 0).is_ok());
    }
    (nodes, links)
}

/// Sends a frame with that byte; false if there is no room.
fn send(memory: &impl Window, link: &mut Link, byte: u8) -> bool {
    send_bytes(memory, link, &[byte; LEN as usize])
}

fn send_bytes(memory: &impl Window, link: &mut Link, bytes: &[u8]) -> bool {
    let ring = &mut link.send.frame;
    let Ok(place) = ring.reserve(memory, bytes.len() as u32) else {
        return false;
    };
    memory.write(place.payload.start, bytes);
    let frame = FrameBody::new_zeroed();
    ring.commit(memory, place, &Outgoing::Frame(&frame), 0, 0)
        .unwrap();
    ring.publish(memory);
    true
}

/// Takes the frames that are there; how many. All must have that byte.
fn take(memory: &impl Window, link: &mut Link, byte: u8) -> usize {
    let ring = &mut link.receive.frame;
    let mut count = 0;
    while let Some(found) = ring.next(memory).unwrap() {
        assert!(matches!(found.body, Body::Frame(_)));
        let mut bytes = vec![0; found.payload_len() as usize];
        memory.read(found.payload.start, &mut bytes).unwrap();
        let same = bytes.iter().all(|found| *found == byte);
        assert!(
            same && bytes.len() >= SHORT as usize,
            "the payload is another one"
        );
        ring.release(memory);
        ring.publish(memory);
        count += 1;
    }
    count
}

/// Node 0 asks for a link, while node 1 looks around.
fn hear<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let [mut caller, mut called, _] = joined(setup, &memory);
    let changes = PAGE + offset_of!(Slot, changes) as u64;
    let hosts = H::map(memory, &[changes, pair(0, 1)[0]]);
    let time = H::clock(&hosts[1]);
    let ask = move |memory: &H::Host| assert_eq!(caller.ask(memory, 1), LinkState::Opening);
    let look = move |memory: &H::Host| {
        time.sleep_us(10 * HEARTBEAT_US);
        called.tick(memory, time.now_us());
        (time, called)
    };
    let ((), (time, mut called)) = H::run(&hosts, ask, look);
    time.sleep_us(HEARTBEAT_US);
    called.tick(&*hosts[1], time.now_us());
    assert_eq!(
        called.link_state(0),
        LinkState::Open,
        "it does not hear of it"
    );
}

/// Node 0 asks for a link, and node 1 sends as soon as it can.
fn call<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let [mut caller, mut called, _] = joined(setup, &memory);
    let words = [pair(0, 1), pair(1, 0)].concat();
    let hosts = H::map(memory, &words);
    let ask = move |memory: &H::Host| {
        caller.ask(memory, 1);
        let (mut link, mut taken) = (None, 0);
        for _ in 0..2 {
            caller.look_at(memory, 1);
            link = link.or_else(|| caller.open(memory, 1));
            taken += link.as_mut().map_or(0, |link| take(memory, link, 7));
        }
        (caller, link, taken)
    };
    let answer = move |memory: &H::Host| {
        let (mut link, mut sent) = (None, 0);
        for _ in 0..2 {
            called.look_at(memory, 0);
            link = link.or_else(|| called.open(memory, 0));
            sent += usize::from(link.as_mut().is_some_and(|link| send(memory, link, 7)));
        }
        (called, link, sent)
    };
    let ((mut caller, link, mut taken), (mut called, back, mut sent)) = H::run(&hosts, ask, answer);
    let [one, other] = &hosts;
    called.look_at(&**other, 0);
    let mut back = back
        .or_else(|| called.open(&**other, 0))
        .expect("it was asked for");
    caller.look_at(&**one, 1);
    let mut link = link
        .or_else(|| caller.open(&**one, 1))
        .expect("it was answered");
    sent += usize::from(send(&**other, &mut back, 7));
    taken += take(&**one, &mut link, 7);
    assert!(
        sent == taken && sent != 0,
        "{sent} were sent, {taken} arrived"
    );
    assert!(send(&**one, &mut link, 9));
    assert_eq!(take(&**other, &mut back, 9), 1);
}

/// What a node does to end a link: takes all, and says that it is done once that can be.
struct End {
    member: Membership,
    link: Option<Link>,
    other: u16,
    byte: u8,
    taken: usize,
}

impl End {
    fn new(member: Membership, link: Link, other: u16, byte: u8) -> Self {
        Self {
            member,
            link: Some(link),
            other,
            byte,
            taken: 0,
        }
    }

    fn step(&mut self, memory: &impl Window) {
        let Some(link) = &mut self.link else {
            self.member.look_at(memory, self.other);
            return;
        };
        self.taken += take(memory, link, self.byte);
        // Something may have come since.
        if self.member.look_at(memory, self.other) == LinkState::Ending {
            assert!(self.member.withdraw(memory, self.other));
        }
        if self.member.finish(memory, self.other, link) {
            self.link = None;
        }
    }
}

/// Both nodes of a link send, and node 0 ends it.
fn end<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let ([one, other, _], [mut out, mut back]) = linked(setup, &memory);
    assert!(send(&memory, &mut out, 1));
    let rings = setup.frames_in_inbox();
    let words = [pair(0, 1), pair(1, 0), rings].concat();
    let hosts = H::map(memory, &words);
    let mut first = End::new(one, out, 1, 2);
    let ends = move |memory: &H::Host| {
        assert!(send(memory, first.link.as_mut().unwrap(), 1));
        assert!(first.member.withdraw(memory, 1));
        (0..2).for_each(|_| first.step(memory));
        first
    };
    let follows = move |memory: &H::Host| {
        assert!(send(memory, &mut back, 2));
        let mut second = End::new(other, back, 0, 1);
        (0..2).for_each(|_| second.step(memory));
        second
    };
    let (mut first, mut second) = H::run(&hosts, ends, follows);
    for _ in 0..4 {
        second.step(&*hosts[1]);
        first.step(&*hosts[0]);
    }
    for (end, sent) in [(&first, 1), (&second, 2)] {
        assert!(end.link.is_none(), "the link does not end");
        assert_eq!(end.taken, sent, "it is lost");
        assert_eq!(end.member.link_state(end.other), LinkState::Closed);
    }
}

/// Node 0 takes back an inbox that it has offered to node 1, which finds the offer meanwhile, and lends one to node 2.
fn take_back<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let [mut owner, mut writer, _] = joined(setup, &memory);
    owner.ask(&memory, 1);
    let words = [pair(0, 1), pair(1, 0)].concat();
    let hosts = H::map(memory, &words);
    let lend = move |memory: &H::Host| {
        assert!(owner.isolate(memory, 1));
        assert_eq!(owner.ask(memory, 2), LinkState::Opening);
    };
    let accept = move |memory: &H::Host| {
        writer.look_at(memory, 0);
        writer.open(memory, 0).is_some()
    };
    let ((), opened) = H::run(&hosts, lend, accept);
    let load = |at: u64| {
        hosts.iter().for_each(|host| host.refresh(at, 8));
        hosts[1].load(at).unwrap()
    };
    let answer = Answer::from_wire(load(pair(1, 0)[1])).unwrap();
    let offer = Offer::from_wire(load(pair(0, 2)[0])).unwrap();
    assert_eq!(offer.state, OfferState::Open);
    let uses = answer.state == AnswerState::Uses;
    assert!(uses || !opened, "it writes there and does not say so");
    assert!(
        !uses || answer.inbox != offer.inbox,
        "two write to one inbox"
    );
}

/// Both nodes of a link have ended it, but for saying so.
fn drained(setup: &Setup, memory: &Cold) -> ([Membership; 3], [Link; 2]) {
    let (mut nodes, mut links) = linked(setup, memory);
    // What says that this is there is in the inbox still when it is lent anew.
    assert!(send_bytes(memory, &mut links[1], &[3; SHORT as usize]));
    assert_eq!(take(memory, &mut links[0], 3), 1);
    assert!(nodes[0].withdraw(memory, 1));
    nodes[1].look_at(memory, 0);
    assert!(nodes[1].withdraw(memory, 0));
    nodes[0].look_at(memory, 1);
    (nodes, links)
}

/// Node 0 and node 2 are on one host. As soon as node 1 has no more to do with the inbox of node 0, node 2 sends there.
fn lend_anew(memory: &impl Window, nodes: &mut [Membership; 2], link: &mut Link) -> Option<Link> {
    let [owner, other] = nodes;
    owner.look_at(memory, 1);
    owner.finish(memory, 1, link);
    if owner.link_state(1) != LinkState::Closed {
        return None;
    }
    owner.ask(memory, 2);
    other.look_at(memory, 0);
    owner.look_at(memory, 2);
    let mut link = owner.open(memory, 2).expect("it was answered");
    // Of who wrote there before there is nothing left.
    assert_eq!(take(memory, &mut link, 5), 0);
    let mut out = other.open(memory, 0).expect("it was asked for");
    assert!(send(memory, &mut out, 5));
    Some(link)
}

/// Node 1 stores a payload that no entry comes for, and ends its link. Then another node writes to the inbox.
fn reuse<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let ([owner, mut writer, other], [mut link, mut out]) = drained(setup, &memory);
    let hosts = H::map(memory, &[]);
    let give_up = move |memory: &H::Host| {
        let place = out.send.frame.reserve(memory, LEN).unwrap().payload;
        memory.write(place.start, &[0xee; LEN as usize]);
        assert!(writer.finish(memory, 0, &mut out));
        place
    };
    let mut nodes = [owner, other];
    let lend = move |memory: &H::Host| {
        let mut back = (0..2).find_map(|_| lend_anew(memory, &mut nodes, &mut link));
        let taken = back.as_mut().map_or(0, |back| take(memory, back, 5));
        (nodes, link, back, taken)
    };
    let (place, (mut nodes, mut link, back, taken)) = H::run(&hosts, give_up, lend);
    let [one, other] = &hosts;
    // Who wrote there before makes room in its cache.
    one.refresh(place.start, LEN.into());
    let back = back.or_else(|| lend_anew(&**other, &mut nodes, &mut link));
    one.refresh(place.start, LEN.into());
    let taken = taken + take(&**other, &mut back.expect("it is over"), 5);
    assert_eq!(taken, 1);
    other.refresh(place.start, LEN.into());
    let mut found = [0; LEN as usize];
    other.read(place.start, &mut found).unwrap();
    assert_eq!(found, [5; LEN as usize], "it is written over");
}

/// The same, where it stores the first word of the payload past its caches.
fn reuse_late(setup: &Setup) {
    let memory = setup.memory();
    let ([owner, mut writer, other], [mut link, mut out]) = drained(setup, &memory);
    let place = out.send.frame.reserve(&memory, LEN).unwrap().payload;
    let hosts = Coherent::<false>::map(memory, &[place.start, pair(1, 0)[1]]);
    let give_up = move |memory: &Memory| {
        memory.stream(place.start, 0xeeee);
        assert!(writer.finish(memory, 0, &mut out));
    };
    let mut nodes = [owner, other];
    let lend = move |memory: &Memory| {
        let back = (0..2).find_map(|_| lend_anew(memory, &mut nodes, &mut link));
        (nodes, link, back)
    };
    let ((), (mut nodes, mut link, back)) = Coherent::<false>::run(&hosts, give_up, lend);
    let memory: &Arc<Memory> = &hosts[0];
    let back = back.or_else(|| lend_anew(&**memory, &mut nodes, &mut link));
    assert_eq!(take(&**memory, &mut back.expect("it is over"), 5), 1);
}

impl Setup {
    /// Words of the rings of frames of nodes 0 and 1, which are in their first inboxes: how far their producers are.
    fn frames_in_inbox(&self) -> [u64; 2] {
        [0, 1].map(|node| self.pool.geometry().directory(node).unwrap().end + 2 * 8)
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Process rings of two nodes: where there is a kernel, it makes and finds them.

use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use guestmem::MmapRegion;
use nupa_proto::admin::{ModifyQp, QP_MASK_PROCESS_RINGS, QP_MASK_RING};
use nupa_proto::process_ring::{RING_SIZE, STATE};

use super::common::guest::{iova, Bars, RAM_SIZE};
use super::node::{map, Node, Shape, TestQp, LEN};
use crate::ffi::testing::process_bytes;
use crate::ffi::Pages;
use crate::queue::{
    Connection, Keeper, Lookup, MappedRegion, Owner, Region, Regions, Ring, RingSource,
};

/// A side's part in the rings of both.
pub(super) struct Rings {
    source: Arc<Source>,
    /// What a program has mapped.
    mapped: Option<Pages>,
    pub(super) regions: Arc<Regions>,
}

/// Where the rings of a queue pair come from.
#[derive(Debug)]
struct Source {
    /// Memory of both sides' nodes. Each side's ring lies at the same place of that of its node.
    memories: [File; 2],
    at: usize,
    /// The side, 0 or 1.
    id: u16,
    /// The region of the peer's that the kernel lets this side map.
    region: Mutex<Option<Granted>>,
    kicks: AtomicUsize,
    events: AtomicUsize,
    failures: AtomicUsize,
}

/// A region that may be mapped.
#[derive(Debug)]
struct Granted {
    key: u32,
    file: File,
    /// Where it begins in the file.
    offset: u64,
    /// Addresses that requests name it by.
    place: Range<u64>,
}

/// A ring's memory is there as long as the test is.
#[derive(Debug)]
struct Kept;

impl Owner for Kept {
    fn publish(&self) -> bool {
        true
    }
}

impl Keeper for Kept {}

impl Source {
    /// The ring that a side receives with.
    fn pages(&self, of: u16) -> Pages {
        let memory = self.memories[usize::from(of)].as_fd();
        Pages::of_file(memory, self.at as u64, RING_SIZE).unwrap()
    }
}

impl RingSource for Source {
    fn find(&self) -> Option<Ring> {
        let pages = self.pages(1 - self.id);
        (pages.load(STATE) != 0).then(|| Ring::new(pages, Box::new(Kept)))
    }

    fn make(&self) -> Option<Ring> {
        use nupa_engine::rings::QueueMemory;
        let pages = self.pages(self.id);
        pages.write(0, &[0; RING_SIZE]);
        Some(Ring::new(pages, Box::new(Kept)))
    }

    fn map_region(&self, key: u32) -> Option<MappedRegion> {
        let region = self.region.lock().unwrap();
        let granted = region.as_ref().filter(|granted| granted.key == key)?;
        let Range { start, end } = granted.place;
        let len = (end - start) as usize;
        Some(MappedRegion {
            pages: Pages::of_file(granted.file.as_fd(), granted.offset, len).unwrap(),
            addr: start,
            len: end - start,
            owner: Box::new(Kept),
        })
    }

    fn kick_peer(&self) {
        self.kicks.fetch_add(1, Ordering::Relaxed);
    }

    fn make_event(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }

    fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }
}

impl Rings {
    /// The part of a side in rings of this number, from the end of both nodes' memory.
    pub(super) fn new(memories: [&MmapRegion; 2], number: usize, id: u16) -> Self {
        let file = |memory: &MmapRegion| memory.file().as_fd().try_clone_to_owned().unwrap();
        let source = Source {
            memories: memories.map(|memory| file(memory).into()),
            at: RAM_SIZE - (number + 1) * RING_SIZE,
            id,
            region: Mutex::new(None),
            kicks: AtomicUsize::new(0),
            events: AtomicUsize::new(0),
            failures: AtomicUsize::new(0),
        };
        Self {
            source: Arc::new(source),
            mapped: None,
            regions: Arc::default(),
        }
    }

    /// What the kernel does when the queue pair goes to the error state.
    pub(super) fn close(&self) {
        self.incoming().store(STATE, 0);
    }

    /// Lets messages of a queue pair, which is ready to send, go past the engines; with `mixed` not all that could.
    pub(super) fn enable<W: Bars>(&mut self, node: &Node<W>, qp: &TestQp, mixed: bool) {
        let at = usize::try_from(node.memory - iova(0)).unwrap();
        let mapped = self.mapped.insert(map(&node.guest.ram, at, LEN));
        self.regions.insert(
            node.key,
            Region {
                domain: 0,
                start: node.memory,
                memory: process_bytes(mapped, LEN),
                writable: true,
                remote_writable: true,
            },
        );
        let source: Arc<Source> = Arc::clone(&self.source);
        qp.qp.pair().bypass(Connection {
            source,
            lookup: Lookup::new(Arc::clone(&self.regions), 0),
            recv_lookup: Lookup::new(Arc::clone(&self.regions), 0),
            shared: qp.recv_slot.is_none(),
            send_slot: qp.send_slot.clone(),
            slot: qp.recv_slot.as_ref().unwrap_or(&qp.send_slot).clone(),
            requests: Shape::default().requests,
            bypass_state: Arc::default(),
            with_events: true,
            writes: true,
            mixed,
        });
        self.allow(node, qp);
    }

    /// What the kernel does when it finds or makes a ring, and what the program notes when the queue pair is ready to send.
    pub(super) fn allow<W: Bars>(&self, node: &Node<W>, qp: &TestQp) {
        let command = ModifyQp {
            qpn: qp.qpn.into(),
            mask: (QP_MASK_PROCESS_RINGS | QP_MASK_RING).into(),
            ring: iova(self.source.at).into(),
            ..ModifyQp::default()
        };
        node.guest.modify(&command).unwrap();
        qp.qp.pair().allow_writes(true);
        qp.qp.pair().changed(true, false);
    }

    /// The ring that this side receives with, as its sender has it.
    pub(super) fn incoming(&self) -> Pages {
        self.source.pages(self.source.id)
    }

    /// Lets this side map a region of its peer's, which is in a file.
    pub(super) fn grant(&self, key: u32, pool: &MmapRegion, offset: u64, place: Range<u64>) {
        let file = pool.file().as_fd().try_clone_to_owned().unwrap();
        let granted = Granted {
            key,
            file: file.into(),
            offset,
            place,
        };
        *self.source.region.lock().unwrap() = Some(granted);
    }

    /// Lets it map no more.
    pub(super) fn revoke(&self) {
        *self.source.region.lock().unwrap() = None;
    }

    /// How often the peer's program was to be woken.
    pub(super) fn kicks(&self) -> usize {
        self.source.kicks.load(Ordering::Relaxed)
    }

    /// How often the event of its own program was to be made.
    pub(super) fn events(&self) -> usize {
        self.source.events.load(Ordering::Relaxed)
    }

    /// How often the queue pair was to fail.
    pub(super) fn failures(&self) -> usize {
        self.source.failures.load(Ordering::Relaxed)
    }
}

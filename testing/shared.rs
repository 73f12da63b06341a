// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Memory that hosts share, and their turns: one may have its own whenever another touches that memory.

use crate::{
    caches::{Memory, Random},
    fabric::HostNodes,
};
use nupa_engine::Engine;
use nupa_pool::Poisoned;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

/// Accesses to the memory from one turn of another host to the next, on average.
const ACCESSES: u64 = 16;
/// Bytes that a host reads or writes without another host having a turn.
const GO: usize = 4096;

/// A host that does not have its turn.
type Parked = (Box<Engine>, HostNodes);

/// Memory that hosts share.
pub struct Shared {
    memory: RefCell<Memory>,
    random: RefCell<Random>,
    /// Hosts that may have a turn, by number.
    others: RefCell<Vec<Option<Parked>>>,
    /// Host that stands still.
    held: Cell<Option<usize>>,
    /// A host had a turn in the middle of another's, and something to do.
    found: Cell<bool>,
}

impl Shared {
    /// So many bytes; `caches` as for [`Memory::new`].
    pub fn new(size: usize, caches: usize) -> Rc<Self> {
        Rc::new(Self {
            memory: RefCell::new(Memory::new(size, caches, 1)),
            random: RefCell::new(Random(1)),
            others: RefCell::default(),
            held: Cell::new(None),
            found: Cell::new(false),
        })
    }

    /// What all that is by chance is drawn with.
    pub fn seed(&self, seed: u64) {
        self.random.replace(Random(!seed));
        self.memory.borrow_mut().seed(seed);
    }

    pub fn hold(&self, host: Option<usize>) {
        self.held.set(host);
    }

    pub fn held(&self) -> Option<usize> {
        self.held.get()
    }

    pub fn size(&self) -> usize {
        self.memory.borrow().size()
    }

    pub fn is_coherent(&self) -> bool {
        self.memory.borrow().is_coherent()
    }

    /// An error if a line of the range is poisoned.
    pub fn check(&self, offset: u64, len: usize) -> Result<(), Poisoned> {
        let bad = self.memory.borrow().poisoned(offset, len);
        bad.map_or(Ok(()), |offset| Err(Poisoned { offset }))
    }

    /// Poisons the line of an offset. It can be read again once one write has overwritten all of it.
    pub fn poison(&self, offset: u64) {
        self.memory.borrow_mut().poison(offset);
    }

    /// More of it. Returns where that begins.
    pub fn grow(&self, len: usize) -> usize {
        let mut memory = self.memory.borrow_mut();
        let start = memory.size();
        memory.bytes().resize(start + len, 0);
        start
    }

    pub fn read(&self, host: usize, offset: u64, buf: &mut [u8]) {
        for (at, part) in (offset..).step_by(GO).zip(buf.chunks_mut(GO)) {
            self.touched();
            self.memory.borrow_mut().read(host, at, part);
        }
    }

    pub fn write(&self, host: usize, offset: u64, bytes: &[u8]) {
        for (at, part) in (offset..).step_by(GO).zip(bytes.chunks(GO)) {
            self.touched();
            self.memory.borrow_mut().write(host, at, part);
        }
    }

    pub fn publish(&self, host: usize, offset: u64, len: u64) {
        self.touched();
        self.memory.borrow_mut().publish(host, offset, len);
    }

    pub fn refresh(&self, host: usize, offset: u64, len: u64) {
        self.touched();
        self.memory.borrow_mut().refresh(host, offset, len);
    }

    /// Stores a word if another is there, as one step where caches are coherent.
    pub fn compare_exchange(&self, host: usize, offset: u64, current: u64, new: u64) -> bool {
        self.touched();
        let mut memory = self.memory.borrow_mut();
        let mut word = [0; 8];
        memory.read(host, offset, &mut word);
        let same = u64::from_le_bytes(word) == current;
        if same {
            memory.write(host, offset, &new.to_le_bytes());
        }
        same
    }

    /// Overwrites bytes behind everybody's back.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        let at = offset as usize;
        let mut memory = self.memory.borrow_mut();
        if let Some(place) = memory.bytes().get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// Looks at bytes behind all caches.
    pub fn peek<const N: usize>(&self, offset: u64) -> [u8; N] {
        let at = offset as usize;
        let mut memory = self.memory.borrow_mut();
        let bytes = memory.bytes().get(at..at + N);
        bytes.expect("is there").try_into().expect("of this length")
    }

    /// Calls `f` for one of all hosts; the others may have their turns meanwhile. Hosts are given back.
    pub fn on<R>(
        &self,
        mut hosts: Vec<Option<Parked>>,
        host: usize,
        f: impl FnOnce(&mut Engine, &mut HostNodes) -> R,
    ) -> (R, Vec<Option<Parked>>) {
        let (mut engine, mut nodes) = hosts[host].take().expect("is there");
        self.others.replace(hosts);
        let result = f(&mut engine, &mut nodes);
        let mut hosts = self.others.take();
        hosts[host] = Some((engine, nodes));
        (result, hosts)
    }

    /// Whether a host had something to do in the middle of another's turn since this was last asked.
    pub fn take_found(&self) -> bool {
        self.found.take()
    }

    /// Lets another host have its turn now and then.
    fn touched(&self) {
        let hosts = self.others.borrow().len() as u64;
        if hosts < 2 || self.random.borrow_mut().below(ACCESSES) != 0 {
            return;
        }
        let host = self.random.borrow_mut().below(hosts) as usize;
        if self.held.get() == Some(host) {
            return;
        }
        let parked = self.others.borrow_mut()[host].take();
        if let Some((mut engine, mut nodes)) = parked {
            if nodes.counted(|nodes| nodes.run(&mut engine)).0 {
                self.found.set(true);
            }
            self.others.borrow_mut()[host] = Some((engine, nodes));
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A process that is a host of the pool: its node, the driver of its function, and memory.

use std::rc::Rc;

use guestmem::MmapRegion;
use nupa_pool::Pool;
use nupa_poolmem::{HostTime, PoolMemory};
use nupa_poolnode::PoolProcess;
use nupa_proto::admin::{AdminOpcode, PortCounters, ACCESS_ALL, ACCESS_LOCAL_WRITE};
use nupa_proto::regs::{DEVICE_MEMORY_BASE, STATUS_READY};
use nupa_testguest::guest::{iova, Guest, Irqs};
use nupa_testguest::queues::Qp;
use nupa_testguest::DOORBELL_PAGES;
use zerocopy::FromBytes;

use crate::board::{Board, NodeWord, Way};
use crate::fabric::Fabric;
use crate::memory::{buffers, counter_of_all, exposed, Exposed, Piece};
use crate::options::Options;
use crate::plan::{source, Place, SOURCE};

/// Memory of a driver beside buffers: rings and commands, a few pages for each connection.
const DRIVER: usize = 8 << 20;

pub(crate) type TestQp = Qp<Fabric>;

/// What all connections of the process share.
pub(crate) struct Host {
    pub(crate) id: u16,
    pub(crate) epoch: u32,
    pub(crate) nodes: u16,
    pub(crate) seed: u64,
    pub(crate) patience: u32,
    pub(crate) board: Board,
    pub(crate) fabric: Fabric,
    pub(crate) guest: Guest<Fabric>,
    pub(crate) pd: u32,
    pub(crate) eqn: u32,
    /// What others read and write.
    pub(crate) exposed: Exposed,
    /// What only this node's requests are about.
    pub(crate) buffers: Piece,
}

impl Host {
    /// Joins the pool as a node of it.
    pub(crate) fn join(options: &Options, id: u16, pool: MmapRegion, board: Board) -> Self {
        let nodes = options.nodes;
        let len = DRIVER + exposed(nodes) + buffers(nodes);
        let ram = MmapRegion::new("mesh-ram", len).unwrap();
        let pool = Rc::new(pool);
        let process = PoolProcess::join(&pool, &ram, id, DOORBELL_PAGES)
            .unwrap_or_else(|error| panic!("node {id} cannot join the pool: {error}"));
        assert_eq!(process.id(), id, "node {id} has got another slot");
        let window = PoolMemory::new(&*pool, true);
        let found = Pool::attach(&window, &HostTime::new()).unwrap();
        let range = found.device_memory(id);
        assert!(
            range.end - range.start >= exposed(nodes) as u64,
            "device memory is too small"
        );
        let fabric = Fabric::new(process);
        let doorbells = Guest::<Fabric>::doorbells_in(&ram);
        let guest = Guest::of(&fabric, id, ram, Irqs::default(), doorbells);
        guest.enable();
        let (pd, eqn) = (guest.pd(), guest.eq(0).eqn);
        let piece = |region: &Rc<MmapRegion>, base, address, len, access| Piece {
            region: Rc::clone(region),
            base,
            address,
            key: guest.register(pd, address, len, access).unwrap(),
        };
        let private = guest.alloc(exposed(nodes));
        let own = guest.alloc(buffers(nodes));
        let exposed_len = exposed(nodes) as u64;
        let start = usize::try_from(range.start).unwrap();
        let host = Self {
            id,
            epoch: guest.epoch(),
            nodes,
            seed: options.seed,
            patience: options.patience,
            board,
            exposed: Exposed {
                private: piece(&guest.ram, private, iova(private), exposed_len, ACCESS_ALL),
                pool: piece(&pool, start, DEVICE_MEMORY_BASE, exposed_len, ACCESS_ALL),
            },
            buffers: piece(
                &guest.ram,
                own,
                iova(own),
                buffers(nodes) as u64,
                ACCESS_LOCAL_WRITE,
            ),
            fabric,
            pd,
            eqn,
            guest,
        };
        host.expose();
        host
    }

    /// Fills what others read, and says that they may connect.
    fn expose(&self) {
        let bytes = source(self.seed, self.id, self.epoch, 0..SOURCE as usize);
        for memory in Place::ALL.map(|place| self.exposed.at(place)) {
            memory.write(0, &bytes);
            memory.store(counter_of_all(), 0);
            for peer in 0..self.nodes {
                memory.clear_share(peer);
            }
        }
        let (private, pool) = (&self.exposed.private, &self.exposed.pool);
        for (word, value) in [
            (NodeWord::PrivateAddress, private.address),
            (NodeWord::PrivateKey, private.key.into()),
            (NodeWord::PoolKey, pool.key.into()),
            (NodeWord::Epoch, self.epoch.into()),
        ] {
            self.board.put(self.id, word, value);
        }
    }

    /// Ends the run: something is wrong with a direction of a connection.
    pub(crate) fn fail(&self, way: Way, queue: &str, what: &str) -> ! {
        panic!("node {}: {way}, {queue}: {what}", self.id)
    }

    /// The node must not have been taken for dead by others.
    pub(crate) fn check_alive(&self) {
        let (status, epoch) = (self.guest.status(), self.guest.epoch());
        assert!(
            status & STATUS_READY != 0 && epoch == self.epoch,
            "node {} (epoch {}) has lost its place: status {status:#x}, epoch {epoch}",
            self.id,
            self.epoch
        );
    }

    /// What the port has counted.
    pub(crate) fn counters(&self) -> PortCounters {
        let bytes = vec![0; size_of::<PortCounters>()];
        let buffer = self.guest.buffer(&bytes);
        let answer: Result<[u8; 0], _> = self.guest.command(AdminOpcode::QueryCounters, &buffer);
        answer.unwrap();
        let found = self.guest.get(buffer.addr.get(), bytes.len());
        PortCounters::read_from_bytes(&found).unwrap()
    }
}

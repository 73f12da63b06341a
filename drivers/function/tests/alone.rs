// SPDX-License-Identifier: GPL-2.0 OR MIT
//! A host that runs one function of a fabric whose other nodes are elsewhere, as a kernel does.

#![allow(
    clippy::arithmetic_side_effects,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]

use std::cell::Cell;

use nupa_engine::{
    hal::{Clock, Doorbells, Interrupts, Memory, Platform, SlotWord, VecStorage},
    Node, NodeConfig, NodeTable,
};
use nupa_function::{
    DoorbellMemory, Executed, Function, FunctionConfig, Functions, Host, Model, NodeStatus, Note,
    PreparedCommand, CAPS,
};
use nupa_proto::{
    admin::{
        AdminOpcode, BufferRef, ById, Command, Completion, CreateMr, NodeInfo, BODY_SIZE,
        COMMAND_SIZE,
    },
    doorbell::SLOTS,
    regs,
    status::AdminStatus,
    wqe::BLOCK_SIZE,
};
use nupa_testing::{Ram, BASE};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Node ids are below this.
const NODES: u16 = 10;
/// The node that runs here.
const HERE: u16 = 2;
/// Addresses of the admin rings, of a buffer, and of doorbell pages.
const COMMANDS: u64 = BASE;
const COMPLETIONS: u64 = BASE + 0x1000;
const BUFFER: u64 = BASE + 0x2000;
const PAGES: u64 = BASE + 0x3000;

/// The machine below the function: memory, and doorbell pages in it.
struct Machine {
    ram: Ram,
    doorbells: Option<DoorbellMemory>,
    complaints: Cell<u32>,
}

impl Doorbells for Machine {
    fn pages(&self) -> u32 {
        1
    }

    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        let pages = self.doorbells.as_ref();
        pages.map_or(0, |pages| pages.load(&self.ram, page, slot, word))
    }

    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        if let Some(pages) = &self.doorbells {
            pages.store(&self.ram, page, slot, word, value);
        }
    }

    fn compare_exchange(
        &self,
        page: u32,
        slot: u16,
        word: SlotWord,
        expected: u32,
        value: u32,
    ) -> bool {
        let (pages, at) = (self.doorbells.as_ref(), (page, slot, word));
        pages.is_some_and(|pages| pages.compare_exchange(&self.ram, at, expected, value))
    }

    fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        let pages = self.doorbells.as_ref();
        pages.is_some_and(|pages| pages.push_block(&self.ram, page, slot, block))
    }

    fn fence(&self) {}
}

impl Interrupts for Machine {
    fn vectors(&self) -> u16 {
        1
    }

    fn raise(&self, _: u16) {}
}

impl Clock for Machine {
    fn now_us(&self) -> u64 {
        0
    }

    fn random(&self) -> u32 {
        1
    }
}

impl Platform for Machine {
    type Memory = Ram;

    fn memory(&self) -> &Ram {
        &self.ram
    }
}

impl Host for Machine {
    fn set_doorbell_memory(&mut self, memory: Option<DoorbellMemory>) {
        self.doorbells = memory;
    }

    fn note(&self, node: u16, note: Note<'_>) {
        assert_eq!(node, HERE);
        if let Note::Complaint { .. } = note {
            self.complaints.set(self.complaints.get() + 1);
        }
    }
}

/// The fabric as this host knows it.
struct Known {
    here: Function<VecStorage, Machine>,
    others: Vec<NodeStatus>,
}

impl NodeTable for Known {
    type Storage = VecStorage;
    type Platform = Machine;
    type Link = nupa_engine::NoLink;

    fn max_nodes(&self) -> u16 {
        NODES
    }

    fn node(&self, id: u16) -> Option<(&Node<VecStorage>, &Machine)> {
        (id == HERE).then_some((&self.here.node, &self.here.host))
    }

    fn node_mut(&mut self, id: u16) -> Option<(&mut Node<VecStorage>, &Machine)> {
        (id == HERE).then_some((&mut self.here.node, &self.here.host))
    }
}

impl Functions for Known {
    fn function(&self, id: u16) -> Option<&Function<VecStorage, Machine>> {
        (id == HERE).then_some(&self.here)
    }

    fn function_mut(&mut self, id: u16) -> Option<&mut Function<VecStorage, Machine>> {
        (id == HERE).then_some(&mut self.here)
    }

    fn node_status(&self, id: u16) -> Option<NodeStatus> {
        if id == HERE {
            return Some(NodeStatus {
                epoch: self.here.node.epoch(),
                up: self.here.node.is_up(),
            });
        }
        self.others.get(usize::from(id)).copied()
    }
}

/// The function, and the driver that uses it.
struct World {
    model: Model<Known>,
    commands: u32,
}

impl World {
    /// A fabric of ten nodes, of which 1 and 9 are up elsewhere.
    fn new() -> Self {
        let host = Machine {
            ram: Ram::alone(0x4000),
            doorbells: None,
            complaints: Cell::new(0),
        };
        let mut others = vec![NodeStatus::default(); NODES.into()];
        others[1] = NodeStatus { epoch: 7, up: true };
        others[9] = NodeStatus { epoch: 1, up: true };
        let config = FunctionConfig {
            node: NodeConfig {
                id: HERE,
                ..NodeConfig::default()
            },
            max_nodes: NODES,
            fabric_id: 1,
            link_speed_mbps: 1000,
            caps: CAPS | regs::CAP_HOST_DOORBELLS,
            doorbell_pages: 1,
            device_memory: 0,
            firmware: [1, 2, 3],
        };
        let here = Function::new(&config, host);
        Self {
            model: Model::new(Known { here, others }),
            commands: 0,
        }
    }

    fn here(&mut self) -> &mut Function<VecStorage, Machine> {
        &mut self.model.functions.here
    }

    fn write(&mut self, register: usize, value: u64) {
        let wide = matches!(
            register,
            regs::REG_ADMIN_SQ | regs::REG_ADMIN_CQ | regs::REG_DOORBELL_MEMORY
        );
        let bytes = value.to_le_bytes();
        let len = if wide { 8 } else { 4 };
        assert!(self
            .model
            .write_control(HERE, register as u64, &bytes[..len]));
    }

    fn read(&mut self, register: usize) -> u32 {
        let mut word = [0; 4];
        assert!(self.here().read_control(register as u64, &mut word));
        u32::from_le_bytes(word)
    }

    fn start(&mut self, doorbells: u64) {
        self.write(regs::REG_DOORBELL_MEMORY, doorbells);
        self.write(regs::REG_ADMIN_SQ, COMMANDS);
        self.write(regs::REG_ADMIN_CQ, COMPLETIONS);
        self.write(regs::REG_ADMIN_SIZE, 2);
        self.write(regs::REG_CONTROL, regs::CONTROL_ENABLE.into());
    }

    /// Puts a command into the ring. Returns where its completion will be.
    fn post(&mut self, opcode: AdminOpcode, parameters: &(impl IntoBytes + Immutable)) -> u64 {
        let mut body = [0; BODY_SIZE];
        let parameters = parameters.as_bytes();
        body[..parameters.len()].copy_from_slice(parameters);
        let command = Command {
            opcode: opcode.to_wire().into(),
            command_id: 5.into(),
            reserved: 0.into(),
            body,
        };
        let at = u64::from(self.commands % 4) * COMMAND_SIZE as u64;
        let ram = &self.here().host.ram;
        assert_eq!(ram.write(COMMANDS + at, command.as_bytes()), Ok(()));
        self.commands += 1;
        COMPLETIONS + at
    }

    /// Executes a command.
    fn command(
        &mut self,
        opcode: AdminOpcode,
        parameters: &(impl IntoBytes + Immutable),
    ) -> Completion {
        let at = self.post(opcode, parameters);
        self.write(regs::REG_ADMIN_DOORBELL, self.commands.into());
        self.completion(at)
    }

    fn completion(&mut self, at: u64) -> Completion {
        let mut bytes = [0; COMMAND_SIZE];
        let ram = &self.here().host.ram;
        assert_eq!(ram.read(at, &mut bytes), Ok(()));
        zerocopy::transmute!(bytes)
    }

    fn query(&mut self, node: u32) -> Result<(u32, u32), AdminStatus> {
        let by_id = ById {
            id: node.into(),
            reserved: 0.into(),
        };
        let completion = self.command(AdminOpcode::QueryNode, &by_id);
        match AdminStatus::try_from(completion.status.get()) {
            Ok(AdminStatus::Success) => {
                let info = NodeInfo::read_from_prefix(&completion.body);
                let (info, _) = info.map_err(|_| AdminStatus::Internal)?;
                Ok((info.epoch.get(), info.up.get()))
            }
            Ok(status) => Err(status),
            Err(_) => Err(AdminStatus::Internal),
        }
    }
}

#[test]
fn nodes_that_run_elsewhere_are_answered_for() {
    let mut world = World::new();
    world.start(PAGES);
    let up = regs::STATUS_READY | regs::STATUS_LINK_UP;
    assert_eq!(world.read(regs::REG_STATUS), up);
    assert_eq!(world.query(1), Ok((7, 1)));
    assert_eq!(world.query(HERE.into()), Ok((1, 1)));
    assert_eq!(world.query(3), Ok((0, 0)));
    assert_eq!(world.query(NODES.into()), Err(AdminStatus::NoSuchObject));
    let buffer = BufferRef {
        addr: BUFFER.into(),
        len: 2.into(),
        reserved: 0.into(),
    };
    let completion = world.command(AdminOpcode::ListNodes, &buffer);
    assert_eq!(completion.status.get(), AdminStatus::Success.to_wire());
    let mut map = [0; 3];
    assert_eq!(world.here().host.ram.read(BUFFER, &mut map), Ok(()));
    assert_eq!(map, [(1 << 1) | (1 << HERE), 1 << (9 - 8), 0]);
}

/// A driver that was made for fewer counters gets those, and nothing is written behind them.
#[test]
fn counters_are_as_many_as_there_is_room_for() {
    let mut world = World::new();
    world.start(PAGES);
    assert_eq!(world.here().host.ram.write(BUFFER, &[0xaa; 24]), Ok(()));
    let buffer = BufferRef {
        addr: BUFFER.into(),
        len: 20.into(),
        reserved: 0.into(),
    };
    let completion = world.command(AdminOpcode::QueryCounters, &buffer);
    assert_eq!(completion.status.get(), AdminStatus::Success.to_wire());
    let mut bytes = [0; 24];
    assert_eq!(world.here().host.ram.read(BUFFER, &mut bytes), Ok(()));
    assert_eq!(bytes.split_at(16), (&[0; 16][..], &[0xaa; 8][..]));
}

/// A command whose page list is read while others may have the function: what changes in between changes nothing.
#[test]
fn commands_are_prepared_without_the_function() {
    let mut world = World::new();
    world.start(PAGES);
    let pd = world.command(AdminOpcode::AllocPd, &[0u8; 0]);
    assert_eq!(pd.status.get(), AdminStatus::Success.to_wire());
    let mut create = CreateMr::default();
    create.pages.addr.set(BUFFER);
    create.pages.pages.set(2);
    create.pages.page_shift = 12;
    create.len.set(8192);
    create.pd.set(u32::from_le_bytes([
        pd.body[0], pd.body[1], pd.body[2], pd.body[3],
    ]));
    let list = |world: &mut World, first: u64| {
        let bytes = [first.to_le_bytes(), 0x1000u64.to_le_bytes()].concat();
        assert_eq!(world.here().host.ram.write(BUFFER, &bytes), Ok(()));
    };
    let fetch = |world: &mut World| {
        let at = world.post(AdminOpcode::CreateMr, &create);
        let producer = world.commands.to_le_bytes();
        let doorbell = regs::REG_ADMIN_DOORBELL as u64;
        assert!(world.model.begin_write(HERE, doorbell, &producer));
        let fetched = world.model.fetch_command(HERE).expect("it was posted");
        assert!(world.model.fetch_command(HERE).is_none());
        (at, fetched)
    };
    for (first, instead, status) in [
        (0x3000, 0x3001, AdminStatus::Success),
        (0x3001, 0x3000, AdminStatus::InvalidField),
    ] {
        list(&mut world, first);
        let (at, fetched) = fetch(&mut world);
        let mut prepared = PreparedCommand::new(fetched);
        prepared.prepare(&world.here().host.ram);
        list(&mut world, instead);
        let executed = world.model.execute_command(&mut prepared);
        assert_eq!(executed, Executed::Done);
        let completion = world.completion(at);
        assert_eq!(completion.status.get(), status.to_wire());
    }
    // One that was not done when the function was reset is done no more, not even if as many were fetched since.
    let (_, fetched) = fetch(&mut world);
    let mut prepared = PreparedCommand::new(fetched);
    prepared.prepare(&world.here().host.ram);
    world.write(regs::REG_CONTROL, regs::CONTROL_RESET.into());
    world.start(PAGES);
    world.commands = 0;
    for _ in 0..4 {
        world.command(AdminOpcode::QueryDevice, &[0u8; 0]);
    }
    let executed = world.model.execute_command(&mut prepared);
    assert_eq!(executed, Executed::Forgotten);
    assert_eq!(world.here().node.object_counts(), [0; 6]);
}

#[test]
fn what_is_meant_for_a_function_elsewhere_does_nothing() {
    let mut world = World::new();
    world.start(PAGES);
    let reset = regs::CONTROL_RESET.to_le_bytes();
    assert!(world
        .model
        .write_control(1, regs::REG_CONTROL as u64, &reset));
    world.model.kick(1, nupa_function::Kick::Plain(0, 0));
    world.model.reset(1);
    world.model.fail(1, regs::FAULT_EVENT_QUEUE);
    assert!(world.here().is_ready());
    assert_eq!(world.read(regs::REG_EPOCH), 1);
    assert_eq!(world.here().host.complaints.get(), 0);
    assert_eq!(world.model.run(), None);
}

#[test]
fn doorbell_memory_comes_with_the_start_and_goes_with_the_reset() {
    let mut world = World::new();
    world.start(PAGES);
    assert!(world.here().host.doorbells.is_some());
    let host = &world.here().host;
    let exchange = |expected, value| {
        let done = host.compare_exchange(0, 3, SlotWord::Arm, expected, value);
        (done, host.load(0, 3, SlotWord::Arm))
    };
    assert_eq!(exchange(0, 7), (true, 7));
    assert_eq!(exchange(0, 8), (false, 7));
    for (page, slot) in [(1, 3), (0, SLOTS)] {
        assert!(!host.compare_exchange(page, slot, SlotWord::Arm, 0, 1));
    }
    world.write(regs::REG_CONTROL, regs::CONTROL_RESET.into());
    assert!(world.here().host.doorbells.is_none());
    assert_eq!(world.read(regs::REG_DOORBELL_MEMORY), 0);
    let end = world.here().host.ram.end();
    world.start(end);
    assert_eq!(world.read(regs::REG_FAULT), regs::FAULT_DOORBELL_MEMORY);
    assert!(world.here().host.doorbells.is_none());
    assert_eq!(world.here().host.complaints.get(), 1);
}

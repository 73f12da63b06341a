// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A guest: memory, an admin queue, and interrupts that are counted.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use guestmem::{GuestMemory, MapRequest, MmapRegion, Rights};
use nupa_controller::Interrupts;
use nupa_proto::admin::{
    AdminOpcode, BufferRef, ById, Command, Completion, Created, PageList, BODY_SIZE,
};
use nupa_proto::cqe::phase;
use nupa_proto::doorbell::{host_slot_offset, slot_offset, PAGE_SIZE};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{World, DOORBELL_PAGES};

/// Where guest memory starts for its device: not zero, so that offsets and addresses cannot be mixed up.
pub const RAM_BASE: u64 = 0x1_0000_0000;
/// Bytes of guest memory.
pub const RAM_SIZE: usize = 16 << 20;
/// Offset of the doorbell pages in it, if they are there.
const DOORBELLS: usize = PAGE_SIZE;
/// Offset of the first byte of it that a guest does not use by itself.
pub const FIRST_UNUSED: usize = DOORBELLS + DOORBELL_PAGES as usize * PAGE_SIZE;
/// log2 of the admin rings' entries.
const ADMIN_LOG: u32 = 4;

/// Interrupts seen, by vector.
#[derive(Clone, Default)]
pub struct Irqs(Rc<RefCell<BTreeMap<u16, u32>>>);

impl Irqs {
    /// Interrupts of a vector since the last call.
    pub fn take(&self, vector: u16) -> u32 {
        self.0.borrow_mut().remove(&vector).unwrap_or(0)
    }
}

impl Interrupts for Irqs {
    fn raise(&self, vector: u16) {
        *self.0.borrow_mut().entry(vector).or_default() += 1;
    }
}

/// The BARs of a guest's function. Clones are the same.
pub trait Bars: Clone {
    fn read(&self, node: u16, bar: u8, offset: u64, data: &mut [u8]);

    /// A store, after which the function does what is due.
    fn write(&self, node: u16, bar: u8, offset: u64, data: &[u8]);

    /// Lets the function do what is due.
    fn settle(&self);

    /// The guest goes.
    fn disconnect(&self, node: u16);
}

/// A guest and the state of its driver.
pub struct Guest<W: Bars = World> {
    pub world: W,
    pub node: u16,
    pub ram: Rc<MmapRegion>,
    pub irqs: Irqs,
    /// The shared doorbell pages, wherever they are; addresses are BAR offsets.
    pub doorbells: Rc<GuestMemory>,
    /// First byte of memory that was not handed out.
    free: Cell<usize>,
    admin: Cell<Admin>,
    slots: Cell<u16>,
    /// Commands that are not answered properly fail as `Internal`; else the test fails.
    pub lenient: bool,
}

/// Admin rings as the driver sees them.
#[derive(Clone, Copy, Default)]
struct Admin {
    commands: usize,
    completions: usize,
    index: u32,
}

impl Guest<World> {
    /// Connects a guest with memory; its function is not enabled yet.
    pub fn connect(world: &World, node: u16) -> Self {
        let irqs = Irqs::default();
        let ram = MmapRegion::new("test-ram", RAM_SIZE).unwrap();
        let mut fabric = world.fabric.borrow_mut();
        fabric.connect(node, Box::new(irqs.clone())).unwrap();
        let request = MapRequest {
            iova: RAM_BASE,
            len: RAM_SIZE as u64,
            file: Some(ram.file()),
            offset: 0,
            rights: Rights::ReadWrite,
        };
        fabric.dma_map(node, &request).unwrap();
        let mut doorbells = Self::doorbells_in(&ram);
        if fabric.doorbell_mmap_areas().count() > 0 {
            doorbells.clear();
            for at in (0..DOORBELL_PAGES).map(|page| slot_offset(page, 0) as u64) {
                let page = MapRequest {
                    iova: at,
                    len: PAGE_SIZE as u64,
                    file: fabric.doorbell_file(node),
                    offset: at,
                    rights: Rights::ReadWrite,
                };
                doorbells.map(&page).unwrap();
            }
        }
        drop(fabric);
        Self::of(world, node, ram, irqs, doorbells)
    }

    /// A guest whose driver has enabled the function.
    pub fn up(world: &World, node: u16) -> Self {
        let guest = Self::connect(world, node);
        guest.enable();
        guest
    }
}

impl<W: Bars> Guest<W> {
    /// The guest of a function that knows its memory; the function is not enabled yet.
    pub fn of(world: &W, node: u16, ram: MmapRegion, irqs: Irqs, doorbells: GuestMemory) -> Self {
        Self {
            world: world.clone(),
            node,
            ram: Rc::new(ram),
            irqs,
            doorbells: Rc::new(doorbells),
            free: Cell::new(FIRST_UNUSED),
            admin: Cell::default(),
            slots: Cell::new(0),
            lenient: false,
        }
    }

    /// The doorbell pages of a guest that keeps them in its memory.
    pub fn doorbells_in(ram: &MmapRegion) -> GuestMemory {
        let mut doorbells = GuestMemory::new();
        for page in 0..DOORBELL_PAGES {
            let request = MapRequest {
                iova: slot_offset(page, 0) as u64,
                len: PAGE_SIZE as u64,
                file: Some(ram.file()),
                offset: (DOORBELLS + host_slot_offset(page, 0)) as u64,
                rights: Rights::ReadWrite,
            };
            doorbells.map(&request).unwrap();
        }
        doorbells
    }

    /// Sets admin rings up and enables the function.
    pub fn enable(&self) {
        self.start();
        assert_eq!(self.status() & regs::STATUS_READY, regs::STATUS_READY);
    }

    /// As [`enable`](Self::enable), whether or not it works. Memory and doorbell slots of an earlier life are free
    /// again, from `first_free` on.
    pub fn restart(&self, first_free: usize) {
        self.free.set(first_free);
        self.start();
    }

    fn start(&self) {
        self.start_with_doorbells(iova(DOORBELLS));
    }

    /// Starts the function, whether or not it works, with doorbell pages at a DMA address if it knows how to.
    pub fn start_with_doorbells(&self, doorbells: u64) {
        let ring = 64usize << ADMIN_LOG;
        let admin = Admin {
            commands: self.alloc(ring),
            completions: self.alloc(ring),
            index: 0,
        };
        self.ram.write(admin.completions, &vec![0; ring]).unwrap();
        self.admin.set(admin);
        self.slots.set(0);
        self.write64(regs::REG_ADMIN_SQ, iova(admin.commands));
        self.write64(regs::REG_ADMIN_CQ, iova(admin.completions));
        self.write32(regs::REG_ADMIN_SIZE, ADMIN_LOG);
        if self.read64(regs::REG_CAPS) & regs::CAP_HOST_DOORBELLS != 0 {
            self.write64(regs::REG_DOORBELL_MEMORY, doorbells);
        }
        self.write32(regs::REG_CONTROL, regs::CONTROL_ENABLE);
    }

    /// Page-aligned memory, zeroed the first time; its offset in `ram`.
    pub fn alloc(&self, len: usize) -> usize {
        let at = self.free.get();
        let end = at + len.next_multiple_of(4096);
        assert!(end <= self.ram.len(), "test guest out of memory");
        self.free.set(end);
        at
    }

    /// Memory filled with bytes; its DMA address.
    pub fn put(&self, bytes: &[u8]) -> u64 {
        let at = self.alloc(bytes.len());
        self.ram.write(at, bytes).unwrap();
        iova(at)
    }

    /// Bytes at a DMA address.
    pub fn get(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let at = usize::try_from(addr - RAM_BASE).unwrap();
        self.ram.read(at, &mut bytes).unwrap();
        bytes
    }

    /// A doorbell slot that no queue has: page and slot.
    pub fn slot(&self) -> (u32, u16) {
        let slot = self.slots.get();
        self.slots.set(slot + 1);
        (u32::from(slot / 128), slot % 128)
    }

    /// Gives the slot back that was handed out last.
    pub fn release_slot(&self) {
        self.slots.set(self.slots.get() - 1);
    }

    pub fn read32(&self, register: usize) -> u32 {
        let mut bytes = [0; 4];
        self.world
            .read(self.node, regs::BAR_CONTROL, register as u64, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    pub fn read64(&self, register: usize) -> u64 {
        let mut bytes = [0; 8];
        self.world
            .read(self.node, regs::BAR_CONTROL, register as u64, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    pub fn write32(&self, register: usize, value: u32) {
        self.write_bar(regs::BAR_CONTROL, register, &value.to_le_bytes());
    }

    pub fn write64(&self, register: usize, value: u64) {
        self.write_bar(regs::BAR_CONTROL, register, &value.to_le_bytes());
    }

    /// A store to a BAR, after which the fabric does what is due.
    pub fn write_bar(&self, bar: u8, offset: usize, data: &[u8]) {
        self.world.write(self.node, bar, offset as u64, data);
    }

    pub fn status(&self) -> u32 {
        self.read32(regs::REG_STATUS)
    }

    pub fn epoch(&self) -> u32 {
        self.read32(regs::REG_EPOCH)
    }

    /// Writes a command and rings, but waits for nothing.
    pub fn submit(&self, opcode: u16, body: &[u8]) {
        let mut admin = self.admin.get();
        let mut command = Command::new_zeroed();
        command.opcode = opcode.into();
        command.command_id = (admin.index as u16).into();
        command.body[..body.len()].copy_from_slice(body);
        let slot = (admin.index as usize & ((1 << ADMIN_LOG) - 1)) * 64;
        let bytes = command.as_bytes();
        self.ram.write(admin.commands + slot, bytes).unwrap();
        admin.index = admin.index.wrapping_add(1);
        self.admin.set(admin);
        self.write32(regs::REG_ADMIN_DOORBELL, admin.index);
    }

    /// The completion of the last command, if it is there.
    pub fn completion(&self) -> Option<Completion> {
        let admin = self.admin.get();
        let index = admin.index.wrapping_sub(1);
        let slot = (index as usize & ((1 << ADMIN_LOG) - 1)) * 64;
        let bytes = self.get(iova(admin.completions + slot), 64);
        let completion = Completion::read_from_bytes(&bytes).unwrap();
        (completion.valid.get() == phase(index, ADMIN_LOG)).then_some(completion)
    }

    /// Executes a command whose body may be anything.
    pub fn raw_command(&self, opcode: u16, body: &[u8]) -> Result<[u8; BODY_SIZE], AdminStatus> {
        self.submit(opcode, body);
        let Some(completion) = self.completion() else {
            assert!(self.lenient, "command {opcode} does not complete at once");
            return Err(AdminStatus::Internal);
        };
        let id = self.admin.get().index.wrapping_sub(1) as u16;
        let status = AdminStatus::try_from(completion.status.get());
        if self.lenient && (status.is_err() || completion.command_id.get() != id) {
            return Err(AdminStatus::Internal);
        }
        assert_eq!(completion.command_id.get(), id);
        match status.unwrap() {
            AdminStatus::Success => Ok(completion.body),
            status => {
                assert!(self.lenient || completion.body == [0; BODY_SIZE]);
                Err(status)
            }
        }
    }

    /// Executes a command.
    pub fn command<B: IntoBytes + Immutable, R: FromBytes + KnownLayout + Immutable>(
        &self,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<R, AdminStatus> {
        let result = self.raw_command(opcode.to_wire(), body.as_bytes())?;
        let (value, rest) = R::read_from_prefix(&result).unwrap();
        assert!(self.lenient || rest.iter().all(|&byte| byte == 0));
        Ok(value)
    }

    /// Executes a command that names one object and returns nothing.
    pub fn by_id(&self, opcode: AdminOpcode, id: u32) -> Result<(), AdminStatus> {
        let body = ById {
            id: id.into(),
            ..ById::default()
        };
        self.command::<_, [u8; 0]>(opcode, &body).map(|_| ())
    }

    /// Executes a command that makes an object.
    pub fn create<B: IntoBytes + Immutable>(
        &self,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<u32, AdminStatus> {
        let created: Created = self.command(opcode, body)?;
        Ok(created.id.get())
    }

    /// Allocates a protection domain.
    pub fn pd(&self) -> u32 {
        self.create(AdminOpcode::AllocPd, &[0u8; 0]).unwrap()
    }

    /// Hands a structure to a command by address.
    pub fn buffer(&self, bytes: &[u8]) -> BufferRef {
        BufferRef {
            addr: self.put(bytes).into(),
            len: (bytes.len() as u32).into(),
            ..BufferRef::default()
        }
    }
}

impl<W: Bars> Drop for Guest<W> {
    fn drop(&mut self) {
        self.world.disconnect(self.node);
    }
}

/// DMA address of an offset in guest memory.
pub fn iova(offset: usize) -> u64 {
    RAM_BASE + offset as u64
}

/// A contiguous range of guest memory.
pub fn direct(offset: usize) -> PageList {
    PageList {
        addr: iova(offset).into(),
        ..PageList::default()
    }
}

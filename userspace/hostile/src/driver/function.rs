// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A controller's function: registers, memory that it may use, the admin queue.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nupa_proto::admin::{AdminOpcode, Command, Completion, Created, BODY_SIZE};
use nupa_proto::cqe::phase;
use nupa_proto::doorbell::{kick_offset, PAGE_SIZE};
use nupa_proto::regs;
use nupa_proto::status::AdminStatus;
use rustix::fs::{ftruncate, memfd_create, MemfdFlags};
use rustix::io::Errno;
use vfio_user::{region_index, Client};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::draw::Draw;
use crate::ffi::{Pages, WORD};
use crate::objects::{Objects, Queue};
use crate::shared::Shared;
use crate::target::Target;

/// DMA address of the first byte of memory: not zero, so that offsets and addresses cannot be mixed up.
const IOVA: u64 = 0x1_0000_0000;
/// Bytes of memory, and offsets in it: of the admin rings, of the doorbell pages, and of what is for rings and data.
const MEMORY: usize = 4 << 20;
const COMMANDS: usize = 0;
const COMPLETIONS: usize = PAGE_SIZE;
const DOORBELLS: usize = 2 * PAGE_SIZE;
pub(super) const FREE: usize = 16 * PAGE_SIZE;
/// log2 of the admin rings' entries, which have 64 bytes.
const ADMIN_LOG: u32 = 4;
const ADMIN_ENTRY: usize = size_of::<Command>();
/// Offset of the command register in the configuration space, and what enables memory and DMA there.
const PCI_COMMAND: u64 = 4;
const ENABLED: u16 = 6;
/// How long is waited for the function to be ready, and for a command that nobody has spoiled.
const READY_TIMEOUT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(1);

/// All of it, for several threads.
#[derive(Debug)]
pub(super) struct Function {
    client: Mutex<Client>,
    file: OwnedFd,
    area: Pages,
    objects: Mutex<Objects>,
    /// Commands that were given since the function was started.
    commands: Mutex<u32>,
    completed: AtomicU64,
    peers: Vec<[u8; 16]>,
    targets: Vec<Target>,
    aimed: AtomicU64,
}

impl Function {
    /// Connects as a VMM does.
    pub(super) fn connect(
        socket: &Path,
        peers: Vec<[u8; 16]>,
        targets: Vec<Target>,
    ) -> anyhow::Result<Self> {
        let mut client = Client::connect(socket)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("hostile", flags)?;
        ftruncate(&file, MEMORY as u64)?;
        client.map(file.as_fd(), IOVA, MEMORY as u64)?;
        Ok(Self {
            client: Mutex::new(client),
            area: Pages::of_file(file.as_fd(), 0, MEMORY)?,
            file,
            objects: Mutex::default(),
            commands: Mutex::new(0),
            completed: AtomicU64::new(0),
            peers,
            targets,
            aimed: AtomicU64::new(0),
        })
    }

    /// Commands that were completed.
    pub(super) fn completed(&self) -> u64 {
        self.completed.load(Ordering::Relaxed)
    }

    fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes to a BAR or the configuration space.
    pub(super) fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), Errno> {
        errno(self.client().write(region, offset, data))
    }

    /// Reads from there.
    pub(super) fn read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Errno> {
        errno(self.client().read(region, offset, data))
    }

    fn register(&self, register: usize, data: &[u8]) -> Result<(), Errno> {
        self.write(regs::BAR_CONTROL.into(), register as u64, data)
    }

    /// Takes the memory away while the controller works with it, and gives it back.
    pub(super) fn take_away(&self) -> Result<(), Errno> {
        let mut client = self.client();
        errno(client.unmap_all())?;
        errno(client.map(self.file.as_fd(), IOVA, MEMORY as u64))
    }

    /// Resets the function and enables it, with an admin queue and nothing else.
    pub(super) fn enable(&self) -> anyhow::Result<()> {
        self.client().reset()?;
        let mut objects = self.objects();
        *objects = Objects::default();
        drop(objects);
        let mut commands = self.commands();
        *commands = 0;
        for at in (0..FREE).step_by(WORD) {
            self.area.store(at, 0);
        }
        self.write(region_index::CONFIG, PCI_COMMAND, &ENABLED.to_le_bytes())?;
        for (register, offset) in [
            (regs::REG_ADMIN_SQ, COMMANDS),
            (regs::REG_ADMIN_CQ, COMPLETIONS),
            (regs::REG_DOORBELL_MEMORY, DOORBELLS),
        ] {
            self.register(register, &self.address(offset).to_le_bytes())?;
        }
        self.register(regs::REG_ADMIN_SIZE, &ADMIN_LOG.to_le_bytes())?;
        self.register(regs::REG_CONTROL, &regs::CONTROL_ENABLE.to_le_bytes())?;
        let ready = await_true(READY_TIMEOUT, || {
            let mut status = [0; 4];
            let register = regs::REG_STATUS as u64;
            self.read(regs::BAR_CONTROL.into(), register, &mut status)?;
            Ok(u32::from_le_bytes(status) & regs::STATUS_READY != 0)
        })?;
        anyhow::ensure!(ready, "it is not ready after {READY_TIMEOUT:?}");
        Ok(())
    }

    fn commands(&self) -> MutexGuard<'_, u32> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a command of any kind and waits for what it answers, if it does.
    pub(super) fn command_bytes(
        &self,
        opcode: u16,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<[u8; BODY_SIZE], Errno> {
        let mut commands = self.commands();
        let mut command = Command::new_zeroed();
        command.opcode.set(opcode);
        let index = *commands;
        let body = command.body.iter_mut().zip(bytes);
        body.for_each(|(to, from)| *to = *from);
        let entry = (index & ((1 << ADMIN_LOG) - 1)) as usize;
        let at = entry.saturating_mul(ADMIN_ENTRY);
        self.area
            .write(COMMANDS.saturating_add(at), command.as_bytes());
        *commands = index.wrapping_add(1);
        let doorbell = commands.to_le_bytes();
        self.register(regs::REG_ADMIN_DOORBELL, &doorbell)?;
        let mut completion = Completion::new_zeroed();
        let there = await_true(timeout, || {
            let from = COMPLETIONS.saturating_add(at);
            for (at, piece) in (from..)
                .step_by(WORD)
                .zip(completion.as_mut_bytes().chunks_mut(WORD))
            {
                let word = self.area.load(at).to_le_bytes();
                piece.iter_mut().zip(word).for_each(|(to, from)| *to = from);
            }
            Ok(completion.valid.get() == phase(index, ADMIN_LOG))
        })?;
        if !there {
            return Err(Errno::TIMEDOUT);
        }
        self.completed.fetch_add(1, Ordering::Relaxed);
        match AdminStatus::try_from(completion.status.get()) {
            Ok(AdminStatus::Success) => Ok(completion.body),
            _ => Err(Errno::INVAL),
        }
    }

    /// Gives a command with a body of its kind.
    pub(super) fn command<R: FromBytes + KnownLayout + Immutable>(
        &self,
        opcode: AdminOpcode,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<R, Errno> {
        let answer = self.command_bytes(opcode.to_wire(), body.as_bytes(), READY_TIMEOUT)?;
        R::read_from_prefix(&answer)
            .map(|(value, _)| value)
            .map_err(|_| Errno::OVERFLOW)
    }

    /// Makes an object.
    pub(super) fn create(
        &self,
        opcode: AdminOpcode,
        body: &(impl IntoBytes + Immutable),
    ) -> Result<u32, Errno> {
        let created: Created = self.command(opcode, body)?;
        Ok(created.id.get())
    }

    /// DMA address of an offset in memory.
    pub(super) fn address(&self, offset: usize) -> u64 {
        IOVA.wrapping_add(offset as u64)
    }

    /// A mapping of the first doorbell page.
    pub(super) fn doorbell(&self) -> Result<Arc<Pages>, Errno> {
        let pages = Pages::of_file(self.file.as_fd(), DOORBELLS as u64, PAGE_SIZE)?;
        Ok(Arc::new(pages))
    }

    /// Offset of a page for rings and data; 16 pages behind it are memory, too.
    pub(super) fn page(&self, draw: &mut Draw) -> usize {
        let pages = MEMORY.saturating_sub(FREE) / PAGE_SIZE;
        let number = draw.below(pages.saturating_sub(16));
        FREE.saturating_add(number.saturating_mul(PAGE_SIZE))
    }
}

impl Function {
    /// The number of a queue pair, and its node, which is below `nodes`: mostly of one that is somebody's, if any such is known.
    pub(super) fn any_peer(&self, draw: &mut Draw, nodes: u16) -> (u16, u32) {
        let any = (draw.small_short(nodes), draw.small(64));
        match draw.one(&self.targets) {
            Some(target) if !draw.once_in(4) => (target.node, target.qpn),
            _ => any,
        }
    }

    /// Counts a queue pair that is ready to send to one of the targets.
    pub(super) fn note_peer(&self, peer: (u16, u32)) {
        let mut targets = self.targets.iter();
        if targets.any(|target| (target.node, target.qpn) == peer) {
            self.aimed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Queue pairs that were ready to send to one of the targets.
    pub(super) fn aimed(&self) -> u64 {
        self.aimed.load(Ordering::Relaxed)
    }
}

impl Shared for Function {
    fn area(&self) -> &Pages {
        &self.area
    }

    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn any_address(&self, draw: &mut Draw) -> u64 {
        let good = self.address(self.page(draw));
        let any = draw.long();
        match draw.small(12) {
            0 => good.wrapping_add(64),
            1 => 0,
            2 => self.address(MEMORY).wrapping_sub(64),
            3 => u64::MAX << 12,
            4 => regs::DEVICE_MEMORY_BASE,
            5 => any,
            _ => good,
        }
    }

    fn any_gid(&self, draw: &mut Draw) -> [u8; 16] {
        draw.one_or(&self.peers, [0; 16])
    }

    fn any_remote(&self, draw: &mut Draw) -> Option<(u64, u32)> {
        let target = draw.one(&self.targets)?;
        (!draw.once_in(4)).then_some((target.address, target.key))
    }

    fn trap(&self, _: &Queue, offset: usize, value: u32) {
        let at = kick_offset(0, 0).saturating_add(offset) as u64;
        // A switch that goes is found out when the function is started anew.
        let _ = self.write(regs::BAR_DOORBELL.into(), at, &value.to_le_bytes());
    }

    fn kick(&self, draw: &mut Draw, _: &Queue) -> Result<(), Errno> {
        let at = draw.below(4 * PAGE_SIZE) as u64;
        let len = draw.small(9) as usize;
        let data = draw.bytes(len);
        self.write(regs::BAR_DOORBELL.into(), at, &data)
    }
}

/// Looks until it is true, or it has taken too long.
fn await_true(
    timeout: Duration,
    mut look: impl FnMut() -> Result<bool, Errno>,
) -> Result<bool, Errno> {
    let start = Instant::now();
    loop {
        if look()? {
            return Ok(true);
        }
        if start.elapsed() > timeout {
            return Ok(false);
        }
        thread::sleep(LOOK);
    }
}

fn errno(end: std::io::Result<()>) -> Result<(), Errno> {
    end.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

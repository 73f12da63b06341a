// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One node's hardware as the engine sees it: memory, doorbell pages, vectors, time.

use std::rc::Rc;

use nupa_control::Fault;
use nupa_engine::hal;
use nupa_engine::hal::SlotWord;
use nupa_function::{DoorbellMemory, Host, Note};
use nupa_proto::admin::Completion;
use nupa_proto::regs::MSIX_VECTORS;
use nupa_proto::wqe::BLOCK_SIZE;

use crate::clock::Clock;
use crate::device_memory::DeviceMemory;
use crate::doorbells::{self, DoorbellPages};
use crate::fault::Misbehave;
use crate::memory::NodeMemory;
use crate::random;

/// Where a controller's interrupts go.
pub trait Interrupts {
    /// Raises an MSI-X vector, if the guest has one of this number. Must not block.
    fn raise(&self, vector: u16);
}

/// What a guest brings along: it comes and goes as one.
pub(crate) struct Attachment {
    /// Its doorbell pages.
    pub(crate) doorbells: DoorbellPages,
    /// The function's own memory, if it has some.
    pub(crate) device_memory: Option<DeviceMemory>,
    /// Its interrupts.
    pub(crate) interrupts: Box<dyn Interrupts>,
}

impl Attachment {
    /// Reads BAR 2. `false` if nothing can be read there; trapped pages read as they are given, that is no error.
    pub(crate) fn read(&self, offset: u64, data: &mut [u8]) -> bool {
        let Ok(offset) = usize::try_from(offset) else {
            return false;
        };
        match (self.device_memory_at(offset), &self.device_memory) {
            (Some(at), Some(memory)) => memory.read(at, data),
            (Some(_), None) => false,
            (None, _) => !doorbells::is_shared(offset) || self.doorbells.read(offset, data),
        }
    }

    /// Writes BAR 2 where it is memory; returns whether that could be done. `None`: it is a trapped page.
    pub(crate) fn store(&self, offset: usize, data: &[u8]) -> Option<bool> {
        match (self.device_memory_at(offset), &self.device_memory) {
            (Some(at), Some(memory)) => Some(memory.write(at, data)),
            (Some(_), None) => Some(false),
            (None, _) => doorbells::is_shared(offset).then(|| self.doorbells.write(offset, data)),
        }
    }

    /// Where in the device memory an offset in BAR 2 lies, if it is behind the doorbell pages.
    fn device_memory_at(&self, offset: usize) -> Option<usize> {
        doorbells::device_memory_at(self.doorbells.pages(), offset)
    }
}

/// One node's hardware.
pub(crate) struct NodePlatform {
    /// The guest's memory; empty while there is no guest.
    pub(crate) memory: NodeMemory,
    /// The guest, if there is one.
    pub(crate) attachment: Option<Attachment>,
    /// The doorbell pages that its driver keeps in its own memory; without, those of the attachment count.
    doorbell_memory: Option<DoorbellMemory>,
    clock: Rc<dyn Clock>,
}

impl NodePlatform {
    /// Hardware with no guest.
    pub(crate) fn new(clock: Rc<dyn Clock>) -> Self {
        Self {
            memory: NodeMemory::default(),
            attachment: None,
            doorbell_memory: None,
            clock,
        }
    }

    /// Whether a guest is there and the function has not been "pulled out".
    pub(crate) fn is_present(&self) -> bool {
        self.attachment.is_some() && self.fault() != Fault::AllOnes
    }

    /// How the controller misbehaves.
    pub(crate) fn fault(&self) -> Fault {
        self.memory.fault()
    }
}

impl hal::Doorbells for NodePlatform {
    fn pages(&self) -> u32 {
        let attachment = self.attachment.as_ref();
        attachment.map_or(0, |guest| guest.doorbells.pages())
    }

    #[inline]
    fn load(&self, page: u32, slot: u16, word: SlotWord) -> u32 {
        if let Some(pages) = &self.doorbell_memory {
            return pages.load(&self.memory, page, slot, word);
        }
        let attachment = self.attachment.as_ref();
        attachment.map_or(0, |guest| guest.doorbells.load(page, slot, word))
    }

    #[inline]
    fn store(&self, page: u32, slot: u16, word: SlotWord, value: u32) {
        if let Some(pages) = &self.doorbell_memory {
            return pages.store(&self.memory, page, slot, word, value);
        }
        if let Some(guest) = &self.attachment {
            guest.doorbells.store(page, slot, word, value);
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
        let at = (page, slot, word);
        if let Some(pages) = &self.doorbell_memory {
            return pages.compare_exchange(&self.memory, at, expected, value);
        }
        let attachment = self.attachment.as_ref();
        attachment.is_some_and(|guest| guest.doorbells.compare_exchange(at, expected, value))
    }

    fn push_block(&self, page: u32, slot: u16, block: &mut [u8; BLOCK_SIZE]) -> bool {
        if let Some(pages) = &self.doorbell_memory {
            return pages.push_block(&self.memory, page, slot, block);
        }
        let attachment = self.attachment.as_ref();
        attachment.is_some_and(|guest| guest.doorbells.push_block(page, slot, block))
    }

    #[inline]
    fn fence(&self) {
        guestmem::full_fence();
    }
}

impl hal::Interrupts for NodePlatform {
    fn vectors(&self) -> u16 {
        MSIX_VECTORS
    }

    fn raise(&self, vector: u16) {
        // An MSI-X message is a memory write: without the right to make one there is none.
        let may = self.memory.is_reachable();
        if let Some(guest) = self.attachment.as_ref().filter(|_| may) {
            guest.interrupts.raise(vector);
        }
    }
}

impl hal::Clock for NodePlatform {
    fn now_us(&self) -> u64 {
        self.clock.now_us()
    }

    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn random(&self) -> u32 {
        random::number()
    }
}

impl hal::Platform for NodePlatform {
    type Memory = NodeMemory;

    #[inline]
    fn memory(&self) -> &NodeMemory {
        &self.memory
    }
}

impl Host for NodePlatform {
    fn set_doorbell_memory(&mut self, memory: Option<DoorbellMemory>) {
        self.doorbell_memory = memory;
    }

    fn note(&self, node: u16, note: Note<'_>) {
        match note {
            Note::Enabled { epoch } => tracing::debug!(node, epoch, "function enabled"),
            Note::Reset { epoch } => tracing::debug!(node, epoch, "function reset"),
            Note::Complaint { what, suppressed } => tracing::warn!(node, suppressed, "{what}"),
        }
    }

    fn starts(&self) -> bool {
        self.fault() != Fault::Hang
    }

    fn executes(&self) -> bool {
        self.fault() != Fault::Mute
    }

    fn spoil(&self, opcode: u16, completion: &mut Completion) {
        self.fault().spoil(opcode, completion);
    }
}

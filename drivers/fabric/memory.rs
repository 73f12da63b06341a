// SPDX-License-Identifier: GPL-2.0
//! Memory of queues and commands.

use kernel::{prelude::*, sync::Arc};
use nk::{bound::BoundDevice, ring::RingMemory};
use nupa_engine::rings;
use nupa_proto::admin::{BufferRef, PageList};

/// Memory that a queue's object and its ring share.
#[derive(Clone)]
pub(crate) struct QueueMemory(Arc<RingMemory>);

impl QueueMemory {
    /// Allocates `bytes` of zeroed memory. May sleep.
    pub(crate) fn new(device: &BoundDevice, bytes: usize) -> Result<Self> {
        Ok(Self(Arc::new(RingMemory::new(device, bytes)?, GFP_KERNEL)?))
    }

    /// Memory that holds a copy of `bytes`. May sleep.
    pub(crate) fn copy_of(device: &BoundDevice, bytes: &[u8]) -> Result<Self> {
        let memory = Self::new(device, bytes.len())?;
        memory.0.write(0, bytes);
        Ok(memory)
    }

    /// Where it is, for a command that creates a queue.
    pub(crate) fn page_list(&self) -> PageList {
        PageList {
            addr: self.0.dma_address().into(),
            ..PageList::default()
        }
    }

    /// Its first `len` bytes, for a command with a buffer.
    pub(crate) fn buffer(&self, len: u32) -> BufferRef {
        BufferRef {
            addr: self.0.dma_address().into(),
            len: len.into(),
            reserved: 0.into(),
        }
    }

    /// DMA address.
    pub(crate) fn address(&self) -> u64 {
        self.0.dma_address()
    }
}

/// Any context.
impl rings::QueueMemory for QueueMemory {
    #[inline]
    fn read(&self, offset: usize, buf: &mut [u8]) {
        if !self.0.read(offset, buf) {
            buf.fill(0);
        }
    }

    #[inline]
    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.write(offset, bytes);
    }

    #[inline]
    fn load_acquire(&self, offset: usize) -> u32 {
        self.0.load_acquire(offset)
    }
}

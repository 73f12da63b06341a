// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the threads of a worker share: a context, memory, and objects.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context as _;
use rustix::io::Errno;

use crate::draw::Draw;
use crate::ffi::Pages;
use crate::objects::{Objects, Queue};
use crate::rings::kick_command;
use crate::shared::Shared;
use crate::uverbs::{file_of, gids, Answer, Uverbs};

/// Bytes of a page.
pub(crate) const PAGE: usize = 4096;
/// Pages of the memory that rings and regions are in.
pub(crate) const AREA_PAGES: usize = 256;
/// Pages at its front that answers are written to, one for each thread. What is behind takes the rest of one that is longer than it should be.
const ANSWERS: usize = 16;

/// What all threads share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) device: Uverbs,
    /// Its file, for more contexts.
    path: PathBuf,
    pub(crate) area: Pages,
    /// Addresses of this node: index and GID.
    pub(crate) own: Vec<(u8, [u8; 16])>,
    /// Addresses of others.
    pub(crate) peers: Vec<[u8; 16]>,
    objects: Mutex<Objects>,
}

impl World {
    pub(crate) fn new(device: &str, peers: Vec<[u8; 16]>) -> anyhow::Result<Self> {
        let bytes = AREA_PAGES.saturating_mul(PAGE);
        let path = file_of(device)?;
        let file = Uverbs::open(&path);
        Ok(Self {
            device: file.with_context(|| format!("cannot open {}", path.display()))?,
            path,
            area: Pages::anonymous(bytes)?,
            own: gids(device),
            peers,
            objects: Mutex::default(),
        })
    }

    /// The same device once more.
    pub(crate) fn another(&self) -> Result<Uverbs, Errno> {
        Uverbs::open(&self.path).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }

    /// Offset in the area of a thread's answers.
    fn answers(thread: usize) -> usize {
        thread
            .checked_rem(ANSWERS)
            .unwrap_or(0)
            .saturating_mul(PAGE)
    }

    /// Where a thread's answers are to be written.
    pub(crate) fn answer(&self, thread: usize) -> Answer {
        Answer {
            address: self.address(Self::answers(thread)),
            room: 1024,
        }
    }

    /// A word of a thread's answer.
    pub(crate) fn answered(&self, thread: usize, offset: usize) -> u32 {
        self.area.load(Self::answers(thread).saturating_add(offset))
    }

    /// Two words of it.
    pub(crate) fn answered_long(&self, thread: usize, offset: usize) -> u64 {
        let high = self.answered(thread, offset.saturating_add(4));
        u64::from(self.answered(thread, offset)) | (u64::from(high) << 32)
    }

    /// Takes away what an answer before left.
    pub(crate) fn clear_answer(&self, thread: usize) {
        for at in (0..128).step_by(4) {
            self.area.store(Self::answers(thread).saturating_add(at), 0);
        }
    }

    /// The address of an offset in the area.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.area.address().wrapping_add(offset as u64)
    }

    /// Offset of a page for rings and data, at least 16 pages before the end; rings may overlap.
    pub(crate) fn page(&self, draw: &mut Draw) -> usize {
        let number = draw.below(AREA_PAGES.saturating_sub(ANSWERS.saturating_mul(2)));
        number.saturating_add(ANSWERS).saturating_mul(PAGE)
    }

    /// Maps pages of the device, and keeps them.
    pub(crate) fn map(&self, offset: u64, pages: usize) -> Result<Arc<Pages>, Errno> {
        let pages = Pages::of_file(self.device.file(), offset, pages.saturating_mul(PAGE))?;
        let pages = Arc::new(pages);
        crate::objects::keep(&mut self.objects().pages, pages.clone());
        Ok(pages)
    }
}

impl Shared for World {
    fn area(&self) -> &Pages {
        &self.area
    }

    /// No command is executed meanwhile, so that threads meet in the kernel.
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing else of this process is at any of these places.
    fn any_address(&self, draw: &mut Draw) -> u64 {
        let page = self.page(draw);
        let good = self.address(page);
        let any = draw.long();
        match draw.small(12) {
            0 => good.wrapping_add(64),
            1 => 0,
            2 => PAGE as u64,
            3 => u64::MAX << 12,
            4 => 0xffff_8880_0000_0000,
            5 => any | (1 << 63),
            _ => good,
        }
    }

    fn any_gid(&self, draw: &mut Draw) -> [u8; 16] {
        let own = draw.one(&self.own).map_or([0; 16], |(_, gid)| gid);
        draw.one_or(&self.peers, own)
    }

    fn trap(&self, queue: &Queue, offset: usize, value: u32) {
        if let Some(trapped) = &queue.trapped {
            trapped.store(offset, value);
            // What is read there is nothing.
            let _ = trapped.load(offset);
        }
    }

    fn kick(&self, draw: &mut Draw, queue: &Queue) -> Result<(), Errno> {
        kick_command(self, draw, queue)
    }
}

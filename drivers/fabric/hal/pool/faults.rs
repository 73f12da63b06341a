// SPDX-License-Identifier: GPL-2.0
//! Faults of this host's part of a pool, for tests, in `nupa_pool-DEVICE` of debugfs: `poison` takes the offset of a line whose reads
//! fail from then on as if it were poisoned, or "none"; `heartbeat` takes "stop", and "go".
//! `dma_copies`, where a DMA channel copies, says from how many bytes on, and what it has copied. `copy_workers`, where workers do, says how many there are,
//! and what they have copied; it takes "wait", after which who submits copies leaves them the time to begin, and "go".

use super::{copies::Copies, copy_workers::CopyWorkers, memory::Copiers, window::PoolWindow};
use crate::fmt;
use kernel::{
    debugfs::{Dir, File},
    device::{Bound, Device},
    prelude::*,
    str::CString,
    sync::Arc,
    uaccess::UserSliceReader,
};

/// Longest text that is taken.
const TEXT: usize = 32;

/// The files; they go when this is dropped.
pub(super) struct FaultFiles {
    _copies: Option<Pin<KBox<File<Arc<Copies>>>>>,
    _workers: Option<Pin<KBox<File<Arc<CopyWorkers>>>>>,
    _poison: Pin<KBox<File<PoolWindow>>>,
    _heartbeat: Pin<KBox<File<PoolWindow>>>,
    dir: Dir,
}

impl FaultFiles {
    /// Makes the files. Sleeps. Without debugfs there are none, which is no error.
    pub(super) fn new(device: &Device<Bound>, window: &PoolWindow) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("nupa_pool-{}", device.name()))?;
        let dir = Dir::new(&name);
        let poison = dir.write_callback_file(c"poison", window.clone(), &set_poison);
        let heartbeat = dir.write_callback_file(c"heartbeat", window.clone(), &set_heartbeat);
        Ok(Self {
            _copies: None,
            _workers: None,
            _poison: KBox::pin_init(poison, GFP_KERNEL)?,
            _heartbeat: KBox::pin_init(heartbeat, GFP_KERNEL)?,
            dir,
        })
    }

    /// Adds that of what copies long payload, if there is something. Sleeps.
    pub(super) fn add_copiers(&mut self, copiers: &Copiers) -> Result {
        let dir = &self.dir;
        match copiers {
            Copiers::Processor => {}
            Copiers::Channel(copies) => {
                let file = dir.read_callback_file(c"dma_copies", copies.clone(), &write_copies);
                self._copies = Some(KBox::pin_init(file, GFP_KERNEL)?);
            }
            Copiers::Workers(workers) => {
                let file = dir.read_write_callback_file(
                    c"copy_workers",
                    workers.clone(),
                    &write_workers,
                    &set_waits,
                );
                self._workers = Some(KBox::pin_init(file, GFP_KERNEL)?);
            }
        }
        Ok(())
    }
}

fn write_copies(copies: &Arc<Copies>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    copies.show(f)
}

fn write_workers(workers: &Arc<CopyWorkers>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    workers.show(f)
}

fn set_waits(workers: &Arc<CopyWorkers>, reader: &mut UserSliceReader) -> Result {
    let mut text = [0; TEXT];
    workers.set_waits(match word(reader, &mut text)? {
        "wait" => true,
        "go" => false,
        _ => return Err(EINVAL),
    });
    Ok(())
}

fn set_poison(window: &PoolWindow, reader: &mut UserSliceReader) -> Result {
    let mut text = [0; TEXT];
    let offset = match word(reader, &mut text)? {
        "none" => None,
        number => Some(number.parse().map_err(|_| EINVAL)?),
    };
    window.set_poisoned(offset);
    Ok(())
}

fn set_heartbeat(window: &PoolWindow, reader: &mut UserSliceReader) -> Result {
    let mut text = [0; TEXT];
    window.set_frozen(match word(reader, &mut text)? {
        "stop" => true,
        "go" => false,
        _ => return Err(EINVAL),
    });
    Ok(())
}

/// What was written, without space around it.
fn word<'a>(reader: &mut UserSliceReader, text: &'a mut [u8; TEXT]) -> Result<&'a str> {
    let text = text.get_mut(..reader.len()).ok_or(EINVAL)?;
    reader.read_slice(text)?;
    Ok(core::str::from_utf8(text).map_err(|_| EINVAL)?.trim())
}

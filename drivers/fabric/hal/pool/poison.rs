// SPDX-License-Identifier: GPL-2.0
//! A line of the pool whose reads fail on this host as if it were poisoned, for tests: `nupa_pool-DEVICE/poison` of debugfs takes an
//! offset, or "none".

use super::window::PoolWindow;
use kernel::{
    debugfs::{Dir, File},
    device::{Bound, Device},
    prelude::*,
    str::CString,
    uaccess::UserSliceReader,
};

/// Longest text that is taken.
const TEXT: usize = 32;

/// The file; it goes when this is dropped.
pub(super) struct PoisonFile {
    _file: Pin<KBox<File<PoolWindow>>>,
    _dir: Dir,
}

impl PoisonFile {
    /// Makes the file. Sleeps. Without debugfs there is none, which is no error.
    pub(super) fn new(device: &Device<Bound>, window: &PoolWindow) -> Result<Self> {
        let name = CString::try_from_fmt(fmt!("nupa_pool-{}", device.name()))?;
        let dir = Dir::new(&name);
        let file = dir.write_callback_file(c"poison", window.clone(), &set);
        let file = KBox::pin_init(file, GFP_KERNEL)?;
        Ok(Self {
            _file: file,
            _dir: dir,
        })
    }
}

fn set(window: &PoolWindow, reader: &mut UserSliceReader) -> Result {
    let mut text = [0; TEXT];
    let text = text.get_mut(..reader.len()).ok_or(EINVAL)?;
    reader.read_slice(text)?;
    let text = core::str::from_utf8(text).map_err(|_| EINVAL)?.trim();
    let offset = match text {
        "none" => None,
        number => Some(number.parse().map_err(|_| EINVAL)?),
    };
    window.set_poisoned(offset);
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Making sure that a file cannot shrink below its mapping.

use std::os::fd::BorrowedFd;

use rustix::fs::{fcntl_add_seals, fcntl_get_seals, SealFlags};

/// Seals `fd` against shrinking, unless it is so already.
///
/// Returns whether the seal is in place. Anything but a memfd (a regular file, hugetlbfs,
/// a device) and a memfd whose owner forbade further seals answers no.
pub(crate) fn seal_shrink(fd: BorrowedFd<'_>) -> bool {
    match fcntl_get_seals(fd) {
        Ok(seals) if seals.contains(SealFlags::SHRINK) => true,
        Ok(_) => fcntl_add_seals(fd, SealFlags::SHRINK).is_ok(),
        Err(_) => false,
    }
}

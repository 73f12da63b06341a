// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Making sure that a file cannot shrink below its mapping.

use std::os::fd::BorrowedFd;

use rustix::fs::{fcntl_add_seals, fcntl_get_seals, fstat, fstatfs, FileType, SealFlags};
use rustix::io::Errno;

/// What statfs(2) calls sysfs, where the memory of PCI devices is (`resourceN`).
const SYSFS_MAGIC: i64 = 0x6265_6572;

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

/// Whether `fd` is a device, whose memory no process can cut short.
pub(crate) fn is_device(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    let file_type = FileType::from_raw_mode(fstat(fd)?.st_mode);
    Ok(file_type == FileType::CharacterDevice || fstatfs(fd)?.f_type == SYSFS_MAGIC)
}

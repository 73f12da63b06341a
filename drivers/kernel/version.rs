// SPDX-License-Identifier: GPL-2.0
//! A module's version, for `modinfo` and `/sys/module/NAME/version`. The kernel's `module!` has no field for it.

/// What stands before the version in the information about a module.
const FIELD: &str = "version=";

/// Bytes of a version's entry, with the zero that ends it.
pub const fn entry_len(version: &str) -> usize {
    FIELD.len() + version.len() + 1
}

/// A version's entry, which is of [`entry_len`].
pub const fn entry<const LEN: usize>(version: &str) -> [u8; LEN] {
    let (field, version) = (FIELD.as_bytes(), version.as_bytes());
    let mut entry = [0; LEN];
    let mut at = 0;
    // A constant function knows no iterators yet. What goes past the end does not compile.
    while at < field.len() + version.len() {
        entry[at] = if at < field.len() {
            field[at]
        } else {
            version[at - field.len()]
        };
        at += 1;
    }
    entry
}

/// Says the version of the module that this is in, a constant string. `MODULE_VERSION` in C.
#[macro_export]
macro_rules! module_version {
    ($version:expr) => {
        #[cfg(MODULE)]
        #[link_section = ".modinfo"]
        #[used]
        static MODULE_VERSION: [u8; $crate::version::entry_len($version)] =
            $crate::version::entry($version);
    };
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

#![no_main]
#![allow(missing_docs, reason = "see the library")]

libfuzzer_sys::fuzz_target!(|data: &[u8]| nupa_fuzz::vfio(data));

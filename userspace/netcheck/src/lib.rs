// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What programs that check traffic have in common: bytes that both sides know.

pub mod pattern;

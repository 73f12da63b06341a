// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What is different when nodes are on hosts of their own.

mod acknowledged;
mod changed;
mod death;
mod direct;
mod event;
mod floods;
mod flush;
mod lanes;
mod mapping;
mod nontemporal;
mod not_ready;
pub mod parts;
mod process_ring;
mod shared_parts;
mod silence;
mod stale_requests;
mod submitted;

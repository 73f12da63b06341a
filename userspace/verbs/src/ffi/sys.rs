// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `infiniband/verbs.h`, as bindgen sees it.

#![allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    reason = "generated"
)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// A structure that may consist of zeros.
///
/// # Safety
///
/// All its fields are integers, pointers that may be null, and such structures and unions.
pub(super) unsafe trait Plain: Sized {
    /// One of zeros.
    fn zeroed() -> Self {
        // SAFETY: zeros are a value of each field, which is what the trait says.
        unsafe { core::mem::zeroed() }
    }
}

// SAFETY: see the header; bindgen makes C's enums integers.
unsafe impl Plain for ibv_wc {}
// SAFETY: as above.
unsafe impl Plain for ibv_send_wr {}
// SAFETY: as above.
unsafe impl Plain for ibv_qp_attr {}
// SAFETY: as above.
unsafe impl Plain for ibv_qp_init_attr {}

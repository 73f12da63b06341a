// SPDX-License-Identifier: GPL-2.0 OR MIT

//! rdma-core's provider interface (`infiniband/driver.h`), as bindgen sees it.

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

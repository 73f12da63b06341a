// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A program's own part of verbs commands, as the kernel driver checks it.

use nupa_proto::admin::DeviceLimits;
use nupa_proto::cqe::CQE_SIZE;
use nupa_proto::uabi::{CreateCqRequest, CreateQpRequest, CreateSrqRequest, InvalidRequest, Ring};
use nupa_proto::wqe::{BLOCK_SIZE, MAX_RECV_STRIDE, MIN_RECV_STRIDE};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// What `ib_copy_validate_udata_in()` makes of a program's bytes: a structure, unless there are too few of them or other
/// than zeroes behind it.
fn request<T: FromBytes + FromZeros + IntoBytes>(bytes: &[u8]) -> Option<T> {
    let (request, rest) = T::read_from_prefix(bytes).ok()?;
    rest.iter().all(|&byte| byte == 0).then_some(request)
}

/// What a ring must be that the kernel pins and the controller takes.
fn check(ring: Result<Ring, InvalidRequest>, wanted: u32, max_log: u8, strides: [usize; 2]) {
    let Ok(ring) = ring else {
        return;
    };
    assert!(ring.addr() != 0 && ring.addr() % 4096 == 0);
    assert!(ring.log_entries() <= max_log);
    let stride = 1u64 << ring.log_stride();
    assert!((strides[0] as u64..=strides[1] as u64).contains(&stride));
    let entries = 1u64 << ring.log_entries();
    assert!(entries >= u64::from(wanted));
    assert_eq!(ring.len(), entries * stride);
    assert!(ring.addr().checked_add(ring.len()).is_some());
}

/// Checks the command that the bytes are: which one, how many entries the verb asks for, limits, the program's bytes.
pub fn udata(bytes: &[u8]) {
    let Some((&[command, log, w0, w1], bytes)) = bytes.split_first_chunk::<4>() else {
        return;
    };
    let wanted = u32::from(u16::from_le_bytes([w0, w1]));
    let max_log = log % 24;
    let limits = DeviceLimits {
        max_log_sq: max_log,
        max_log_rq: max_log,
        max_log_cq: max_log,
        max_log_srq: max_log,
        ..DeviceLimits::default()
    };
    let receives = [MIN_RECV_STRIDE, MAX_RECV_STRIDE];
    match command % 3 {
        0 => {
            if let Some(request) = request::<CreateCqRequest>(bytes) {
                let ring = request.ring(wanted, &limits);
                check(ring, wanted, max_log, [CQE_SIZE; 2]);
                assert!(ring.is_err() || request.reserved == [0; 7]);
            }
        }
        1 => {
            if let Some(request) = request::<CreateSrqRequest>(bytes) {
                let ring = request.ring(wanted, &limits);
                check(ring, wanted, max_log, receives);
                assert!(ring.is_err() || request.reserved == [0; 6]);
            }
        }
        _ => {
            if let Some(request) = request::<CreateQpRequest>(bytes) {
                let ring = request.send_ring(wanted, &limits);
                check(ring, wanted, max_log, [BLOCK_SIZE; 2]);
                assert!(ring.is_err() || request.reserved == [0; 5]);
                check(
                    request.recv_ring(wanted, &limits),
                    wanted,
                    max_log,
                    receives,
                );
            }
        }
    }
}

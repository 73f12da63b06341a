// SPDX-License-Identifier: GPL-2.0
//! The hostile peer of the tests, in a build of its own (`scripts/build hostile`): a frame says itself which offload words it
//! goes out with, right or wrong.

use nupa_proto::frame::FrameMeta;
use zerocopy::FromBytes;

/// What a frame ends in that has offload words behind it.
const MARK: &[u8; 8] = b"NUPAFORG";

/// Offload words at the end of a frame.
pub(crate) fn words(frame: &[u8]) -> Option<FrameMeta> {
    let (rest, words) = frame.split_last_chunk::<{ size_of::<FrameMeta>() }>()?;
    rest.ends_with(MARK)
        .then(|| FrameMeta::read_from_bytes(words).ok())?
}

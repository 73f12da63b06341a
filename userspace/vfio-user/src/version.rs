// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Version negotiation.

use rustix::io::Errno;
use serde_json::json;
use zerocopy::{FromBytes, IntoBytes};

use crate::proto::{Version, MAX_DATA_XFER, MAX_MSG_FDS};

/// Protocol version that we speak; there is no minor version below it to fall back to.
const MAJOR: u16 = 0;
const MINOR: u16 = 0;

/// Checks the client's proposal and appends the body of the reply to `reply`.
pub(crate) fn negotiate(body: &[u8], reply: &mut Vec<u8>) -> Result<(), Errno> {
    let (proposal, data) = Version::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
    if proposal.major.get() != MAJOR {
        return Err(Errno::PROTONOSUPPORT);
    }
    check_capabilities(data)?;
    let version = Version {
        major: MAJOR.into(),
        minor: MINOR.into(),
    };
    reply.extend_from_slice(version.as_bytes());
    reply.extend_from_slice(capabilities().as_bytes());
    reply.push(0);
    Ok(())
}

/// The client's capabilities only limit messages that we never send, but they have to be
/// what the specification says: nothing, or a NUL-terminated JSON object.
fn check_capabilities(data: &[u8]) -> Result<(), Errno> {
    if data.is_empty() {
        return Ok(());
    }
    let text = data.strip_suffix(&[0]).ok_or(Errno::INVAL)?;
    let value: serde_json::Value = serde_json::from_slice(text).map_err(|_| Errno::INVAL)?;
    if !value.is_object() {
        return Err(Errno::INVAL);
    }
    tracing::debug!(capabilities = %value, "client speaks vfio-user");
    Ok(())
}

/// What we offer.
///
/// `write_multiple` is left out on purpose: QEMU's flag for it (`VFIO_PROXY_USE_MULTI`,
/// 0x16) contains that of `VFIO_PROXY_FORCE_QUEUED`, so granting it makes QEMU hand every
/// message to another thread first.
fn capabilities() -> String {
    json!({
        "capabilities": {
            "max_msg_fds": MAX_MSG_FDS,
            "max_data_xfer_size": MAX_DATA_XFER,
            "pgsizes": 4096,
        }
    })
    .to_string()
}

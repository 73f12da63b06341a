// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Admin commands that only look. Each is by itself because of the space that it takes on the stack: others go deeper.

use nupa_engine::hal::{Memory, Platform, Storage};
use nupa_proto::{
    admin::{BufferRef, NodeInfo, PortCounters},
    ident::MAX_NODES,
    status::AdminStatus,
};
use zerocopy::IntoBytes;

use crate::{
    admin::Outcome,
    body::{compose, Body, EMPTY},
    function::{node_guid, Function},
    host::Functions,
};

/// `QueryDevice`.
#[inline(never)]
pub(crate) fn device<S: Storage, H>(function: &Function<S, H>) -> Body {
    let mut limits = function.node.limits().to_wire();
    limits.firmware = function.firmware.map(Into::into);
    compose(&limits)
}

/// `QueryNode`.
#[inline(never)]
pub(crate) fn node(functions: &impl Functions, id: u32) -> Outcome {
    let id = u16::try_from(id).map_err(|_| AdminStatus::NoSuchObject)?;
    let member = functions.node_status(id).ok_or(AdminStatus::NoSuchObject)?;
    Ok(compose(&NodeInfo {
        guid: node_guid(id).into(),
        epoch: member.epoch.into(),
        up: u32::from(member.up).into(),
    }))
}

/// `ListNodes`.
#[inline(never)]
pub(crate) fn list_nodes<F: Functions>(functions: &F, id: u16, buffer: &BufferRef) -> Outcome {
    let mut map = [0u8; (MAX_NODES as usize).div_ceil(8)];
    let nodes = functions.max_nodes();
    for (byte, first) in map.iter_mut().zip((0..nodes).step_by(8)) {
        for bit in 0..8 {
            let member = functions.node_status(first.saturating_add(bit));
            *byte |= u8::from(member.is_some_and(|member| member.up)) << bit;
        }
    }
    let used = map.get(..usize::from(nodes).div_ceil(8)).unwrap_or(&map);
    let asking = functions.function(id).ok_or(AdminStatus::Internal)?;
    answer(&asking.host, buffer, used)
}

/// `QueryCounters`. Drivers that were made for an older version of the interface know fewer of them.
#[inline(never)]
pub(crate) fn counters<S: Storage, H: Platform>(
    function: &mut Function<S, H>,
    buffer: &BufferRef,
) -> Outcome {
    // No counter is written in part.
    const PART: usize = size_of::<u64>() - 1;
    function.node.count_bypassed(&function.host);
    let counters: PortCounters = function.node.counters();
    let bytes = counters.as_bytes();
    let room = usize::try_from(buffer.len.get()).unwrap_or(usize::MAX);
    let known = room.min(bytes.len()) & !PART;
    answer(&function.host, buffer, bytes.get(..known).unwrap_or(bytes))
}

/// Writes an answer to the buffer that the command named.
fn answer(host: &impl Platform, buffer: &BufferRef, bytes: &[u8]) -> Outcome {
    if usize::try_from(buffer.len.get()).is_ok_and(|len| len < bytes.len()) {
        return Err(AdminStatus::InvalidField);
    }
    let written = host.memory().write(buffer.addr.get(), bytes);
    written.map_err(|_| AdminStatus::BadAddress)?;
    Ok(EMPTY)
}

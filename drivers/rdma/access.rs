// SPDX-License-Identifier: GPL-2.0
//! Rights to memory, as the RDMA core and as the controller know them.

use kernel::prelude::*;
use nk_rdma::{error::unsupported, Access};
use nupa_fabric::Port;
use nupa_proto::admin::{
    ACCESS_FLUSH_GLOBAL, ACCESS_FLUSH_PERSISTENT, ACCESS_LOCAL_WRITE, ACCESS_MW_BIND,
    ACCESS_REMOTE_ATOMIC, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE,
};

/// Rights that both know.
const RIGHTS: [(Access, u32); 7] = [
    (Access::LOCAL_WRITE, ACCESS_LOCAL_WRITE),
    (Access::REMOTE_WRITE, ACCESS_REMOTE_WRITE),
    (Access::REMOTE_READ, ACCESS_REMOTE_READ),
    (Access::REMOTE_ATOMIC, ACCESS_REMOTE_ATOMIC),
    (Access::MW_BIND, ACCESS_MW_BIND),
    (Access::FLUSH_GLOBAL, ACCESS_FLUSH_GLOBAL),
    (Access::FLUSH_PERSISTENT, ACCESS_FLUSH_PERSISTENT),
];

/// The controller's `ACCESS_*` for the rights in `access`. Hints are ignored.
pub(crate) fn rights(access: Access) -> u32 {
    RIGHTS
        .iter()
        .filter(|(right, _)| access.has(*right))
        .fold(0, |bits, (_, bit)| bits | bit)
}

/// As [`rights`], for a region of memory that is lost with the power, as all but device memory is. `EINVAL`, as of rxe, if it is
/// to be flushed to persistence; `EOPNOTSUPP` for kinds of region that the controller does not have.
pub(crate) fn region_rights(access: Access) -> Result<u32> {
    if access.has(Access::FLUSH_PERSISTENT) {
        return Err(EINVAL);
    }
    known_rights(access)
}

/// As [`region_rights`], for a region of device memory, which may be persistent.
pub(crate) fn device_rights(port: &Port, access: Access) -> Result<u32> {
    match port.has_persistent_memory() {
        true => known_rights(access),
        false => region_rights(access),
    }
}

fn known_rights(access: Access) -> Result<u32> {
    let ignored = Access::OPTIONAL.with(Access::HUGETLB);
    let rest = RIGHTS
        .iter()
        .fold(access.without(ignored), |rest, (right, _)| {
            rest.without(*right)
        });
    if !rest.is_empty() {
        return Err(unsupported());
    }
    Ok(rights(access))
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Results: completion status of work requests, result of admin commands.

wire_enum! {
    /// Status of a completion; values and meaning follow `enum ib_wc_status` (include/rdma/ib_verbs.h).
    WcStatus: u8 {
        /// The operation is done.
        Success = 0,
        /// A message longer than the receive buffer, or an inline or READ length out of bounds.
        LocalLength = 1,
        /// The descriptor is malformed or not allowed on this queue pair.
        LocalQpOperation = 2,
        /// A local key, range or right does not fit.
        LocalProtection = 4,
        /// The queue pair was in or went to the error state before this was done.
        WrFlush = 5,
        /// A memory window could not be bound, or a key not registered or invalidated.
        MwBind = 6,
        /// The target could not place the request, e.g. its receive buffer is too short.
        RemoteInvalidRequest = 9,
        /// Remote key, domain, range or right does not fit.
        RemoteAccess = 10,
        /// The target failed while it served the request.
        RemoteOperation = 11,
        /// The peer is gone: link down, node down, other epoch, no such queue pair.
        RetryExceeded = 12,
        /// No receive buffer was posted at the target for as long as allowed.
        RnrRetryExceeded = 13,
        /// Anything else.
        General = 21,
    }
}

wire_enum! {
    /// Result of an admin command.
    AdminStatus: u16 {
        /// Done.
        Success = 0,
        /// No such command, or one that the capabilities do not offer.
        Unsupported = 1,
        /// A field has a value that is never allowed.
        InvalidField = 2,
        /// The object named does not exist.
        NoSuchObject = 3,
        /// The object is in use by another object.
        Busy = 4,
        /// No slot or memory is left for this kind of object.
        NoResources = 5,
        /// A DMA address could not be read or written.
        BadAddress = 6,
        /// The state transition is not allowed.
        InvalidState = 7,
        /// The node is not there.
        NodeDown = 8,
        /// The controller failed.
        Internal = 9,
    }
}

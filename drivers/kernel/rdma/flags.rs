// SPDX-License-Identifier: GPL-2.0
//! Sets of flags of the RDMA core.

use crate::bindings;

macro_rules! flags {
    ($(#[$doc:meta])* $name:ident: $repr:ty { $($(#[$fdoc:meta])* $flag:ident = $raw:ident,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name($repr);

        impl $name {
            $($(#[$fdoc])* pub const $flag: Self = Self(bindings::$raw as $repr);)+

            /// None of them.
            pub const NONE: Self = Self(0);

            /// These and those of `other`.
            pub const fn with(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// These without those of `other`.
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Whether all of `other` are among these.
            pub const fn has(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether there are none.
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// As the core has them, unknown ones included.
            #[allow(dead_code, reason = "not for sets that the core is only told")]
            pub(crate) const fn from_raw(raw: $repr) -> Self {
                Self(raw)
            }

            /// For the core.
            #[allow(dead_code, reason = "not for sets that the core only tells")]
            pub(crate) const fn to_raw(self) -> $repr {
                self.0
            }
        }
    };
}

impl Access {
    /// Whether who has these rights may change the memory (`ib_access_writable()`).
    pub fn is_writable(self) -> bool {
        // SAFETY: No requirements.
        unsafe { bindings::nk_rdma_access_writable(self.0) }
    }
}

flags! {
    /// Rights to memory (`enum ib_access_flags`).
    Access: i32 {
        /// Local writes.
        LOCAL_WRITE = ib_access_flags_IB_ACCESS_LOCAL_WRITE,
        /// Remote writes.
        REMOTE_WRITE = ib_access_flags_IB_ACCESS_REMOTE_WRITE,
        /// Remote reads.
        REMOTE_READ = ib_access_flags_IB_ACCESS_REMOTE_READ,
        /// Remote atomics.
        REMOTE_ATOMIC = ib_access_flags_IB_ACCESS_REMOTE_ATOMIC,
        /// Memory windows may be bound to it.
        MW_BIND = ib_access_flags_IB_ACCESS_MW_BIND,
        /// Addresses start at zero.
        ZERO_BASED = ib_access_flags_IB_ZERO_BASED,
        /// Pages are made present when they are used.
        ON_DEMAND = ib_access_flags_IB_ACCESS_ON_DEMAND,
        /// The pages are huge.
        HUGETLB = ib_access_flags_IB_ACCESS_HUGETLB,
        /// Remote flushes for visibility.
        FLUSH_GLOBAL = ib_access_flags_IB_ACCESS_FLUSH_GLOBAL,
        /// Remote flushes for persistence.
        FLUSH_PERSISTENT = ib_access_flags_IB_ACCESS_FLUSH_PERSISTENT,
        /// Hints that a driver is free to ignore.
        OPTIONAL = ib_access_flags_IB_ACCESS_OPTIONAL,
    }
}

flags! {
    /// What a device can do (`enum ib_device_cap_flags`).
    DeviceCaps: u64 {
        /// The current state may be given when a queue pair is modified.
        CURR_QP_STATE_MOD = ib_device_cap_flags_IB_DEVICE_CURR_QP_STATE_MOD,
        /// `PortActive` events are raised.
        PORT_ACTIVE_EVENT = ib_device_cap_flags_IB_DEVICE_PORT_ACTIVE_EVENT,
        /// There is a system image GUID.
        SYS_IMAGE_GUID = ib_device_cap_flags_IB_DEVICE_SYS_IMAGE_GUID,
        /// A missing receive entry is told to the sender.
        RC_RNR_NAK_GEN = ib_device_cap_flags_IB_DEVICE_RC_RNR_NAK_GEN,
        /// Fast registration, local invalidation, send with invalidation.
        MEM_MGT_EXTENSIONS = ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS,
        /// Memory windows.
        MEM_WINDOW = ib_device_cap_flags_IB_DEVICE_MEM_WINDOW,
        /// Memory windows of type 2B.
        MEM_WINDOW_TYPE_2B = ib_device_cap_flags_IB_DEVICE_MEM_WINDOW_TYPE_2B,
        /// Flushes for visibility.
        FLUSH_GLOBAL = ib_device_cap_flags_IB_DEVICE_FLUSH_GLOBAL,
        /// Flushes for persistence.
        FLUSH_PERSISTENT = ib_device_cap_flags_IB_DEVICE_FLUSH_PERSISTENT,
        /// Atomic writes.
        ATOMIC_WRITE = ib_device_cap_flags_IB_DEVICE_ATOMIC_WRITE,
    }
}

flags! {
    /// Which attributes of a queue pair are meant (`enum ib_qp_attr_mask`).
    QpMask: u32 {
        /// State.
        STATE = ib_qp_attr_mask_IB_QP_STATE,
        /// State that the caller believes it to be in.
        CUR_STATE = ib_qp_attr_mask_IB_QP_CUR_STATE,
        /// Event when the send queue has drained.
        EN_SQD_ASYNC_NOTIFY = ib_qp_attr_mask_IB_QP_EN_SQD_ASYNC_NOTIFY,
        /// Rights of remote requests.
        ACCESS_FLAGS = ib_qp_attr_mask_IB_QP_ACCESS_FLAGS,
        /// Partition key index.
        PKEY_INDEX = ib_qp_attr_mask_IB_QP_PKEY_INDEX,
        /// Port.
        PORT = ib_qp_attr_mask_IB_QP_PORT,
        /// Queue key.
        QKEY = ib_qp_attr_mask_IB_QP_QKEY,
        /// Address of the peer.
        AV = ib_qp_attr_mask_IB_QP_AV,
        /// Path MTU.
        PATH_MTU = ib_qp_attr_mask_IB_QP_PATH_MTU,
        /// Acknowledgement timeout.
        TIMEOUT = ib_qp_attr_mask_IB_QP_TIMEOUT,
        /// Retries.
        RETRY_CNT = ib_qp_attr_mask_IB_QP_RETRY_CNT,
        /// Retries without a receive entry.
        RNR_RETRY = ib_qp_attr_mask_IB_QP_RNR_RETRY,
        /// Packet sequence number expected.
        RQ_PSN = ib_qp_attr_mask_IB_QP_RQ_PSN,
        /// READs and atomics in flight as requester.
        MAX_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_QP_RD_ATOMIC,
        /// Alternate path.
        ALT_PATH = ib_qp_attr_mask_IB_QP_ALT_PATH,
        /// Time that peers without a receive entry are told to wait.
        MIN_RNR_TIMER = ib_qp_attr_mask_IB_QP_MIN_RNR_TIMER,
        /// First packet sequence number.
        SQ_PSN = ib_qp_attr_mask_IB_QP_SQ_PSN,
        /// READs and atomics in flight as target.
        MAX_DEST_RD_ATOMIC = ib_qp_attr_mask_IB_QP_MAX_DEST_RD_ATOMIC,
        /// Path migration state.
        PATH_MIG_STATE = ib_qp_attr_mask_IB_QP_PATH_MIG_STATE,
        /// Sizes of the queues.
        CAP = ib_qp_attr_mask_IB_QP_CAP,
        /// Queue pair of the peer.
        DEST_QPN = ib_qp_attr_mask_IB_QP_DEST_QPN,
    }
}

impl QpMask {
    /// All that the InfiniBand specification has (`IB_QP_ATTR_STANDARD_BITS`).
    pub const STANDARD: Self = Self((1 << 21) - 1);
}

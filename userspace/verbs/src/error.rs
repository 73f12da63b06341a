// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What does not work, in words.

use std::io;

/// Why there is no device, or an object was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// There is no libibverbs, or one that has not all that is needed.
    #[error("libibverbs.so.1 cannot be loaded: {0}")]
    Library(String),
    /// libibverbs does not know such a device: it is not there, or there is no provider for it.
    #[error("libibverbs knows no device {0}")]
    Device(String),
    /// The device cannot be opened. libibverbs looks at several places, and says of the last one why.
    #[error("cannot open the RDMA device: {}", io::Error::from_raw_os_error(*.0))]
    Open(i32),
    /// The kernel or the provider refuses.
    #[error("cannot {what}: {}", io::Error::from_raw_os_error(*.errno))]
    Refused {
        /// What was to be done.
        what: &'static str,
        /// Why.
        errno: i32,
    },
    /// A range is not in the memory that it is of, or is too large.
    #[error("the memory has no such range")]
    Range,
}

impl Error {
    /// Of a function that sets errno.
    pub(crate) fn last(what: &'static str) -> Self {
        let errno = last_errno();
        Self::Refused { what, errno }
    }
}

/// What the last function said that sets errno.
pub(crate) fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// Names of the values of a completion's status (`enum ibv_wc_status`), from 0 on, without their prefix.
const STATUS: [&str; 22] = [
    "SUCCESS",
    "LOC_LEN_ERR",
    "LOC_QP_OP_ERR",
    "LOC_EEC_OP_ERR",
    "LOC_PROT_ERR",
    "WR_FLUSH_ERR",
    "MW_BIND_ERR",
    "BAD_RESP_ERR",
    "LOC_ACCESS_ERR",
    "REM_INV_REQ_ERR",
    "REM_ACCESS_ERR",
    "REM_OP_ERR",
    "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR",
    "LOC_RDD_VIOL_ERR",
    "REM_INV_RD_REQ_ERR",
    "REM_ABORT_ERR",
    "INV_EECN_ERR",
    "INV_EEC_STATE_ERR",
    "FATAL_ERR",
    "RESP_TIMEOUT_ERR",
    "GENERAL_ERR",
];

/// The name of a completion's status, as libibverbs has it.
pub fn status_name(status: u8) -> &'static str {
    STATUS
        .get(usize::from(status))
        .copied()
        .unwrap_or("unknown status")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ffi::STATUS_SAMPLES;

    #[test]
    fn names_are_those_of_the_header() {
        for (status, name) in STATUS_SAMPLES {
            assert_eq!(status_name(status.try_into().unwrap()), name);
        }
        assert_eq!(status_name(200), "unknown status");
    }

    #[test]
    fn an_error_says_what_and_why() {
        let error = Error::Refused {
            what: "register memory",
            errno: 12,
        };
        let text = error.to_string();
        assert!(
            text.starts_with("cannot register memory: Cannot allocate memory"),
            "{text}"
        );
    }
}

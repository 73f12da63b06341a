// SPDX-License-Identifier: GPL-2.0
//! What is counted for users, in the kernel: `crate::shares` says who may have how many.

use crate::{
    shares::{kernel_reserve, Refused, Shares, UserCount},
    table::Slots,
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{Arc, Mutex},
};
use nk::user::{charged_user, may_exceed_limits, user_limit};

/// What a device has a limited number of, and who has how many.
#[pin_data]
pub struct Quota {
    #[pin]
    shares: Mutex<Shares<Slots<UserCount>>>,
}

impl Quota {
    /// There are `all`; the kernel has its reserve of them. May sleep.
    pub fn new(all: u32) -> Result<Arc<Self>> {
        Self::with_reserve(all, kernel_reserve(all))
    }

    /// There are `all`, and all of them are for processes. May sleep.
    pub fn of_processes(all: u32) -> Result<Arc<Self>> {
        Self::with_reserve(all, 0)
    }

    fn with_reserve(all: u32, reserve: u32) -> Result<Arc<Self>> {
        let quota = pin_init!(Self {
            shares <- new_mutex!(Shares::new(all, reserve)),
        });
        Arc::pin_init(quota, GFP_KERNEL)
    }

    /// Counts one more for the user of the calling process. `ENOSPC` if none is left for processes, `EDQUOT` if the user has
    /// its share. May sleep.
    pub fn charge_user(self: &Arc<Self>) -> Result<Charge> {
        let user = charged_user();
        let taken = self.shares.lock().take(user, may_exceed_limits);
        taken.map_err(refusal)?;
        Ok(self.charge(Some(user)))
    }

    /// Counts one more for the kernel. May sleep.
    pub fn charge_kernel(self: &Arc<Self>) -> Charge {
        self.shares.lock().take_for_kernel();
        self.charge(None)
    }

    fn charge(self: &Arc<Self>, holder: Option<u32>) -> Charge {
        Charge {
            quota: self.clone(),
            holder,
        }
    }
}

/// One that counts for somebody until this is dropped, which must be after it is free again. Dropping it may sleep.
pub struct Charge {
    quota: Arc<Quota>,
    /// A user, or the kernel.
    holder: Option<u32>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.quota.shares.lock().give(self.holder);
    }
}

/// The error of a refusal.
pub(crate) fn refusal(refused: Refused) -> Error {
    match refused {
        Refused::NoneLeft => ENOSPC,
        Refused::UserLimit => user_limit(),
        Refused::NoMemory => ENOMEM,
    }
}

// SPDX-License-Identifier: GPL-2.0
//! How much one user may take of what a device has a limited number of.
//!
//! Three rules keep one from taking what others need: the kernel has a reserve that no process gets; a user may have as many as
//! are left to users, so the first one that takes all it can get has half, and the next one half of the rest; and who may
//! exceed the limits of users (`CAP_SYS_RESOURCE`) gets any but those of the reserve.

use nupa_engine::hal::{NoMemory, Table};

/// Of so many the kernel has one in reserve.
const PER_RESERVED: u32 = 16;

/// Of so many, the kernel's reserve.
pub(crate) fn kernel_reserve(all: u32) -> u32 {
    all.div_ceil(PER_RESERVED)
}

/// Why there is none to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// All are taken, or the kernel's reserve.
    NoneLeft,
    /// The user has as many as are left to users.
    UserLimit,
    /// There is no memory to count it in.
    NoMemory,
}

/// Who has how many, as a user that wants one more finds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// The kernel.
    pub(crate) kernel: u32,
    /// All users.
    pub(crate) users: u32,
    /// The user itself.
    pub(crate) own: u32,
}

impl Taken {
    /// Whether the user may have one more of `all`, of which `reserve` are the kernel's. `unlimited` tells whether it may
    /// exceed the limit of users.
    pub(crate) fn check(
        self,
        all: u32,
        reserve: u32,
        unlimited: impl FnOnce() -> bool,
    ) -> Result<(), Refused> {
        let left = all
            .saturating_sub(reserve.max(self.kernel))
            .saturating_sub(self.users);
        match left {
            0 => Err(Refused::NoneLeft),
            _ if self.own < left || unlimited() => Ok(()),
            _ => Err(Refused::UserLimit),
        }
    }
}

/// How many a user has.
#[derive(Debug)]
pub(crate) struct UserCount {
    user: u32,
    count: u32,
}

/// Counts of what the kernel has, and each user.
#[derive(Debug)]
pub(crate) struct Shares<T> {
    all: u32,
    reserve: u32,
    kernel: u32,
    users: u32,
    /// Users that have any.
    counts: T,
}

impl<T: Table<UserCount>> Shares<T> {
    /// There are `all`, of which `reserve` are the kernel's, and nobody has any.
    pub(crate) fn new(all: u32, reserve: u32) -> Self {
        Self {
            all,
            reserve,
            kernel: 0,
            users: 0,
            counts: T::default(),
        }
    }

    /// Counts one more of the kernel's, which has no bound here: it gets what there is.
    pub(crate) fn take_for_kernel(&mut self) {
        self.kernel = self.kernel.saturating_add(1);
    }

    /// Counts one more of `user`'s, if it may have that. `unlimited` tells whether it may exceed the limit of users.
    pub(crate) fn take(
        &mut self,
        user: u32,
        unlimited: impl FnOnce() -> bool,
    ) -> Result<(), Refused> {
        let found = self.entry(user).map_or(0, |entry| entry.count);
        let taken = Taken {
            kernel: self.kernel,
            users: self.users,
            own: found,
        };
        taken.check(self.all, self.reserve, unlimited)?;
        match self.entry(user) {
            Some(entry) => entry.count = entry.count.saturating_add(1),
            None => self.add(UserCount { user, count: 1 })?,
        }
        self.users = self.users.saturating_add(1);
        Ok(())
    }

    /// One that `holder` has taken, a user or the kernel, is free again.
    pub(crate) fn give(&mut self, holder: Option<u32>) {
        let Some(user) = holder else {
            self.kernel = self.kernel.saturating_sub(1);
            return;
        };
        let place = self
            .counts
            .slots_mut()
            .iter_mut()
            .find(|slot| matches!(slot, Some(entry) if entry.user == user));
        let Some(slot) = place else {
            return;
        };
        if let Some(entry) = slot {
            entry.count = entry.count.saturating_sub(1);
            if entry.count == 0 {
                *slot = None;
            }
        }
        self.users = self.users.saturating_sub(1);
    }

    fn entry(&mut self, user: u32) -> Option<&mut UserCount> {
        let mut entries = self.counts.slots_mut().iter_mut().flatten();
        entries.find(|entry| entry.user == user)
    }

    /// Adds a user that had none.
    fn add(&mut self, entry: UserCount) -> Result<(), Refused> {
        let slots = self.counts.slots();
        let place = slots.iter().position(Option::is_none);
        let place = place.unwrap_or(slots.len());
        let grown = self.counts.grow(place.saturating_add(1));
        grown.map_err(|NoMemory| Refused::NoMemory)?;
        let slot = self.counts.slots_mut().get_mut(place);
        *slot.ok_or(Refused::NoMemory)? = Some(entry);
        Ok(())
    }
}

#[cfg(test)]
#[path = "shares/tests.rs"]
mod tests;

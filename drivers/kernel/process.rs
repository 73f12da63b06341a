// SPDX-License-Identifier: GPL-2.0
//! Processes.
//!
//! C header: `include/linux/sched/mm.h`.

use kernel::{current, mm::Mm, prelude::*, sync::aref::ARef};

/// A process, by its address space (`struct mm_struct`): its threads are the same process, a child is another one, and so
/// is the process itself after `execve()`.
#[derive(Clone)]
pub struct Process(ARef<Mm>);

impl Process {
    /// The one that is running. `EINVAL` in a kernel thread. Process context.
    pub fn current() -> Result<Self> {
        let current = current!();
        let mm = current.mm().ok_or(EINVAL)?;
        Ok(Self(ARef::from(&**mm)))
    }

    /// Whether it is the one that is running. Process context.
    pub fn is_current(&self) -> bool {
        let current = current!();
        current
            .mm()
            .is_some_and(|mm| mm.as_raw() == self.0.as_raw())
    }
}

impl PartialEq for Process {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_raw() == other.0.as_raw()
    }
}

impl Eq for Process {}

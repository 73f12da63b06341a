// SPDX-License-Identifier: GPL-2.0
//! The node's place in the fabric.

use super::window::PoolWindow;
use core::ops::{Deref, DerefMut};
use kernel::prelude::*;
use nupa_pool::{Membership, Peer};

/// What is known of other nodes.
pub(super) type Known = KVVec<Peer>;
/// The node's membership of the pool.
pub(super) type Member = Membership<Known>;

/// A membership that ends with its owner, also where that could not be set up: the slot is free for others at once, but for [`Joined::keep`].
pub(super) struct Joined {
    member: Member,
    window: PoolWindow,
    keeps: bool,
}

impl Joined {
    /// Takes over a membership of the pool that `window` shows.
    pub(super) fn new(member: Member, window: PoolWindow) -> Self {
        Self {
            member,
            window,
            keeps: false,
        }
    }

    /// Has the slot stay this node's when its owner is gone, as that of a node that crashes.
    pub(super) fn keep(&mut self) {
        self.keeps = true;
    }
}

impl Deref for Joined {
    type Target = Member;

    fn deref(&self) -> &Member {
        &self.member
    }
}

impl DerefMut for Joined {
    fn deref_mut(&mut self) -> &mut Member {
        &mut self.member
    }
}

impl Drop for Joined {
    /// Leaves the pool, unless the slot is kept. Sleeps.
    fn drop(&mut self) {
        if !self.keeps {
            self.member.leave(&self.window);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Which queue pairs of a node are attached to which multicast groups.

use crate::{
    hal::{NoMemory, Storage, Table},
    state::gid::Gid,
};
use nupa_proto::{
    admin::{MAX_ATTACHMENTS, MAX_GROUP_MEMBERS},
    status::AdminStatus,
};

/// A queue pair that is attached to a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attachment {
    pub(crate) group: Gid,
    pub(crate) qpn: u32,
}

/// The attachments of a node, in no order.
pub(crate) struct Groups<S: Storage> {
    entries: S::Table<Attachment>,
    /// How many there are: most nodes have none, and are not to be searched.
    count: u32,
}

impl<S: Storage> Default for Groups<S> {
    fn default() -> Self {
        Self {
            entries: S::Table::default(),
            count: 0,
        }
    }
}

impl<S: Storage> Groups<S> {
    /// The first queue pair of a group from place `from` on, and the place behind it.
    pub(crate) fn next(&self, group: &Gid, from: usize) -> Option<(u32, usize)> {
        if self.count == 0 {
            return None;
        }
        let places = self.entries.slots().iter().enumerate().skip(from);
        let mut members = places.filter_map(|(place, entry)| Some((place, (*entry)?)));
        let (place, found) = members.find(|(_, entry)| entry.group == *group)?;
        Some((found.qpn, place.saturating_add(1)))
    }

    /// Adds an attachment; one that is there already stays the only one. May allocate.
    pub(crate) fn add(&mut self, new: Attachment) -> Result<(), AdminStatus> {
        let mut members = 0u32;
        for entry in self.entries.slots().iter().flatten() {
            if *entry == new {
                return Ok(());
            }
            members = members.saturating_add(u32::from(entry.group == new.group));
        }
        if members >= MAX_GROUP_MEMBERS || self.count >= MAX_ATTACHMENTS {
            return Err(AdminStatus::NoResources);
        }
        let slots = self.entries.slots();
        let place = slots.iter().position(Option::is_none);
        let place = place.unwrap_or(slots.len());
        let grown = self.entries.grow(place.saturating_add(1));
        grown.map_err(|NoMemory| AdminStatus::NoResources)?;
        let slot = self.entries.slots_mut().get_mut(place);
        *slot.ok_or(AdminStatus::NoResources)? = Some(new);
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Removes those attachments that are `unwanted`; returns whether there were any.
    pub(crate) fn remove(&mut self, unwanted: impl Fn(&Attachment) -> bool) -> bool {
        if self.count == 0 {
            return false;
        }
        let before = self.count;
        for slot in self.entries.slots_mut() {
            if slot.as_ref().is_some_and(&unwanted) {
                *slot = None;
                self.count = self.count.saturating_sub(1);
            }
        }
        self.count != before
    }
}

// SPDX-License-Identifier: GPL-2.0
//! MAC addresses and the core's lists of them.

use crate::bindings;
use core::marker::PhantomData;
use kernel::container_of;

/// A MAC address in network order.
pub type MacAddress = [u8; 6];

/// A list of addresses that the core hands to a callback (`struct netdev_hw_addr_list`).
pub struct AddressList<'a>(*const bindings::netdev_hw_addr_list, PhantomData<&'a ()>);

impl<'a> AddressList<'a> {
    /// # Safety
    ///
    /// The list is not changed for `'a`.
    pub(super) unsafe fn from_raw(list: *const bindings::netdev_hw_addr_list) -> Self {
        Self(list, PhantomData)
    }

    /// Addresses in the list.
    pub fn len(&self) -> usize {
        // SAFETY: The list is alive and unchanging by the requirements of `from_raw`.
        usize::try_from(unsafe { (*self.0).count }).unwrap_or(0)
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The addresses, each once.
    pub fn iter(&self) -> Iter<'_> {
        // SAFETY: As in `len`; the head of a list is always linked.
        let head = unsafe { &raw const (*self.0).list };
        Iter {
            // SAFETY: As above.
            next: unsafe { (*head).next },
            head,
            list: PhantomData,
        }
    }
}

impl<'a> IntoIterator for &'a AddressList<'_> {
    type Item = MacAddress;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterator over an [`AddressList`].
pub struct Iter<'a> {
    next: *const bindings::list_head,
    head: *const bindings::list_head,
    list: PhantomData<&'a ()>,
}

impl Iterator for Iter<'_> {
    type Item = MacAddress;

    fn next(&mut self) -> Option<MacAddress> {
        if core::ptr::eq(self.next, self.head) {
            return None;
        }
        // SAFETY: Every entry but the head is embedded in a `struct netdev_hw_addr`, and the list does not change.
        let entry = unsafe { container_of!(self.next, bindings::netdev_hw_addr, list) };
        // SAFETY: As above.
        self.next = unsafe { (*self.next).next };
        // SAFETY: As above; `addr` has MAX_ADDR_LEN (32) bytes.
        Some(unsafe { (&raw const (*entry).addr).cast::<MacAddress>().read() })
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Commands that change something of a source.

use super::{Family, SOURCES};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    ffi::{c_int, c_uint},
    prelude::*,
};

/// Attributes of an order have numbers up to this.
const MAX_ATTRIBUTE: usize = bindings::nk_const_NK_GENL_MAX_ATTRIBUTE as usize;

/// The attribute of all orders that has the number of the source which it is for.
pub const SOURCE: u16 = 1;

/// What the kernel checks of the attributes of an order.
type Policy = [bindings::nla_policy; MAX_ATTRIBUTE + 1];

/// A command that changes something of a source, for those with `CAP_NET_ADMIN`. Its attributes are `u32`, and others are refused.
pub struct OrderKind {
    /// The command.
    pub command: u8,
    /// Attributes that it may have, below 32. The first one, [`SOURCE`], says which source it is for, by its number.
    pub attributes: &'static [u16],
}

/// Orders as generic netlink knows them.
pub(super) struct Orders {
    pub(super) operations: KVec<bindings::genl_ops>,
    _policies: KVec<KBox<Policy>>,
}

impl Orders {
    /// Those of a family. `EINVAL` for an attribute that none can have.
    pub(super) fn new(family: &Family) -> Result<Self> {
        let mut operations = KVec::with_capacity(family.orders.len(), GFP_KERNEL)?;
        let mut policies = KVec::with_capacity(family.orders.len(), GFP_KERNEL)?;
        for kind in family.orders {
            let mut policy = KBox::new([bindings::nla_policy::default(); _], GFP_KERNEL)?;
            for attribute in kind.attributes {
                let entry = policy.get_mut(usize::from(*attribute)).ok_or(EINVAL)?;
                entry.type_ = bindings::nk_const_NK_NLA_U32 as u8;
            }
            let operation = bindings::genl_ops {
                doit: Some(order),
                policy: policy.as_ptr(),
                maxattr: MAX_ATTRIBUTE as c_uint,
                cmd: kind.command,
                flags: bindings::nk_const_NK_GENL_ADMIN_PERM as u8,
                ..Default::default()
            };
            operations.push(operation, GFP_KERNEL)?;
            policies.push(policy, GFP_KERNEL)?;
        }
        Ok(Self {
            operations,
            _policies: policies,
        })
    }
}

/// An order that came in.
///
/// # Invariants
///
/// `info` is that of a command of [`Orders`], for `'call`.
pub struct Order<'call> {
    info: *const bindings::genl_info,
    call: PhantomData<&'call ()>,
}

impl Order<'_> {
    /// The command.
    pub fn command(&self) -> u8 {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_genl_order(self.info) }
    }

    /// The value of an attribute; `None` without it.
    pub fn value(&self, attribute: u16) -> Option<u32> {
        let mut value = 0;
        // SAFETY: By the type's invariant, and `value` is ours. The kernel has checked that attributes are `u32`.
        unsafe { bindings::nk_genl_u32(self.info, attribute, &mut value) }.then_some(value)
    }
}

/// Has a source do what an order says. `genl_ops::doit`
///
/// # Safety
///
/// `info` is that of a command of [`Orders`], as generic netlink passes it.
unsafe extern "C" fn order(_: *mut bindings::sk_buff, info: *mut bindings::genl_info) -> c_int {
    // INVARIANT: By this function's contract; it is gone when this returns.
    let order = Order {
        info,
        call: PhantomData,
    };
    match obey(&order) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// `EINVAL` if the order does not say which source it is for, `ENODEV` if there is no such source.
fn obey(order: &Order<'_>) -> Result {
    let number = order.value(SOURCE).ok_or(EINVAL)?;
    let entry = SOURCES.lock().at(number).ok_or(ENODEV)?;
    if entry.number != number {
        return Err(ENODEV);
    }
    let source = entry.source.lock();
    source.as_ref().ok_or(ENODEV)?.order(number, order)
}

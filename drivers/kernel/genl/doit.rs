// SPDX-License-Identifier: GPL-2.0
//! Commands that change something of a source.

use super::{Family, SOURCES};
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    ffi::{c_int, c_uint},
    prelude::*,
};

/// Attributes of a command have numbers up to this.
const MAX_ATTRIBUTE: usize = bindings::nk_const_NK_GENL_MAX_ATTRIBUTE as usize;

/// The attribute of all commands that has the number of the source which it is for.
pub const SOURCE: u16 = 1;

/// What the kernel checks of the attributes of a command.
type Policy = [bindings::nla_policy; MAX_ATTRIBUTE + 1];

/// A command that changes something of a source, for those with `CAP_NET_ADMIN`. Its attributes are `u32`, and others are refused.
pub struct DoCommand {
    /// The command.
    pub command: u8,
    /// Attributes that it may have. [`SOURCE`] has to be one, and says which source it is for, by its number.
    pub attributes: &'static [DoAttribute],
}

/// An attribute of a command: its number, below 32, and what it may be.
pub enum DoAttribute {
    /// Any number.
    Any(u16),
    /// Numbers up to the second one. The kernel refuses others (`ERANGE`).
    UpTo(u16, i16),
}

impl DoAttribute {
    /// Puts it into a policy. `EINVAL` if its number is too high.
    fn enter(&self, policy: &mut Policy) -> Result {
        let (Self::Any(number) | Self::UpTo(number, _)) = self;
        let entry = policy.get_mut(usize::from(*number)).ok_or(EINVAL)?;
        match self {
            // SAFETY: The entry is ours.
            Self::Any(_) => unsafe { bindings::nk_genl_policy_u32(entry) },
            // SAFETY: As above.
            Self::UpTo(_, max) => unsafe { bindings::nk_genl_policy_u32_max(entry, *max) },
        }
        Ok(())
    }
}

/// These commands as generic netlink knows them.
pub(super) struct DoCommands {
    pub(super) operations: KVec<bindings::genl_ops>,
    _policies: KVec<KBox<Policy>>,
}

impl DoCommands {
    /// Those of a family. `EINVAL` for an attribute that none can have.
    pub(super) fn new(family: &Family) -> Result<Self> {
        let mut operations = KVec::with_capacity(family.commands.len(), GFP_KERNEL)?;
        let mut policies = KVec::with_capacity(family.commands.len(), GFP_KERNEL)?;
        for kind in family.commands {
            let mut policy = KBox::new([bindings::nla_policy::default(); _], GFP_KERNEL)?;
            for attribute in kind.attributes {
                attribute.enter(&mut policy)?;
            }
            let operation = bindings::genl_ops {
                doit: Some(doit),
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

/// A request that came in.
///
/// # Invariants
///
/// `info` is that of a command of [`DoCommands`], for `'call`.
pub struct DoRequest<'call> {
    info: *const bindings::genl_info,
    call: PhantomData<&'call ()>,
}

impl DoRequest<'_> {
    /// The command.
    pub fn command(&self) -> u8 {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_genl_request_command(self.info) }
    }

    /// The value of an attribute; `None` without it.
    fn value(&self, attribute: u16) -> Option<u32> {
        let mut value = 0;
        // SAFETY: By the type's invariant, and `value` is ours. The kernel has checked that attributes are `u32`.
        unsafe { bindings::nk_genl_u32(self.info, attribute, &mut value) }.then_some(value)
    }

    /// The value of an attribute that a request has to have. `EINVAL` without it, and the extended acknowledgement names it.
    pub fn required(&self, attribute: u16) -> Result<u32> {
        self.value(attribute).ok_or_else(|| {
            // SAFETY: By the type's invariant.
            unsafe { bindings::nk_genl_missing_attribute(self.info, attribute) };
            EINVAL
        })
    }

    /// Names an attribute in the extended acknowledgement as the bad one; returns the error.
    fn bad_attribute(&self, attribute: u16, error: Error) -> Error {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_genl_bad_attribute(self.info, attribute) };
        error
    }
}

/// Has a source do what a request says. `genl_ops::doit`
///
/// # Safety
///
/// `info` is that of a command of [`DoCommands`], as generic netlink passes it.
unsafe extern "C" fn doit(_: *mut bindings::sk_buff, info: *mut bindings::genl_info) -> c_int {
    // INVARIANT: By this function's contract; it is gone when this returns.
    let request = DoRequest {
        info,
        call: PhantomData,
    };
    match dispatch(&request) {
        Ok(()) => 0,
        Err(error) => error.to_errno(),
    }
}

/// `EINVAL` if the request does not say which source it is for, `ENODEV` if there is no such source.
fn dispatch(request: &DoRequest<'_>) -> Result {
    let number = request.required(SOURCE)?;
    let entry = SOURCES.lock().at(number);
    let entry = entry
        .filter(|entry| entry.number == number)
        .ok_or_else(|| request.bad_attribute(SOURCE, ENODEV))?;
    let source = entry.source.lock();
    source.as_ref().ok_or(ENODEV)?.doit(number, request)
}

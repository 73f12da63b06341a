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

/// A command that changes something of a source, for those with `CAP_NET_ADMIN`. Attributes that it does not have are refused.
pub struct DoCommand {
    /// The command.
    pub command: u8,
    /// Attributes that it may have. [`SOURCE`] has to be one, and says which source it is for, by its number.
    pub attributes: &'static [DoAttribute],
}

/// An attribute of a command: its number, below 32, and what it may be. The kernel refuses others (`EINVAL`, `ERANGE`).
pub enum DoAttribute {
    /// Any `u32`.
    Any(u16),
    /// A `u32` up to the second number.
    UpTo(u16, i16),
    /// Any `u64`.
    U64(u16),
    /// A string of at most so many bytes, and a NUL.
    NulString(u16, u16),
    /// So many bytes.
    Binary(u16, i16),
}

impl DoAttribute {
    /// Puts it into a policy. `EINVAL` if its number is too high.
    fn enter(&self, policy: &mut Policy) -> Result {
        let (Self::Any(number)
        | Self::UpTo(number, _)
        | Self::U64(number)
        | Self::NulString(number, _)
        | Self::Binary(number, _)) = self;
        let entry = policy.get_mut(usize::from(*number)).ok_or(EINVAL)?;
        // SAFETY: The entry is ours.
        unsafe {
            match self {
                Self::Any(_) => bindings::nk_genl_policy_u32(entry),
                Self::UpTo(_, max) => bindings::nk_genl_policy_u32_max(entry, *max),
                Self::U64(_) => bindings::nk_genl_policy_u64(entry),
                Self::NulString(_, max) => bindings::nk_genl_policy_string(entry, *max),
                Self::Binary(_, len) => bindings::nk_genl_policy_bytes(entry, *len),
            }
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

    /// The value of an attribute that is a `u32`; `None` without it.
    pub fn value(&self, attribute: u16) -> Option<u32> {
        let mut value = 0;
        // SAFETY: By the type's invariant, and `value` is ours.
        unsafe { bindings::nk_genl_u32(self.info, attribute, &mut value) }.then_some(value)
    }

    /// The value of one that a request has to have. `EINVAL` without it, and the extended acknowledgement names it.
    pub fn required(&self, attribute: u16) -> Result<u32> {
        self.value(attribute)
            .ok_or_else(|| self.missing_attribute(attribute))
    }

    /// As `required`, of an attribute that is a `u64`.
    pub fn required_u64(&self, attribute: u16) -> Result<u64> {
        let mut value = 0;
        // SAFETY: By the type's invariant, and `value` is ours.
        let found = unsafe { bindings::nk_genl_u64(self.info, attribute, &mut value) };
        found
            .then_some(value)
            .ok_or_else(|| self.missing_attribute(attribute))
    }

    /// As `required`, the bytes of an attribute of whatever type.
    pub fn required_bytes(&self, attribute: u16) -> Result<&[u8]> {
        let mut len = 0;
        // SAFETY: By the type's invariant, and `len` is ours.
        let found = unsafe { bindings::nk_genl_bytes(self.info, attribute, &mut len) };
        if found.is_null() {
            return Err(self.missing_attribute(attribute));
        }
        // SAFETY: So many bytes of the request, which nobody changes, and which stays as long as `self`.
        Ok(unsafe { core::slice::from_raw_parts(found, len) })
    }

    /// As `required`, of an attribute that is text: what is before the NUL.
    pub fn required_string(&self, attribute: u16) -> Result<&[u8]> {
        let bytes = self.required_bytes(attribute)?;
        let text = bytes.split(|byte| *byte == 0).next();
        Ok(text.unwrap_or_default())
    }

    /// Names an attribute in the extended acknowledgement as missing; returns the error.
    fn missing_attribute(&self, attribute: u16) -> Error {
        // SAFETY: By the type's invariant.
        unsafe { bindings::nk_genl_missing_attribute(self.info, attribute) };
        EINVAL
    }

    /// Names an attribute in the extended acknowledgement as the bad one; returns the error.
    pub fn bad_attribute(&self, attribute: u16, error: Error) -> Error {
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

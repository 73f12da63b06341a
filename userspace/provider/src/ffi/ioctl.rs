// SPDX-License-Identifier: GPL-2.0 OR MIT

//! uverbs commands as lists of attributes, in the form of rdma-core.

use rustix::io::Errno;

use super::errno::check;
use super::object::Plain;
use super::sys;

/// A command of `N` attributes, or so many that the driver adds to a command of rdma-core's.
#[repr(C)]
pub(super) struct Attributes<const N: usize> {
    buffer: sys::ibv_command_buffer,
    attributes: [sys::ib_uverbs_attr; N],
}

const _: () = assert!(
    size_of::<sys::ibv_command_buffer>() % align_of::<sys::ib_uverbs_attr>() == 0,
    "attributes follow the header"
);

/// `UVERBS_ATTR_F_MANDATORY`
const MANDATORY: u16 = 1;
const _: () = assert!(sys::UVERBS_ATTR_F_MANDATORY == 1);

/// An attribute that the kernel must know.
fn attribute(id: u16, len: usize, data: u64) -> sys::ib_uverbs_attr {
    sys::ib_uverbs_attr {
        attr_id: id,
        // Longer ones than 64 KiB there are none.
        len: u16::try_from(len).unwrap_or(u16::MAX),
        flags: MANDATORY,
        attr_data: sys::ib_uverbs_attr__bindgen_ty_1 { reserved: 0 },
        __bindgen_anon_1: sys::ib_uverbs_attr__bindgen_ty_2 { data },
    }
}

/// An object that a command is about.
pub(super) fn object(id: u16, handle: u32) -> sys::ib_uverbs_attr {
    attribute(id, 0, u64::from(handle))
}

/// The number of an object of the RDMA core, as attributes have it.
#[expect(clippy::cast_possible_truncation, reason = "as asserted")]
pub(super) const fn object_id(id: u32) -> u16 {
    assert!(id <= u16::MAX as u32);
    id as u16
}

/// A number that the kernel reads.
pub(super) fn number(id: u16, value: u32) -> sys::ib_uverbs_attr {
    attribute(id, size_of::<u32>(), u64::from(value))
}

/// A value that the kernel reads or writes when the command is executed, of more than 8 bytes if it reads.
pub(super) fn value<T>(id: u16, value: *mut T) -> sys::ib_uverbs_attr {
    attribute(id, size_of::<T>(), value.expose_provenance() as u64)
}

impl<const N: usize> Attributes<N> {
    /// These, with what they point to.
    pub(super) fn new(attributes: [sys::ib_uverbs_attr; N]) -> Self {
        let mut buffer = sys::ibv_command_buffer::zeroed();
        buffer.uhw_in_idx = u8::MAX;
        buffer.uhw_out_idx = u8::MAX;
        Self { buffer, attributes }
    }

    /// The first `count` attributes, to be added to a command; good until this is moved or dropped.
    pub(super) fn link(&mut self, count: usize) -> *mut sys::ibv_command_buffer {
        let this = &raw mut *self;
        // SAFETY: the field of a structure that exists.
        let attributes = unsafe { (&raw mut (*this).attributes).cast::<sys::ib_uverbs_attr>() };
        self.buffer.next_attr = attributes.wrapping_add(count.min(N));
        self.buffer.last_attr = attributes.wrapping_add(N);
        this.cast()
    }

    /// Executes them as a command of its own.
    ///
    /// # Safety
    ///
    /// `context` is open, and what the attributes point to lives.
    pub(super) unsafe fn execute(
        mut self,
        context: *mut sys::ibv_context,
        object: u16,
        method: u16,
    ) -> Result<(), Errno> {
        self.buffer.hdr.object_id = object;
        self.buffer.hdr.method_id = method;
        let buffer = self.link(N);
        // SAFETY: the caller's word; the attributes are behind the header, and there are no more than it says.
        check(unsafe { sys::execute_ioctl(context, buffer) })
    }
}

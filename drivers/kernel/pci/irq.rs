// SPDX-License-Identifier: GPL-2.0
//! MSI-X vectors and their handlers, any number of them.
//!
//! C headers: `include/linux/pci.h`, `include/linux/interrupt.h`. The kernel crate allocates vectors as a range of
//! which only the ends can be used.

use super::as_raw;
use crate::bindings;
use kernel::{
    device::Bound,
    devres::{self, Devres},
    error::to_result,
    ffi::{c_int, c_uint, c_void},
    pci,
    prelude::*,
    str::CStr,
    sync::aref::ARef,
};

/// Handler of an interrupt that is raised as an edge by one device alone, as MSI-X ones are.
pub trait Handler: Send + Sync + 'static {
    /// Called in hard interrupt context with interrupts off on this CPU, not more than once at a time.
    fn handle(&self);
}

/// MSI-X vectors of a device that is being probed; freed when its driver is unbound.
pub struct Vectors<'a> {
    dev: &'a pci::Device<Bound>,
    count: u32,
}

/// Frees the vectors of a device.
struct FreeVectors(ARef<pci::Device>);

impl Drop for FreeVectors {
    fn drop(&mut self) {
        // SAFETY: The device is valid. Managed resources go in reverse order, so that handlers are gone already.
        unsafe { bindings::pci_free_irq_vectors(as_raw(&self.0)) }
    }
}

impl<'a> Vectors<'a> {
    /// Allocates as many vectors as are granted, from `min` (at least one) to `max`. May sleep.
    pub fn new(dev: &'a pci::Device<Bound>, min: u32, max: u32) -> Result<Self> {
        // SAFETY: `dev` is a valid device; the callee checks the numbers.
        let count = unsafe {
            bindings::pci_alloc_irq_vectors(as_raw(dev), min, max, bindings::PCI_IRQ_MSIX)
        };
        to_result(count)?;
        devres::register(dev.as_ref(), FreeVectors(dev.into()), GFP_KERNEL)?;
        Ok(Self {
            dev,
            count: u32::try_from(count)?,
        })
    }

    /// Number of vectors.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Calls `handler` when vector `index` is raised, on the `cpu`-th CPU counting from those near the device; the
    /// administrator can move it. May sleep.
    pub fn request<H: Handler>(
        &self,
        index: u32,
        cpu: u32,
        name: &'static CStr,
        handler: H,
    ) -> Result<Registration<H>> {
        // SAFETY: `dev` is a valid device with vectors; an index it does not have is refused.
        let irq = unsafe { bindings::pci_irq_vector(as_raw(self.dev), index) };
        to_result(irq)?;
        let irq = c_uint::try_from(irq)?;
        let handler = KBox::new(handler, GFP_KERNEL)?;
        let cookie = core::ptr::from_ref::<H>(&handler)
            .cast_mut()
            .cast::<c_void>();
        // SAFETY: `callback::<H>` takes a pointer to an `H`, which lives in its box until `Action` has freed the
        // interrupt.
        to_result(unsafe {
            bindings::request_irq(irq, Some(callback::<H>), 0, name.as_char_ptr(), cookie)
        })?;
        let action = Action { irq, handler };
        // SAFETY: `dev` is a valid device, `irq` one of its interrupts.
        unsafe { bindings::nk_irq_spread(as_raw(self.dev), irq, cpu) };
        Ok(Registration {
            irq,
            _action: Devres::new(self.dev.as_ref(), action)?,
        })
    }
}

/// A handler that is called; dropping it waits until it is not running and ends that. At the latest, unbinding does.
pub struct Registration<H: Handler> {
    irq: c_uint,
    _action: Devres<Action<H>>,
}

impl<H: Handler> Registration<H> {
    /// Number of the interrupt, as in `/proc/interrupts`.
    pub fn number(&self) -> u32 {
        self.irq
    }
}

/// A requested interrupt.
struct Action<H> {
    irq: c_uint,
    handler: KBox<H>,
}

impl<H> Drop for Action<H> {
    fn drop(&mut self) {
        let cookie = core::ptr::from_ref::<H>(&self.handler)
            .cast_mut()
            .cast::<c_void>();
        // SAFETY: The interrupt was requested with this cookie.
        unsafe { bindings::free_irq(self.irq, cookie) };
    }
}

/// # Safety
///
/// `cookie` must point to an `H` for as long as the interrupt is requested.
unsafe extern "C" fn callback<H: Handler>(_: c_int, cookie: *mut c_void) -> bindings::irqreturn_t {
    // SAFETY: By this function's contract.
    unsafe { &*cookie.cast::<H>() }.handle();
    bindings::irqreturn_IRQ_HANDLED
}

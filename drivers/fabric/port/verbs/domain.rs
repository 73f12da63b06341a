// SPDX-License-Identifier: GPL-2.0
//! Protection domains.

use crate::{controller::Controller, port::object::Object};
use kernel::{prelude::*, sync::Arc};
use nupa_proto::admin::AdminOpcode::{AllocPd, DeallocPd};

/// A protection domain.
pub struct Pd {
    object: Object,
}

impl Pd {
    pub(in crate::port) fn new(controller: &Arc<Controller>) -> Result<Self> {
        let generation = controller.running()?;
        let object = Object::create(controller, generation, [AllocPd, DeallocPd], &[0u8; 0])?;
        Ok(Self { object })
    }

    /// Number of the domain in the controller. Any context.
    pub fn number(&self) -> u32 {
        self.object.number
    }

    pub(in crate::port) fn controller(&self) -> &Arc<Controller> {
        &self.object.controller
    }

    pub(in crate::port) fn generation(&self) -> u32 {
        self.object.generation
    }
}

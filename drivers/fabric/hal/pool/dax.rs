// SPDX-License-Identifier: GPL-2.0
//! A pool in a DAX device, such as a region of CXL memory.

use super::{
    function::PollerNapi,
    instance::{map, Place, PoolInstance},
};
use kernel::{device::Core, prelude::*};
use nk::{dax, power::Transition, window::Window};

/// Driver of DAX devices that an administrator gives to it.
pub(crate) struct DaxDriver;

impl dax::Driver for DaxDriver {
    type Data<'bound> = PoolInstance<'bound>;

    fn probe<'bound>(
        dev: &'bound dax::Device<Core<'_>>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        probe(dev)
    }

    fn power(this: Pin<&Self::Data<'_>>, transition: Transition) {
        this.controller().power(transition);
    }
}

fn probe<'bound>(dev: &'bound dax::Device<Core<'_>>) -> Result<PoolInstance<'bound>> {
    let place = Place {
        window: map(dev.as_ref(), |coherence, extent| {
            Window::of_dax(dev, c"nupa_fabric", coherence, extent)
        })?,
        own_bell: 0,
        bell: None,
        poller: PollerNapi::new()?,
        persistent: dev.is_persistent(),
    };
    PoolInstance::new(dev.as_ref(), place)
}

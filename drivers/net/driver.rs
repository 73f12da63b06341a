// SPDX-License-Identifier: GPL-2.0
//! Binding to the port's auxiliary device.

use crate::{events::Events, nic::Nic};
use kernel::{auxiliary, device::Core, prelude::*, sync::Arc, types::ForLt};
use nk::net::Registration;
use nupa_fabric::{ListenerRegistration, Port};

/// The driver.
pub(crate) struct Driver;

/// What a bound device owns; dropped in this order.
pub(crate) struct Bound {
    _events: ListenerRegistration,
    _netdev: Registration<Nic>,
}

kernel::auxiliary_device_table!(
    ID_TABLE,
    MODULE_ID_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(c"nupa_fabric", c"net"), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Bound;
    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &ID_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Bound, Error> + 'bound {
        let port = adev.registration_data::<ForLt!(Port)>()?.get_ref().clone();
        let netdev = Nic::register(adev.parent(), port.clone())?;
        let listener = Arc::new(Events::new(netdev.device_ref(), port.clone()), GFP_KERNEL)?;
        let events = port.listen(listener.clone())?;
        // From here on events are told; what was before is caught up with.
        listener.catch_up();
        let node = port.info().node;
        dev_info!(adev, "{}: node {}\n", netdev.device().name(), node);
        Ok(Bound {
            _events: events,
            _netdev: netdev,
        })
    }
}

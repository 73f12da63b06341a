// SPDX-License-Identifier: GPL-2.0
//! Binding to the port's auxiliary device.
//!
//! `nupa_fabric` takes that device off the bus before it resets the controller, and adds it again afterwards. The
//! RDMA device follows: programs that used the old one get errors, nobody waits for them.

use crate::device::Rdma;
use kernel::{auxiliary, device::Core, prelude::*, types::ForLt};
use nk_rdma::{Registration, Unregistered};
use nupa_fabric::Port;

/// The driver.
pub(crate) struct Driver;

kernel::auxiliary_device_table!(
    ID_TABLE,
    MODULE_ID_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(c"nupa_fabric", c"rdma"), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Registration<Rdma>;
    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &ID_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let port = adev.registration_data::<ForLt!(Port)>()?.get_ref().clone();
        let info = port.info();
        let device = Unregistered::new(Rdma::new(port)?)?.register(
            adev.parent(),
            &crate::THIS_MODULE,
            c"nupa_rdma%d",
            info.guid,
            info.vectors,
        )?;
        dev_info!(adev, "{}: node {}\n", device.device().name(), info.node);
        Ok(device)
    }
}

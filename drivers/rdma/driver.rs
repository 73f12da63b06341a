// SPDX-License-Identifier: GPL-2.0
//! Binding to the port's auxiliary device.
//!
//! `nupa_fabric` replaces that device by a new one once it has reset the controller. The
//! RDMA device follows: programs that used the old one get errors, nobody waits for them.

use crate::device::Rdma;
use kernel::{auxiliary, device::Core, prelude::*, types::ForLt};
use nk_rdma::{Registration, Unregistered};
use nupa_fabric::{ListenerRegistration, Port};

/// The driver.
pub(crate) struct Driver;

/// Flushes the queues of programs when the driver is unbound: they wait in user space, where nothing else wakes them.
struct FlushAtEnd(Port);

impl Drop for FlushAtEnd {
    fn drop(&mut self) {
        self.0.fail_queue_pairs();
    }
}

/// What a bound device owns; dropped in this order, so that users of the RDMA device are told of a loss while they go.
pub(crate) struct Bound<'bound> {
    _flush: FlushAtEnd,
    _device: Registration<'bound, Rdma>,
    _listener: ListenerRegistration,
}

kernel::auxiliary_device_table!(
    ID_TABLE,
    MODULE_ID_TABLE,
    <Driver as auxiliary::Driver>::IdInfo,
    [(auxiliary::DeviceId::new(c"nupa_fabric", c"rdma"), ())]
);

impl auxiliary::Driver for Driver {
    type IdInfo = ();
    type Data<'bound> = Bound<'bound>;
    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &ID_TABLE;

    fn probe<'bound>(
        adev: &'bound auxiliary::Device<Core<'_>>,
        _info: &'bound Self::IdInfo,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        let port = adev.registration_data::<ForLt!(Port)>()?.get_ref().clone();
        let info = port.info();
        let device = Unregistered::new(Rdma::new(port.clone())?)?.register(
            adev.parent(),
            &crate::THIS_MODULE,
            c"nupa_rdma%d",
            info.guid,
            info.vectors,
        )?;
        dev_info!(adev, "{}: node {}\n", device.device().name(), info.node);
        let listener = port.listen(device.device().kernel_qps().clone())?;
        Ok(Bound {
            _flush: FlushAtEnd(port),
            _device: device,
            _listener: listener,
        })
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Skeleton, replaced by the network device.
use kernel::{auxiliary, device::Core, prelude::*, types::ForLt};
use nupa_fabric::Port;
struct Drv;
kernel::auxiliary_device_table!(AUX, MODAUX, <Drv as auxiliary::Driver>::IdInfo, [(auxiliary::DeviceId::new(c"nupa_fabric", c"net"), ())]);
impl auxiliary::Driver for Drv {
    type IdInfo = ();
    type Data<'b> = Self;
    const ID_TABLE: auxiliary::IdTable<Self::IdInfo> = &AUX;
    fn probe<'b>(adev: &'b auxiliary::Device<Core<'_>>, _i: &'b Self::IdInfo) -> impl PinInit<Self, Error> + 'b {
        let port = adev.registration_data::<ForLt!(Port)>()?;
        dev_info!(adev, "port {}\n", port.id());
        Ok(Drv)
    }
}
kernel::module_auxiliary_driver! { type: Drv, name: "nupa_net", authors: ["NUPA"], description: "NUPA network device", license: "GPL v2", }

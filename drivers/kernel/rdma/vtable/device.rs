// SPDX-License-Identifier: GPL-2.0
//! Device and port.

use super::VTable;
use crate::{bindings, device::Device, Driver};
use kernel::{
    error::from_result,
    ffi::{c_char, c_int},
    fmt,
    prelude::*,
    str::Formatter,
};

impl<D: Driver> VTable<D> {
    pub(super) unsafe extern "C" fn query_device(
        ib: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: See the module above; `udata` may be null.
        let (dev, attr, ret) = unsafe {
            (
                Device::<D>::from_raw(ib),
                &mut *attr,
                bindings::nk_rdma_no_udata(udata),
            )
        };
        if ret == 0 {
            D::query_device(dev).to_raw(attr);
        }
        ret
    }

    pub(super) unsafe extern "C" fn get_dev_fw_str(
        ib: *mut bindings::ib_device,
        text: *mut c_char,
    ) {
        // SAFETY: See the module above.
        let [major, minor, patch] = D::firmware(unsafe { Device::<D>::from_raw(ib) });
        // SAFETY: The core passes room for this many bytes.
        let text = unsafe {
            core::slice::from_raw_parts_mut(
                text.cast::<u8>(),
                bindings::IB_FW_VERSION_NAME_MAX as usize,
            )
        };
        let Some((last, text)) = text.split_last_mut() else {
            return;
        };
        *last = 0;
        text.fill(0);
        // Three numbers always fit.
        let _ = fmt::Write::write_fmt(&mut Formatter::new(text), fmt!("{major}.{minor}.{patch}"));
    }

    pub(super) unsafe extern "C" fn query_port(
        ib: *mut bindings::ib_device,
        _port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        // SAFETY: See the module above. The core has cleared the attributes.
        let (dev, attr) = unsafe { (Device::<D>::from_raw(ib), &mut *attr) };
        D::query_port(dev).to_raw(attr);
        0
    }

    pub(super) unsafe extern "C" fn get_port_immutable(
        ib: *mut bindings::ib_device,
        _port: u32,
        immutable: *mut bindings::ib_port_immutable,
    ) -> c_int {
        // SAFETY: See the module above.
        let (dev, immutable) = unsafe { (Device::<D>::from_raw(ib), &mut *immutable) };
        from_result(|| {
            immutable.pkey_tbl_len = 1;
            immutable.gid_tbl_len = i32::try_from(D::query_port(dev).gids)?;
            immutable.core_cap_flags = bindings::nk_rdma_const_NK_RDMA_CORE_PORT_ROCE_V2;
            immutable.max_mad_size = bindings::nk_rdma_const_NK_RDMA_MAD_SIZE;
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn get_link_layer(
        _ib: *mut bindings::ib_device,
        _port: u32,
    ) -> bindings::rdma_link_layer {
        bindings::rdma_link_layer_IB_LINK_LAYER_ETHERNET
    }

    pub(super) unsafe extern "C" fn query_pkey(
        _ib: *mut bindings::ib_device,
        _port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        if index != 0 {
            return EINVAL.to_errno();
        }
        // SAFETY: See the module above. RoCE has the default partition only.
        unsafe { *pkey = bindings::nk_rdma_const_NK_RDMA_DEFAULT_PKEY as u16 };
        0
    }
}

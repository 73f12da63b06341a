// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A device with memory that hosts share, and the driver that has it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context};

/// The kernel's driver that lets programs map DAX devices.
pub(super) const DEVICE_DAX: &str = "device_dax";

/// How often a device that is to come is looked for.
const STEP: Duration = Duration::from_millis(200);

/// A device, and nupa_fabric's driver for it.
pub(super) struct Place {
    /// Its name on the bus.
    device: String,
    /// Its directory in sysfs.
    directory: PathBuf,
    /// Directory of the bus's drivers.
    drivers: PathBuf,
    /// Name of nupa_fabric's driver.
    ours: &'static str,
    /// Whether drivers have to be told of it, because it is of the type that another one takes.
    is_dax: bool,
}

impl Place {
    /// The place of a device, whether it is there or not.
    fn named(device: &str) -> anyhow::Result<Self> {
        let is_name = Path::new(device).file_name() == Some(device.as_ref());
        ensure!(is_name, "not the name of a device");
        let is_dax = device.starts_with("dax");
        let (bus, ours) = match is_dax {
            true => ("dax", "nupa_fabric"),
            false => ("pci", "nupa_ivshmem"),
        };
        let bus = Path::new("/sys/bus").join(bus);
        Ok(Self {
            device: device.to_owned(),
            directory: bus.join("devices").join(device),
            drivers: bus.join("drivers"),
            ours,
            is_dax,
        })
    }

    pub(super) fn find(device: &str) -> anyhow::Result<Self> {
        Self::await_device(device, Duration::ZERO)
    }

    /// As [`Place::find`], but waits so long for the device to come.
    pub(super) fn await_device(device: &str, limit: Duration) -> anyhow::Result<Self> {
        let place = Self::named(device)?;
        let start = Instant::now();
        while !place.directory.exists() && start.elapsed() < limit {
            sleep(STEP);
        }
        ensure!(
            place.directory.exists(),
            "there is no such device: `lspci -Dnd 1af4:1110` lists ivshmem devices, `daxctl list` DAX devices"
        );
        Ok(place)
    }

    /// An error if it is something else than memory that hosts share.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.is_dax || self.driver().as_deref() != Some("nupa_fabric"),
            "it is a fabric controller, which nupa_fabric has without being told to"
        );
        Ok(())
    }

    /// Whether it is a DAX device.
    pub(super) fn is_dax(&self) -> bool {
        self.is_dax
    }

    /// Name of the driver that has the device.
    pub(super) fn driver(&self) -> Option<String> {
        let link = fs::read_link(self.directory.join("driver")).ok()?;
        Some(link.file_name()?.to_string_lossy().into_owned())
    }

    /// Whether nupa_fabric has it.
    pub(super) fn is_ours(&self) -> bool {
        self.driver().as_deref() == Some(self.ours)
    }

    /// Whether nupa_fabric is loaded.
    pub(super) fn is_loaded(&self) -> bool {
        self.drivers.join(self.ours).exists()
    }

    /// The file that takes a device away from a driver.
    pub(super) fn unbind(&self, driver: &str) -> PathBuf {
        self.drivers.join(driver).join("unbind")
    }

    /// Hands a device that no driver has to nupa_fabric. False if it does not take it; the kernel's log says why.
    pub(super) fn give_to_us(&self) -> anyhow::Result<bool> {
        self.give(self.ours)
    }

    /// Lets programs map a DAX device that no driver has. False if that cannot be.
    pub(super) fn give_to_programs(&self) -> anyhow::Result<bool> {
        if !self.is_dax {
            return Ok(false);
        }
        if !self.drivers.join(DEVICE_DAX).exists() {
            let mut modprobe = Command::new("modprobe");
            modprobe.args(["-q", DEVICE_DAX]).stderr(Stdio::null());
            if !modprobe.status().is_ok_and(|status| status.success()) {
                return Ok(false);
            }
        }
        self.give(DEVICE_DAX)
    }

    fn give(&self, driver: &str) -> anyhow::Result<bool> {
        let directory = self.drivers.join(driver);
        let told = self.tell(&directory.join(if self.is_dax { "new_id" } else { "bind" }));
        if self.driver().as_deref() == Some(driver) {
            return Ok(true);
        }
        // A device that the driver does not take is an error of `bind`, and none of `new_id`.
        match told {
            Err(error) if is_denied(&error) => Err(error),
            _ if self.is_dax => {
                self.tell(&directory.join("remove_id"))?;
                Ok(false)
            }
            _ => Ok(false),
        }
    }

    /// Takes the device away from the driver that has it.
    pub(super) fn take(&self) -> anyhow::Result<()> {
        let Some(driver) = self.driver() else {
            return Ok(());
        };
        if self.is_dax {
            // Also forgotten, or the driver would take it back at the next occasion.
            self.tell(&self.drivers.join(&driver).join("remove_id"))?;
        }
        self.tell(&self.unbind(&driver))
    }

    /// Writes the device's name to a file of a driver.
    fn tell(&self, file: &Path) -> anyhow::Result<()> {
        fs::write(file, &self.device)
            .with_context(|| format!("cannot write to {}, which takes root", file.display()))
    }
}

fn is_denied(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
}

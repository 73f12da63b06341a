// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The device that is named, and its memory.

use std::fs::{self, File};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure, Context};
use guestmem::MmapRegion;

/// What sysfs says of QEMU's ivshmem devices: vendor and device.
const IVSHMEM: (&str, &str) = ("0x1af4", "0x1110");

/// A device with memory that hosts may share.
pub(crate) struct Device {
    /// The file that maps its memory.
    file: PathBuf,
    len: usize,
    /// Its memory answers only while this file says 1.
    enable: Option<PathBuf>,
}

/// The driver that has a device.
fn driver(directory: &Path) -> Option<String> {
    let link = fs::read_link(directory.join("driver")).ok()?;
    Some(link.file_name()?.to_string_lossy().into_owned())
}

fn read(path: &Path) -> anyhow::Result<String> {
    let text = fs::read_to_string(path);
    let text = text.with_context(|| format!("cannot read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

impl Device {
    /// Finds the device of a name, which nobody else may be using.
    pub(crate) fn find(name: &str) -> anyhow::Result<Self> {
        ensure!(!name.contains('/'), "not the name of a device");
        match name.starts_with("dax") {
            true => Self::dax(name),
            false => Self::pci(name),
        }
    }

    fn dax(name: &str) -> anyhow::Result<Self> {
        let directory = Path::new("/sys/bus/dax/devices").join(name);
        ensure!(directory.exists(), "there is no such DAX device");
        match driver(&directory).as_deref() {
            Some("device_dax") => {}
            Some("kmem") => {
                bail!("it is system memory; first: daxctl reconfigure-device -m devdax -f {name}")
            }
            Some(other) => bail!("driver {other} has it"),
            None => bail!("it has no driver; it has to be in devdax mode"),
        }
        Ok(Self {
            file: Path::new("/dev").join(name),
            len: read(&directory.join("size"))?.parse()?,
            enable: None,
        })
    }

    fn pci(name: &str) -> anyhow::Result<Self> {
        let directory = Path::new("/sys/bus/pci/devices").join(name);
        ensure!(directory.exists(), "there is no such PCI device");
        let (vendor, id) = (
            read(&directory.join("vendor"))?,
            read(&directory.join("device"))?,
        );
        ensure!(
            (vendor.as_str(), id.as_str()) == IVSHMEM,
            "no ivshmem device: it is {vendor}:{id}"
        );
        if let Some(driver) = driver(&directory) {
            bail!(
                "driver {driver} has it; first: echo {name} >/sys/bus/pci/drivers/{driver}/unbind"
            );
        }
        let file = directory.join("resource2");
        Ok(Self {
            len: usize::try_from(fs::metadata(&file).context("it has no memory")?.len())?,
            enable: Some(directory.join("enable")),
            file,
        })
    }

    /// Maps its memory to read it: nothing can be written there.
    pub(crate) fn map(&self) -> anyhow::Result<Mapped> {
        self.map_with(false)
    }

    /// Maps its memory to write to it.
    pub(crate) fn map_to_write(&self) -> anyhow::Result<Mapped> {
        self.map_with(true)
    }

    fn map_with(&self, write: bool) -> anyhow::Result<Mapped> {
        let off = |file: &&PathBuf| read(file).is_ok_and(|on| on == "0");
        let enabled = self.enable.as_ref().filter(off).map(Enabled::new);
        let enabled = enabled.transpose()?;
        let file = File::options().read(true).write(write).open(&self.file);
        let file = file.with_context(|| format!("cannot open {}", self.file.display()))?;
        let region = match write {
            true => MmapRegion::of_device(file.into(), self.len),
            false => MmapRegion::of_device_to_read(file.into(), self.len),
        };
        let region = region
            .with_context(|| format!("cannot map {} bytes of {}", self.len, self.file.display()))?;
        Ok(Mapped {
            region,
            _enabled: enabled,
        })
    }
}

/// A device's memory, for as long as the device answers.
pub(crate) struct Mapped {
    region: MmapRegion,
    _enabled: Option<Enabled>,
}

impl Deref for Mapped {
    type Target = MmapRegion;

    fn deref(&self) -> &MmapRegion {
        &self.region
    }
}

/// A PCI device that is enabled for as long as this lives.
struct Enabled(PathBuf);

impl Enabled {
    fn new(file: &PathBuf) -> anyhow::Result<Self> {
        fs::write(file, "1").context("cannot enable the device")?;
        Ok(Self(file.clone()))
    }
}

impl Drop for Enabled {
    fn drop(&mut self) {
        // If a driver has it by now, that is for the driver to say.
        let _ = fs::write(&self.0, "0");
    }
}

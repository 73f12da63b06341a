// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Composing a configuration space.

use super::space::{ConfigSpace, COMMAND, CONFIG_SIZE};

const VENDOR_ID: usize = 0x00;
const STATUS: usize = 0x06;
const REVISION: usize = 0x08;
const CACHE_LINE: usize = 0x0c;
const BAR0: usize = 0x10;
const SUBSYSTEM: usize = 0x2c;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const FIRST_CAPABILITY: usize = 0x40;

/// Command: memory space, bus master, parity error response, SERR, INTx disable.
const COMMAND_WRITABLE: u16 = 0x0546;
const STATUS_CAPABILITIES: u16 = 1 << 4;

const CAP_PM: u8 = 0x01;
const CAP_EXPRESS: u8 = 0x10;
const CAP_MSIX: u8 = 0x11;

/// MSI-X Message Control: enable and function mask.
const MSIX_WRITABLE: u16 = 0xc000;

/// Identification of a function.
#[derive(Debug, Clone, Copy)]
pub struct Identity {
    /// Vendor, also of the subsystem.
    pub vendor: u16,
    /// Device, also of the subsystem.
    pub device: u16,
    /// Class, subclass, programming interface.
    pub class: u32,
    /// Revision.
    pub revision: u8,
}

/// A 64-bit memory BAR; it takes two BAR registers.
#[derive(Debug, Clone, Copy)]
pub struct Bar {
    /// First of its registers, 0 to 4.
    pub index: u8,
    /// Bytes, a power of two of at least 16.
    pub size: u64,
    /// Reads have no side effects.
    pub prefetchable: bool,
}

/// Where MSI-X table and pending bits are.
#[derive(Debug, Clone, Copy)]
pub struct Msix {
    /// Vectors, 1 to 2048.
    pub vectors: u16,
    /// BAR of both.
    pub bar: u8,
    /// Offset of the table, 8-byte aligned.
    pub table: u32,
    /// Offset of the pending bits, 8-byte aligned.
    pub pba: u32,
}

/// A layout that PCI does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// BAR index or size.
    #[error("BAR {0} has an impossible index or size")]
    Bar(u8),
    /// Number of vectors, or offsets.
    #[error("impossible MSI-X layout")]
    Msix,
}

/// Lays out a configuration space.
#[derive(Debug)]
pub struct ConfigBuilder {
    space: ConfigSpace,
    /// Where the next capability goes ...
    next: usize,
    /// ... and the pointer that is to lead to it.
    link: usize,
}

impl ConfigBuilder {
    /// A type 0 header with power management and PCI Express capabilities, the latter with
    /// function-level reset.
    pub fn new(identity: Identity) -> Self {
        let zero = || Box::new([0; CONFIG_SIZE]);
        let space = ConfigSpace {
            bytes: zero(),
            initial: zero(),
            writable: zero(),
            flr: None,
        };
        let mut builder = Self {
            space,
            next: FIRST_CAPABILITY,
            link: CAPABILITIES,
        };
        let Identity {
            vendor,
            device,
            class,
            revision,
        } = identity;
        let ids = (u32::from(device) << 16) | u32::from(vendor);
        builder.put(VENDOR_ID, &ids.to_le_bytes());
        builder.put(SUBSYSTEM, &ids.to_le_bytes());
        builder.put(
            REVISION,
            &((class << 8) | u32::from(revision)).to_le_bytes(),
        );
        builder.put(STATUS, &STATUS_CAPABILITIES.to_le_bytes());
        builder.allow(COMMAND, &COMMAND_WRITABLE.to_le_bytes());
        builder.allow(CACHE_LINE, &[0xff]);
        builder.allow(INTERRUPT_LINE, &[0xff]);
        builder.power_management();
        builder.express();
        builder
    }

    /// Adds a BAR.
    pub fn bar(mut self, bar: Bar) -> Result<Self, ConfigError> {
        let Bar {
            index,
            size,
            prefetchable,
        } = bar;
        if index > 4 || !size.is_power_of_two() || size < 16 {
            return Err(ConfigError::Bar(index));
        }
        let at = BAR0.saturating_add(usize::from(index).saturating_mul(4));
        // Type: memory, 64 bits wide.
        let kind = 0x4 | if prefetchable { 0x8 } else { 0 };
        self.put(at, &[kind]);
        self.allow(at, &(!size.wrapping_sub(1)).to_le_bytes());
        Ok(self)
    }

    /// Adds the MSI-X capability.
    pub fn msix(mut self, msix: Msix) -> Result<Self, ConfigError> {
        let Msix {
            vectors,
            bar,
            table,
            pba,
        } = msix;
        let last = vectors
            .checked_sub(1)
            .filter(|last| *last < 2048)
            .ok_or(ConfigError::Msix)?;
        if bar > 5 || (table | pba) & 7 != 0 {
            return Err(ConfigError::Msix);
        }
        let at = self.capability(CAP_MSIX, 12);
        self.put(at.saturating_add(2), &last.to_le_bytes());
        self.allow(at.saturating_add(2), &MSIX_WRITABLE.to_le_bytes());
        self.put(
            at.saturating_add(4),
            &(table | u32::from(bar)).to_le_bytes(),
        );
        self.put(at.saturating_add(8), &(pba | u32::from(bar)).to_le_bytes());
        Ok(self)
    }

    /// Done.
    pub fn build(mut self) -> ConfigSpace {
        self.space.initial = self.space.bytes.clone();
        self.space
    }

    /// Power management: D0 and D3hot, no state is lost in D3hot.
    fn power_management(&mut self) {
        let at = self.capability(CAP_PM, 8);
        self.put(at.saturating_add(2), &3_u16.to_le_bytes());
        self.put(at.saturating_add(4), &[0x08]);
        self.allow(at.saturating_add(4), &[0x03]);
    }

    /// PCI Express version 2, an endpoint with FLR on a 32 GT/s x16 link.
    fn express(&mut self) {
        let at = self.capability(CAP_EXPRESS, 0x3c);
        let field = |offset: usize| at.saturating_add(offset);
        self.put(field(0x02), &2_u16.to_le_bytes());
        // Device Capabilities: role-based error reporting, function-level reset.
        self.put(field(0x04), &((1_u32 << 15) | (1 << 28)).to_le_bytes());
        // Device Control: all but the FLR bit, which is acted upon and reads as zero.
        self.allow(field(0x08), &0x7fff_u16.to_le_bytes());
        // Link Capabilities and Link Status: speed code 5, 16 lanes.
        let link = 5_u16 | (16 << 4);
        self.put(field(0x0c), &u32::from(link).to_le_bytes());
        self.put(field(0x12), &link.to_le_bytes());
        // Link Capabilities 2: speeds 2.5 to 32 GT/s. Link Control 2: target speed.
        self.put(field(0x2c), &0x3e_u32.to_le_bytes());
        self.put(field(0x30), &5_u16.to_le_bytes());
        self.space.flr = Some(field(0x09));
    }

    /// Reserves a capability of `len` bytes and links it in.
    fn capability(&mut self, id: u8, len: usize) -> usize {
        let at = self.next;
        self.next = at.saturating_add(len).next_multiple_of(4);
        self.put(at, &[id]);
        let pointer = u8::try_from(at).unwrap_or(0);
        self.put(self.link, &[pointer]);
        self.link = at.saturating_add(1);
        at
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        fill(&mut self.space.bytes, offset, bytes);
    }

    fn allow(&mut self, offset: usize, mask: &[u8]) {
        fill(&mut self.space.writable, offset, mask);
    }
}

/// Copies `bytes` to `offset`; what lies beyond the end is left out.
fn fill(space: &mut [u8; CONFIG_SIZE], offset: usize, bytes: &[u8]) {
    for (to, from) in space.iter_mut().skip(offset).zip(bytes) {
        *to = *from;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pci::Effects;

    fn space() -> ConfigSpace {
        let identity = Identity {
            vendor: 0x1af4,
            device: 0x10f0,
            class: 0x028000,
            revision: 1,
        };
        ConfigBuilder::new(identity)
            .bar(Bar {
                index: 0,
                size: 4096,
                prefetchable: false,
            })
            .and_then(|b| {
                b.bar(Bar {
                    index: 2,
                    size: 1 << 17,
                    prefetchable: true,
                })
            })
            .and_then(|b| {
                b.msix(Msix {
                    vectors: 65,
                    bar: 4,
                    table: 0,
                    pba: 0x800,
                })
            })
            .map(ConfigBuilder::build)
            .unwrap()
    }

    fn read<const N: usize>(space: &ConfigSpace, offset: u64) -> [u8; N] {
        let mut data = [0; N];
        space.read(offset, &mut data);
        data
    }

    fn find(space: &ConfigSpace, id: u8) -> u64 {
        let mut at = u64::from(read::<1>(space, 0x34)[0]);
        while at != 0 {
            let [cap, next] = read(space, at);
            if cap == id {
                return at;
            }
            at = u64::from(next);
        }
        panic!("no capability {id:#x}");
    }

    #[test]
    fn header_and_capabilities_are_where_pci_wants_them() {
        let space = space();
        assert_eq!(read(&space, 0), [0xf4, 0x1a, 0xf0, 0x10]);
        assert_eq!(read(&space, 8), [0x01, 0x00, 0x80, 0x02]);
        assert_eq!(read(&space, 0x2c), [0xf4, 0x1a, 0xf0, 0x10]);
        assert_eq!(read(&space, find(&space, CAP_MSIX) + 2), [64, 0]);
        assert_eq!(read(&space, find(&space, CAP_MSIX) + 8), [4, 8, 0, 0]);
        let devcap = u32::from_le_bytes(read(&space, find(&space, CAP_EXPRESS) + 4));
        assert_ne!(devcap & (1 << 28), 0);
        assert_eq!(read(&space, 0x100), [0; 4], "no extended capabilities");
    }

    #[test]
    fn bars_are_sized_the_usual_way() {
        let mut space = space();
        for at in [0x10, 0x14, 0x18, 0x1c, 0x20] {
            assert_eq!(space.write(at, &[0xff; 4]), Effects::default());
        }
        assert_eq!(read(&space, 0x10), 0xffff_ffff_ffff_f004_u64.to_le_bytes());
        assert_eq!(read(&space, 0x18), 0xffff_ffff_fffe_000c_u64.to_le_bytes());
        assert_eq!(read(&space, 0x20), [0; 8]);
    }

    #[test]
    fn function_level_reset_is_reported_and_reads_as_zero() {
        let mut space = space();
        let control = find(&space, CAP_EXPRESS) + 8;
        assert_eq!(space.write(control, &[0x10, 0x00]), Effects::default());
        assert!(space.write(control, &[0x10, 0x80]).function_reset);
        assert!(space.write(control + 1, &[0x80]).function_reset);
        assert!(
            space
                .write(control - 4, &[0, 0, 0, 0, 0x10, 0x80])
                .function_reset
        );
        assert_eq!(read(&space, control), [0x10, 0x00]);
        let _ = space.write(COMMAND as u64, &[0xff, 0xff]);
        assert_eq!(read(&space, COMMAND as u64), COMMAND_WRITABLE.to_le_bytes());
        assert!(space.bus_master());
        space.reset();
        assert!(!space.bus_master());
        assert_eq!(read(&space, COMMAND as u64), [0, 0]);
        assert_eq!(read(&space, control), [0, 0]);
    }

    #[test]
    fn accesses_beyond_the_end_do_nothing() {
        let mut space = space();
        assert_eq!(read(&space, 4094), [0, 0, 0xff, 0xff]);
        assert_eq!(read(&space, u64::MAX), [0xff; 4]);
        assert_eq!(space.write(4094, &[1; 8]), Effects::default());
        assert_eq!(space.write(u64::MAX, &[0xff; 8]), Effects::default());
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let identity = Identity {
            vendor: 1,
            device: 2,
            class: 3,
            revision: 4,
        };
        let bar = |index, size| {
            let bar = Bar {
                index,
                size,
                prefetchable: false,
            };
            ConfigBuilder::new(identity).bar(bar).map(|_| ())
        };
        assert_eq!(bar(5, 4096), Err(ConfigError::Bar(5)));
        assert_eq!(bar(0, 4095), Err(ConfigError::Bar(0)));
        assert_eq!(bar(0, 0), Err(ConfigError::Bar(0)));
        let msix = |vectors, table| {
            let msix = Msix {
                vectors,
                bar: 4,
                table,
                pba: 0x800,
            };
            ConfigBuilder::new(identity).msix(msix).map(|_| ())
        };
        assert_eq!(msix(0, 0), Err(ConfigError::Msix));
        assert_eq!(msix(2049, 0), Err(ConfigError::Msix));
        assert_eq!(msix(1, 4), Err(ConfigError::Msix));
    }
}

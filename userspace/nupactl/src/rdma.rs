// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the kernel's RDMA core knows of the objects of its devices (`include/uapi/rdma/rdma_netlink.h`), as `rdma resource` shows it.

use std::collections::BTreeMap;

use anyhow::{anyhow, Context};
use neli::attr::Attribute;
use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use neli::genl::Nlattr;
use neli::socket::synchronous::NlSocketHandle;
use neli::types::Buffer;
use neli::utils::Groups;

use crate::talk::{self, find, Attributes, Refused, NOT_UNDERSTOOD};

/// `RDMA_NL_NLDEV`, where the number of a client is in the type of a message.
const CLIENT: u16 = 5 << 10;
/// `RDMA_NLDEV_CMD_GET`
const GET_DEVICES: u16 = 1;
/// `RDMA_NLDEV_ATTR_DEV_INDEX`
const DEVICE_INDEX: u16 = 1;
/// `RDMA_NLDEV_ATTR_DEV_NAME`
const DEVICE_NAME: u16 = 2;
/// `RDMA_NLDEV_ATTR_DRIVER`: what the driver says, in groups of name, perhaps a hint how to print it, and value.
const DRIVER: u16 = 52;
const DRIVER_STRING: u16 = 54;
const DRIVER_U32: u16 = 57;
const DRIVER_U64: u16 = 59;

/// A kind of objects: the command that lists them, and the attribute that they are in. The attribute of one entry follows that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kind {
    command: u16,
    table: u16,
}

/// Queue pairs.
pub(crate) const QUEUE_PAIRS: Kind = Kind {
    command: 10,
    table: 19,
};
/// Completion queues.
pub(crate) const COMPLETION_QUEUES: Kind = Kind {
    command: 12,
    table: 35,
};
/// Memory regions.
pub(crate) const REGIONS: Kind = Kind {
    command: 13,
    table: 40,
};

/// Attributes of objects (`RDMA_NLDEV_ATTR_RES_*`).
pub(crate) mod attribute {
    /// Number of a queue pair.
    pub(crate) const LQPN: u16 = 21;
    /// Number of the remote queue pair.
    pub(crate) const RQPN: u16 = 22;
    /// Type of a queue pair.
    pub(crate) const TYPE: u16 = 26;
    /// State of a queue pair.
    pub(crate) const STATE: u16 = 27;
    /// Process that made the object.
    pub(crate) const PID: u16 = 28;
    /// Module of the kernel that made the object.
    pub(crate) const KERN_NAME: u16 = 29;
    /// Entries of a completion queue.
    pub(crate) const CQE: u16 = 37;
    /// Users of an object.
    pub(crate) const USECNT: u16 = 38;
    /// Bytes of a region.
    pub(crate) const MRLEN: u16 = 45;
    /// Number of a completion queue.
    pub(crate) const CQN: u16 = 61;
    /// Number of a region.
    pub(crate) const MRN: u16 = 62;
}

/// An object.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    numbers: BTreeMap<u16, u64>,
    /// The module of the kernel that made it, if one did.
    pub(crate) kernel: Option<String>,
    driver: BTreeMap<String, u64>,
}

impl Entry {
    fn read(attributes: &[Nlattr<u16, Buffer>]) -> anyhow::Result<Self> {
        let mut entry = Self::default();
        for attribute in attributes {
            let number = *attribute.nla_type().nla_type();
            let bytes = attribute.payload().as_ref();
            match number {
                attribute::KERN_NAME => entry.kernel = Some(text(attribute)?),
                DRIVER => entry.driver = driver(&nested(attribute)?)?,
                _ => {
                    if let Some(value) = integer(bytes) {
                        entry.numbers.insert(number, value);
                    }
                }
            }
        }
        Ok(entry)
    }

    /// An integer attribute.
    pub(crate) fn number(&self, attribute: u16) -> Option<u64> {
        self.numbers.get(&attribute).copied()
    }

    /// An integer attribute of at most 32 bits.
    pub(crate) fn small(&self, attribute: u16) -> Option<u32> {
        self.number(attribute)?.try_into().ok()
    }

    /// What the driver says under a name.
    pub(crate) fn of_driver(&self, name: &str) -> Option<u64> {
        self.driver.get(name).copied()
    }

    /// The same, if it has at most 32 bits.
    pub(crate) fn small_of_driver(&self, name: &str) -> Option<u32> {
        self.of_driver(name)?.try_into().ok()
    }
}

/// A socket to the RDMA core, and the devices that it has.
pub(crate) struct Core {
    socket: NlSocketHandle,
    devices: BTreeMap<String, u32>,
}

impl Core {
    /// Connects.
    pub(crate) fn open() -> anyhow::Result<Self> {
        let socket = NlSocketHandle::connect(NlFamily::Rdma, None, Groups::empty())
            .map_err(|error| anyhow!("{error}"))
            .context("the kernel's RDMA core does not answer: run `modprobe ib_core`")?;
        let mut devices = BTreeMap::new();
        for device in talk::ask(&socket, CLIENT | GET_DEVICES, NlmF::DUMP, Attributes::new())? {
            let find = |number| find(&device, number).context(NOT_UNDERSTOOD);
            let index = find(DEVICE_INDEX)?.get_payload_as()?;
            devices.insert(text(find(DEVICE_NAME)?)?, index);
        }
        Ok(Self { socket, devices })
    }

    /// Objects of a device; none of one that has gone.
    pub(crate) fn objects(&self, device: &str, kind: Kind) -> anyhow::Result<Vec<Entry>> {
        let Some(index) = self.devices.get(device) else {
            return Ok(Vec::new());
        };
        let mut question = Attributes::new();
        question.push(talk::attribute(DEVICE_INDEX, *index)?);
        let answers = talk::ask(&self.socket, CLIENT | kind.command, NlmF::DUMP, question);
        let answers = match answers {
            Ok(answers) => answers,
            // It went a moment ago.
            Err(error) if error.is::<Refused>() && !exists(device) => return Ok(Vec::new()),
            Err(error) => return Err(error.context(device.to_owned())),
        };
        let mut found = Vec::new();
        for answer in &answers {
            let Some(table) = find(answer, kind.table) else {
                continue;
            };
            for entry in nested(table)?.iter() {
                found.push(Entry::read(nested(entry)?.as_ref())?);
            }
        }
        Ok(found)
    }
}

fn exists(device: &str) -> bool {
    std::path::Path::new("/sys/class/infiniband")
        .join(device)
        .exists()
}

/// Attributes in an attribute.
fn nested(attribute: &Nlattr<u16, Buffer>) -> anyhow::Result<Attributes> {
    attribute.get_payload_as_with_len().context(NOT_UNDERSTOOD)
}

fn text(attribute: &Nlattr<u16, Buffer>) -> anyhow::Result<String> {
    attribute.get_payload_as_with_len().context(NOT_UNDERSTOOD)
}

/// An integer of any of the sizes that there are.
fn integer(bytes: &[u8]) -> Option<u64> {
    Some(match bytes {
        [byte] => u64::from(*byte),
        [_, _, _, _] => u64::from(u32::from_ne_bytes(bytes.try_into().ok()?)),
        _ => u64::from_ne_bytes(bytes.try_into().ok()?),
    })
}

/// Numbers that a driver says, by their names.
fn driver(attributes: &Attributes) -> anyhow::Result<BTreeMap<String, u64>> {
    let mut found = BTreeMap::new();
    let mut name = None;
    for attribute in attributes.iter() {
        match *attribute.nla_type().nla_type() {
            DRIVER_STRING => name = Some(text(attribute)?),
            DRIVER_U32 | DRIVER_U64 => {
                let value = integer(attribute.payload().as_ref()).context(NOT_UNDERSTOOD)?;
                found.extend(name.take().map(|name| (name, value)));
            }
            // A hint how to print the value, or a value of another type.
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_has_numbers_of_all_sizes_and_what_the_driver_says() {
        let mut details = Attributes::new();
        for attribute in [
            talk::attribute(DRIVER_STRING, "sq_index").unwrap(),
            talk::attribute(DRIVER_U32, 7u32).unwrap(),
            talk::attribute(DRIVER_STRING, "sent_bytes").unwrap(),
            talk::attribute(DRIVER_U64, 5u64 << 40).unwrap(),
            talk::attribute(DRIVER_STRING, "name without a value").unwrap(),
        ] {
            details.push(attribute);
        }
        let attributes = [
            talk::attribute(attribute::STATE, 3u8).unwrap(),
            talk::attribute(attribute::LQPN, 17u32).unwrap(),
            talk::attribute(attribute::MRLEN, 1u64 << 40).unwrap(),
            talk::attribute(attribute::KERN_NAME, "nvme").unwrap(),
            talk::attribute(DRIVER, details).unwrap(),
            talk::attribute(99, [0u8; 3].as_slice()).unwrap(),
        ];
        let entry = Entry::read(&attributes).unwrap();
        assert_eq!(entry.small(attribute::STATE), Some(3));
        assert_eq!(entry.small(attribute::LQPN), Some(17));
        assert_eq!(entry.number(attribute::MRLEN), Some(1 << 40));
        assert_eq!(entry.small(attribute::MRLEN), None);
        assert_eq!(entry.kernel.as_deref(), Some("nvme"));
        assert_eq!(entry.small_of_driver("sq_index"), Some(7));
        assert_eq!(entry.of_driver("sent_bytes"), Some(5 << 40));
        assert_eq!(entry.small_of_driver("sent_bytes"), None);
        assert_eq!(entry.numbers.len(), 3);
    }
}

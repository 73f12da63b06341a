// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Questions to the kernel's generic netlink, and what it tells by itself.
//!
//! One thread asks and reads. neli's router reads in a thread of its own, which makes the kernel refuse some dumps with EINVAL: a reader
//! that is as quick as the kernel is at the end of a dump looks for more of it (`netlink_recvmsg`).

use anyhow::{anyhow, Context};
use neli::consts::genl::{CtrlAttr, CtrlAttrMcastGrp, CtrlCmd, Index};
use neli::consts::nl::{GenlId, NlmF};
use neli::consts::socket::NlFamily;
use neli::err::SocketError;
use neli::genl::{Genlmsghdr, GenlmsghdrBuilder};
use neli::socket::synchronous::NlSocketHandle;
use neli::utils::Groups;
use rustix::io::Errno;

use crate::talk::{self, Attributes, NOT_UNDERSTOOD};

/// A message of a family: a command, and attributes.
pub(crate) type Message = Genlmsghdr<u8, u16>;

/// A family that the kernel has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// Its number.
    pub(crate) id: u16,
    /// Its multicast group's number, if it has the one that was asked for.
    pub(crate) group: Option<u32>,
}

/// A socket to generic netlink.
pub(crate) struct Socket(NlSocketHandle);

/// What came by itself.
pub(crate) enum Heard {
    /// Messages, each with the number of its family.
    Messages(Vec<(u16, Message)>),
    /// Messages were lost, because they were not read in time.
    Lost,
}

impl Socket {
    /// Opens a socket, which hears what is sent to `groups`.
    pub(crate) fn open(groups: Groups) -> anyhow::Result<Self> {
        let socket = NlSocketHandle::connect(NlFamily::Generic, None, groups)
            .map_err(|error| anyhow!("{error}"))
            .context("the kernel offers no socket of generic netlink")?;
        Ok(Self(socket))
    }

    /// Finds a family, and the number of one of its multicast groups. [`talk::Refused`] if there is no such family.
    pub(crate) fn family(&self, name: &str, group: &str) -> anyhow::Result<Family> {
        let mut attributes = Attributes::new();
        attributes.push(talk::attribute(CtrlAttr::FamilyName.into(), name)?);
        let answers = self.ask(
            GenlId::Ctrl.into(),
            CtrlCmd::Getfamily.into(),
            NlmF::ACK,
            attributes,
        )?;
        let answer = answers
            .first()
            .context("the kernel did not say which number the family has")?;
        let attributes = answer.attrs().get_attr_handle();
        let id = attributes.get_attr_payload_as(CtrlAttr::FamilyId.into())?;
        let groups = attributes.get_nested_attributes::<Index>(CtrlAttr::McastGroups.into());
        let group = groups.ok().and_then(|groups| {
            groups.iter().find_map(|entry| {
                let entry = entry.get_attr_handle::<CtrlAttrMcastGrp>().ok()?;
                let found: String = entry
                    .get_attr_payload_as_with_len(CtrlAttrMcastGrp::Name)
                    .ok()?;
                let id = entry.get_attr_payload_as(CtrlAttrMcastGrp::Id).ok()?;
                (found == group).then_some(id)
            })
        });
        Ok(Family { id, group })
    }

    /// All objects that a command of a family lists.
    pub(crate) fn dump(&self, family: u16, command: u8) -> anyhow::Result<Vec<Message>> {
        self.ask(family, command, NlmF::DUMP, Attributes::new())
    }

    /// Has a family do something.
    pub(crate) fn order(
        &self,
        family: u16,
        command: u8,
        attributes: Attributes,
    ) -> anyhow::Result<()> {
        self.ask(family, command, NlmF::ACK, attributes)?;
        Ok(())
    }

    /// Sends a question, and reads the answers.
    fn ask(
        &self,
        family: u16,
        command: u8,
        flags: NlmF,
        attributes: Attributes,
    ) -> anyhow::Result<Vec<Message>> {
        let question = GenlmsghdrBuilder::default()
            .cmd(command)
            .version(1)
            .attrs(attributes)
            .build()?;
        talk::ask(&self.0, family, flags, question)
    }

    /// Hears what is sent to a group, too.
    pub(crate) fn join(&self, group: u32) -> anyhow::Result<()> {
        self.0
            .add_mcast_membership(Groups::new_groups(&[group]))
            .map_err(|error| anyhow!("{error}"))
            .context("the kernel does not let this program hear what happens")
    }

    /// Waits for messages that come by themselves.
    pub(crate) fn hear(&self) -> anyhow::Result<Heard> {
        let messages = match self.0.recv::<u16, Message>() {
            Ok((messages, _)) => messages,
            Err(SocketError::Io(error))
                if error.raw_os_error() == Some(Errno::NOBUFS.raw_os_error()) =>
            {
                return Ok(Heard::Lost);
            }
            Err(error) => {
                return Err(
                    anyhow!("{error}").context("the kernel does not tell what happens any more")
                )
            }
        };
        let mut heard = Vec::new();
        for message in messages {
            let message = message
                .map_err(|error| anyhow!("{error}"))
                .context(NOT_UNDERSTOOD)?;
            if let Some(payload) = message.get_payload() {
                heard.push((*message.nl_type(), payload.clone()));
            }
        }
        Ok(Heard::Messages(heard))
    }
}

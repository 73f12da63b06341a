// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A question to the kernel by netlink, and its answers.

use std::fmt::Debug;

use anyhow::{anyhow, bail, Context};
use neli::consts::nl::NlmF;
use neli::genl::{AttrTypeBuilder, Nlattr, NlattrBuilder};
use neli::nl::{NlPayload, NlmsghdrBuilder};
use neli::socket::synchronous::NlSocketHandle;
use neli::types::{Buffer, GenlBuffer};
use neli::{FromBytesWithInput, Size, ToBytes};

/// Attributes by number.
pub(crate) type Attributes = GenlBuffer<u16, Buffer>;

/// What the kernel said in place of an answer.
#[derive(Debug, thiserror::Error)]
#[error("the kernel refuses to answer: {0}")]
pub(crate) struct Refused(pub(crate) std::io::Error);

/// What there is to say of bytes that are no message, or of a message without what it must have.
pub(crate) const NOT_UNDERSTOOD: &str = "the kernel said what this program does not understand";

/// An attribute for a question.
pub(crate) fn attribute(
    number: u16,
    payload: impl Size + ToBytes,
) -> anyhow::Result<Nlattr<u16, Buffer>> {
    let kind = AttrTypeBuilder::default().nla_type(number).build()?;
    let attribute = NlattrBuilder::default().nla_type(kind).nla_payload(payload);
    Ok(attribute.build()?)
}

/// The attribute of a number.
pub(crate) fn find(attributes: &Attributes, number: u16) -> Option<&Nlattr<u16, Buffer>> {
    attributes
        .iter()
        .find(|attribute| *attribute.nla_type().nla_type() == number)
}

/// How often a dump is asked for until nothing changes meanwhile.
const DUMPS: u32 = 10;

/// Asks a question of a type. What a dump lists may be from before and from after a change, if it changes all the time.
pub(crate) fn ask<P>(
    socket: &NlSocketHandle,
    kind: u16,
    flags: NlmF,
    question: P,
) -> anyhow::Result<Vec<P>>
where
    P: Size + ToBytes + FromBytesWithInput<Input = usize> + Clone + Debug,
{
    let mut answers = ask_once(socket, kind, flags, question.clone())?;
    for _ in 1..DUMPS {
        if answers.consistent {
            break;
        }
        answers = ask_once(socket, kind, flags, question.clone())?;
    }
    Ok(answers.messages)
}

/// What the kernel answers.
struct Answers<P> {
    messages: Vec<P>,
    /// Nothing changed meanwhile.
    consistent: bool,
}

/// Sends a question, and reads the answers. The last one is followed by an acknowledgement, or the mark at the end of a dump.
fn ask_once<P>(
    socket: &NlSocketHandle,
    kind: u16,
    flags: NlmF,
    question: P,
) -> anyhow::Result<Answers<P>>
where
    P: Size + ToBytes + FromBytesWithInput<Input = usize> + Clone + Debug,
{
    let question = NlmsghdrBuilder::default()
        .nl_type(kind)
        .nl_flags(NlmF::REQUEST | flags)
        .nl_payload(NlPayload::Payload(question))
        .build()?;
    socket
        .send(&question)
        .map_err(|error| anyhow!("{error}"))
        .context("the kernel did not take a question")?;
    let mut answers = Answers {
        messages: Vec::new(),
        consistent: true,
    };
    loop {
        let (messages, _) = socket
            .recv::<u16, P>()
            .map_err(|error| anyhow!("{error}"))
            .context("the kernel did not answer")?;
        for message in messages {
            let message = message
                .map_err(|error| anyhow!("{error}"))
                .context(NOT_UNDERSTOOD)?;
            answers.consistent &= !message.nl_flags().contains(NlmF::DUMP_INTR);
            match message.nl_payload() {
                NlPayload::Payload(payload) => answers.messages.push(payload.clone()),
                NlPayload::Ack(_) | NlPayload::Empty => return Ok(answers),
                NlPayload::DumpExtAck(end) if *end.error() == 0 => return Ok(answers),
                NlPayload::DumpExtAck(end) => bail!(refused(*end.error())),
                NlPayload::Err(error) => bail!(refused(*error.error())),
            }
        }
    }
}

fn refused(error: i32) -> Refused {
    Refused(std::io::Error::from_raw_os_error(error.saturating_neg()))
}

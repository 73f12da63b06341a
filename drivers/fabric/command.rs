// SPDX-License-Identifier: GPL-2.0
//! Admin commands and their completions as bytes.

use nupa_proto::{
    admin::{AdminOpcode, Command, Completion, BODY_SIZE},
    status::AdminStatus,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A completion that no working controller writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Garbage {
    /// It belongs to another command.
    CommandId(u16),
    /// Its status is not defined.
    Status(u16),
}

/// Body of a result, or why the command was refused.
pub(crate) type Answer = Result<[u8; BODY_SIZE], AdminStatus>;

/// Composes a command; `None` if the body is too long.
pub(crate) fn encode<B: IntoBytes + Immutable>(
    opcode: AdminOpcode,
    id: u16,
    body: &B,
) -> Option<Command> {
    let mut bytes = [0; BODY_SIZE];
    let body = body.as_bytes();
    bytes.get_mut(..body.len())?.copy_from_slice(body);
    Some(Command {
        opcode: opcode.to_wire().into(),
        command_id: id.into(),
        reserved: 0.into(),
        body: bytes,
    })
}

/// Checks a completion against the command that is waiting for one.
pub(crate) fn decode(completion: &Completion, id: u16) -> Result<Answer, Garbage> {
    let completed = completion.command_id.get();
    if completed != id {
        return Err(Garbage::CommandId(completed));
    }
    let status = completion.status.get();
    match AdminStatus::try_from(status) {
        Ok(AdminStatus::Success) => Ok(Ok(completion.body)),
        Ok(refused) => Ok(Err(refused)),
        Err(_) => Err(Garbage::Status(status)),
    }
}

/// The structure at the start of a result's body.
pub(crate) fn result<R: FromBytes + KnownLayout + Immutable + Unaligned>(
    body: &[u8; BODY_SIZE],
) -> Option<R> {
    R::read_from_prefix(body).ok().map(|(result, _)| result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nupa_proto::admin::{ById, Created};

    fn completion(id: u16, status: u16) -> Completion {
        Completion {
            command_id: id.into(),
            status: status.into(),
            valid: 1.into(),
            body: [7; BODY_SIZE],
        }
    }

    #[test]
    fn command_is_zero_extended() {
        let body = ById {
            id: 5.into(),
            reserved: 0.into(),
        };
        let command = encode(AdminOpcode::DestroyCq, 9, &body).unwrap();
        assert_eq!(command.command_id.get(), 9);
        assert_eq!(command.opcode.get(), AdminOpcode::DestroyCq.to_wire());
        assert_eq!(command.body[0], 5);
        assert!(command.body[1..].iter().all(|&byte| byte == 0));
        assert!(encode(AdminOpcode::QueryNode, 0, &[0u8; BODY_SIZE + 1]).is_none());
    }

    #[test]
    fn every_possible_status_is_an_answer_or_garbage() {
        for status in 0..=u16::MAX {
            match decode(&completion(3, status), 3) {
                Ok(Ok(body)) => assert_eq!((status, body), (0, [7; BODY_SIZE])),
                Ok(Err(refused)) => assert_eq!(refused.to_wire(), status),
                Err(garbage) => assert_eq!(garbage, Garbage::Status(status)),
            }
        }
        assert_eq!(decode(&completion(3, 0), 4), Err(Garbage::CommandId(3)));
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_garbage(
            head in proptest::prelude::any::<[u8; 8]>(),
            byte in proptest::prelude::any::<u8>(),
            id in proptest::prelude::any::<u16>(),
        ) {
            let mut bytes = [byte; 64];
            bytes[..8].copy_from_slice(&head);
            let completion: Completion = zerocopy::transmute!(bytes);
            if let Ok(Ok(body)) = decode(&completion, id) {
                assert_eq!((completion.command_id.get(), completion.status.get()), (id, 0));
                assert!(result::<Created>(&body).is_some());
            }
        }
    }

    #[test]
    fn result_is_the_start_of_the_body() {
        let mut body = [0; BODY_SIZE];
        body[0] = 42;
        assert_eq!(result::<Created>(&body).unwrap().id.get(), 42);
    }
}

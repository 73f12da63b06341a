// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Bodies of admin commands and results: a structure, zero-extended.

use nupa_proto::admin::BODY_SIZE;
use nupa_proto::status::AdminStatus;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a body.
pub(crate) type Body = [u8; BODY_SIZE];

/// A body that says nothing.
pub(crate) const EMPTY: Body = [0; BODY_SIZE];

/// Reads the structure at the start of a body. What follows it must be zero.
pub(crate) fn parse<T: FromBytes + KnownLayout + Immutable>(body: &Body) -> Result<T, AdminStatus> {
    match T::read_from_prefix(body) {
        Ok((value, rest)) if rest.iter().all(|&byte| byte == 0) => Ok(value),
        _ => Err(AdminStatus::InvalidField),
    }
}

/// Checks that a body is all zero: the command takes no parameters.
pub(crate) fn nothing(body: &Body) -> Result<(), AdminStatus> {
    let empty = body.iter().all(|&byte| byte == 0);
    empty.then_some(()).ok_or(AdminStatus::InvalidField)
}

/// Makes a body of a structure.
pub(crate) fn compose<T: IntoBytes + Immutable>(value: &T) -> Body {
    let mut body = EMPTY;
    for (to, from) in body.iter_mut().zip(value.as_bytes()) {
        *to = *from;
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use nupa_proto::admin::{ById, Created};

    #[test]
    fn the_tail_of_a_body_must_be_zero() {
        let mut body = compose(&Created {
            id: 7.into(),
            ..Created::default()
        });
        let named = parse::<ById>(&body).map(|named| named.id.get());
        assert_eq!(named, Ok(7));
        assert_eq!(nothing(&body), Err(AdminStatus::InvalidField));
        body[BODY_SIZE - 1] = 1;
        assert!(parse::<ById>(&body).is_err());
        assert_eq!(nothing(&EMPTY), Ok(()));
    }
}

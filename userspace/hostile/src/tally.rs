// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was done, and how it ended.

use std::collections::BTreeMap;

use rustix::io::Errno;
use serde_json::{json, Map, Value};

/// Numbers of operations by class, and by how they ended.
#[derive(Debug, Default)]
pub(crate) struct Tally(BTreeMap<String, BTreeMap<String, u64>>);

impl Tally {
    /// Counts one.
    pub(crate) fn count(&mut self, class: &str, end: Result<(), Errno>) {
        let name = end.map_or_else(name_of, |()| "ok".to_owned());
        self.add(class, &name, 1);
    }

    fn add(&mut self, class: &str, end: &str, more: u64) {
        let ends = self.0.entry(class.to_owned()).or_default();
        let count = ends.entry(end.to_owned()).or_default();
        *count = count.saturating_add(more);
    }

    /// Adds all of another one, which is empty then.
    pub(crate) fn take(&mut self, other: &mut Self) {
        for (class, ends) in std::mem::take(&mut other.0) {
            for (end, count) in ends {
                self.add(&class, &end, count);
            }
        }
    }

    /// Adds what [`to_json`](Self::to_json) made of another one; what is not of that form does not count.
    pub(crate) fn take_json(&mut self, other: &Value) {
        for (class, ends) in other.as_object().into_iter().flatten() {
            for (end, count) in ends.as_object().into_iter().flatten() {
                self.add(class, end, count.as_u64().unwrap_or(0));
            }
        }
    }

    /// How many there were.
    pub(crate) fn total(&self) -> u64 {
        let ends = self.0.values().flat_map(BTreeMap::values);
        ends.fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// `{class: {end: count}}`
    pub(crate) fn to_json(&self) -> Value {
        let classes = self
            .0
            .iter()
            .map(|(class, ends)| (class.clone(), json!(ends)));
        Value::Object(classes.collect::<Map<_, _>>())
    }
}

/// Names of what requests end with; others are numbers.
const NAMES: [(Errno, &str); 25] = [
    (Errno::PERM, "EPERM"),
    (Errno::NOENT, "ENOENT"),
    (Errno::IO, "EIO"),
    (Errno::TOOBIG, "E2BIG"),
    (Errno::BADF, "EBADF"),
    (Errno::AGAIN, "EAGAIN"),
    (Errno::NOMEM, "ENOMEM"),
    (Errno::ACCESS, "EACCES"),
    (Errno::FAULT, "EFAULT"),
    (Errno::BUSY, "EBUSY"),
    (Errno::EXIST, "EEXIST"),
    (Errno::NODEV, "ENODEV"),
    (Errno::INVAL, "EINVAL"),
    (Errno::MFILE, "EMFILE"),
    (Errno::NOTTY, "ENOTTY"),
    (Errno::NOSPC, "ENOSPC"),
    (Errno::RANGE, "ERANGE"),
    (Errno::NODATA, "ENODATA"),
    (Errno::OVERFLOW, "EOVERFLOW"),
    (Errno::MSGSIZE, "EMSGSIZE"),
    (Errno::PROTONOSUPPORT, "EPROTONOSUPPORT"),
    (Errno::OPNOTSUPP, "EOPNOTSUPP"),
    (Errno::NETUNREACH, "ENETUNREACH"),
    (Errno::HOSTUNREACH, "EHOSTUNREACH"),
    (Errno::TIMEDOUT, "ETIMEDOUT"),
];

fn name_of(errno: Errno) -> String {
    let known = NAMES.iter().find(|(value, _)| *value == errno);
    known.map_or_else(
        || errno.raw_os_error().to_string(),
        |(_, name)| (*name).to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_go_through_json_and_add_up() {
        let (mut one, mut other) = (Tally::default(), Tally::default());
        one.count("kicks", Ok(()));
        one.count("kicks", Err(Errno::INVAL));
        one.count("kicks", Err(Errno::from_raw_os_error(123)));
        let text = one.to_json().to_string();
        other.take_json(&serde_json::from_str(&text).unwrap());
        other.take_json(&json!({"kicks": 7, "maps": {"ok": "many"}}));
        other.take(&mut one);
        assert_eq!((one.total(), other.total()), (0, 6));
        assert_eq!(
            other.to_json(),
            json!({"kicks": {"123": 2, "EINVAL": 2, "ok": 2}, "maps": {"ok": 0}})
        );
    }
}

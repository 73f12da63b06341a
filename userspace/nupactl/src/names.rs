// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Names of nodes.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use anyhow::{bail, Context};

/// Where they are.
const FILE: &str = "/etc/nupa/nodes.conf";

/// Names by node id.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<u16, String>);

impl Names {
    /// Reads the file; nobody has a name without one.
    pub(crate) fn read() -> anyhow::Result<Self> {
        match fs::read_to_string(Path::new(FILE)) {
            Ok(text) => Self::parse(&text).context(FILE),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).context(FILE),
        }
    }

    /// Parses lines of an id and a name; `#` begins a comment.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut names = BTreeMap::new();
        for (line, number) in text.lines().zip(1u32..) {
            let words = line
                .split('#')
                .next()
                .unwrap_or_default()
                .split_whitespace();
            let (id, name) = match words.collect::<Vec<_>>()[..] {
                [] => continue,
                [id, name] => (id, name),
                _ => bail!("line {number} is not a node id and a name: {line}"),
            };
            let id = id.parse().with_context(|| {
                format!("line {number}: `{id}` is not a node id, which is a number")
            })?;
            if let Some(other) = names.insert(id, name.to_owned()) {
                bail!("line {number}: node {id} has the name `{other}` already");
            }
        }
        Ok(Self(names))
    }

    /// The name of a node.
    pub(crate) fn of(&self, node: u16) -> Option<String> {
        self.0.get(&node).cloned()
    }

    /// The node that has a name, the first one if several have.
    pub(crate) fn node(&self, name: &str) -> Option<u16> {
        let mut all = self.0.iter();
        all.find_map(|(node, known)| (known == name).then_some(*node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_id_and_a_name() {
        let names = Names::parse("# rack 1\n1 alpha\n\n  12\tbeta # the slow one\n").unwrap();
        assert_eq!(names.of(1).as_deref(), Some("alpha"));
        assert_eq!(names.of(12).as_deref(), Some("beta"));
        assert_eq!(names.of(2), None);
        assert_eq!((names.node("beta"), names.node("gamma")), (Some(12), None));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        for (text, part) in [
            ("1\n", "line 1 is not a node id and a name"),
            ("1 a b\n", "line 1 is not"),
            ("1 a\nx b\n", "line 2: `x` is not a node id"),
            ("70000 a\n", "`70000` is not a node id"),
            ("1 a\n1 b\n", "line 2: node 1 has the name `a` already"),
        ] {
            let error = format!("{:#}", Names::parse(text).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }
}

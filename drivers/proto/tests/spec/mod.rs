// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Compares tables of a specification with the code.

#![allow(
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests fail by panicking"
)]

/// A field of a layout: name, offset, and bytes up to the next one.
pub type Field = (&'static str, usize, usize);

/// Offsets and sizes of all fields, in order; names that are missing would not compile.
macro_rules! layout {
    ($name:ident { $($field:ident),+ $(,)? }) => {{
        let $name { $($field: _),+ } = <$name as zerocopy::FromZeros>::new_zeroed();
        let starts = [$((stringify!($field), std::mem::offset_of!($name, $field))),+];
        let ends = starts.iter().skip(1).map(|(_, at)| *at).chain([size_of::<$name>()]);
        let fields = starts.iter().zip(ends).map(|((name, at), end)| (*name, *at, end - at));
        (stringify!($name), size_of::<$name>(), fields.collect::<Vec<$crate::spec::Field>>())
    }};
}

/// Compares values and names of an enumeration with the first two columns of the table that follows a line.
macro_rules! enumeration {
    ($spec:expr, $intro:expr, $name:ident) => {
        let all = $name::ALL
            .iter()
            .map(|v| (v.to_wire().to_string(), format!("{v:?}")));
        let hex = |(value, name): (String, String)| match value.strip_prefix("0x") {
            None => (value, name),
            Some(hex) => (
                u32::from_str_radix(hex, 16).expect("a number").to_string(),
                name,
            ),
        };
        let found: Vec<_> = $crate::spec::values($spec, $intro)
            .into_iter()
            .map(hex)
            .collect();
        assert_eq!(found, all.collect::<Vec<_>>());
    };
}

/// The cells of the table that follows a line.
pub fn table(spec: &'static str, intro: &str) -> Vec<Vec<&'static str>> {
    let at = spec
        .find(intro)
        .unwrap_or_else(|| panic!("no \"{intro}\" in the specification"));
    let lines = spec[at..]
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .skip(2);
    let rows = lines.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

/// Values and names of a table.
pub fn values(spec: &'static str, intro: &str) -> Vec<(String, String)> {
    table(spec, intro)
        .iter()
        .map(|row| (row[0].into(), row[1].trim_matches('`').into()))
        .collect()
}

/// Compares layouts with their tables.
pub fn check_layouts(spec: &'static str, layouts: &[(&'static str, usize, Vec<Field>)]) {
    for (name, size, fields) in layouts {
        let rows = table(spec, &format!("\n`{name}`, {size} bytes:"));
        let expected: Vec<[String; 3]> = fields
            .iter()
            .map(|(field, at, len)| [format!("0x{at:02x}"), len.to_string(), format!("`{field}`")])
            .collect();
        let found: Vec<[String; 3]> = rows
            .iter()
            .map(|row| [row[0], row[1], row[2]].map(String::from))
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

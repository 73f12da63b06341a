// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Others' queue pairs and regions, as one knows them who has been told all of their numbers.

/// A queue pair that is connected to somebody else, and a region that its peer may write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Node that it is on.
    pub(crate) node: u16,
    /// Number of the queue pair.
    pub(crate) qpn: u32,
    /// Key of the region.
    pub(crate) key: u32,
    /// Address of the region's first byte, as its key has it.
    pub(crate) address: u64,
}

/// A target on the command line.
pub(crate) fn parse(text: &str) -> Result<Target, String> {
    let fields: Option<Vec<u64>> = text.split(':').map(number).collect();
    let target = match fields.as_deref() {
        Some([node, qpn, key, address]) => fitting(*node, *qpn, *key, *address),
        _ => None,
    };
    target.ok_or_else(|| "not NODE:QPN:RKEY:ADDRESS, such as 1:17:0x302:0x7f0000001000".to_owned())
}

fn fitting(node: u64, qpn: u64, key: u64, address: u64) -> Option<Target> {
    Some(Target {
        node: node.try_into().ok()?,
        qpn: qpn.try_into().ok()?,
        key: key.try_into().ok()?,
        address,
    })
}

fn number(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_decimal_or_hexadecimal() {
        let target = Target {
            node: 1,
            qpn: 17,
            key: 0x302,
            address: 1 << 44,
        };
        assert_eq!(parse("1:17:0x302:0x100000000000"), Ok(target));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for text in [
            "",
            "1:2:3",
            "1:2:3:4:5",
            "65536:2:3:4",
            "1:2:0x100000000:4",
            "1:x:3:4",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}

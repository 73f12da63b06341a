// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Bandwidth as people, or programs, read it.

use schemars::JsonSchema;
use serde::Serialize;

use super::probe::Amount;
use super::Transport;
use crate::reach::Way;
use crate::view;

/// Bandwidth to a node and from it, one after the other. Of TCP all bytes were compared, of RDMA the last messages.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Bandwidth {
    /// Id of the node.
    node: u16,
    /// Its name in /etc/nupa/nodes.conf.
    name: Option<String>,
    /// The interface here.
    netdev: String,
    /// What it was measured over: tcp or rdma.
    transport: &'static str,
    /// Bytes of each message.
    size: u32,
    /// To the node.
    sent: Moved,
    /// From the node.
    received: Moved,
}

/// Bytes that went one way.
#[derive(Debug, Serialize, JsonSchema)]
struct Moved {
    /// Bytes.
    bytes: u64,
    /// Seconds until the last of them had come.
    seconds: f64,
    /// Bytes in a second.
    bytes_per_second: u64,
}

impl Bandwidth {
    pub(super) fn new(
        way: Way,
        transport: Transport,
        size: u32,
        sent: Amount,
        received: Amount,
    ) -> Self {
        Self {
            node: way.node,
            name: way.name,
            netdev: way.netdev,
            transport: transport.name(),
            size,
            sent: moved(&sent),
            received: moved(&received),
        }
    }
}

fn moved(amount: &Amount) -> Moved {
    Moved {
        bytes: amount.bytes,
        seconds: amount.time.as_secs_f64(),
        bytes_per_second: amount.rate(),
    }
}

/// Bytes in a second, for people.
pub(super) fn rate(rate: u64) -> String {
    format!("{}/s", view::bytes(rate))
}

/// What came of one direction, in a line.
pub(super) fn text(amount: &Amount) -> String {
    format!(
        "{} ({:.2} Gb/s), {} in {:.2} s",
        rate(amount.rate()),
        amount.rate() as f64 * 8e-9,
        view::bytes(amount.bytes),
        amount.time.as_secs_f64()
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_line_has_the_rate_and_what_it_is_of() {
        let amount = Amount {
            bytes: 500_000_000,
            time: Duration::from_millis(500),
        };
        let expected = "1.0 GB/s (8.00 Gb/s), 500.0 MB in 0.50 s";
        assert_eq!(text(&amount), expected);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Counters of the port, as sysfs and `rdma statistic` show them.

use crate::counter_sets;
use kernel::prelude::*;
use nk_rdma::{CounterName, Traffic};
use nupa_fabric::Port;
use nupa_proto::admin::{PortCounters, PORT_COUNTER_NAMES};
use zerocopy::{little_endian::U64, IntoBytes};

/// Counters that the controller has, before those of sets.
const OF_PORT: usize = PORT_COUNTER_NAMES.len();
/// Counters.
const COUNT: usize = OF_PORT + counter_sets::COUNT;
/// Room for a name and the byte that ends it.
const NAME: usize = 32;

/// A name as C has it.
const fn terminated(name: &str) -> [u8; NAME] {
    let (from, mut to) = (name.as_bytes(), [0; NAME]);
    let mut at = 0;
    while at < from.len() {
        to[at] = from[at];
        at += 1;
    }
    to
}

static BYTES: [[u8; NAME]; COUNT] = {
    let mut bytes = [[0; NAME]; COUNT];
    let mut at = 0;
    while at < COUNT {
        let name = if at < OF_PORT {
            PORT_COUNTER_NAMES[at]
        } else {
            counter_sets::NAMES[at - OF_PORT]
        };
        bytes[at] = terminated(name);
        at += 1;
    }
    bytes
};

/// Names of all counters, in order.
pub(crate) static COUNTERS: [CounterName; COUNT] = {
    let mut names = [const { CounterName::new(c"") }; COUNT];
    let mut at = 0;
    while at < COUNT {
        names[at] = match CStr::from_bytes_until_nul(&BYTES[at]) {
            Ok(name) => CounterName::new(name),
            Err(_) => CounterName::new(c""),
        };
        at += 1;
    }
    names
};

/// Reads all counters, in order. Those of queue pairs are none of the port's own: the core adds what it finds in sets. Sleeps.
pub(crate) fn read_counters(port: &Port, values: &mut [u64]) -> Result {
    let counters: PortCounters = port.counters()?;
    values.fill(0);
    for (value, bytes) in values.iter_mut().zip(counters.as_bytes().chunks_exact(8)) {
        *value = <[u8; 8]>::try_from(bytes).map_or(0, u64::from_le_bytes);
    }
    Ok(())
}

/// What went and came with verbs; data of a READ goes against its request. Sleeps.
pub(crate) fn read_traffic(port: &Port) -> Result<Traffic> {
    let counters: PortCounters = port.counters()?;
    let moved = |with: U64, against: U64, back: U64| {
        let own = with.get().wrapping_sub(against.get());
        own.wrapping_add(back.get())
    };
    let (asked, served) = (counters.tx_read_bytes, counters.rx_read_bytes);
    Ok(Traffic {
        xmit_bytes: moved(counters.tx_message_bytes, asked, served),
        rcv_bytes: moved(counters.rx_message_bytes, served, asked),
        xmit_packets: counters.tx_messages.get(),
        rcv_packets: counters.rx_messages.get(),
    })
}

// SPDX-License-Identifier: GPL-2.0
//! The network device on a NUPA fabric: Ethernet frames of up to 64 KiB between the nodes, and TCP super-frames of up
//! to 200 KiB, over the port of `nupa_fabric`.
//!
//! - `driver`: binds to the auxiliary device, registers `nupanet%d`.
//! - `nic`: the device's state and what the network core asks of it; `ethtool`, `filter`, `spread`, `stats` are parts of that.
//! - `channel`: a transmit and a receive queue with their interrupt; `tx` and `rx` are its two halves, `poll`
//!   what drives both, `frame` the
//!   translation between packets and what the fabric carries, `offload` the checks of what a peer says of a frame.
//! - `xdp`: what becomes of received frames while a program is attached.
//! - `moderation`: interrupt moderation that follows the load, by the rule in `adaptive`.
//! - `events`: link, reset and loss of the port.

#![forbid(unsafe_code)]

mod adaptive;
mod channel;
mod driver;
mod ethtool;
mod events;
mod filter;
#[cfg(nupa_hostile)]
mod forged;
mod frame;
mod moderation;
mod nic;
mod offload;
mod poll;
mod rx;
mod settings;
mod spread;
mod stats;
mod tx;
mod xdp;

nk::module_version!(nupa_proto::VERSION);

kernel::module_auxiliary_driver! {
    type: driver::Driver,
    name: "nupa_net",
    authors: ["The NUPA developers"],
    description: "Network device on a NUPA fabric",
    license: "GPL v2",
}

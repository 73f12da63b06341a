// SPDX-License-Identifier: GPL-2.0
//! Networking: devices, buffers, polling, receive memory, ethtool.

mod address;
mod detached;
mod device;
pub mod ethtool;
mod features;
mod napi;
mod offload;
mod operations;
mod page_pool;
mod registration;
mod skb;
mod stats;
mod tx_fifo;
mod tx_queue;
pub mod xdp;

pub use self::{
    address::{AddressList, MacAddress},
    detached::{is_alone, DetachedNapi, Repeat},
    device::{Device, Rtnl, RtnlGuard},
    features::Features,
    napi::{Napi, NapiContext, Poll, QueueLink},
    offload::{Gso, GsoKind},
    operations::{Operations, Transmit},
    page_pool::{PagePool, RxBuffer},
    registration::{Config, Registration, Unregistered},
    skb::{RxSkb, Segments, SkBuff, MAX_FRAGS},
    stats::{LinkStats, RxQueueStats, TxQueueStats},
    tx_fifo::{Packet, Segment, TxFifo, MAX_SEGMENTS},
    tx_queue::{TxQueue, TxQueueGuard, TxQueueRef},
};

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Admin commands, and nodes that come and go.

pub(crate) mod cq;
pub(crate) mod eq;
pub(crate) mod filter;
pub(crate) mod gid;
pub(crate) mod modify_qp;
pub(crate) mod mr;
pub(crate) mod multicast;
pub(crate) mod node;
pub(crate) mod pages;
pub(crate) mod pd;
pub(crate) mod prepare;
pub(crate) mod qp;
pub(crate) mod ring;
pub(crate) mod srq;

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Admin commands, and nodes that come and go.

pub(crate) mod cq;
pub(crate) mod modify_qp;
pub(crate) mod mr;
pub(crate) mod node;
pub(crate) mod objects;
pub(crate) mod qp;
pub(crate) mod srq;

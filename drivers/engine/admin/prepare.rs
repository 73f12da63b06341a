// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What admin commands need, got before the node is: memory, and page lists that are read.
//!
//! What a command must not have for its size is not got; the command is refused when it is executed.

use crate::{
    hal::{Memory, Storage},
    node::Node,
    state::{limits::Limits, resources::Resources, ring::RingSize},
};
use nupa_proto::{
    admin::{
        AllocKey, CreateCq, CreateEq, CreateMr, CreateQp, CreateSrq, KeyKind, ModifyMr, PageList,
        ResizeCq, ACCESS_ALL, MR_MASK_PAGES, QP_FLAG_SRQ,
    },
    doorbell::SLOT_NONE,
};

impl<S: Storage> Node<S> {
    /// Hands over what the admin command that is executed next needs; after it, has back what is left of that, and what the command has left.
    pub fn swap_resources(&mut self, resources: &mut Resources<S>) {
        // They are large, and kernel stacks are small.
        core::mem::swap(&mut self.resources, resources);
    }
}

/// Each of these gets what the command of its name needs. May allocate and sleep.
impl<S: Storage> Resources<S> {
    /// For [`Node::create_eq`].
    pub fn prepare_eq(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateEq) {
        let size = limits.event_ring(body.log_entries);
        self.prepare_ring(memory, limits, &body.ring, size);
    }

    /// For [`Node::create_cq`].
    pub fn prepare_cq(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateCq) {
        let size = limits.completion_ring(body.log_entries);
        self.prepare_ring(memory, limits, &body.ring, size);
    }

    /// For [`Node::resize_cq`].
    pub fn prepare_resize(&mut self, memory: &impl Memory, limits: &Limits, body: &ResizeCq) {
        let size = limits.completion_ring(body.log_entries);
        self.prepare_ring(memory, limits, &body.ring, size);
    }

    /// For [`Node::create_srq`].
    pub fn prepare_srq(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateSrq) {
        let size = limits.recv_ring(body.log_entries, body.log_stride);
        self.prepare_ring(memory, limits, &body.ring, size);
    }

    /// For [`Node::create_qp`].
    pub fn prepare_qp(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateQp) {
        if body.sq_slot.get() != SLOT_NONE {
            let size = limits.send_ring(body.log_sq);
            self.prepare_ring(memory, limits, &body.sq, size);
        }
        if body.rq_slot.get() != SLOT_NONE && body.flags & QP_FLAG_SRQ == 0 {
            let size = limits.recv_ring(body.log_rq, body.log_rq_stride);
            self.prepare_ring(memory, limits, &body.rq, size);
        }
    }

    /// For [`Node::create_mr`].
    pub fn prepare_mr(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateMr) {
        let (iova, len) = (body.iova.get(), body.len.get());
        let count = u64::from(body.pages.pages.get());
        let allowed = body.access.get() & !ACCESS_ALL == 0;
        if allowed && len <= limits.max_mr_size && count <= limits.max_pages {
            self.prepare_list(memory, &body.pages, iova, len, 1);
        }
    }

    /// For [`Engine::modify_mr`](crate::Engine::modify_mr).
    pub fn prepare_modify_mr(&mut self, memory: &impl Memory, limits: &Limits, body: &ModifyMr) {
        if body.mask.get() & MR_MASK_PAGES != 0 {
            self.prepare_mr(memory, limits, &body.mr);
        }
    }

    /// For [`Node::alloc_key`].
    pub fn prepare_key(&mut self, limits: &Limits, body: &AllocKey) {
        let count = body.max_pages.get();
        let fast = body.kind == KeyKind::FastReg.to_wire();
        if fast && (1..=limits.max_fast_reg_pages).contains(&count) {
            self.prepare_pages(count as usize);
        }
    }

    fn prepare_ring(
        &mut self,
        memory: &impl Memory,
        limits: &Limits,
        list: &PageList,
        size: Option<RingSize>,
    ) {
        let fits = u64::from(list.pages.get()) <= limits.max_pages;
        if let Some(size) = size.filter(|_| fits) {
            self.prepare_list(memory, list, 0, size.bytes(), size.align());
        }
    }
}

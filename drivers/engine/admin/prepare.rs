// SPDX-License-Identifier: GPL-2.0 OR MIT
//! What admin commands need, got before the node is: memory, and page lists that are read.
//!
//! What a command must not have for its size is not got; the command is refused when it is executed.

use super::ring::{ring_range, stride_is_valid};
use crate::{
    hal::{Memory, Storage},
    node::Node,
    state::{limits::Limits, resources::Resources},
};
use nupa_proto::{
    admin::{
        AllocKey, CreateCq, CreateEq, CreateMr, CreateQp, CreateSrq, KeyKind, ModifyMr, PageList,
        ResizeCq, ACCESS_ALL, MR_MASK_PAGES, QP_FLAG_SRQ,
    },
    cqe::CQE_SIZE,
    doorbell::SLOT_NONE,
    eqe::EQE_SIZE,
    wqe::BLOCK_SIZE,
};

impl<S: Storage> Node<S> {
    /// Hands over what the admin command that is executed next needs, in place of what is left of the one before.
    pub fn provide(&mut self, resources: Resources<S>) {
        self.resources = resources;
    }

    /// What is left of that, and what the command has left.
    pub fn take_resources(&mut self) -> Resources<S> {
        core::mem::take(&mut self.resources)
    }
}

/// Each of these gets what the command of its name needs. May allocate and sleep.
impl<S: Storage> Resources<S> {
    /// For [`Node::create_eq`].
    pub fn prepare_eq(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateEq) {
        self.prepare_ring(memory, limits, &body.ring, body.log_entries, EQE_SIZE);
    }

    /// For [`Node::create_cq`].
    pub fn prepare_cq(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateCq) {
        self.prepare_ring(memory, limits, &body.ring, body.log_entries, CQE_SIZE);
    }

    /// For [`Node::resize_cq`].
    pub fn prepare_resize(&mut self, memory: &impl Memory, limits: &Limits, body: &ResizeCq) {
        self.prepare_ring(memory, limits, &body.ring, body.log_entries, CQE_SIZE);
    }

    /// For [`Node::create_srq`].
    pub fn prepare_srq(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateSrq) {
        self.prepare_recv(
            memory,
            limits,
            &body.ring,
            body.log_entries,
            body.log_stride,
        );
    }

    /// For [`Node::create_qp`].
    pub fn prepare_qp(&mut self, memory: &impl Memory, limits: &Limits, body: &CreateQp) {
        if body.sq_slot.get() != SLOT_NONE {
            self.prepare_ring(memory, limits, &body.sq, body.log_sq, BLOCK_SIZE);
        }
        if body.rq_slot.get() != SLOT_NONE && body.flags & QP_FLAG_SRQ == 0 {
            let stride = body.log_rq_stride;
            self.prepare_recv(memory, limits, &body.rq, body.log_rq, stride);
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

    fn prepare_recv(
        &mut self,
        memory: &impl Memory,
        limits: &Limits,
        list: &PageList,
        log_entries: u8,
        log_stride: u8,
    ) {
        if stride_is_valid(log_stride) {
            let stride = 1usize << log_stride;
            self.prepare_ring(memory, limits, list, log_entries, stride);
        }
    }

    fn prepare_ring(
        &mut self,
        memory: &impl Memory,
        limits: &Limits,
        list: &PageList,
        log_entries: u8,
        size: usize,
    ) {
        if limits.takes_ring(log_entries) {
            let log_size = size.trailing_zeros() as u8;
            let (len, align) = ring_range(log_entries, log_size);
            self.prepare_list(memory, list, 0, len, align);
        }
    }
}

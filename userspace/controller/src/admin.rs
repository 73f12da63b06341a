// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Executes admin commands: decodes them, and calls the engine.

use nupa_engine::engine::Engine;
use nupa_engine::hal::Memory;
use nupa_proto::admin::{
    AdminOpcode, AllocKey, BufferRef, ById, Command, CreateCq, CreateEq, CreateMr, CreateQp,
    CreateSrq, Created, ModifyCq, ModifyMr, ModifyQp, ModifySrq, ResizeCq, SetGid, SetRss,
    SetRxFilter,
};
use nupa_proto::status::AdminStatus;
use zerocopy::IntoBytes;

use crate::body::{compose, nothing, parse, Body, EMPTY};
use crate::controller::Controller;
use crate::nodes::Nodes;
use crate::query;

/// What a command comes to: the body of its completion, or why it was refused.
pub(crate) type Outcome = Result<Body, AdminStatus>;

/// Executes a command of a node.
pub(crate) fn execute(
    engine: &mut Engine,
    nodes: &mut Nodes,
    id: u16,
    command: &Command,
) -> Outcome {
    let opcode = AdminOpcode::try_from(command.opcode.get());
    let opcode = opcode.map_err(|_| AdminStatus::Unsupported)?;
    if command.reserved.get() != 0 {
        return Err(AdminStatus::InvalidField);
    }
    let body = &command.body;
    match opcode {
        AdminOpcode::QueryNode => query::node(nodes, by_id(body)?),
        AdminOpcode::ListNodes => query::list_nodes(nodes, id, &buffer(body)?),
        AdminOpcode::ModifyQp => done(engine.modify_qp(nodes, id, &parse::<ModifyQp>(body)?)),
        AdminOpcode::DestroyQp => done(engine.destroy_qp(nodes, id, by_id(body)?)),
        _ => {
            let controller = nodes.get_mut(id).ok_or(AdminStatus::Internal)?;
            execute_local(controller, opcode, body)
        }
    }
}

/// Executes a command that concerns no other node.
fn execute_local(controller: &mut Controller, opcode: AdminOpcode, body: &Body) -> Outcome {
    let Controller { node, platform, .. } = controller;
    match opcode {
        AdminOpcode::QueryDevice => nothing(body).map(|()| query::device(node)),
        AdminOpcode::QueryCounters => query::counters(controller, &buffer(body)?),
        AdminOpcode::CreateEq => created(node.create_eq(platform, &parse::<CreateEq>(body)?)),
        AdminOpcode::DestroyEq => done(node.destroy_eq(by_id(body)?)),
        AdminOpcode::CreateCq => created(node.create_cq(platform, &parse::<CreateCq>(body)?)),
        AdminOpcode::ModifyCq => done(node.modify_cq(platform, &parse::<ModifyCq>(body)?)),
        AdminOpcode::ResizeCq => done(node.resize_cq(platform, &parse::<ResizeCq>(body)?)),
        AdminOpcode::DestroyCq => done(node.destroy_cq(by_id(body)?)),
        AdminOpcode::AllocPd => nothing(body).and_then(|()| created(node.alloc_pd())),
        AdminOpcode::DeallocPd => done(node.dealloc_pd(by_id(body)?)),
        AdminOpcode::CreateMr
        | AdminOpcode::DestroyMr
        | AdminOpcode::ModifyMr
        | AdminOpcode::AllocKey => execute_on_key(controller, opcode, body),
        AdminOpcode::CreateQp => {
            let parameters = qp_parameters(&platform.memory, &buffer(body)?)?;
            created(node.create_qp(platform, &parameters))
        }
        AdminOpcode::QueryQp => node.query_qp(by_id(body)?).map(|state| compose(&state)),
        AdminOpcode::SetRxFilter => {
            done(node.set_rx_filter(platform, &parse::<SetRxFilter>(body)?))
        }
        AdminOpcode::SetRss => done(node.set_rss(platform, &parse::<SetRss>(body)?)),
        AdminOpcode::CreateSrq
        | AdminOpcode::ModifySrq
        | AdminOpcode::QuerySrq
        | AdminOpcode::DestroySrq => execute_on_srq(controller, opcode, body),
        AdminOpcode::SetGid => done(node.set_gid(&parse::<SetGid>(body)?)),
        AdminOpcode::QueryNode
        | AdminOpcode::ListNodes
        | AdminOpcode::ModifyQp
        | AdminOpcode::DestroyQp => Err(AdminStatus::Internal),
    }
}

/// Executes a command about a memory key.
fn execute_on_key(controller: &mut Controller, opcode: AdminOpcode, body: &Body) -> Outcome {
    let Controller { node, platform, .. } = controller;
    match opcode {
        AdminOpcode::CreateMr => created(node.create_mr(platform, &parse::<CreateMr>(body)?)),
        AdminOpcode::ModifyMr => created(node.modify_mr(platform, &parse::<ModifyMr>(body)?)),
        AdminOpcode::AllocKey => created(node.alloc_key(platform, &parse::<AllocKey>(body)?)),
        AdminOpcode::DestroyMr => done(node.destroy_mr(by_id(body)?)),
        _ => Err(AdminStatus::Internal),
    }
}

/// Executes a command about a shared receive queue.
fn execute_on_srq(controller: &mut Controller, opcode: AdminOpcode, body: &Body) -> Outcome {
    let Controller { node, platform, .. } = controller;
    match opcode {
        AdminOpcode::CreateSrq => created(node.create_srq(platform, &parse::<CreateSrq>(body)?)),
        AdminOpcode::ModifySrq => done(node.modify_srq(platform, &parse::<ModifySrq>(body)?)),
        AdminOpcode::QuerySrq => node.query_srq(by_id(body)?).map(|state| compose(&state)),
        AdminOpcode::DestroySrq => done(node.destroy_srq(by_id(body)?)),
        _ => Err(AdminStatus::Internal),
    }
}

/// Reads the parameters of a new queue pair.
fn qp_parameters(memory: &impl Memory, at: &BufferRef) -> Result<CreateQp, AdminStatus> {
    let mut parameters = CreateQp::default();
    if usize::try_from(at.len.get()) != Ok(size_of::<CreateQp>()) {
        return Err(AdminStatus::InvalidField);
    }
    let read = memory.read(at.addr.get(), parameters.as_mut_bytes());
    read.map_err(|_| AdminStatus::BadAddress)?;
    Ok(parameters)
}

/// The object that a body names.
fn by_id(body: &Body) -> Result<u32, AdminStatus> {
    let named = parse::<ById>(body)?;
    let valid = named.reserved.get() == 0;
    valid
        .then_some(named.id.get())
        .ok_or(AdminStatus::InvalidField)
}

/// The buffer that a body names.
fn buffer(body: &Body) -> Result<BufferRef, AdminStatus> {
    let buffer = parse::<BufferRef>(body)?;
    let valid = buffer.reserved.get() == 0;
    valid.then_some(buffer).ok_or(AdminStatus::InvalidField)
}

/// Outcome of a command that returns nothing.
fn done(result: Result<(), AdminStatus>) -> Outcome {
    result.map(|()| EMPTY)
}

/// Outcome of a command that made an object.
fn created(result: Result<u32, AdminStatus>) -> Outcome {
    result.map(|id| {
        compose(&Created {
            id: id.into(),
            ..Created::default()
        })
    })
}

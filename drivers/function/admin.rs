// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Executes admin commands: decodes them, and calls the engine.

use nupa_engine::{
    hal::{Memory, Storage},
    Engine, Limits, Resources,
};
use nupa_proto::admin::{
    AdminOpcode, AllocKey, BufferRef, ById, Command, CreateCq, CreateEq, CreateMr, CreateQp,
    CreateSrq, Created, GroupMember, ModifyCq, ModifyMr, ModifyQp, ModifySrq, ResizeCq, SetGid,
    SetRss, SetRxFilter,
};
use nupa_proto::status::AdminStatus;
use zerocopy::IntoBytes;

use crate::{
    body::{compose, nothing, parse, Body, EMPTY},
    function::Function,
    host::{Functions, Host},
    query,
};

/// What a command comes to: the body of its completion, or why it was refused.
pub(crate) type Outcome = Result<Body, AdminStatus>;

/// Gets what a command will need, before the node is had: what takes long. A command that is wrong gets nothing, and is refused when
/// it is executed. May allocate and sleep.
pub(crate) fn prepare<S: Storage>(
    memory: &impl Memory,
    limits: &Limits,
    command: &Command,
    prepared: &mut Prepared<S>,
) {
    let (resources, body) = (&mut prepared.resources, &command.body);
    let Ok(opcode) = AdminOpcode::try_from(command.opcode.get()) else {
        return;
    };
    let parsed = match opcode {
        AdminOpcode::CreateEq => {
            parse(body).map(|body| resources.prepare_eq(memory, limits, &body))
        }
        AdminOpcode::CreateCq => {
            parse(body).map(|body| resources.prepare_cq(memory, limits, &body))
        }
        AdminOpcode::ResizeCq => {
            parse(body).map(|body| resources.prepare_resize(memory, limits, &body))
        }
        AdminOpcode::CreateSrq => {
            parse(body).map(|body| resources.prepare_srq(memory, limits, &body))
        }
        AdminOpcode::CreateMr => {
            parse(body).map(|body| resources.prepare_mr(memory, limits, &body))
        }
        AdminOpcode::ModifyMr => {
            parse(body).map(|body| resources.prepare_modify_mr(memory, limits, &body))
        }
        AdminOpcode::AllocKey => parse(body).map(|body| resources.prepare_key(limits, &body)),
        AdminOpcode::CreateQp => {
            buffer(body)
                .and_then(|at| qp_parameters(memory, &at))
                .map(|parameters| {
                    resources.prepare_qp(memory, limits, &parameters);
                    prepared.qp = Some(parameters);
                })
        }
        _ => Ok(()),
    };
    // An error is found again when the command is executed.
    parsed.unwrap_or_default();
}

/// What was got for a command, and how far it is.
pub(crate) struct Prepared<S: Storage> {
    resources: Resources<S>,
    /// Parameters of a new queue pair, which lie in memory.
    qp: Option<CreateQp>,
    /// What it comes to, while a peer still writes to memory that the command has taken out of use.
    outcome: Option<Outcome>,
}

impl<S: Storage> Prepared<S> {
    /// Whether it is done, and waits for peers that still write to memory that it has taken out of use.
    pub(crate) fn is_done(&self) -> bool {
        self.outcome.is_some()
    }
}

/// How far a command is.
pub(crate) enum Progress {
    Done(Outcome),
    /// A part of it is done; the rest is to be executed once others had their turn.
    InPart,
    /// It is done, but a peer still writes to memory that it has taken out of use.
    Waits,
}

impl<S: Storage> Default for Prepared<S> {
    fn default() -> Self {
        Self {
            resources: Resources::default(),
            qp: None,
            outcome: None,
        }
    }
}

/// Executes a command of a node, or goes on with one, and leaves in `prepared` what is to be dropped after it.
pub(crate) fn execute<F: Functions>(
    engine: &mut Engine,
    functions: &mut F,
    id: u16,
    command: &Command,
    prepared: &mut Prepared<F::Storage>,
) -> Progress {
    let outcome = match prepared.outcome.take() {
        Some(outcome) => outcome,
        None => {
            let Some(function) = functions.function_mut(id) else {
                return Progress::Done(Err(AdminStatus::Internal));
            };
            function.node.swap_resources(&mut prepared.resources);
            let outcome = carry_out(engine, functions, id, command, prepared.qp.as_ref());
            if let Some(function) = functions.function_mut(id) {
                function.node.swap_resources(&mut prepared.resources);
            }
            if prepared.resources.is_in_part() {
                return Progress::InPart;
            }
            outcome
        }
    };
    if engine.writers_gone(functions, id) {
        return Progress::Done(outcome);
    }
    prepared.outcome = Some(outcome);
    Progress::Waits
}

/// The same, for a command whose memory the node has been given.
fn carry_out<F: Functions>(
    engine: &mut Engine,
    functions: &mut F,
    id: u16,
    command: &Command,
    qp: Option<&CreateQp>,
) -> Outcome {
    let opcode = AdminOpcode::try_from(command.opcode.get());
    let opcode = opcode.map_err(|_| AdminStatus::Unsupported)?;
    if command.reserved.get() != 0 {
        return Err(AdminStatus::InvalidField);
    }
    let body = &command.body;
    match opcode {
        AdminOpcode::QueryNode => query::node(functions, by_id(body)?),
        AdminOpcode::ListNodes => query::list_nodes(functions, id, &buffer(body)?),
        AdminOpcode::ModifyQp => done(engine.modify_qp(functions, id, &parse::<ModifyQp>(body)?)),
        AdminOpcode::DestroyQp => done(engine.destroy_qp(functions, id, by_id(body)?)),
        AdminOpcode::ModifyMr => {
            created(engine.modify_mr(functions, id, &parse::<ModifyMr>(body)?))
        }
        AdminOpcode::DestroyMr => done(engine.destroy_mr(functions, id, by_id(body)?)),
        _ => {
            let function = functions.function_mut(id).ok_or(AdminStatus::Internal)?;
            execute_local(function, opcode, body, qp)
        }
    }
}

/// Executes a command that concerns no other node.
fn execute_local<S: Storage, H: Host>(
    function: &mut Function<S, H>,
    opcode: AdminOpcode,
    body: &Body,
    qp: Option<&CreateQp>,
) -> Outcome {
    let Function { node, host, .. } = function;
    match opcode {
        AdminOpcode::QueryDevice => nothing(body).map(|()| query::device(function)),
        AdminOpcode::QueryCounters => query::counters(function, &buffer(body)?),
        AdminOpcode::CreateEq => created(node.create_eq(host, &parse::<CreateEq>(body)?)),
        AdminOpcode::DestroyEq => done(node.destroy_eq(by_id(body)?)),
        AdminOpcode::CreateCq => created(node.create_cq(host, &parse::<CreateCq>(body)?)),
        AdminOpcode::ModifyCq => done(node.modify_cq(host, &parse::<ModifyCq>(body)?)),
        AdminOpcode::ResizeCq => done(node.resize_cq(host, &parse::<ResizeCq>(body)?)),
        AdminOpcode::DestroyCq => done(node.destroy_cq(by_id(body)?)),
        AdminOpcode::AllocPd => nothing(body).and_then(|()| created(node.alloc_pd())),
        AdminOpcode::DeallocPd => done(node.dealloc_pd(by_id(body)?)),
        AdminOpcode::CreateMr => created(node.create_mr(host, &parse::<CreateMr>(body)?)),
        AdminOpcode::AllocKey => created(node.alloc_key(host, &parse::<AllocKey>(body)?)),
        AdminOpcode::CreateQp => {
            let read;
            let parameters = match qp {
                Some(parameters) => parameters,
                None => {
                    read = qp_parameters(host.memory(), &buffer(body)?)?;
                    &read
                }
            };
            created(node.create_qp(host, parameters))
        }
        AdminOpcode::QueryQp => {
            let qpn = by_id(body)?;
            node.count_bypassed_of(host, qpn);
            node.query_qp(qpn).map(|state| compose(&state))
        }
        AdminOpcode::SetRxFilter => done(node.set_rx_filter(host, &parse::<SetRxFilter>(body)?)),
        AdminOpcode::SetRss => done(node.set_rss(host, &parse::<SetRss>(body)?)),
        AdminOpcode::CreateSrq
        | AdminOpcode::ModifySrq
        | AdminOpcode::QuerySrq
        | AdminOpcode::DestroySrq => execute_on_srq(function, opcode, body),
        AdminOpcode::SetGid => done(node.set_gid(&parse::<SetGid>(body)?)),
        AdminOpcode::AttachMulticast => done(node.attach_multicast(&parse::<GroupMember>(body)?)),
        AdminOpcode::DetachMulticast => done(node.detach_multicast(&parse::<GroupMember>(body)?)),
        AdminOpcode::QueryNode
        | AdminOpcode::ListNodes
        | AdminOpcode::ModifyQp
        | AdminOpcode::DestroyQp
        | AdminOpcode::ModifyMr
        | AdminOpcode::DestroyMr => Err(AdminStatus::Internal),
    }
}

/// Executes a command about a shared receive queue.
fn execute_on_srq<S: Storage, H: Host>(
    function: &mut Function<S, H>,
    opcode: AdminOpcode,
    body: &Body,
) -> Outcome {
    let Function { node, host, .. } = function;
    match opcode {
        AdminOpcode::CreateSrq => created(node.create_srq(host, &parse::<CreateSrq>(body)?)),
        AdminOpcode::ModifySrq => done(node.modify_srq(host, &parse::<ModifySrq>(body)?)),
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

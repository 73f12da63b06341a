// SPDX-License-Identifier: GPL-2.0
//! From a pool of memory to a function that takes part.

use super::{
    copies::Copies,
    copy_workers::CopyWorkers,
    faults::FaultFiles,
    function::{PollerNapi, PoolFunction, DOORBELL_PAGES, NO_CPU},
    heartbeat::{Beat, HeartbeatTimer},
    host::{PoolHost, MAX_VECTORS},
    joined::{Joined, Member},
    kicks::Kicks,
    lock::OwnerLock,
    memory::{Copiers, NodeMemory},
    node::{Bell, KernelHal, Link, Nodes, PoolNode},
    poll_state::PollState,
    poller::Poller,
    sharing::Shared,
    storage::KernelStorage,
    window::{HostClock, PoolWindow},
};
use crate::{
    controller::Controller,
    hal::Function as _,
    instance::{Found, Instance},
    module_parameters,
    vector::VectorInterrupt,
};
use core::ops::Range;
use kernel::{
    cpu,
    device::{Bound, Core, Device},
    new_mutex,
    prelude::*,
    sync::{atomic::Atomic, Arc},
};
use nk::{
    hostmem::HostMemory,
    kthread::is_online,
    window::{Coherence, Extent, Window},
};
use nupa_engine::{node::NodeConfig, Limits, Peer};
use nupa_function::{
    pool::{NodeState, RateLimit, DEPARTURES, FAULTS},
    Function, FunctionConfig, Model, CAPS,
};
use nupa_pool::{JoinOptions, Pool, Refusal, Sharing, Survey};
use nupa_proto::{
    pool::CAP_POOL_LINES,
    regs::{CAP_HOST_DOORBELLS, CAP_PUSH, DEVICE_MEMORY_BASE},
};

/// What a driver that has found a pool makes of it.
pub(crate) struct PoolInstance<'bound> {
    _faults: FaultFiles,
    instance: Instance<'bound, Running>,
    _function: Closing,
}

/// Keeps the function looking for work.
struct Running(Arc<PoolFunction>);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.disable());
    }
}

/// Gives the DMA channel back, or ends the workers.
struct Stopping(Copiers);

impl Drop for Stopping {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Closes the function after all that uses it is gone.
struct Closing {
    function: Arc<PoolFunction>,
    _stopping: Stopping,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.function.close();
    }
}

/// What is known of the pool before it is looked at.
pub(super) struct Place {
    pub(super) window: Window,
    /// How others wake this host, as they find it in the pool; 0: they cannot.
    pub(super) own_bell: u64,
    /// How to wake others.
    pub(super) bell: Option<Arc<dyn Bell>>,
    /// What others wake.
    pub(super) poller: Arc<PollerNapi>,
    /// Whether the pool is known to outlive a loss of power.
    pub(super) persistent: bool,
}

/// Maps the memory of a pool, which is coherent if the module's parameters say so. Sleeps; errors as [`Window::of_dax`].
///
/// What holds no pool is somebody else's: of that no more than the first page is mapped, and read, and it is refused.
pub(super) fn map(
    device: &Device<Bound>,
    window: impl Fn(Coherence, Extent) -> Result<Window>,
) -> Result<Window> {
    let coherence = match *module_parameters::pool_coherent.value() {
        0 => Coherence::WriteBack,
        _ => Coherence::Coherent,
    };
    let head = PoolWindow::new(window(coherence, Extent::FirstPage)?)?;
    match Survey::new(&head, &HostClock::new()).pool() {
        // The rest is for the whole of it to say, whose size is another.
        Ok(_) | Err(Refusal::Size { .. }) => {}
        Err(why) => return Err(refuse(device, why)),
    }
    drop(head);
    window(coherence, Extent::All)
}

impl<'bound> PoolInstance<'bound> {
    /// Joins the pool and starts the function. Sleeps, for seconds where a slot has to be taken over.
    pub(super) fn new(device: &'bound Device<Core<'_>>, place: Place) -> Result<Self> {
        let (faults, closing) = function(device, place)?;
        let function = closing.function.clone();
        let device: &'bound Device<Bound> = device;
        let found = Found::new(device, function.clone())?;
        let vectors = vectors();
        let instance = Instance::new(device, found, vectors, |controller| {
            start(device, function, controller)
        })?;
        Ok(Self {
            _faults: faults,
            instance,
            _function: closing,
        })
    }
}

impl PoolInstance<'_> {
    /// What the function is driven by.
    pub(super) fn controller(&self) -> &Arc<Controller> {
        self.instance.controller()
    }
}

/// Vectors of a function: for events, and one for each processor.
fn vectors() -> u32 {
    cpu::nr_cpu_ids().saturating_add(1).min(MAX_VECTORS)
}

/// Joins the pool and makes a function there, which gives its sign of life. By itself because of the space that it takes on the stack, below which the
/// drivers of what is published find theirs.
#[inline(never)]
fn function(device: &Device<Core<'_>>, place: Place) -> Result<(FaultFiles, Closing)> {
    let clock = HostClock::new();
    let wakeable = place.own_bell != 0;
    let window = PoolWindow::new(place.window)?;
    let host = HostMemory::new(device, Some(window.mapping().clone()))?;
    let mut faults = FaultFiles::new(device, &window)?;
    let membership = join(device, &window, clock, place.own_bell)?;
    let range = membership.pool().device_memory(membership.node());
    let own = window.address(range.start)..window.address(range.end);
    let pages = window.pages(range.start, range.end.saturating_sub(range.start));
    let shared = Shared::new(&membership, &window);
    let behind_caches = place.persistent || !window.mapping().is_coherent();
    let copiers = copiers(device, &window, &own, behind_caches, place.poller.clone())?;
    let stopping = Stopping(copiers.clone());
    faults.add_copiers(&copiers)?;
    let copies = copiers.channel().cloned();
    let memory = NodeMemory::new(host, own, behind_caches, copiers);
    let count = u16::try_from(vectors())?;
    let host = PoolHost::new(device.into(), memory, DOORBELL_PAGES, count, clock);
    let nodes = nodes(&membership, &window, host)?;
    let heartbeat = Beat::timer(window.clone(), membership.heartbeat())?;
    let node = node(
        device,
        membership,
        heartbeat.clone(),
        window,
        nodes,
        place.bell,
        clock,
    )?;
    let kicks = Kicks::new(DOORBELL_PAGES)?;
    let function = Arc::pin_init(
        pin_init!(PoolFunction {
            poller: place.poller,
            poll_cpu: Atomic::new(poll_cpu().unwrap_or(NO_CPU)),
            switching <- new_mutex!(()),
            thread <- new_mutex!(None),
            clock,
            poll_state: PollState::new(wakeable),
            kicks,
            own: pages,
            persistent: place.persistent,
            shared,
            owner <- OwnerLock::new(node),
            registers <- new_mutex!(None),
            heartbeat,
            beating <- new_mutex!(None),
            asleep <- new_mutex!(None),
            unmapped <- new_mutex!(KVec::new()),
            copies,
        }),
        GFP_KERNEL,
    )?;
    let closing = Closing {
        function,
        _stopping: stopping,
    };
    closing.function.set_beating(true);
    Ok((faults, closing))
}

/// What copies long payload: a DMA channel, or else workers, if the module's parameters want either. As [`Copies::new`]. Sleeps.
fn copiers(
    device: &Device<Bound>,
    window: &PoolWindow,
    own: &Range<u64>,
    behind_caches: bool,
    worker: Arc<PollerNapi>,
) -> Result<Copiers> {
    if let Some(copies) = Copies::new(device, window, own, behind_caches, worker)? {
        return Ok(Copiers::Channel(copies));
    }
    let workers = CopyWorkers::new(device, window, behind_caches)?;
    Ok(workers.map_or(Copiers::Processor, Copiers::Workers))
}

/// Takes a slot of the pool. By itself because of the space that it takes on the stack.
#[inline(never)]
fn join(
    device: &Device<Bound>,
    window: &PoolWindow,
    clock: HostClock,
    bell: u64,
) -> Result<Joined> {
    let options = JoinOptions {
        identity: nupa_pool::identity(nk::host::Name::own().as_bytes()),
        bell,
        capabilities: (CAPS & !CAP_PUSH) | CAP_POOL_LINES,
        ..JoinOptions::new(nk::random::u64())
    };
    let pool = Pool::attach(window, &clock).map_err(|why| refuse(device, why))?;
    let max_nodes = usize::from(pool.geometry().max_nodes());
    let peers = KVVec::from_elem(nupa_pool::Peer::UNKNOWN, max_nodes, GFP_KERNEL)?;
    let joined = pool.join_with(window, &clock, &options, peers);
    let membership = joined.map_err(|why| refuse(device, why))?;
    Ok(Joined::new(membership, window.clone()))
}

/// Says why a pool is of no use.
fn refuse(device: &Device<Bound>, why: Refusal) -> Error {
    let hint = match why {
        Refusal::Unformatted => {
            dev_info!(
                device,
                "{}, so it is left alone; nupa-mkpool formats a device that is named to it\n",
                format_args!("{why}")
            );
            return ENODEV;
        }
        Refusal::Corrupt => "; nupa-mkpool formats a device that is named to it",
        Refusal::Coherence { .. } => "; nupa_fabric's parameter pool_coherent says which it is",
        _ => "",
    };
    dev_err!(device, "{}{hint}\n", format_args!("{why}"));
    ENODEV
}

/// The function, and links to nobody.
fn nodes(membership: &Member, window: &PoolWindow, host: PoolHost) -> Result<Nodes> {
    let pool = membership.pool();
    let range = pool.device_memory(membership.node());
    let geometry = pool.geometry();
    let max_nodes = geometry.max_nodes();
    let config = FunctionConfig {
        node: NodeConfig {
            id: membership.node(),
            limits: Limits {
                max_frame: geometry.max_frame(),
                ..Limits::default()
            },
            remote_nodes: max_nodes,
        },
        max_nodes,
        fabric_id: pool.fabric_id(),
        link_speed_mbps: 256_000,
        // A push needs a page that is trapped.
        caps: CAPS & !CAP_PUSH | CAP_HOST_DOORBELLS,
        doorbell_pages: DOORBELL_PAGES,
        device_memory: range.end.saturating_sub(range.start),
        firmware: [0, 1, 0],
    };
    let mut own = own(&config, host)?;
    own.node.set_epoch(membership.epoch());
    let mut peers = KVVec::with_capacity(usize::from(max_nodes), GFP_KERNEL)?;
    for _ in 0..max_nodes {
        add_peer(&mut peers, membership.node(), window, geometry.piece())?;
    }
    Ok(Nodes { own, peers })
}

/// Adds a link to nobody. By itself because of the space that it takes on the stack.
#[inline(never)]
fn add_peer(peers: &mut KVVec<Peer<Link>>, own: u16, window: &PoolWindow, piece: u32) -> Result {
    let link = Link::new(window.clone(), window.address(0), DEVICE_MEMORY_BASE, piece);
    Ok(peers.push(Peer::new(own, link), GFP_KERNEL)?)
}

/// The function, in its place. By itself because of the space that it takes on the stack.
#[inline(never)]
fn own(config: &FunctionConfig, host: PoolHost) -> Result<KBox<Function<KernelStorage, PoolHost>>> {
    Ok(KBox::new(Function::new(config, host), GFP_KERNEL)?)
}

/// The node, in its place. As above.
#[inline(never)]
fn node(
    device: &Device<Bound>,
    membership: Joined,
    heartbeat: Arc<HeartbeatTimer>,
    window: PoolWindow,
    nodes: Nodes,
    bell: Option<Arc<dyn Bell>>,
    clock: HostClock,
) -> Result<KBox<PoolNode>> {
    let count = membership.pool().geometry().max_nodes();
    let faults = rate_limits(count, FAULTS)?;
    let departures = rate_limits(count, DEPARTURES)?;
    let node = init!(PoolNode {
        hal: KernelHal {
            device: device.into(),
            clock,
            heartbeat,
            bell,
        },
        window,
        membership,
        sharing: Sharing::new(),
        model: Model::new(nodes),
        state: NodeState::new(faults, departures),
    });
    KBox::init(node, GFP_KERNEL)
}

/// A limit for each node.
fn rate_limits(nodes: u16, burst: u8) -> Result<KVVec<RateLimit>> {
    let mut limits = KVVec::with_capacity(usize::from(nodes), GFP_KERNEL)?;
    for _ in 0..nodes {
        limits.push(RateLimit::new(burst), GFP_KERNEL)?;
    }
    Ok(limits)
}

/// The processor of the thread that polls, if the module's parameters want one.
fn poll_cpu() -> Option<u32> {
    u32::try_from(*module_parameters::poll_cpu.value()).ok()
}

/// Has the function look for work from now on, and its vectors run.
fn start(
    device: &Device<Bound>,
    function: Arc<PoolFunction>,
    controller: &Arc<Controller>,
) -> Result<Running> {
    let mut vectors = KVec::with_capacity(controller.vectors().len(), GFP_KERNEL)?;
    for vector in controller.vectors() {
        let interrupt = VectorInterrupt {
            vector: vector.clone(),
            controller: controller.clone(),
        };
        vectors.push(interrupt, GFP_KERNEL)?;
    }
    let poller = Poller {
        function: function.clone(),
        vectors,
    };
    let cpu = function.poll_cpu();
    let enabled = match cpu {
        Some(cpu) if !is_online(cpu) => Err(EINVAL),
        _ => function.enable(poller),
    };
    if let (Err(why), Some(cpu)) = (&enabled, cpu) {
        dev_err!(
            device,
            "no thread polls on processor {cpu} ({why:?}); nupa_fabric's parameter poll_cpu names one that is online, or none with -1\n"
        );
    }
    enabled?;
    Ok(Running(function))
}

// SPDX-License-Identifier: GPL-2.0
//! One fabric controller: what the parts of the driver share.

use crate::{
    admin::{AdminQueue, Failure},
    command,
    device_memory::DeviceMemory,
    doorbell::Doorbells,
    drain::Service,
    hal::Function,
    handlers::ObjectHandlers,
    health::Reporter,
    lifecycle::Lifecycle,
    listeners::Listeners,
    memory_devices::MemoryDevices,
    number::Number,
    peers::Peers,
    port::{Port, PortInfo},
    registers::Registers,
    vector::Vector,
};
use kernel::{
    device, impl_has_delayed_work, impl_has_work, new_delayed_work, new_mutex, new_spinlock,
    new_work,
    prelude::*,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Full, Relaxed, Release},
        Arc, Mutex, SpinLock,
    },
    time::{BootTime, Instant, Monotonic},
    types::ForLt,
    workqueue::{self, DelayedWork, Work, WorkItem},
};
use nk::{auxiliary::ChildSlot, bound::BoundDevice, trace};
use nupa_proto::{
    admin::{AdminOpcode, ById, BODY_SIZE},
    regs::FAULT_NONE,
    status::AdminStatus,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the controller is fit for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// Not started, or being reset.
    Down = 0,
    /// Objects can be created.
    Running = 1,
    /// Somebody else resets the function, and says when that is over.
    Paused = 2,
    /// It does not come back by itself.
    Lost = 3,
    /// The driver is being unbound.
    Removed = 4,
}

/// Reasons for [`Controller::attend`].
pub(crate) mod attention {
    /// There is news in a vector's backlog, or the function does not work any more.
    pub(crate) const NEWS: u32 = 1 << 0;
    /// Time to see whether the function is still there.
    pub(crate) const CHECK: u32 = 1 << 1;
    /// The device for verbs belongs to a function that was started anew since.
    pub(crate) const RENEW_RDMA: u32 = 1 << 2;
    /// A failure, or that the controller is healthy, is to be told of.
    pub(crate) const REPORT: u32 = 1 << 3;
}

/// Work item that attends to the controller.
pub(crate) const ATTEND: u64 = 1;
/// Work item that looks after the controller now and then.
pub(crate) const WATCH: u64 = 2;

/// A controller, from `probe` to unbinding.
#[pin_data]
pub(crate) struct Controller {
    device: ARef<device::Device>,
    bound: BoundDevice,
    number: Number,
    pub(crate) function: Arc<dyn Function>,
    pub(crate) registers: Registers,
    doorbells: Arc<Doorbells>,
    device_memory: Option<Arc<DeviceMemory>>,
    objects: Arc<ObjectHandlers>,
    vectors: KVec<Arc<Vector>>,
    #[pin]
    pub(crate) admin: AdminQueue,
    state: Atomic<u32>,
    /// Why it stopped, `FAULT_*`; `FAULT_NONE` while it works.
    fault: Atomic<u32>,
    link_up: Atomic<bool>,
    #[pin]
    link_changed: SpinLock<Instant<BootTime>>,
    peers: Peers,
    service: Service,
    #[pin]
    info: SpinLock<PortInfo>,
    /// Queue pairs that frames are spread over.
    #[pin]
    pub(crate) rss: Mutex<KVec<u32>>,
    #[pin]
    pub(crate) memory_devices: MemoryDevices,
    #[pin]
    listeners: Listeners,
    #[pin]
    pub(crate) reporter: Reporter,
    /// Where `nupa_fabric.rdma` is while the controller works.
    pub(crate) rdma: ChildSlot<ForLt!(Port)>,
    #[pin]
    pub(crate) lifecycle: Mutex<Lifecycle>,
    pub(crate) attention: Atomic<u32>,
    #[pin]
    attend: Work<Self, ATTEND>,
    #[pin]
    watch: DelayedWork<Self, WATCH>,
}

/// What a controller is made of.
pub(crate) struct Parts {
    pub(crate) function: Arc<dyn Function>,
    pub(crate) registers: Registers,
    pub(crate) doorbells: Arc<Doorbells>,
    /// The function's own memory, if it has any.
    pub(crate) device_memory: Option<Arc<DeviceMemory>>,
    /// Those that the vectors tell.
    pub(crate) objects: Arc<ObjectHandlers>,
    /// Its interrupt vectors, the first one that of node and link events.
    pub(crate) vectors: KVec<Arc<Vector>>,
}

impl_has_work! {
    impl HasWork<Self, ATTEND> for Controller { self.attend }
}
impl_has_delayed_work! {
    impl HasDelayedWork<Self, WATCH> for Controller { self.watch }
}

impl WorkItem<ATTEND> for Controller {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.attend();
    }
}

impl WorkItem<WATCH> for Controller {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.wake(attention::CHECK);
        this.watch_later();
    }
}

impl Controller {
    /// A controller that is not started.
    pub(crate) fn new(
        device: &device::Device<device::Bound>,
        parts: Parts,
        info: PortInfo,
    ) -> Result<Arc<Self>> {
        let rdma = ChildSlot::new(device)?;
        let peers = Peers::new()?;
        let bound = BoundDevice::new(device)?;
        let number = Number::take()?;
        Arc::pin_init(
            pin_init!(Self {
                device: device.into(),
                bound,
                number,
                function: parts.function,
                registers: parts.registers,
                doorbells: parts.doorbells,
                device_memory: parts.device_memory,
                objects: parts.objects,
                vectors: parts.vectors,
                admin <- AdminQueue::new(),
                state: Atomic::new(State::Down as u32),
                fault: Atomic::new(FAULT_NONE),
                link_up: Atomic::new(false),
                link_changed <- new_spinlock!(Instant::now()),
                peers,
                service: Service::new(),
                info <- new_spinlock!(info),
                rss <- new_mutex!(KVec::new()),
                memory_devices <- MemoryDevices::new(),
                listeners <- Listeners::new(),
                reporter <- Reporter::new(),
                rdma,
                lifecycle <- new_mutex!(Lifecycle::new()),
                attention: Atomic::new(0),
                attend <- new_work!("nupa_fabric::attend"),
                watch <- new_delayed_work!("nupa_fabric::watch"),
            }),
            GFP_KERNEL,
        )
    }

    pub(crate) fn device(&self) -> &device::Device {
        &self.device
    }

    /// By which the names of its auxiliary devices differ from those of other controllers.
    pub(crate) fn number(&self) -> u32 {
        self.number.get()
    }

    pub(crate) fn bound(&self) -> &BoundDevice {
        &self.bound
    }

    pub(crate) fn doorbells(&self) -> &Arc<Doorbells> {
        &self.doorbells
    }

    /// The function's own memory, if it has any.
    pub(crate) fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        self.device_memory.as_ref()
    }

    pub(crate) fn objects(&self) -> &ObjectHandlers {
        &self.objects
    }

    pub(crate) fn vectors(&self) -> &[Arc<Vector>] {
        &self.vectors
    }

    /// Vectors for completion queues: all but the first, unless there is only one.
    pub(crate) fn completion_vector(&self, vector: u32) -> Result<&Arc<Vector>> {
        let vectors = match &*self.vectors {
            [_, rest @ ..] if !rest.is_empty() => rest,
            all => all,
        };
        vectors.get(usize::try_from(vector)?).ok_or(EINVAL)
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) fn service(&self) -> &Service {
        &self.service
    }

    pub(crate) fn listeners(&self) -> &Listeners {
        &self.listeners
    }

    pub(crate) fn info(&self) -> PortInfo {
        *self.info.lock()
    }

    pub(crate) fn set_info(&self, info: PortInfo) {
        *self.info.lock() = info;
    }

    pub(crate) fn link_up(&self) -> bool {
        self.link_up.load(Relaxed)
    }

    /// Notes the state of the link; returns whether that is new.
    pub(crate) fn set_link(&self, up: bool) -> bool {
        let changed = self.link_up.xchg(up, Relaxed) != up;
        if changed {
            *self.link_changed.lock() = Instant::now();
            trace::link(self.device(), up);
        }
        changed
    }

    /// For how long the link has been as it is, in ms.
    pub(crate) fn link_age_ms(&self) -> u64 {
        let changed = *self.link_changed.lock();
        u64::try_from(changed.elapsed().as_millis()).unwrap_or(0)
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Acquire) {
            1 => State::Running,
            2 => State::Paused,
            3 => State::Lost,
            4 => State::Removed,
            _ => State::Down,
        }
    }

    pub(crate) fn set_state(&self, state: State) {
        let old = self.state() as u32;
        self.state.store(state as u32, Release);
        trace::controller_state(self.device(), old, state as u32);
    }

    /// Why the controller stopped, `FAULT_*`; `FAULT_NONE` while it works.
    pub(crate) fn fault(&self) -> u32 {
        self.fault.load(Relaxed)
    }

    pub(crate) fn set_fault(&self, fault: u32) {
        self.fault.store(fault, Relaxed);
    }

    /// Generation for a new object: `EIO` if the controller is out of order for now, `ENODEV` if for good.
    pub(crate) fn running(&self) -> Result<u32> {
        let generation = self.admin.generation();
        match self.state() {
            State::Running => Ok(generation),
            State::Down | State::Paused => Err(EIO),
            State::Lost | State::Removed => Err(ENODEV),
        }
    }

    /// Executes an admin command about objects of `generation`. Sleeps.
    pub(crate) fn command<B, R>(
        self: &Arc<Self>,
        generation: u32,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<R>
    where
        B: IntoBytes + Immutable,
        R: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let body = self.try_command(generation, opcode, body)?;
        command::result(&body).ok_or(EINVAL)
    }

    /// As [`Controller::command`], for one without a result.
    pub(crate) fn order<B: IntoBytes + Immutable>(
        self: &Arc<Self>,
        generation: u32,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result {
        self.try_command(generation, opcode, body)?;
        Ok(())
    }

    /// Destroys an object, unless it went with its generation. Sleeps. Afterwards the function does not use the
    /// object's memory any more, whatever happened.
    pub(crate) fn destroy(self: &Arc<Self>, generation: u32, opcode: AdminOpcode, id: u32) {
        if self.try_destroy(generation, opcode, id).is_err() {
            self.refused_to_destroy(generation, opcode, id, AdminStatus::Busy);
        }
    }

    /// As [`Controller::destroy`], for an object that others in the controller may depend on without the driver's knowledge:
    /// `EBUSY` if that is so.
    pub(crate) fn try_destroy(
        self: &Arc<Self>,
        generation: u32,
        opcode: AdminOpcode,
        id: u32,
    ) -> Result {
        let body = ById {
            id: id.into(),
            reserved: 0.into(),
        };
        match self.try_command(generation, opcode, &body) {
            Err(Failure::Refused(AdminStatus::Busy)) => Err(EBUSY),
            Err(Failure::Refused(status)) => {
                self.refused_to_destroy(generation, opcode, id, status);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The function is out of step with the driver.
    fn refused_to_destroy(
        self: &Arc<Self>,
        generation: u32,
        opcode: AdminOpcode,
        id: u32,
        status: AdminStatus,
    ) {
        let device = self.device();
        dev_err!(device, "{opcode:?} {id} was refused ({status:?})\n");
        self.break_off(generation);
    }

    fn try_command<B: IntoBytes + Immutable>(
        self: &Arc<Self>,
        generation: u32,
        opcode: AdminOpcode,
        body: &B,
    ) -> Result<[u8; BODY_SIZE], Failure> {
        let begin = Instant::<Monotonic>::now();
        let result = self
            .admin
            .execute(&self.registers, generation, opcode, body);
        let (status, error) = match result {
            Ok(_) => (AdminStatus::Success, 0),
            Err(failure @ Failure::Refused(status)) => (status, Error::from(failure).to_errno()),
            Err(failure) => (AdminStatus::Success, Error::from(failure).to_errno()),
        };
        trace::admin_cmd(
            self.device(),
            opcode.to_wire(),
            status.to_wire(),
            error,
            begin.elapsed().as_nanos(),
        );
        match result {
            Err(Failure::Refused(status)) => {
                dev_dbg!(
                    self.device,
                    "admin command {opcode:?} was refused: {status:?}\n"
                );
            }
            Err(failure) if failure.is_fatal() => {
                dev_err!(self.device, "admin command {opcode:?} failed: {failure}\n");
                self.break_off(generation);
            }
            _ => {}
        }
        result
    }

    /// Keeps a function that does not behave from touching memory, and sees to it that it is reset. Sleeps.
    fn break_off(self: &Arc<Self>, generation: u32) {
        if self.admin.abort(generation, &*self.function) {
            self.wake(attention::NEWS);
        }
    }

    /// Has [`Controller::attend`] run soon; not while the host goes to sleep or wakes up. Any context.
    pub(crate) fn wake(self: &Arc<Self>, reasons: u32) {
        self.add_attention(reasons);
        // An error means that it is queued already, or that the driver is being unbound.
        let _ = workqueue::system_freezable().enqueue::<Arc<Self>, ATTEND>(self.clone());
    }

    fn add_attention(&self, reasons: u32) {
        let mut old = self.attention.load(Relaxed);
        while let Err(now) = self.attention.cmpxchg(old, old | reasons, Full) {
            old = now;
        }
    }

    /// Starts the watch; it goes on by itself.
    pub(crate) fn watch_later(self: &Arc<Self>) {
        let delay = kernel::time::msecs_to_jiffies(crate::lifecycle::WATCH_MS);
        // An error means as above.
        let _ =
            workqueue::system_freezable().enqueue_delayed::<Arc<Self>, WATCH>(self.clone(), delay);
    }

    /// Ends both work items; waits for them.
    pub(crate) fn disable_work(self: &Arc<Self>) {
        nk::work::disable_delayed_sync::<Self, WATCH>(self);
        nk::work::disable_sync::<Self, ATTEND>(self);
    }
}

// SPDX-License-Identifier: GPL-2.0
//! Payload on its way into the pool that a DMA channel copies.

use super::{
    copy_plan::{pays_from, Limits, Maker, Split, State, Unmeasured, Wanted},
    window::{HostClock, PoolWindow},
};
use crate::module_parameters;
use core::ops::Range;
use kernel::{
    device::{Bound, Device},
    impl_has_delayed_work, impl_has_work, new_delayed_work, new_spinlock, new_work,
    page::{Page, PAGE_SIZE},
    prelude::*,
    str::CString,
    sync::{
        aref::ARef,
        atomic::{Acquire, Atomic, Relaxed, Release},
        Arc, SpinLock,
    },
    time::{delay::fsleep, msecs_to_jiffies, Delta},
    workqueue::{DelayedWork, Work, WorkItem},
};
use nk::{
    bh,
    dma_channel::{Channel, Ended},
    hostmem::{physical, HostMemory},
    window::Window,
    work::{disable_delayed_sync, disable_sync, unbound},
};
use nupa_proto::pool::GRANT_TIMEOUT_US;

/// How long a batch may take, and a processor be held up that does nothing but wait. Hardware takes microseconds; more than this is a channel that has
/// hung, or is too slow, or whose driver needs the processor that waits.
const LIMIT: Delta = Delta::from_millis(10);
/// Between two looks at whether a channel has ended.
const ENDS_PAUSE: Delta = Delta::from_millis(1);

/// How long peers wait for a node that writes to their memory, in milliseconds. One whose channel ends later is to be told of.
const PEERS_WAIT_MS: u32 = (GRANT_TIMEOUT_US / 1000) as u32;

/// The work item that ends the channel, and the one that says that this takes too long.
const ENDING: u64 = 0;
const OVERDUE: u64 = 1;

/// Works with the node when nobody else does.
pub(super) trait Worker: Send + Sync {
    /// Has it look for work. Any context.
    fn wake(&self);
}

/// A channel, and what it is doing.
struct InUse {
    channel: KBox<Channel>,
    /// Bytes and copies of this batch.
    bytes: u64,
    copies: u64,
}

/// A channel that copies from this host's memory to the pool, until it fails.
///
/// Copies are made in the engine's turns, which wait for them. If one fails, it may be that the channel still stores something: then nobody works with
/// the node ([`Copies::is_ending`]) until the channel was terminated, which may sleep and so is done by a work item.
#[pin_data]
pub(super) struct Copies {
    device: ARef<Device>,
    window: Arc<Window>,
    limits: Limits,
    /// Least bytes that it copies.
    from: Atomic<u32>,
    /// A [`State`].
    state: Atomic<u32>,
    /// Taken with softirqs off.
    #[pin]
    in_use: SpinLock<Option<InUse>>,
    /// What it has copied.
    bytes: Atomic<u64>,
    copies: Atomic<u64>,
    /// Is woken when the node can be worked with again.
    worker: Arc<dyn Worker>,
    #[pin]
    ending: Work<Copies, ENDING>,
    #[pin]
    overdue: DelayedWork<Copies, OVERDUE>,
}

impl_has_work! {
    impl HasWork<Self, ENDING> for Copies { self.ending }
}
impl_has_delayed_work! {
    impl HasDelayedWork<Self, OVERDUE> for Copies { self.overdue }
}

impl WorkItem<ENDING> for Copies {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        this.end();
    }
}

impl WorkItem<OVERDUE> for Copies {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        if this.is_ending() {
            dev_err!(
                this.device,
                "the DMA channel has not ended after {PEERS_WAIT_MS} ms: what it still stores may be in memory that another node has given to somebody else\n"
            );
        }
    }
}

impl Copies {
    /// Takes a channel if the module's parameters want one and it is worth it; else says why not. `own`: memory of the pool that is this node's and
    /// not in use. Sleeps. By itself because of the space that it takes on the stack.
    #[inline(never)]
    pub(super) fn new(
        device: &Device<Bound>,
        window: &PoolWindow,
        own: &Range<u64>,
        behind_caches: bool,
        worker: Arc<dyn Worker>,
    ) -> Result<Option<Arc<Self>>> {
        let wanted = Wanted::new(*module_parameters::dma_copies.value());
        if wanted == Wanted::Nothing {
            return Ok(None);
        }
        if behind_caches {
            dev_info!(
                device,
                "the processors copy: DMA channels are for coherent pools that do not outlive a loss of power\n"
            );
            return Ok(None);
        }
        let channel = match Channel::request(window.mapping()) {
            Ok(channel) => KBox::new(channel, GFP_KERNEL)?,
            Err(why) => {
                dev_info!(
                    device,
                    "the processors copy: there is no DMA channel for it ({why:?})\n"
                );
                return Ok(None);
            }
        };
        let copies = Self::with(device, window, channel, worker)?;
        copies.begin(device, wanted, own)
    }

    fn with(
        device: &Device<Bound>,
        window: &PoolWindow,
        channel: KBox<Channel>,
        worker: Arc<dyn Worker>,
    ) -> Result<Arc<Self>> {
        let limits = Limits {
            alignment: channel.alignment(),
            max_segment: channel.max_segment(),
        };
        let in_use = InUse {
            channel,
            bytes: 0,
            copies: 0,
        };
        Arc::pin_init(
            pin_init!(Self {
                device: device.into(),
                window: window.mapping().clone(),
                limits,
                from: Atomic::new(u32::MAX),
                state: Atomic::new(State::Works as u32),
                in_use <- new_spinlock!(Some(in_use)),
                bytes: Atomic::new(0),
                copies: Atomic::new(0),
                worker,
                ending <- new_work!("Copies::ending"),
                overdue <- new_delayed_work!("Copies::overdue"),
            }),
            GFP_KERNEL,
        )
    }

    /// Finds out what is worth it.
    fn begin(
        self: Arc<Self>,
        device: &Device<Bound>,
        wanted: Wanted,
        own: &Range<u64>,
    ) -> Result<Option<Arc<Self>>> {
        let name = self.name()?;
        // The channel may read it until it was stopped.
        let page = Page::alloc_page(GFP_KERNEL | __GFP_ZERO).ok();
        let from = match (wanted, &page) {
            (Wanted::From(from), _) => Ok(Some(from)),
            (_, Some(page)) => self.measure(page, own),
            (_, None) => Ok(None),
        };
        match from {
            Ok(Some(_)) if self.link(device).is_err() => dev_info!(
                self.device,
                "the processors copy: the device of DMA channel {} depends on this one\n",
                &*name
            ),
            Ok(Some(from)) => {
                self.from.store(from, Relaxed);
                self.bytes.store(0, Relaxed);
                self.copies.store(0, Relaxed);
                dev_info!(
                    self.device,
                    "DMA channel {} copies payload to the pool, from {from} bytes on\n",
                    &*name
                );
                return Ok(Some(self));
            }
            // It was said why.
            Err(Unmeasured) if self.state() != State::Works => {}
            Ok(None) | Err(Unmeasured) => dev_info!(
                self.device,
                "the processors copy: DMA channel {} is not faster, or cannot be measured\n",
                &*name
            ),
        }
        self.stop();
        drop(page);
        Ok(None)
    }

    /// Measures from which length on the channel is faster than this processor, with a page that is there until the channel was stopped. Sleeps.
    fn measure(self: &Arc<Self>, page: &Page, own: &Range<u64>) -> Result<Option<u32>, Unmeasured> {
        let [.., longest] = super::copy_plan::LENGTHS;
        if own.end.saturating_sub(own.start) < u64::from(longest) {
            return Ok(None);
        }
        let host = HostMemory::of_window(self.window.clone());
        let (clock, from) = (HostClock::new(), physical(page));
        pays_from(|maker, len| {
            // As the engine does, with what programs have: single pages.
            bh::disabled(|| {
                let start = clock.now_ns();
                let copied = (0..u64::from(len)).step_by(PAGE_SIZE).try_for_each(|at| {
                    let to = own.start.saturating_add(at);
                    match maker {
                        Maker::Processor => host.copy(from, to, PAGE_SIZE),
                        Maker::Channel => self.submit(&host, from, to, PAGE_SIZE),
                    }
                });
                // Those before one that failed, too.
                let done = match maker {
                    Maker::Processor => true,
                    Maker::Channel => self.finish(),
                };
                (done && copied.is_ok()).then(|| clock.now_ns().saturating_sub(start))
            })
        })
    }

    /// What the kernel calls the channel.
    fn name(&self) -> Result<CString> {
        bh::disabled(|| {
            let in_use = self.in_use.lock();
            let name = in_use.as_ref().map(|in_use| in_use.channel.name());
            CString::try_from_fmt(fmt!("{}", name.unwrap_or(c"(none)")))
        })
    }

    /// Sees to it that the channel's driver is there as long as the pool's, which is the device's. Nobody else uses the channel yet. Sleeps.
    fn link(&self, device: &Device<Bound>) -> Result {
        let taken = bh::disabled(|| self.in_use.lock().take());
        let linked = match &taken {
            Some(in_use) => in_use.channel.link(device),
            None => Err(ENXIO),
        };
        bh::disabled(|| *self.in_use.lock() = taken);
        linked
    }

    fn state(&self) -> State {
        State::from_u32(self.state.load(Acquire))
    }

    /// Least bytes that the channel copies; `u32::MAX` if it does not.
    #[inline]
    pub(super) fn from(&self) -> u32 {
        match self.state() {
            State::Works => self.from.load(Relaxed),
            State::Ends | State::Over => u32::MAX,
        }
    }

    /// Whether something may still be stored by a channel that is not used any more: nobody is to work with the node then. When that is over the
    /// worker is woken. Any context.
    #[inline]
    pub(super) fn is_ending(&self) -> bool {
        self.state() == State::Ends
    }

    /// Waits until that is over. Sleeps.
    pub(super) fn settle(&self) {
        while self.is_ending() {
            fsleep(ENDS_PAUSE);
        }
    }

    /// Copies from one physical address to another, sooner or later: see [`Copies::finish`]. The channel copies what it can of what lies in the
    /// host's memory and goes to the pool, and this processor the rest: what comes from the pool may be poisoned, and is read with care. The
    /// node is the caller's, and softirqs are off.
    pub(super) fn submit(&self, host: &HostMemory, from: u64, to: u64, len: usize) -> Result {
        let from_pool = self.window.offset_of(from, len).is_some();
        let place = self.window.offset_of(to, len).filter(|_| !from_pool);
        let works = self.state() == State::Works;
        let split = self.limits.split(from, to, len).filter(|_| works);
        match place.zip(split) {
            None => host.copy(from, to, len),
            Some((place, split)) => self.submit_parts(host, (from, to, len), place, split),
        }
    }

    fn submit_parts(
        &self,
        host: &HostMemory,
        (from, to, len): (u64, u64, usize),
        place: usize,
        split: Split,
    ) -> Result {
        let copy = |at: usize, len: usize| {
            let at = at as u64;
            host.copy(from.wrapping_add(at), to.wrapping_add(at), len)
        };
        for (at, len) in split.segments() {
            let place = place.wrapping_add(at);
            if !self.submit_part(from.wrapping_add(at as u64), place, len) {
                copy(at, len)?;
            }
        }
        copy(0, split.head)?;
        let tail = split.head.saturating_add(split.body);
        copy(tail, len.saturating_sub(tail))
    }

    /// False if the channel takes no more.
    fn submit_part(&self, from: u64, place: usize, len: usize) -> bool {
        let mut in_use = self.in_use.lock();
        let Some(in_use) = Option::as_mut(&mut *in_use) else {
            return false;
        };
        let submitted = in_use.channel.submit(from, place, len);
        if submitted {
            in_use.bytes = in_use.bytes.saturating_add(len as u64);
            in_use.copies = in_use.copies.saturating_add(1);
        }
        submitted
    }

    /// Waits for what was submitted. False if some of it was not copied: then the channel is not used any more, and all of it is to be copied again, but
    /// not before it has [ended](Copies::is_ending). As [`Copies::submit`].
    pub(super) fn finish(self: &Arc<Self>) -> bool {
        let mut guard = self.in_use.lock();
        let Some(in_use) = Option::as_mut(&mut *guard) else {
            return true;
        };
        let (bytes, copies) = (
            core::mem::take(&mut in_use.bytes),
            core::mem::take(&mut in_use.copies),
        );
        let state = match in_use.channel.finish(LIMIT) {
            Ended::Copied => {
                self.count(bytes, copies);
                return true;
            }
            Ended::Failed => {
                dev_err!(
                    self.device,
                    "DMA channel {} says that a copy failed; it is not used any more, and the processors copy\n",
                    in_use.channel.name()
                );
                State::Over
            }
            Ended::Hung => {
                dev_err!(
                    self.device,
                    "DMA channel {} does not finish a copy; it is not used any more, and the processors copy\n",
                    in_use.channel.name()
                );
                State::Ends
            }
        };
        self.state.store(state as u32, Release);
        drop(guard);
        // Neither is queued yet: this happens once.
        let queue = unbound();
        if state == State::Ends {
            let delay = msecs_to_jiffies(PEERS_WAIT_MS);
            let _ = queue.enqueue_delayed::<Arc<Self>, OVERDUE>(self.clone(), delay);
        }
        let _ = queue.enqueue::<Arc<Self>, ENDING>(self.clone());
        false
    }

    /// Counts what was copied. Only who has the node does.
    fn count(&self, bytes: u64, copies: u64) {
        for (total, more) in [(&self.bytes, bytes), (&self.copies, copies)] {
            total.store(total.load(Relaxed).wrapping_add(more), Relaxed);
        }
    }

    /// Gives the channel back, which copies nothing from then on. Sleeps.
    fn end(&self) {
        let in_use = bh::disabled(|| self.in_use.lock().take());
        drop(in_use);
        self.state.store(State::Over as u32, Release);
        self.worker.wake();
    }

    /// The same, for good. Nobody has the node. Sleeps.
    pub(super) fn stop(self: &Arc<Self>) {
        disable_sync::<Self, ENDING>(self);
        self.end();
        disable_delayed_sync::<Self, OVERDUE>(self);
    }
}

impl Copies {
    /// Writes what it copies and has copied.
    pub(super) fn show(&self, f: &mut crate::fmt::Formatter<'_>) -> crate::fmt::Result {
        match self.from() {
            u32::MAX => writeln!(f, "from never")?,
            from => writeln!(f, "from {from}")?,
        }
        writeln!(f, "copies {}", self.copies.load(Relaxed))?;
        writeln!(f, "bytes {}", self.bytes.load(Relaxed))
    }
}

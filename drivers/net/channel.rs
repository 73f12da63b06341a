// SPDX-License-Identifier: GPL-2.0
//! A channel: a transmit and a receive queue that share an interrupt vector and a poll function.

use crate::{
    moderation::Sampler,
    nic::Nic,
    poll::{Poller, Wake},
    rx::{Rx, PAGE_ORDER},
    settings::Settings,
    tx::Tx,
    xdp::Xdp,
};
use kernel::{
    prelude::*,
    sync::{aref::ARef, Arc},
};
use nk::net::{xdp::Program, Device, Napi, PagePool, QueueLink, Rtnl, RxBuffer, TxFifo};
use nupa_fabric::{Cq, Port, QpConfig, QpControl};

/// Longest wait of a frame for receive buffers at its target. Long enough for a busy target to be scheduled and to
/// refill its ring; the controller holds up others for a target that hangs only once.
const RNR_TIMEOUT_US: u32 = 200_000;

/// A channel in operation. The order of its fields is that of its end.
pub(crate) struct Channel {
    /// The last part of the queue pair, which is destroyed with it.
    qp: QpControl,
    /// What the controller may read and write until then, kept while the channel is being dropped.
    memory: Option<Memory>,
    /// What tells user space that `napi` polls the queues of this channel.
    link: Option<QueueLink>,
    napi: Arc<Napi<Poller>>,
    index: usize,
    dev: ARef<Device<Nic>>,
}

/// Packets being sent, receive buffers and where those came from.
type Memory = (Option<TxFifo>, Option<(KVVec<Option<RxBuffer>>, PagePool)>);

/// log2 of the entries of a completion queue for so much outstanding work, a power of two.
fn log_cq(work: u32) -> Result<u8> {
    Ok(u8::try_from(
        work.saturating_add(Cq::SLACK)
            .checked_next_power_of_two()
            .ok_or(EINVAL)?
            .trailing_zeros(),
    )?)
}

impl Channel {
    /// Creates channel `index`, which runs at once but is sent no frames before it is in the port's spreading table.
    pub(crate) fn open(
        dev: &ARef<Device<Nic>>,
        port: &Port,
        settings: &Settings,
        program: Option<&Program>,
        index: usize,
        rtnl: &Rtnl,
    ) -> Result<Self> {
        let info = port.info();
        let number = u16::try_from(index)?;
        let vector = u32::from(number).checked_rem(info.vectors).ok_or(EINVAL)?;
        let napi = Napi::new(dev, u32::from(number))?;
        if let Some(irq) = port.interrupt(vector) {
            napi.set_interrupt(irq, rtnl);
        }
        let wake = Arc::new(Wake(napi.clone()), GFP_KERNEL)?;
        let send_cq = port.create_cq(log_cq(settings.tx)?, vector, wake.clone())?;
        let recv_cq = port.create_cq(log_cq(settings.rx)?, vector, wake)?;
        let qp = port.create_qp(&QpConfig {
            send_cq: send_cq.control(),
            recv_cq: recv_cq.control(),
            log_send_blocks: u8::try_from(settings.log_send_blocks())?,
            log_recv_entries: u8::try_from(settings.rx.trailing_zeros())?,
            rnr_timeout_us: RNR_TIMEOUT_US,
        })?;
        let moderation = moderate(settings, &send_cq, &recv_cq)?;
        let pool = PagePool::new(
            port.dma_device(),
            napi.clone(),
            settings.rx,
            PAGE_ORDER,
            program.map(|_| u32::from(number)),
        )?;
        let xdp = program.cloned().map(Xdp::new).transpose()?;
        let hash = settings.channels > 1;
        let tx = Tx::new(
            port.dma_device(),
            qp.send,
            qp.reclaim,
            send_cq,
            settings.tx,
            &info,
            hash,
        )?;
        let rx = Rx::new(number, qp.recv, recv_cq, pool, settings.rx, xdp)?;
        let this = Self {
            qp: qp.control,
            memory: None,
            link: None,
            napi,
            index,
            dev: dev.clone(),
        };
        this.napi.enable(Poller {
            rx,
            index,
            dev: dev.clone(),
            moderation,
        })?;
        dev.tx_queue(index).ok_or(EINVAL)?.lock().replace(Some(tx));
        // The first poll arms the completion queues.
        this.napi.schedule();
        Ok(this)
    }

    /// Lets user space see what polls the queues, which are in use now. [`unlink`](Self::unlink) comes before the end.
    pub(crate) fn link(&mut self, rtnl: &Rtnl) {
        let index = u32::try_from(self.index);
        self.link = index
            .ok()
            .and_then(|index| self.napi.link(index, rtnl).ok());
    }

    /// Undoes that.
    pub(crate) fn unlink(&mut self, rtnl: &Rtnl) {
        if let Some(link) = self.link.take() {
            link.unlink(rtnl);
        }
    }

    /// Takes another program in place of the one that there is. Frames wait meanwhile. May sleep.
    pub(crate) fn replace_program(&self, program: &Program) -> Result {
        let Some(mut poller) = self.napi.disable() else {
            return Ok(());
        };
        if let Some(xdp) = &mut poller.rx.xdp {
            xdp.replace(program.clone());
        }
        self.napi.enable(poller)?;
        // What came in meanwhile has nobody polled.
        self.napi.schedule();
        Ok(())
    }

    /// Number of the queue pair, for the port's spreading table.
    pub(crate) fn number(&self) -> u32 {
        self.qp.number()
    }
}

/// Sets up the moderation that the user asked for.
fn moderate(settings: &Settings, send: &Cq, recv: &Cq) -> Result<Option<Sampler>> {
    let clamp = |n: u32| u16::try_from(n).unwrap_or(u16::MAX);
    let wanted = settings.coalesce;
    send.control()
        .set_moderation(clamp(wanted.tx_usecs), clamp(wanted.tx_frames))?;
    if wanted.adaptive_rx {
        return Sampler::new(recv.control().clone()).map(Some);
    }
    recv.control()
        .set_moderation(clamp(wanted.rx_usecs), clamp(wanted.rx_frames))?;
    Ok(None)
}

impl Drop for Channel {
    /// Takes the channel down. The queue must be stopped, and the channel out of the port's spreading table.
    fn drop(&mut self) {
        let poller = self.napi.disable();
        let tx = self.dev.tx_queue(self.index).and_then(|queue| {
            let mut queue = queue.lock();
            queue.reset_limits();
            queue.replace(None)
        });
        self.memory = Some((
            tx.map(Tx::into_packets),
            poller.map(|poller| poller.rx.into_buffers()),
        ));
    }
}

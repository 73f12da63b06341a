// SPDX-License-Identifier: GPL-2.0
//! Reaction to what happens to the port.

use crate::nic::Nic;
use kernel::{prelude::*, sync::aref::ARef};
use nk::net::{Device, RtnlGuard};
use nupa_fabric::{Listener, Port, PortEvent};

/// Keeps the network device in step with the port.
pub(crate) struct Events {
    dev: ARef<Device<Nic>>,
    port: Port,
}

impl Events {
    pub(crate) fn new(dev: ARef<Device<Nic>>, port: Port) -> Self {
        Self { dev, port }
    }

    /// Takes over the link's state as it is now. Any context.
    pub(crate) fn catch_up(&self) {
        if self.port.link_up() {
            self.dev.carrier_on();
        } else {
            self.dev.carrier_off();
        }
    }

    /// The controller's objects are gone: drop ours.
    fn lose(&self) {
        let rtnl = RtnlGuard::lock();
        self.dev.carrier_off();
        self.dev.detach(&rtnl);
        self.dev.data().close_channels(&self.dev, &rtnl);
    }

    /// The controller is back: create what was there before.
    fn recover(&self) {
        let rtnl = RtnlGuard::lock();
        if self.dev.is_present() {
            return;
        }
        if self.dev.is_running() {
            if let Err(e) = self.dev.data().open_channels(&self.dev, &rtnl) {
                pr_err!(
                    "{}: cannot recover ({e:?}), the link is down now; set it up to try again\n",
                    self.dev.name()
                );
                // An interface that is up and passes nothing would be taken for one that works.
                self.dev.close(&rtnl);
            }
        }
        self.dev.attach(&rtnl);
        self.catch_up();
    }
}

impl Listener for Events {
    fn event(&self, event: PortEvent) {
        match event {
            PortEvent::LinkUp | PortEvent::LinkDown => self.catch_up(),
            PortEvent::Resetting | PortEvent::Gone => self.lose(),
            PortEvent::Ready => self.recover(),
            // Neighbours that are gone are the stack's business, as on any other network.
            PortEvent::NodeUp(_) | PortEvent::NodeDown(_) => {}
        }
    }
}

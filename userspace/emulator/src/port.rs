// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A port of the switch: a socket, and the guest that is connected to it.

use std::path::Path;

use anyhow::Context;
use nupa_controller::Fabric;
use vfio_user::{Connection, Disconnect, Interest, Listener};

use crate::function::Function;
use crate::poller::{Poller, Source};

/// A port. Its node exists as long as the switch; guests come and go.
#[derive(Debug)]
pub(crate) struct Port {
    node: u16,
    listener: Listener,
    guest: Option<Guest>,
}

/// A connected VMM.
#[derive(Debug)]
struct Guest {
    connection: Connection,
    function: Function,
    interest: Interest,
}

impl Port {
    /// Listens on `nodeN.sock` in `dir`.
    pub(crate) fn open(dir: &Path, node: u16, poller: &Poller) -> anyhow::Result<Self> {
        let listener = Listener::bind(&dir.join(format!("node{node}.sock")))?;
        poller
            .add_listener(&listener, Source::Listener(node))
            .context("cannot wait for guests")?;
        Ok(Self {
            node,
            listener,
            guest: None,
        })
    }

    /// Whether a guest is connected.
    pub(crate) fn is_connected(&self) -> bool {
        self.guest.is_some()
    }

    /// Takes in the VMM that wants to connect. A second one is turned away.
    pub(crate) fn accept(&mut self, fabric: &mut Fabric, poller: &Poller) {
        // The guest that was here may be gone without our having looked yet.
        self.serve(fabric, poller);
        let node = self.node;
        loop {
            let connection = match self.listener.accept() {
                Ok(Some(connection)) => connection,
                Ok(None) => return,
                Err(error) => return tracing::error!(node, %error, "cannot accept a VMM"),
            };
            if self.guest.is_some() {
                tracing::warn!(node, "turned a second VMM away");
            } else if let Err(error) = self.attach(connection, fabric, poller) {
                tracing::error!(node, error = format!("{error:#}"), "cannot serve the VMM");
                fabric.disconnect(node);
            }
        }
    }

    fn attach(
        &mut self,
        connection: Connection,
        fabric: &mut Fabric,
        poller: &Poller,
    ) -> anyhow::Result<()> {
        let function = Function::attach(fabric, self.node)?;
        poller.add(&connection, Source::Guest(self.node))?;
        self.guest = Some(Guest {
            connection,
            function,
            interest: Interest::Readable,
        });
        Ok(())
    }

    /// Serves what the guest's VMM sent. If it is gone, the node goes down.
    pub(crate) fn serve(&mut self, fabric: &mut Fabric, poller: &Poller) {
        let Some(guest) = &mut self.guest else { return };
        let Err(reason) = guest.serve(self.node, fabric, poller) else {
            return;
        };
        let node = self.node;
        match reason {
            Disconnect::Closed => tracing::debug!(node, "{reason}"),
            Disconnect::Protocol(_) | Disconnect::Io(_) => tracing::warn!(node, "{reason}"),
        }
        self.guest = None;
        fabric.disconnect(node);
    }
}

impl Guest {
    fn serve(&mut self, node: u16, fabric: &mut Fabric, poller: &Poller) -> Result<(), Disconnect> {
        let mut device = self.function.plugged(fabric);
        match self.interest {
            Interest::Readable => self.connection.readable(&mut device)?,
            Interest::Writable => self.connection.writable(&mut device)?,
        }
        let interest = self.connection.interest();
        if interest != self.interest {
            self.interest = interest;
            let writable = interest == Interest::Writable;
            poller.rearm(&self.connection, Source::Guest(node), writable)?;
        }
        Ok(())
    }
}

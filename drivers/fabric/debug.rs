// SPDX-License-Identifier: GPL-2.0
//! What debugfs shows of a controller: `nupa_fabric-DEVICE/peers`.

use crate::{
    controller::{Controller, State},
    fmt,
};
use kernel::{
    debugfs::{Dir, File},
    prelude::*,
    str::CString,
    sync::Arc,
};

/// The files of one controller; they go when this is dropped.
pub(crate) struct Files {
    _peers: Pin<KBox<File<Arc<Controller>>>>,
    _dir: Dir,
}

impl Files {
    /// Makes the files. Sleeps. Without debugfs there are none, which is no error.
    pub(crate) fn new(controller: &Arc<Controller>) -> Result<Self> {
        let name = controller.device().name();
        let name = CString::try_from_fmt(fmt!("nupa_fabric-{name}"))?;
        let dir = Dir::new(&name);
        let peers = dir.read_callback_file(c"peers", controller.clone(), &write_peers);
        let peers = KBox::pin_init(peers, GFP_KERNEL)?;
        Ok(Self {
            _peers: peers,
            _dir: dir,
        })
    }
}

/// Writes this node and those that are up, a line each: id, EUI-64, epoch.
fn write_peers(controller: &Arc<Controller>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let info = controller.info();
    if controller.state() != State::Running {
        return writeln!(f, "controller is out of order: {:?}", controller.state());
    }
    let epoch = controller.registers.epoch().unwrap_or(0);
    writeln!(f, "node guid             epoch")?;
    writeln!(f, "{:4} {:016x} {epoch:5} this node", info.node, info.guid)?;
    for node in controller.peers().iter() {
        match controller.query_peer(node) {
            Ok(peer) => writeln!(f, "{node:4} {:016x} {:5}", peer.guid, peer.epoch)?,
            Err(error) => writeln!(f, "{node:4} {error:?}")?,
        }
    }
    Ok(())
}

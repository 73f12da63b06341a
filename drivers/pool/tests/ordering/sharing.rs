// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Shared device memory: what is in use is not free.

use crate::{of_all_hosts, Hosts, Setup};
use nupa_pool::Sharing;
use nupa_proto::pool::{
    sharing::{EXPORT_TABLE, HOLD_TABLE},
    PAGE,
};

of_all_hosts! {
    #[test]
    fn memory_is_not_free_and_imported() { share }
}

/// Node 0 frees memory that node 1 imports.
fn share<H: Hosts>(setup: &Setup) {
    let memory = setup.memory();
    let pool = setup.pool;
    let [owner, user] = setup.joined(&memory, 0);
    let mut exports = Sharing::new();
    let place = (pool.device_memory(0).start, PAGE);
    let handle = exports.export(&memory, &owner, place, 7).unwrap();
    let table = |node, table| pool.geometry().directory(node).unwrap().start + table;
    // The first lines: the secret of the one, the length of the other.
    let hosts = H::map(memory, &[table(0, EXPORT_TABLE), table(1, HOLD_TABLE)]);
    let (imported, held) = H::run(
        &hosts,
        move |memory| Sharing::new().import(memory, &user, &handle).is_ok(),
        move |memory| {
            exports.withdraw(memory, &owner, handle.index.get());
            let mut held = false;
            pool.held(memory, 0, |_| held = true);
            held
        },
    );
    assert!(held || !imported, "it is free, and in use");
}

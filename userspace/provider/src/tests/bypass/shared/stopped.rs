// SPDX-License-Identifier: GPL-2.0 OR MIT

//! As [`super::super::stopped`], with receive entries that several queue pairs share.

use super::super::stopped::at_each_point;
use super::*;
use crate::ffi::steps::stop_behind;
use std::sync::Arc;

/// The engine takes entries of the same queue meanwhile, for messages behind the one in the ring, and for those of others.
#[test]
fn who_shares_receive_buffers_loses_nothing() {
    at_each_point(|point| {
        let mut server = Server::with_rings();
        // As many as are needed if each is taken for nothing once: no message may wait, since the clock stands still.
        for buffer in 0..8 {
            server.post(buffer);
        }
        server.send(0, 100);
        let cq = Arc::clone(&server.cq);
        let mut found = Vec::new();
        let stopped = stop_behind(
            point,
            || found = cq.cq.poll(1),
            || {
                for (line, len) in [(1, 8), (0, STEP), (1, STEP), (0, 40)] {
                    server.send(line, len);
                    server.run();
                }
            },
        );
        server.check(found);
        server.drain();
        assert_eq!(server.posted.len(), 8 - 5);
        server.count_buffers();
        for line in [0, 1] {
            assert!(server.past_engine(line, 8), "behind {point} instructions");
        }
        stopped
    });
}

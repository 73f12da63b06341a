// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What posting and polling costs, in instructions: `scripts/bench` publishes the line that this prints when it is built
//! as the library is.

use super::node::{pair, Shape};
use crate::ffi::steps::count;
use crate::ffi::testing::{batch_call, no_completion, poll_call, post_call, send, sys, SendExt};

/// Most instructions of `ibv_post_send()` and `ibv_poll_cq()` together, for a signaled WRITE of 64 bytes.
const LIMIT: usize = 240;
/// Requests that are counted, a multiple of what makes a difference: every so many completions the controller is told.
const ROUNDS: usize = 64;

/// How a WRITE is posted.
#[derive(Clone, Copy)]
enum How {
    /// `ibv_post_send()`, from registered memory.
    Post,
    /// `ibv_post_send()`, into the descriptor.
    Inline,
    /// `ibv_wr_start()` to `ibv_wr_complete()`.
    Batch,
}

/// Instructions of posting and of polling, on average.
fn cost(how: How) -> (usize, usize) {
    let (a, b) = pair(Shape::default());
    let mut bytes = [7u8; 64];
    let registered = a.node.sge(0, 64);
    let mut sge = [registered];
    let mut flags = sys::IBV_SEND_SIGNALED;
    if let How::Inline = how {
        sge[0].addr = bytes.as_mut_ptr().expose_provenance() as u64;
        flags |= sys::IBV_SEND_INLINE;
    }
    let mut request = send(1, sys::IBV_WR_RDMA_WRITE, flags)
        .with(&mut sge)
        .remote(b.node.memory, b.node.key);
    let mut wc = no_completion();
    let mut spent = (0, 0);
    for _ in 0..ROUNDS {
        spent.0 += match how {
            How::Batch => count(batch_call(&a.qp.qp, registered, b.node.key, b.node.memory)),
            How::Post | How::Inline => count(post_call(&a.qp.qp, &mut request)),
        };
        a.node.run();
        spent.1 += count(poll_call(&a.cq.cq, &mut wc));
        assert_eq!((wc.wr_id, wc.status), (1, sys::IBV_WC_SUCCESS));
    }
    (spent.0.div_ceil(ROUNDS), spent.1.div_ceil(ROUNDS))
}

#[test]
fn a_write_of_64_bytes_stays_within_the_limit() {
    let (post, poll) = cost(How::Post);
    println!("instructions of a WRITE of 64 B: {post} post, {poll} poll");
    let (batch, _) = cost(How::Batch);
    println!("instructions of a WRITE of 64 B by ibv_wr_*: {batch} post");
    let (inline, _) = cost(How::Inline);
    println!("instructions of a WRITE of 64 B inline: {inline} post");
    // Checks for overflow and the like are not in the library.
    assert!(
        cfg!(debug_assertions) || post + poll <= LIMIT,
        "{post} + {poll}"
    );
}

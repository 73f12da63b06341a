// SPDX-License-Identifier: GPL-2.0 OR MIT

//! WRITEs and SENDs in one list.

use super::*;

#[test]
fn they_arrive_in_the_order_of_the_list() {
    for list in ["WS", "SW", "WSS", "SWS", "SSW", "WWS", "WSWSSW"] {
        let hosts = Hosts::with_rings();
        let (a, b) = (&hosts.a.node, &hosts.b.node);
        let is_write = |wr_id: u64| list.as_bytes()[wr_id as usize] == b'W';
        let all = 0..list.len() as u64;
        let mut entries: Vec<_> = all
            .clone()
            .map(|wr_id| {
                let at = wr_id as usize * 64;
                a.fill(at, &Hosts::bytes(wr_id, 64));
                [a.sge(at, 64)]
            })
            .collect();
        let mut requests: Vec<_> = all
            .clone()
            .zip(&mut entries)
            .map(|(wr_id, sges)| match is_write(wr_id) {
                false => send(wr_id, sys::IBV_WR_SEND, SIGNALED).with(sges),
                true => {
                    let to = b.memory + TARGET as u64 + wr_id * 64;
                    let write = send(wr_id, sys::IBV_WR_RDMA_WRITE, SIGNALED).with(sges);
                    write.remote(to, b.key)
                }
            })
            .collect();
        for wr_id in all.clone().filter(|wr_id| !is_write(*wr_id)) {
            let mut sges = [b.sge(0, 64)];
            let posted = hosts.b.qp.qp.post_recv(&mut [recv(wr_id, &mut sges)]);
            posted.unwrap();
        }
        b.run();
        hosts.a.qp.qp.post_send(&mut requests).unwrap();
        for wr_id in all.clone() {
            if is_write(wr_id) {
                continue;
            }
            let mut found = Vec::new();
            hosts.until(|hosts| {
                found = hosts.b.cq.cq.poll(1);
                !found.is_empty()
            });
            assert_eq!(
                (found[0].wr_id, found[0].status),
                (wr_id, sys::IBV_WC_SUCCESS),
                "{list}"
            );
            // What comes before it is there.
            for before in (0..wr_id).filter(|before| is_write(*before)) {
                assert!(
                    hosts.is_written(before, before as usize * 64, 64),
                    "{list}: {before}"
                );
            }
        }
        let done = hosts.completions(list.len());
        assert!(
            done.iter().map(|(wr_id, ..)| *wr_id).eq(all.clone()),
            "{list}: {done:?}"
        );
        assert!(done
            .iter()
            .all(|(_, status, _)| *status == sys::IBV_WC_SUCCESS));
        for wr_id in all.filter(|wr_id| is_write(*wr_id)) {
            assert!(
                hosts.is_written(wr_id, wr_id as usize * 64, 64),
                "{list}: {wr_id}"
            );
        }
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What is wrong in a pool, which may be in use.

use std::thread::sleep;
use std::time::Duration;

use guestmem::MmapRegion;
use nupa_pool::{check, Problem, Survey};
use nupa_poolmem::{HostTime, PoolMemory};

/// Problems that are told. Memory that is damaged all over has any number.
const MOST: usize = 1000;
/// Words that are written one after the other go together again after this.
const PAUSE: Duration = Duration::from_millis(300);

/// What is wrong in the pool that memory holds, or why there is none. Writes nothing.
pub(crate) fn find(region: &MmapRegion) -> Vec<Problem> {
    // A host that is formatting it is waited for.
    Survey::new(&PoolMemory::new(region, true), &HostTime::new());
    let mut found = look(region);
    if !found.is_empty() {
        sleep(PAUSE);
        let again = look(region);
        found.retain(|problem| again.contains(problem));
    }
    found
}

fn look(region: &MmapRegion) -> Vec<Problem> {
    let mut found = Vec::new();
    // Lines are read from memory, whether the hosts are coherent or not.
    check(&PoolMemory::new(region, false), |problem| {
        if found.len() < MOST {
            found.push(problem);
        }
    });
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use nupa_pool::{FormatOptions, JoinOptions};

    /// A pool for two nodes, of which one has died.
    fn pool(coherent: bool) -> MmapRegion {
        let region = MmapRegion::new("mkpool", 4 << 20).unwrap();
        let (memory, time) = (PoolMemory::new(&region, coherent), HostTime::new());
        let survey = Survey::new(&memory, &time);
        let (max_nodes, token) = (2, 7);
        let options = FormatOptions::new(max_nodes, token);
        let pool = survey.format(&memory, &time, &options).unwrap();
        pool.join(&memory, &time, &JoinOptions::new(1)).unwrap();
        region
    }

    #[test]
    fn what_is_damaged_is_found_and_nothing_else() {
        for coherent in [true, false] {
            let region = pool(coherent);
            assert_eq!(find(&region), []);
            for (offset, expected) in [
                (4096 + 7, "offset 0x1000, slot of node 0: claim is"),
                (4096 + 0x70, "offset 0x1070, slot of node 0: reserved is"),
                (0x50, "offset 0x50, superblock: reserved is"),
            ] {
                let mut before = [0];
                region.read(offset, &mut before).unwrap();
                region.write(offset, &[0xee]).unwrap();
                let found: Vec<_> = find(&region).iter().map(ToString::to_string).collect();
                assert!(
                    found.iter().any(|line| line.contains(expected)),
                    "{found:?}"
                );
                region.write(offset, &before).unwrap();
            }
            assert_eq!(find(&region), []);
        }
    }

    #[test]
    fn memory_without_a_pool_is_one_problem_and_ruins_are_so_many() {
        let region = MmapRegion::new("mkpool", 4 << 20).unwrap();
        let found = find(&region);
        let text: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert!(
            text.len() == 1 && text.concat().contains("the memory holds no pool"),
            "{text:?}"
        );
        let region = pool(true);
        for page in (0x2000..region.len()).step_by(4096) {
            region.write(page, &[0xee; 4096]).unwrap();
        }
        let found = find(&region);
        assert!(!found.is_empty() && found.len() <= MOST, "{}", found.len());
    }
}

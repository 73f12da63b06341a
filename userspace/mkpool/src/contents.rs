// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What memory holds, for people to decide whether it may be lost.

use std::fmt;

use anyhow::{bail, ensure};
use guestmem::MmapRegion;
use nupa_pool::{NodeSet, Pool, Refusal, Survey};
use nupa_poolmem::{HostTime, PoolMemory};

/// Bytes that are looked at as a whole.
const PIECE: usize = 4096;
/// Bytes at the front that are looked at without gaps, and from one piece to the next behind.
const FRONT: usize = 1 << 20;
/// Bytes that are shown.
const SHOWN: usize = 64;
const LINE: usize = 16;

/// What a device's memory holds.
pub struct Contents {
    survey: Survey,
    len: usize,
    /// Nodes of the pool that live, and that have died.
    nodes: (NodeSet, NodeSet),
    /// Where the first byte is that is not zero, and those from there.
    first: Option<(usize, Vec<u8>)>,
}

impl Contents {
    /// Reads the memory, and writes nothing.
    pub(crate) fn look(region: &MmapRegion) -> Self {
        let time = HostTime::new();
        let survey = |coherent| Survey::new(&PoolMemory::new(region, coherent), &time);
        let found = match survey(true) {
            // For what it was formatted is not the question.
            other if matches!(other.pool(), Err(Refusal::Coherence { .. })) => survey(false),
            found => found,
        };
        let nodes = |pool: Pool| pool.nodes(&PoolMemory::new(region, false), &time);
        Self {
            survey: found,
            len: region.len(),
            nodes: found.pool().map(nodes).unwrap_or_default(),
            first: first_bytes(region),
        }
    }

    pub(crate) fn survey(&self) -> &Survey {
        &self.survey
    }

    /// Bytes of the memory.
    pub fn size(&self) -> usize {
        self.len
    }

    /// Whether it reads as zeroes, as far as was looked.
    pub fn is_blank(&self) -> bool {
        self.first.is_none()
    }

    /// The pool that is there, or why there is none that can be used.
    pub fn pool(&self) -> Result<Pool, Refusal> {
        self.survey.pool()
    }

    /// Nodes that have a slot of the pool: those that live, and those that have died.
    pub fn nodes(&self) -> (&NodeSet, &NodeSet) {
        (&self.nodes.0, &self.nodes.1)
    }

    /// An error if others are using it, or may be, so that it is not to be formatted.
    pub(crate) fn may_be_lost(&self) -> anyhow::Result<()> {
        self.is_unused("formatted")?;
        match self.survey.pool() {
            Ok(_) | Err(Refusal::Unformatted | Refusal::Corrupt) => Ok(()),
            Err(refusal) => bail!("{refusal}; others may use it, so nothing is formatted. To give it up: nupactl pool discard"),
        }
    }

    /// An error if it is not to be discarded: there is no pool, or others are using it. `force`: so is one of which nobody can tell
    /// whether they do.
    pub(crate) fn may_be_discarded(&self, force: bool) -> anyhow::Result<()> {
        self.is_unused("discarded")?;
        match self.survey.pool() {
            Ok(_) | Err(Refusal::Corrupt) => Ok(()),
            Err(Refusal::Version { .. } | Refusal::Size { .. }) if force => Ok(()),
            Err(refusal @ (Refusal::Version { .. } | Refusal::Size { .. })) => bail!(
                "{refusal}; nobody can tell whether hosts use it, so nothing is discarded without --force"
            ),
            Err(refusal) => bail!("{refusal}; nothing is discarded"),
        }
    }

    /// An error if nodes are using it. `done`: what is not done then.
    fn is_unused(&self, done: &str) -> anyhow::Result<()> {
        let (live, _) = self.nodes();
        ensure!(
            live.is_empty(),
            "nodes {} use the pool; nothing is {done}",
            list(live)
        );
        Ok(())
    }
}

/// Whether memory reads as zeroes: all of its front, and a piece of every MiB behind. Reading all of it would take memory of the
/// host for what was never written.
pub(crate) fn is_blank(region: &MmapRegion) -> bool {
    first_bytes(region).is_none()
}

fn first_bytes(region: &MmapRegion) -> Option<(usize, Vec<u8>)> {
    let front = (0..FRONT.min(region.len())).step_by(PIECE);
    let behind = (FRONT..region.len()).step_by(FRONT);
    let mut piece = vec![0; PIECE];
    front.chain(behind).find_map(|offset| {
        region.read(offset, &mut piece).ok()?;
        let at = piece.iter().position(|byte| *byte != 0)?;
        let start = at.checked_sub(at.checked_rem(LINE)?)?;
        let shown = piece.iter().skip(start).take(SHOWN).copied().collect();
        Some((offset.checked_add(start)?, shown))
    })
}

/// How many inboxes the nodes of a pool have, if they have any.
pub(crate) fn inboxes(pool: &Pool) -> String {
    let inboxes = pool.geometry().inboxes();
    inboxes.map_or(String::new(), |count| format!(" with {count} inboxes each"))
}

fn list(nodes: &NodeSet) -> String {
    let numbers: Vec<_> = nodes.iter().map(|node| node.to_string()).collect();
    numbers.join(", ")
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes. ", self.len)?;
        match self.survey.pool() {
            Ok(pool) => {
                let nodes = pool.geometry().max_nodes();
                let inboxes = inboxes(&pool);
                writeln!(
                    f,
                    "A pool for {nodes} nodes{inboxes}, {:016x}.",
                    pool.fabric_id()
                )?;
                for (nodes, what) in [(&self.nodes.0, "live"), (&self.nodes.1, "have died")] {
                    if !nodes.is_empty() {
                        writeln!(f, "Nodes that {what}: {}.", list(nodes))?;
                    }
                }
                return Ok(());
            }
            Err(Refusal::Unformatted) if self.first.is_none() => {
                return writeln!(f, "Blank as far as was looked: its first MiB, and the first 4 KiB of each MiB behind it, read as zeroes.");
            }
            Err(Refusal::Unformatted) => writeln!(f, "No pool, but something else:")?,
            Err(refusal) => writeln!(f, "A pool that cannot be used: {refusal}.")?,
        }
        let Some((offset, bytes)) = &self.first else {
            return Ok(());
        };
        for (line, bytes) in bytes.chunks(LINE).enumerate() {
            write!(
                f,
                "  {:08x} ",
                offset.saturating_add(line.saturating_mul(LINE))
            )?;
            bytes.iter().try_for_each(|byte| write!(f, " {byte:02x}"))?;
            let readable = |byte: &u8| match byte {
                b' '..=b'~' => char::from(*byte),
                _ => '.',
            };
            writeln!(f, "  |{}|", bytes.iter().map(readable).collect::<String>())?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use nupa_pool::{FormatOptions, JoinOptions};

    /// Bytes of the smallest pool for two nodes.
    const SIZE: usize = 3 << 20;

    fn region() -> MmapRegion {
        MmapRegion::new("mkpool", SIZE).unwrap()
    }

    fn format(region: &MmapRegion, coherent: bool) -> Pool {
        let contents = Contents::look(region);
        contents.may_be_lost().unwrap();
        let options = FormatOptions::new(2, 7);
        let memory = PoolMemory::new(region, coherent);
        contents
            .survey()
            .format(&memory, &HostTime::new(), &options)
            .unwrap()
    }

    #[test]
    fn what_memory_holds_is_shown() {
        let region = region();
        assert!(is_blank(&region));
        assert!(Contents::look(&region)
            .to_string()
            .contains("Blank as far as was looked"));
        // In the last piece that is looked at.
        region
            .write(SIZE - (1 << 20) + 17, b"LookingGlass")
            .unwrap();
        assert!(!is_blank(&region));
        let shown = Contents::look(&region).to_string();
        assert!(
            shown.contains("00200010  00 4c 6f") && shown.contains("|.LookingGlass..."),
            "{shown}"
        );
        let before = region.load_u64(0).unwrap();
        assert_eq!(before, 0, "looking writes nothing");
    }

    #[test]
    fn a_pool_without_a_live_node_can_be_formatted_anew() {
        let region = region();
        for coherent in [true, false, true] {
            let pool = format(&region, coherent);
            let shown = Contents::look(&region).to_string();
            assert!(
                shown.contains("A pool for 2 nodes, 0000000000000007"),
                "{shown}"
            );
            let memory = PoolMemory::new(&region, coherent);
            let time = HostTime::new();
            pool.join(&memory, &time, &JoinOptions::new(1)).unwrap();
            let dead = Contents::look(&region);
            assert!(dead.to_string().contains("Nodes that have died: 0."));
            dead.may_be_lost().unwrap();
        }
    }

    #[test]
    fn a_pool_with_a_live_node_is_refused() {
        let region = region();
        format(&region, true);
        let mut contents = Contents::look(&region);
        contents.nodes.0.insert(1);
        let shown = contents.to_string();
        assert!(shown.contains("Nodes that live: 1."), "{shown}");
        for refused in [contents.may_be_lost(), contents.may_be_discarded(true)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("nodes 1 use the pool"), "{refused}");
        }
    }

    #[test]
    fn what_may_be_discarded_is_a_pool() {
        let region = region();
        let may = |force| Contents::look(&region).may_be_discarded(force);
        assert!(may(true).is_err());
        format(&region, true);
        may(false).unwrap();
        // Another version, and a superblock that contradicts itself.
        region.write(8, &[9]).unwrap();
        let refused = may(false).unwrap_err().to_string();
        assert!(refused.contains("without --force"), "{refused}");
        may(true).unwrap();
        region.write(8, &[0]).unwrap();
        region.write(0x50, &[9]).unwrap();
        may(false).unwrap();
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a hostile host can think of.

/// A link word that the hostile host may write.
#[derive(Debug, Clone, Copy)]
pub enum Word {
    /// Of a ring to the victim.
    Producer,
    /// Of a ring from it.
    Consumer,
    /// Of a ring from it, for the payload area.
    Bulk,
}

/// What an entry says.
#[derive(Debug, Clone)]
pub enum Says {
    /// A request, with what its numbers stand for.
    Request {
        opcode: u8,
        flags: u8,
        vlan_id: u16,
        sequence: u32,
        /// Queue pairs, of those that the scene has.
        pairs: [u8; 2],
        epoch: u32,
        len: u32,
        addr: u64,
        key: u8,
    },
    Response {
        reply: u8,
        status: u8,
        sequence: u32,
        pairs: [u8; 2],
    },
    Frame {
        flags: u8,
        meta: [u8; 16],
    },
    Notify(u32),
}

/// An entry of a ring to the victim.
#[derive(Debug, Clone)]
pub struct Forged {
    pub class: u8,
    /// So many behind the next.
    pub ahead: u8,
    pub kind: u8,
    pub payload: u32,
    pub offset: u32,
    pub says: Says,
    /// Bytes of it that are overwritten.
    pub edits: Vec<(u8, u8)>,
    /// The producer's index goes up to behind it.
    pub show: bool,
}

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Step {
    /// Writes a link word with tags of its own, or those that are there, and an index that is so far from what is there.
    Link {
        class: u8,
        word: Word,
        tags: Option<[u16; 2]>,
        index: i32,
    },
    Forge(Forged),
    /// Overwrites payload of a ring to the victim.
    Payload {
        class: u8,
        at: u32,
        bytes: Vec<u8>,
    },
    /// Writes a word of its slot.
    Slot {
        at: u8,
        value: u64,
    },
    /// Overwrites any bytes of the pool.
    Wild {
        at: u32,
        bytes: Vec<u8>,
    },
    /// Its engine has some turns.
    Behave {
        turns: u8,
    },
    /// It comes back with another epoch, and the victim connects to it again.
    Renew,
    /// The victim posts something that is for it.
    Post {
        kind: u8,
        len: u32,
    },
    /// The victim posts receive buffers.
    Receive {
        len: u32,
    },
    /// The others have some turns.
    Run {
        turns: u8,
    },
    /// So much time passes.
    Wait {
        us: u32,
    },
    /// All nodes look around.
    LookAround,
}

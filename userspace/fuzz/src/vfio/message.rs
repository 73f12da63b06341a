// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Messages of vfio-user, right or nearly so.

use arbitrary::{Result, Unstructured};
use nupa_proto::regs;

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bytes of the file that is shown as memory.
pub const MEMORY: u64 = 32 * 4096;
/// Commands.
pub const VERSION: u16 = 1;
pub const READ_REGION: u16 = 9;
const COMMANDS: [u16; 10] = [VERSION, 2, 3, 4, 5, 7, 8, READ_REGION, 10, 13];
/// Flags of a header: no answer is wanted.
const NO_REPLY: u32 = 1 << 4;
const REPLY: u32 = 1;
const ERROR: u32 = 1 << 5;
/// What is accepted at most.
const LONGEST: usize = 32768;

/// What goes with a message.
#[derive(Debug, Clone, Copy)]
pub enum File {
    Memory,
    Event,
    Socket,
}

/// A message, and what comes of it.
pub struct Message {
    pub id: u16,
    pub bytes: Vec<u8>,
    pub files: Vec<File>,
    /// It is as long as it says, and a request.
    pub whole: bool,
    /// An answer is wanted.
    pub answered: bool,
}

impl Message {
    /// One without files that is right.
    pub fn new(command: u16, body: Vec<u8>) -> Self {
        Self::with(7, command, 0, None, body)
    }

    fn with(id: u16, command: u16, flags: u32, size: Option<u32>, body: Vec<u8>) -> Self {
        let right = (HEADER + body.len()) as u32;
        let said = size.unwrap_or(right);
        let mut bytes = Vec::new();
        bytes.extend(id.to_le_bytes());
        bytes.extend(command.to_le_bytes());
        bytes.extend(said.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(0u32.to_le_bytes());
        bytes.extend(body);
        Self {
            id,
            bytes,
            files: Vec::new(),
            whole: said == right && flags & 0xf == 0 && right as usize <= LONGEST,
            answered: flags & NO_REPLY == 0,
        }
    }
}

/// The body of a read of the controller's first register.
pub fn read_magic() -> Vec<u8> {
    words(&[regs::REG_MAGIC as u32, 0, u32::from(regs::BAR_CONTROL), 4])
}

/// The size that a message begins with, if its header is there.
pub fn size(bytes: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER)?;
    Some(u32::from_le_bytes(header[4..8].try_into().unwrap()) as usize)
}

/// Number of a reply, and whether it says that the request failed.
pub fn reply(bytes: &[u8]) -> (u16, bool) {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (flags, error) = (word(8), word(12));
    assert_eq!(flags & !ERROR, REPLY, "flags of a reply");
    assert_eq!(flags & ERROR != 0, error != 0, "an error says which");
    (
        u16::from_le_bytes(bytes[..2].try_into().unwrap()),
        error != 0,
    )
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn long(value: u64) -> [u32; 2] {
    [value as u32, (value >> 32) as u32]
}

/// Any message.
pub fn any(input: &mut Unstructured<'_>) -> Result<Message> {
    let command = match input.ratio(15, 16)? {
        true => *input.choose(&COMMANDS)?,
        false => input.arbitrary()?,
    };
    let body = match input.ratio(1, 12)? {
        true => bytes(input, 80)?,
        false => body(input, command)?,
    };
    let flags = match input.int_in_range(0u8..=11)? {
        0 => NO_REPLY,
        1 => input.arbitrary()?,
        _ => 0,
    };
    let size = match input.int_in_range(0u8..=23)? {
        0 => Some(input.int_in_range(0..=100)?),
        1 => Some(input.arbitrary()?),
        _ => None,
    };
    let mut message = Message::with(input.arbitrary()?, command, flags, size, body);
    let count = match (command, input.int_in_range(0u8..=15)?) {
        (_, 0) => input.int_in_range(0..=20)?,
        (2, 1..=13) => 1,
        (8, 1..=10) => input.int_in_range(0..=4)?,
        _ => 0,
    };
    for _ in 0..count {
        let files = match command {
            2 => [
                File::Memory,
                File::Memory,
                File::Memory,
                File::Event,
                File::Socket,
            ],
            _ => [
                File::Event,
                File::Event,
                File::Event,
                File::Socket,
                File::Memory,
            ],
        };
        message.files.push(*input.choose(&files)?);
    }
    // What the controller's end writes to its own socket comes back to it.
    let own = message
        .files
        .iter()
        .any(|file| matches!(file, File::Socket));
    message.whole &= !own;
    Ok(message)
}

/// The body of a command that could succeed.
fn body(input: &mut Unstructured<'_>, command: u16) -> Result<Vec<u8>> {
    Ok(match command {
        VERSION => {
            let mut body = words(&[input.int_in_range(0..=2)?]);
            body.extend_from_slice(input.choose(&[
                &b"{}\0"[..],
                b"",
                b"{\"capabilities\":{}}\0",
                b"[]\0",
                b"{",
            ])?);
            body
        }
        2 => {
            let [offset, iova, size] = [place(input)?, place(input)?, place(input)?].map(long);
            let flags = input.int_in_range(0..=4)?;
            words(&[
                32, flags, offset[0], offset[1], iova[0], iova[1], size[0], size[1],
            ])
        }
        3 => {
            let [iova, size] = [place(input)?, place(input)?].map(long);
            words(&[
                24,
                *input.choose(&[0, 0, 0, 1, 2, 3])?,
                iova[0],
                iova[1],
                size[0],
                size[1],
            ])
        }
        5 => words(&[
            *input.choose(&[32, 64, 4096, 0])?,
            0,
            input.int_in_range(0..=10)?,
            0,
            0,
            0,
            0,
            0,
        ]),
        7 => words(&[16, 0, input.int_in_range(0..=6)?, 0]),
        8 => {
            let flags = [0x21, 0x22, 0x24, 0x24, 0x24, 0x0c, 0x14];
            let flags = *input.choose(&flags)?;
            let index = *input.choose(&[2, 2, 2, 2, 0, 1, 3, 4, 9])?;
            words(&[
                20,
                flags,
                index,
                input.int_in_range(0..=70)?,
                input.int_in_range(0..=4)?,
            ])
        }
        READ_REGION | 10 => {
            let region = *input.choose(&[0, 0, 2, 2, 4, 7, 7, 1, 6, 9])?;
            let offset = long(match input.ratio(15, 16)? {
                true => input.int_in_range(0..=0x5000)?,
                false => input.arbitrary()?,
            });
            let data = match command {
                10 => bytes(input, 40)?,
                _ => Vec::new(),
            };
            let count = match (input.ratio(15, 16)?, command) {
                (true, 10) => data.len() as u32,
                (true, _) => *input.choose(&[1, 2, 4, 8, 64, 4096, 16384])?,
                _ => input.arbitrary()?,
            };
            let mut body = words(&[offset[0], offset[1], region, count]);
            body.extend(data);
            body
        }
        _ => words(&[16, 0, 0, 0]),
    })
}

/// An address or a length, in pages mostly.
fn place(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.int_in_range(0u8..=15)? {
        0 => input.arbitrary()?,
        1 => input.int_in_range(0..=MEMORY)?,
        _ => input.int_in_range(0..=34u64)? * 4096,
    })
}

fn bytes(input: &mut Unstructured<'_>, most: usize) -> Result<Vec<u8>> {
    let len = input.int_in_range(0..=most)?.min(input.len());
    Ok(input.bytes(len)?.to_vec())
}

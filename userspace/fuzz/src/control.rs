// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Clients of the switch's control socket, and what one who asks there may be answered.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use arbitrary::{Result, Unstructured};
use nupa_control::{Answer, Command, Fault, MAX_LINE};
use nupa_switch::control::Client;
use nupa_testguest::World;

/// Most clients of one input.
const MOST: usize = 20;
/// Words of which commands are, and some that are none.
const WORDS: [&str; 10] = [
    "stats", "link", "up", "down", "fault", "0", "1", "2", "65535", "-1",
];

/// Lets clients say what the bytes say. Panics if one gets no answer, or another than its line has earned.
pub fn control(bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let world = World::new(3);
    for _ in 0..MOST {
        if input.is_empty() || client(&mut input, &world).is_err() {
            break;
        }
    }
    asked(input.take_rest());
}

/// What a client sends: words, or bytes.
fn text(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if input.ratio(1, 3)? {
        let len = input.int_in_range(0..=700)?.min(input.len());
        return Ok(input.bytes(len)?.to_vec());
    }
    let mut text = Vec::new();
    for _ in 0..input.int_in_range(0..=5)? {
        let fault = input.choose(&Fault::ALL)?.word();
        let word = *input.choose(&WORDS)?;
        let word = if input.ratio(1, 4)? { fault } else { word };
        text.extend_from_slice(word.as_bytes());
        text.push(*input.choose(b"   \t\r\n")?);
    }
    if input.ratio(7, 8)? {
        text.push(b'\n');
    }
    Ok(text)
}

fn client(input: &mut Unstructured<'_>, world: &World) -> Result<()> {
    let text = text(input)?;
    let (mut near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    let mut client = Client::new(far);
    let mut fabric = world.fabric.borrow_mut();
    let cut = input.int_in_range(0..=text.len())?;
    let mut over = false;
    for piece in [&text[..cut], &text[cut..]] {
        if !over {
            near.write_all(piece).unwrap();
            over = client.serve(&mut fabric);
        }
    }
    near.shutdown(Shutdown::Write).unwrap();
    // A read takes a part of what there is.
    for _ in 0..8 {
        over = over || client.serve(&mut fabric);
    }
    assert!(over, "a client is kept that sends no more");
    drop(client);
    let mut answer = Vec::new();
    near.read_to_end(&mut answer).unwrap();
    check(&text, &answer);
    Ok(())
}

/// One who says nothing gets no answer; any other gets one, and a good one only for a command.
fn check(text: &[u8], answer: &[u8]) {
    let Some(json) = answer.strip_suffix(b"\n") else {
        assert!(text.is_empty() && answer.is_empty(), "{text:?}: {answer:?}");
        return;
    };
    let answer: Answer = serde_json::from_slice(json).unwrap();
    assert_ne!(answer.ok, answer.error.is_some(), "{answer:?}");
    let line = text.split(|byte| *byte == b'\n').next().unwrap();
    if line.len() > MAX_LINE {
        // A part of it is taken for the whole.
        return;
    }
    match String::from_utf8_lossy(line).parse::<Command>() {
        Ok(Command::Stats) => assert!(answer.nodes.is_some()),
        Ok(_) => assert!(answer.nodes.is_none()),
        Err(_) => assert!(!answer.ok, "{text:?}"),
    }
}

/// What is no answer is an error to one who asks; what is one is the same when it is told on.
fn asked(bytes: &[u8]) {
    if let Ok(answer) = serde_json::from_slice::<Answer>(bytes) {
        let told = serde_json::to_vec(&answer).unwrap();
        assert_eq!(serde_json::from_slice::<Answer>(&told).unwrap(), answer);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Asking an emulator.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{Answer, Command};

/// How long an emulator may take that has all its nodes busy.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest answer that is read: that for 64 nodes is an eighth of it at most.
const MAX_ANSWER: usize = 1 << 20;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody listens there.
    #[error("no emulator listens there")]
    NoEmulator,
    /// The socket is another user's.
    #[error("the emulator is another user's")]
    NoRights,
    /// It is there and does not answer, or ends while it does.
    #[error("the emulator does not answer: {0}")]
    Io(io::Error),
    /// It answers something else.
    #[error("this is no answer of an emulator: {0}")]
    NotUnderstood(#[from] serde_json::Error),
    /// It says why it does not do it.
    #[error("{0}")]
    Refused(String),
}

impl From<io::Error> for AskError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => Self::NoEmulator,
            io::ErrorKind::PermissionDenied => Self::NoRights,
            _ => Self::Io(error),
        }
    }
}

/// Tells an emulator a command, and returns its answer, which is one of success.
///
/// # Errors
/// Another program that listens on the socket may answer anything; what is no answer is an error.
pub fn ask(socket: &Path, command: Command) -> Result<Answer, AskError> {
    ask_within(TIMEOUT, socket, command)
}

fn ask_within(time: Duration, socket: &Path, command: Command) -> Result<Answer, AskError> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_write_timeout(Some(time))?;
    stream.write_all(format!("{command}\n").as_bytes())?;
    let answer: Answer = serde_json::from_slice(&read_all(&mut stream, time)?)?;
    if answer.ok {
        return Ok(answer);
    }
    let why = answer.error.unwrap_or_else(|| "it does not say why".into());
    Err(AskError::Refused(why))
}

/// Reads to the end. All of it has so much time: one who sends a byte now and then would keep the caller for ever.
fn read_all(stream: &mut UnixStream, time: Duration) -> io::Result<Vec<u8>> {
    let (begin, mut text) = (Instant::now(), Vec::new());
    let mut piece = [0; 4096];
    loop {
        let left = time.saturating_sub(begin.elapsed());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut piece) {
            Ok(0) => return Ok(text),
            Ok(len) => text.extend_from_slice(piece.get(..len).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if text.len() > MAX_ANSWER {
            return Err(io::Error::other("its answer has no end"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// Asks one who sends `piece` `times` times, with a pause before each.
    fn asked(piece: &'static [u8], times: u32, pause: Duration) -> AskError {
        let name = format!("nupa-ask-{}-{times}.sock", std::process::id());
        let socket = std::env::temp_dir().join(name);
        let listener = UnixListener::bind(&socket).unwrap();
        let hostile = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for _ in 0..times {
                thread::sleep(pause);
                if stream.write_all(piece).is_err() {
                    break;
                }
            }
        });
        let answer = ask_within(Duration::from_millis(300), &socket, Command::Stats);
        std::fs::remove_file(&socket).unwrap();
        hostile.join().unwrap();
        answer.unwrap_err()
    }

    #[test]
    fn nobody_keeps_a_caller_for_longer_than_its_time() {
        let error = asked(b" ", 100, Duration::from_millis(20));
        assert!(
            matches!(&error, AskError::Io(why) if why.kind() == io::ErrorKind::TimedOut),
            "{error:?}"
        );
    }

    #[test]
    fn an_answer_without_end_is_none() {
        let error = asked(&[b' '; 1 << 16], 200, Duration::ZERO);
        assert!(matches!(error, AskError::Io(_)), "{error:?}");
    }
}

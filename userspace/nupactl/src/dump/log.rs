// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The kernel log's lines about NUPA.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::Context;
use rustix::fs::OFlags;

/// Where the kernel's log is; a record for each read (`Documentation/ABI/testing/dev-kmsg` of the kernel).
const FILE: &str = "/dev/kmsg";
/// Bytes of a record at most (`CONSOLE_EXT_LOG_MAX` of the kernel).
const RECORD: usize = 8192;

/// Records that are read at most; no kernel's log holds more (`CONFIG_LOG_BUF_SHIFT`). Others may write meanwhile.
const MOST: usize = 1 << 20;

/// All lines that name a module of ours, with their times.
pub(super) fn lines() -> anyhow::Result<String> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits())?;
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(FILE)
        .with_context(|| format!("cannot open {FILE}, which takes root"))?;
    let mut text = String::new();
    for _ in 0..MOST {
        let line = match next(&mut file)? {
            Next::Record(record) => line(&record),
            Next::Lost => None,
            Next::End => break,
        };
        if let Some(line) = line.filter(|line| line.contains("nupa")) {
            text.push_str(&line);
            text.push('\n');
        }
    }
    Ok(text)
}

/// What comes next in the log.
enum Next {
    Record(String),
    /// Records that were overwritten meanwhile.
    Lost,
    /// Nothing.
    End,
}

fn next(file: &mut File) -> anyhow::Result<Next> {
    let mut record = vec![0; RECORD];
    match file.read(&mut record) {
        Ok(len) => {
            record.truncate(len);
            Ok(Next::Record(String::from_utf8_lossy(&record).into_owned()))
        }
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(Next::Lost),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Next::End),
        Err(error) => Err(error).with_context(|| format!("cannot read {FILE}")),
    }
}

/// A record as `dmesg` prints it: seconds, and the text.
fn line(record: &str) -> Option<String> {
    let (prefix, rest) = record.split_once(';')?;
    let micros: u64 = prefix.split(',').nth(2)?.parse().ok()?;
    let text = rest.lines().next()?;
    Some(format!(
        "[{:5}.{:06}] {text}",
        micros / 1_000_000,
        micros % 1_000_000
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_becomes_a_line() {
        let record = "6,339,5140900,-,caller=T1;nupa_fabric: link; is up\n SUBSYSTEM=pci\n";
        assert_eq!(
            line(record).as_deref(),
            Some("[    5.140900] nupa_fabric: link; is up")
        );
        for wrong in ["", "6,339", "6,x;text", "6,1,y,-;text"] {
            assert_eq!(line(wrong), None);
        }
    }
}

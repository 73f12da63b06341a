// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An archive of what there is to know of this host, for those who help.

mod bundle;
mod collect;
mod log;

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{bail, Context};
use jiff::{tz::TimeZone, Timestamp, Zoned};

use bundle::Bundle;

/// Writes the archive to a file that is not there yet, which only its owner can read, and says what it is.
pub(crate) fn write(file: Option<&Path>, out: &mut impl Write) -> anyhow::Result<()> {
    let now = Timestamp::now();
    let file = file.map_or_else(|| default_name(now), Path::to_owned);
    let opened = create(&file)?;
    match fill(opened, now) {
        Ok((found, missing)) => {
            let path = file.display();
            writeln!(
                out,
                "{path}: {found} files; {missing} could not be had, and MANIFEST in it says why"
            )?;
            writeln!(
                out,
                "It names hosts, nodes and processes: look at it before you pass it on."
            )?;
            Ok(())
        }
        Err(error) => {
            // What is left is no archive. Where it cannot be removed either, there is the error already.
            let _ = fs::remove_file(&file);
            Err(error.context(format!("cannot write {}", file.display())))
        }
    }
}

/// A name of host and time.
fn default_name(now: Timestamp) -> PathBuf {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let fit = |letter: &char| letter.is_ascii_alphanumeric() || "-._".contains(*letter);
    let host: String = host.chars().filter(fit).collect();
    let time = Zoned::new(now, TimeZone::system());
    PathBuf::from(format!(
        "nupa-{host}-{}.tar.gz",
        time.strftime("%Y%m%d-%H%M%S")
    ))
}

fn create(file: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).mode(0o600).open(file) {
        Ok(opened) => Ok(opened),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
            "{} is there already, and is left as it is: name another file",
            file.display()
        ),
        Err(error) => Err(error).with_context(|| format!("cannot make {}", file.display())),
    }
}

fn fill(file: File, now: Timestamp) -> anyhow::Result<(usize, usize)> {
    let time = u64::try_from(now.as_second()).unwrap_or_default();
    let mut bundle = Bundle::new(BufWriter::new(file), time);
    collect::all(&mut bundle)?;
    bundle.finish()
}

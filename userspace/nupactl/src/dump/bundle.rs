// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An archive, and its account of what is in it and what is not.

use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use anyhow::Context;
use flate2::write::GzEncoder;
use flate2::Compression;
use tar::{Builder, Header};

/// Directory that everything is in.
const TOP: &str = "nupa-dump";
/// Bytes of a file that are read at most; those of sysfs have 4 KiB.
const MOST: u64 = 1 << 20;

/// An archive that is being written.
pub(super) struct Bundle<W: Write> {
    archive: Builder<GzEncoder<W>>,
    /// When it was begun, in seconds since 1970.
    time: u64,
    /// Names of what is in it, with their bytes.
    entries: Vec<(String, usize)>,
    /// Names of what is missing, and why.
    missing: Vec<(String, String)>,
}

impl<W: Write> Bundle<W> {
    /// Begins an archive.
    pub(super) fn new(file: W, time: u64) -> Self {
        Self {
            archive: Builder::new(GzEncoder::new(file, Compression::default())),
            time,
            entries: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Adds text under a name, without addresses of the kernel. An error is one of writing.
    pub(super) fn add(&mut self, name: &str, text: &str) -> anyhow::Result<()> {
        let text = without_addresses(text);
        self.write(name, text.as_bytes())?;
        self.entries.push((name.to_owned(), text.len()));
        Ok(())
    }

    /// Adds text, or notes why there is none.
    pub(super) fn add_if(
        &mut self,
        name: &str,
        text: anyhow::Result<String>,
    ) -> anyhow::Result<()> {
        match text {
            Ok(text) => self.add(name, &text),
            Err(error) => {
                self.miss(name, format!("{error:#}"));
                Ok(())
            }
        }
    }

    /// Adds a file, or notes why it cannot be read.
    pub(super) fn add_file(&mut self, name: &str, path: &Path) -> anyhow::Result<()> {
        self.add_if(name, read(path))
    }

    /// Notes that something is missing.
    pub(super) fn miss(&mut self, name: &str, why: impl Display) {
        self.missing.push((name.to_owned(), why.to_string()));
    }

    /// Adds the account, and ends the archive. Returns how much is in it, and how much is missing.
    pub(super) fn finish(mut self) -> anyhow::Result<(usize, usize)> {
        let manifest = self.manifest();
        self.write("MANIFEST", manifest.as_bytes())?;
        let mut file = self.archive.into_inner()?.finish()?;
        file.flush()?;
        Ok((self.entries.len(), self.missing.len()))
    }

    fn manifest(&self) -> String {
        let mut text = String::from(
            "What `nupactl dump` found out about this host, and the bytes of each.\n\n",
        );
        // Writing to a string does not fail.
        for (name, bytes) in &self.entries {
            let _ = writeln!(text, "{bytes:8} {name}");
        }
        text.push_str("\nWhat could not be read, and why:\n\n");
        for (name, why) in &self.missing {
            let _ = writeln!(text, "{name}: {why}");
        }
        if self.missing.is_empty() {
            text.push_str("nothing\n");
        }
        text
    }

    fn write(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(u64::try_from(bytes.len())?);
        header.set_mode(0o600);
        header.set_mtime(self.time);
        self.archive
            .append_data(&mut header, Path::new(TOP).join(name), bytes)
            .with_context(|| format!("cannot write {name}"))
    }
}

/// A file's text, up to [`MOST`] bytes of it.
pub(super) fn read(path: &Path) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Text with other words in place of addresses of the kernel: numbers of 16 hexadecimal digits that begin with `ffff`.
fn without_addresses(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut word = String::new();
    let end = |clean: &mut String, word: &mut String| {
        let address = word.len() == 16 && word.to_ascii_lowercase().starts_with("ffff");
        clean.push_str(if address { "(address)" } else { word });
        word.clear();
    };
    for letter in text.chars() {
        if letter.is_ascii_hexdigit() {
            word.push(letter);
            continue;
        }
        end(&mut clean, &mut word);
        clean.push(letter);
    }
    end(&mut clean, &mut word);
    clean
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;

    #[test]
    fn addresses_of_the_kernel_are_left_out_and_guids_are_not() {
        let text = "RIP ffffffffc0a81234, 0xFFFF888004bc3000: guid 024e55fffe500001 ffff";
        let clean = "RIP (address), 0x(address): guid 024e55fffe500001 ffff";
        assert_eq!(without_addresses(text), clean);
        assert_eq!(without_addresses("ffff888004bc3000"), "(address)");
    }

    #[test]
    fn the_manifest_says_what_is_in_it_and_what_is_not() {
        let mut file = Vec::new();
        let mut bundle = Bundle::new(&mut file, 7);
        bundle.add("a/b", "text").unwrap();
        bundle.add_file("c", Path::new("/nowhere/c")).unwrap();
        assert_eq!(bundle.finish().unwrap(), (1, 1));
        let mut archive = tar::Archive::new(GzDecoder::new(&file[..]));
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            assert_eq!(entry.header().mode().unwrap(), 0o600);
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            found.push((entry.path().unwrap().display().to_string(), text));
        }
        assert_eq!(found[0], ("nupa-dump/a/b".to_owned(), "text".to_owned()));
        assert_eq!(found[1].0, "nupa-dump/MANIFEST");
        assert!(found[1].1.contains("4 a/b\n"), "{}", found[1].1);
        assert!(found[1].1.contains("c: No such file"), "{}", found[1].1);
    }
}

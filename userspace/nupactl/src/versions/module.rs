// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Kernel modules: those that are loaded, and those that `modprobe` would load.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use super::library::find;

/// The modules, in the order in which they are loaded.
const NAMES: [&str; 3] = ["nupa_fabric", "nupa_net", "nupa_rdma"];
/// Begins the note with a build id (elf(5), `NT_GNU_BUILD_ID`): length of the name, of 20 bytes of id, type, name.
const BUILD_ID: [u8; 16] = *b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
/// Bytes of a build id.
const BUILD_ID_LEN: usize = 20;

/// A kernel module.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Module {
    /// Its name.
    pub(crate) name: String,
    /// Whether it is loaded.
    pub(crate) loaded: bool,
    /// Its version, if it is loaded and says one.
    pub(crate) version: Option<String>,
    /// Build id of the one that is loaded.
    pub(crate) build: Option<String>,
    /// The file that `modprobe` takes for the kernel that runs.
    pub(crate) file: Option<PathBuf>,
    /// Build id of that file; it is not known of a compressed one.
    pub(crate) file_build: Option<String>,
}

impl Module {
    /// The version, for people.
    pub(super) fn version_text(&self) -> &str {
        match &self.version {
            _ if !self.loaded => "not loaded",
            Some(version) => version,
            None => "unknown",
        }
    }

    /// What else is known of one that is loaded.
    pub(super) fn details(&self) -> Option<String> {
        let short = |build: &str| format!("build {}", build.get(..12).unwrap_or(build));
        self.build.as_deref().map(short)
    }
}

/// All of them, below the root directory `root`.
pub(super) fn all(root: &Path, kernel: &str) -> Vec<Module> {
    NAMES.map(|name| module(root, kernel, name)).into()
}

fn module(root: &Path, kernel: &str, name: &str) -> Module {
    let loaded = root.join("sys/module").join(name);
    let notes = fs::read(loaded.join("notes/.note.gnu.build-id"));
    let version = fs::read_to_string(loaded.join("version"));
    let modules = root.join("lib/modules").join(kernel);
    let file = installed(&modules, name);
    Module {
        name: name.to_owned(),
        loaded: loaded.exists(),
        version: version.ok().map(|version| version.trim().to_owned()),
        build: notes.ok().and_then(|notes| build_id(&notes)),
        file_build: file
            .as_ref()
            .and_then(|file| build_id(&fs::read(file).ok()?)),
        file,
    }
}

/// The file of a module, from what `depmod` wrote.
fn installed(modules: &Path, name: &str) -> Option<PathBuf> {
    let text = fs::read_to_string(modules.join("modules.dep")).ok()?;
    let mut files = text.lines().filter_map(|line| line.split_once(':'));
    let (file, _) = files.find(|(file, _)| {
        let base = file.rsplit('/').next().unwrap_or_default();
        base.split_once(".ko").is_some_and(|(stem, _)| stem == name)
    })?;
    Some(modules.join(file))
}

/// The build id in bytes that have one.
fn build_id(bytes: &[u8]) -> Option<String> {
    let at = find(bytes, &BUILD_ID)?.checked_add(BUILD_ID.len())?;
    let id = bytes.get(at..)?.get(..BUILD_ID_LEN)?;
    let mut text = String::new();
    for byte in id {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_is_found_and_may_be_cut_off() {
        let mut bytes = [&b"\x7fELF..."[..], &BUILD_ID, &[0xab; 20], b"tail"].concat();
        assert_eq!(build_id(&bytes), Some("ab".repeat(20)));
        bytes.truncate(40);
        assert_eq!(build_id(&bytes), None);
        assert_eq!(build_id(b""), None);
    }

    #[test]
    fn what_is_loaded_and_what_is_installed() {
        let root = std::env::temp_dir().join(format!("nupactl-modules-{}", std::process::id()));
        let (loaded, modules) = (root.join("sys/module/nupa_net"), root.join("lib/modules/7"));
        fs::create_dir_all(&loaded).unwrap();
        fs::create_dir_all(modules.join("updates")).unwrap();
        fs::write(loaded.join("version"), "1.2.3\n").unwrap();
        let dep = "updates/nupa_net_x.ko: a.ko\nupdates/nupa_net.ko: updates/nupa_fabric.ko\n";
        fs::write(modules.join("modules.dep"), dep).unwrap();
        let file = modules.join("updates/nupa_net.ko");
        fs::write(&file, [&BUILD_ID[..], &[0x11; 20]].concat()).unwrap();
        let [fabric, net, _] = &all(&root, "7")[..] else {
            panic!("there are three modules");
        };
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((fabric.loaded, &fabric.file), (false, &None));
        assert_eq!(
            (net.loaded, net.version.as_deref(), &net.build),
            (true, Some("1.2.3"), &None)
        );
        assert_eq!(net.file, Some(file));
        assert_eq!(net.file_build, Some("11".repeat(20)));
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Libraries for verbs programs: libibverbs, and the providers that it may load.

use std::fs;
use std::path::{Path, PathBuf};

use comfy_table::Table;
use nupa_proto::uabi::ProviderInfo;
use schemars::JsonSchema;
use serde::Serialize;
use zerocopy::FromBytes;

/// Where distributions have libibverbs; its providers are in `libibverbs` beside it.
const PLACES: [&str; 5] = [
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/lib",
];
/// Where libibverbs looks for names of providers.
const DRIVERS: &str = "etc/libibverbs.d";
/// Name of the version of symbols that providers use; the version of their interface follows.
const INTERFACE: &[u8] = b"IBVERBS_PRIVATE_";

/// Libraries for verbs programs.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Verbs {
    /// libibverbs, if it is there.
    pub(crate) libibverbs: Option<PathBuf>,
    /// Version of its interface for providers: it loads libnupa-rdmavN.so where this is N.
    pub(crate) interface: Option<u32>,
    /// Whether a file in /etc/libibverbs.d names the provider, without which libibverbs does not look for it.
    pub(crate) named: bool,
    /// Providers that are installed.
    pub(crate) providers: Vec<Provider>,
}

/// A provider.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Provider {
    /// The library.
    pub(crate) file: PathBuf,
    /// Version of libibverbs's interface that it is for.
    pub(crate) interface: u32,
    /// Its version, if it says one.
    pub(crate) version: Option<String>,
    /// The ABI that it speaks with nupa_rdma, if it says that.
    pub(crate) abi: Option<u32>,
}

impl Verbs {
    /// What there is below the root directory `root`.
    pub(super) fn read(root: &Path) -> Self {
        let places = PLACES.iter().map(|place| root.join(place));
        let library = places
            .map(|place| place.join("libibverbs.so.1"))
            .find(|library| library.exists());
        let Some(library) = library else {
            return Self::default();
        };
        let bytes = fs::read(&library).unwrap_or_default();
        let mut providers: Vec<_> = files(&library.with_file_name("libibverbs"))
            .filter_map(provider)
            .collect();
        providers.sort_by_key(|provider| provider.interface);
        Self {
            interface: interface(&bytes),
            named: files(&root.join(DRIVERS)).any(|file| names_ours(&file)),
            providers,
            libibverbs: Some(library),
        }
    }

    /// The provider that libibverbs loads.
    pub(super) fn loaded(&self) -> Option<&Provider> {
        let fits = |provider: &&Provider| Some(provider.interface) == self.interface;
        self.providers.iter().find(fits)
    }

    /// Adds the libraries to a table of part, version and details.
    pub(super) fn rows(&self, table: &mut Table) {
        let Some(library) = &self.libibverbs else {
            table.add_row(["libibverbs", "not installed"]);
            return;
        };
        let interface = self
            .interface
            .map(|interface| format!("interface {interface}"));
        let version = interface.as_deref().unwrap_or("unknown");
        table.add_row(["libibverbs", version, &library.display().to_string()]);
        if self.providers.is_empty() {
            table.add_row(["provider", "not installed"]);
        }
        for provider in &self.providers {
            let abi = provider
                .abi
                .map_or(String::new(), |abi| format!("ABI {abi}, "));
            let version = provider.version.as_deref().unwrap_or("unknown");
            let details = format!("{abi}{}", provider.file.display());
            table.add_row(["provider", version, &details]);
        }
    }
}

fn files(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.path())
}

/// Whether a file of libibverbs.d names our provider.
fn names_ours(file: &Path) -> bool {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines()
        .any(|line| line.split_whitespace().collect::<Vec<_>>() == ["driver", "nupa"])
}

/// A file's provider, if its name is that of one of ours.
fn provider(file: PathBuf) -> Option<Provider> {
    let name = file.file_name()?.to_str()?;
    let number = name.strip_prefix("libnupa-rdmav")?.strip_suffix(".so")?;
    let interface = number.parse().ok()?;
    let bytes = fs::read(&file).unwrap_or_default();
    let info = find(&bytes, &ProviderInfo::MAGIC)
        .and_then(|at| ProviderInfo::read_from_prefix(bytes.get(at..)?).ok())
        .map(|(info, _)| info);
    Some(Provider {
        interface,
        version: info.and_then(|info| info.version().map(str::to_owned)),
        abi: info.map(|info| info.abi.get()),
        file,
    })
}

/// Version of the interface for providers that a libibverbs has.
fn interface(library: &[u8]) -> Option<u32> {
    let after = library.get(find(library, INTERFACE)?.checked_add(INTERFACE.len())?..)?;
    let digits = after
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count();
    std::str::from_utf8(after.get(..digits)?).ok()?.parse().ok()
}

/// ABI that an RDMA device wants of its provider.
pub(super) fn abi(device: &str) -> Option<u32> {
    let read = |path: PathBuf| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    files(Path::new("/sys/class/infiniband_verbs"))
        .find(|verbs| read(verbs.join("ibdev")).as_deref() == Some(device))
        .and_then(|verbs| read(verbs.join("abi_version"))?.parse().ok())
}

/// Where bytes begin that are looked for.
pub(super) fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes
        .windows(wanted.len())
        .position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    #[test]
    fn libraries_are_read_and_not_loaded() {
        let root = std::env::temp_dir().join(format!("nupactl-libraries-{}", std::process::id()));
        let place = root.join("usr/lib64/libibverbs");
        fs::create_dir_all(&place).unwrap();
        fs::create_dir_all(root.join(DRIVERS)).unwrap();
        fs::write(place.join("../libibverbs.so.1"), b"\0IBVERBS_PRIVATE_34\0").unwrap();
        let library = [b"\x7fELF", ProviderInfo::THIS.as_bytes(), b"end"].concat();
        fs::write(place.join("libnupa-rdmav34.so"), library).unwrap();
        fs::write(place.join("libnupa-rdmav65.so"), ProviderInfo::MAGIC).unwrap();
        fs::write(place.join("libmlx5-rdmav34.so"), "").unwrap();
        fs::write(root.join(DRIVERS).join("nupa.driver"), "driver nupa\n").unwrap();
        let verbs = Verbs::read(&root);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!((verbs.interface, verbs.named), (Some(34), true));
        let loaded = verbs.loaded().unwrap();
        assert_eq!(loaded.abi, Some(nupa_proto::uabi::ABI_VERSION));
        assert_eq!(loaded.version.as_deref(), Some(nupa_proto::VERSION));
        let [_, cut_off] = &verbs.providers[..] else {
            panic!("there are two providers of ours");
        };
        assert_eq!((cut_off.interface, cut_off.abi), (65, None));
    }
}

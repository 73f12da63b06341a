// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What does not fit together, and what to do.

use super::{Module, Versions};

/// All that does not fit, a sentence each.
pub(super) fn all(versions: &Versions) -> Vec<String> {
    let modules = versions.modules.iter().filter(|module| module.loaded);
    let modules = modules.flat_map(|module| of_module(module, &versions.nupactl));
    modules.chain(of_libraries(versions)).collect()
}

fn of_module(module: &Module, nupactl: &str) -> Vec<String> {
    let name = &module.name;
    let mut found = Vec::new();
    match module.version.as_deref() {
        Some(version) if version == nupactl => {}
        Some(version) => found.push(format!(
            "The module {name} is version {version}, and nupactl is version {nupactl}: install both from one build."
        )),
        None => found.push(format!(
            "The module {name} does not say its version, so it is older than nupactl: install both from one build."
        )),
    }
    if let (Some(loaded), Some(file)) = (&module.build, &module.file_build) {
        if loaded != file {
            let place = module.file.as_deref().unwrap_or_else(|| name.as_ref());
            found.push(format!(
                "The module {name} that is loaded is not the one that is installed ({}): restart the host, or unload it and run `modprobe {name}`.",
                place.display()
            ));
        }
    }
    found
}

fn of_libraries(versions: &Versions) -> Vec<String> {
    let verbs = &versions.verbs;
    let (Some(_), Some(interface)) = (&verbs.libibverbs, verbs.interface) else {
        return Vec::new();
    };
    if verbs.providers.is_empty() && versions.abi.is_none() {
        return Vec::new();
    }
    let Some(provider) = verbs.loaded() else {
        return vec![format!(
            "libibverbs here takes providers of interface {interface}, and there is no libnupa-rdmav{interface}.so beside it, so that programs find no RDMA \
             device of NUPA: install libnupa-verbs."
        )];
    };
    let mut found = Vec::new();
    if !verbs.named {
        found.push(
            "No file in /etc/libibverbs.d has the line `driver nupa`, so libibverbs does not look for the provider: install nupa.driver there."
                .to_owned(),
        );
    }
    let file = provider.file.display();
    match provider.version.as_deref() {
        Some(version) if version == versions.nupactl => {}
        Some(version) => found.push(format!(
            "The provider {file} is version {version}, and nupactl is version {}: install both from one build.",
            versions.nupactl
        )),
        None => found.push(format!(
            "The provider {file} does not say its version, so it is older than nupactl: install both from one build."
        )),
    }
    if let (Some(theirs), Some(ours)) = (provider.abi, versions.abi) {
        if theirs != ours {
            found.push(format!(
                "The provider {file} speaks ABI {theirs}, and nupa_rdma ABI {ours}, so that programs cannot use the device: install both from one build."
            ));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::library::Provider;
    use super::super::Verbs;
    use super::*;

    /// Parts that fit.
    fn fitting() -> Versions {
        let module = |name: &str| Module {
            name: name.to_owned(),
            loaded: true,
            version: Some("1.0".to_owned()),
            build: Some("aa".to_owned()),
            file: Some("/lib/modules/nupa.ko".into()),
            file_build: Some("aa".to_owned()),
        };
        let provider = Provider {
            file: "/lib/libnupa-rdmav34.so".into(),
            interface: 34,
            version: Some("1.0".to_owned()),
            abi: Some(5),
        };
        Versions {
            nupactl: "1.0".to_owned(),
            kernel: "7".to_owned(),
            modules: ["nupa_fabric", "nupa_net", "nupa_rdma"].map(module).into(),
            controllers: Vec::new(),
            abi: Some(5),
            verbs: Verbs {
                libibverbs: Some("/lib/libibverbs.so.1".into()),
                interface: Some(34),
                named: true,
                providers: vec![provider],
            },
            mismatches: Vec::new(),
        }
    }

    /// What is said after something was changed.
    fn after(change: impl FnOnce(&mut Versions)) -> Vec<String> {
        let mut versions = fitting();
        change(&mut versions);
        all(&versions)
    }

    #[test]
    fn parts_of_one_build_fit() {
        assert!(all(&fitting()).is_empty());
        // Without the driver, and without verbs.
        let bare = after(|versions| {
            versions.modules.iter_mut().for_each(|module| {
                *module = Module {
                    name: module.name.clone(),
                    ..Module::default()
                }
            });
            versions.abi = None;
            versions.verbs.providers.clear();
        });
        assert!(bare.is_empty(), "{bare:?}");
        assert!(after(|versions| versions.verbs = Verbs::default()).is_empty());
    }

    #[test]
    fn each_mismatch_is_a_sentence() {
        type Change = fn(&mut Versions);
        let cases: [(Change, &str); 8] = [
            (
                |v| v.modules[1].version = Some("0.9".into()),
                "nupa_net is version 0.9",
            ),
            (|v| v.modules[0].version = None, "nupa_fabric does not say"),
            (
                |v| v.modules[2].file_build = Some("bb".into()),
                "not the one that is installed",
            ),
            (|v| v.verbs.interface = Some(65), "no libnupa-rdmav65.so"),
            (|v| v.verbs.named = false, "/etc/libibverbs.d"),
            (
                |v| v.verbs.providers[0].version = Some("2".into()),
                "is version 2",
            ),
            (
                |v| v.verbs.providers[0].abi = Some(4),
                "speaks ABI 4, and nupa_rdma ABI 5",
            ),
            (|v| v.verbs.providers.clear(), "no libnupa-rdmav34.so"),
        ];
        for (change, part) in cases {
            let found = after(change);
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(
                found[0].contains(part) && found[0].ends_with('.'),
                "{found:?}"
            );
        }
    }
}

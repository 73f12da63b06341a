// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What fuzzers found so far, tried again: each input that the tree keeps, on each target. `scripts/fuzz` finds more.

#![allow(clippy::unwrap_used, reason = "test code: a panic is a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use nupa_fuzz::TARGETS;

fn names(folder: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let paths = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

/// The inputs of a target.
fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let mut paths: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
}

/// What the tree keeps of a target's inputs, as `scripts/fuzz` has it.
const MOST_BYTES: u64 = 65_536;
const MOST_FILES: usize = 200;

#[test]
fn every_target_is_built_and_has_inputs() {
    let targets: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names("fuzz_targets"), targets);
    assert_eq!(names("corpus"), targets);
    for target in &targets {
        let bytes: u64 = inputs(target)
            .iter()
            .map(|path| path.metadata().unwrap().len())
            .sum();
        assert!(
            (1..=MOST_BYTES).contains(&bytes) && inputs(target).len() <= MOST_FILES,
            "{target}: {bytes} bytes in {} files; see scripts/fuzz --seeds",
            inputs(target).len()
        );
    }
}

#[test]
fn no_input_that_is_kept_fails() {
    let mut failed = Vec::new();
    for (target, fuzz) in TARGETS {
        for path in inputs(target) {
            let bytes = fs::read(&path).unwrap();
            if catch_unwind(|| fuzz(&bytes)).is_err() {
                failed.push(format!("scripts/fuzz {target} {}", path.display()));
            }
        }
    }
    assert!(failed.is_empty(), "these fail:\n{}", failed.join("\n"));
}

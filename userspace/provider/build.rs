// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes Rust bindings of rdma-core's provider interface, with tests of every layout, and names the library.

use std::env;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// What the bindings are made of: these names and whatever they need.
const ALLOWED: [(&str, &str); 3] = [
    (
        "--allowlist-type",
        "verbs_.*|ibv_.*|ib_uverbs_.*|uverbs_default_objects|nupa_ib_.*",
    ),
    (
        "--allowlist-function",
        "verbs_register_driver_[0-9]*|_verbs_init_and_alloc_context|verbs_uninit_context|verbs_set_ops|ibv_qp_to_qp_ex|ibv_cmd_.*|execute_ioctl|__errno_location|free",
    ),
    ("--allowlist-var", "IBV_.*|VERBS_.*|UVERBS_ATTR_F_MANDATORY|UVERBS_ID_NS_SHIFT|NUPA_IB_.*"),
];

/// What the kernel and this provider tell each other, as programs in C see it; a test compares it with `nupa_proto`.
const INTERFACE: &str = "../../include/uapi/rdma/nupa-abi.h";

/// Versions of the provider interface since which it differs for this provider (`src/ffi/abi.rs`).
const CHANGES: [u32; 3] = [57, 59, 64];

/// The version of the provider interface that headers are of; libibverbs looks for a library with this number.
fn interface_version(headers: &str) -> Result<u32, Box<dyn Error>> {
    let path = format!("{headers}/include/config.h");
    let number = fs::read_to_string(&path)?
        .lines()
        .find_map(|line| line.strip_prefix("#define IBVERBS_PABI_VERSION "))
        .ok_or_else(|| format!("no IBVERBS_PABI_VERSION in {path}"))?
        .trim()
        .parse()?;
    Ok(number)
}

fn main() -> Result<(), Box<dyn Error>> {
    for name in ["build.rs", "wrapper.h", INTERFACE] {
        println!("cargo:rerun-if-changed={name}");
    }
    println!("cargo:rerun-if-env-changed=NUPA_RDMA_CORE");
    let headers = env::var("NUPA_RDMA_CORE").map_err(|_| {
        "NUPA_RDMA_CORE is not set: build with scripts/build, or in scripts/in-root"
    })?;
    let bindings = PathBuf::from(env::var("OUT_DIR")?).join("bindings.rs");
    let status = Command::new("bindgen")
        .arg("wrapper.h")
        .arg("--output")
        .arg(&bindings)
        .args(["--no-prepend-enum-name", "--no-doc-comments", "--use-core"])
        .args(ALLOWED.iter().flat_map(|(option, names)| [option, names]))
        .args(["--", "-I", &format!("{headers}/include")])
        .args(["-I", "../../include/uapi"])
        .status()
        .map_err(|error| format!("bindgen cannot be run: {error}"))?;
    if !status.success() {
        return Err(
            format!("bindgen failed with {headers}: does scripts/setup have to be run?").into(),
        );
    }
    let version = interface_version(&headers)?;
    // Under a name without the number.
    let mut text = fs::read_to_string(&bindings)?;
    text.push_str(&format!(
        "pub use verbs_register_driver_{version} as verbs_register_driver;\n"
    ));
    fs::write(&bindings, text)?;
    for change in CHANGES {
        println!("cargo:rustc-check-cfg=cfg(rdma_core_{change})");
        if version >= change {
            println!("cargo:rustc-cfg=rdma_core_{change}");
        }
    }
    // The library of this version, where it is not that of the build root.
    println!("cargo:rustc-link-search=native={headers}/lib");
    // The distribution's library without the development package has this name only.
    println!("cargo:rustc-link-arg=-l:libibverbs.so.1");
    // Programs that use the direct verbs link with the library by the name that it is installed under.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnupa-rdmav{version}.so");
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Makes Rust bindings of libibverbs from its header, with tests of every layout. They load the library, and do not link with it.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

/// Functions that are called. What else the header has is inline, and calls through `ibv_context_ops`.
const FUNCTIONS: &str = "ibv_get_device_list|ibv_free_device_list|ibv_get_device_name|ibv_open_device|ibv_close_device|\
    ibv_alloc_pd|ibv_dealloc_pd|ibv_reg_mr|ibv_dereg_mr|ibv_create_cq|ibv_destroy_cq|ibv_create_qp|ibv_modify_qp|ibv_destroy_qp";

fn main() -> Result<(), Box<dyn Error>> {
    for name in ["build.rs", "wrapper.h"] {
        println!("cargo:rerun-if-changed={name}");
    }
    println!("cargo:rerun-if-env-changed=NUPA_RDMA_CORE");
    let headers = env::var("NUPA_RDMA_CORE").map_err(|_| {
        "NUPA_RDMA_CORE is not set: build with scripts/build, or in scripts/in-root"
    })?;
    let status = Command::new("bindgen")
        .arg("wrapper.h")
        .arg("--output")
        .arg(PathBuf::from(env::var("OUT_DIR")?).join("bindings.rs"))
        .args(["--no-prepend-enum-name", "--no-doc-comments", "--use-core"])
        .args(["--dynamic-loading", "Functions"])
        .args([
            "--dynamic-link-require-all",
            "--allowlist-function",
            FUNCTIONS,
        ])
        .args([
            "--allowlist-type",
            "ibv_wc|ibv_send_wr|ibv_recv_wr|ibv_qp_attr_mask|ibv_access_flags|ibv_send_flags",
        ])
        .args(["--", "-I", &format!("{headers}/include")])
        .status()
        .map_err(|error| format!("bindgen cannot be run: {error}"))?;
    if !status.success() {
        return Err(
            format!("bindgen failed with {headers}: does scripts/setup have to be run?").into(),
        );
    }
    Ok(())
}

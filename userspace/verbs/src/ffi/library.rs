// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Loading libibverbs.

use std::sync::OnceLock;

use super::sys::Functions;
use crate::error::Error;

/// Its name since there is rdma-core; the interface has not changed incompatibly.
const NAME: &str = "libibverbs.so.1";

/// The library once it is loaded. It is not unloaded: it keeps providers, and what they leave behind, for the process.
static LOADED: OnceLock<Functions> = OnceLock::new();

/// Its functions. If it cannot be loaded, it is tried again the next time: it may be installed meanwhile.
pub(super) fn functions() -> Result<&'static Functions, Error> {
    if let Some(functions) = LOADED.get() {
        return Ok(functions);
    }
    // SAFETY: the name is that of rdma-core's library, whose constructors may run at any time and in any thread; its functions have the types
    // that the header of the same rdma-core interface gives them, which is what bindgen read.
    let functions = unsafe { Functions::new(NAME) };
    let functions = functions.map_err(|error| Error::Library(error.to_string()))?;
    Ok(LOADED.get_or_init(|| functions))
}

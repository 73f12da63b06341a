// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `nupa-switch`: the emulated fabric, see the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    nupa_switch::run()
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Signals as bytes on sockets, for the event loop.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};

/// What signals asked for since the last look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Requests {
    /// To end.
    pub(crate) stop: bool,
    /// To log counters.
    pub(crate) report: bool,
}

/// The signals that mean something here.
#[derive(Debug)]
pub(crate) struct Signals {
    wakeup: UnixStream,
    stop: Arc<AtomicBool>,
    report: Arc<AtomicBool>,
}

impl Signals {
    /// Takes the signals over for the process.
    pub(crate) fn new() -> io::Result<Self> {
        let (wakeup, writer) = UnixStream::pair()?;
        wakeup.set_nonblocking(true)?;
        let (stop, report) = (Arc::default(), Arc::default());
        for (signal, flag) in [(SIGTERM, &stop), (SIGINT, &stop), (SIGUSR1, &report)] {
            // The flag comes first, so that it is set when the byte wakes the loop.
            signal_hook::flag::register(signal, Arc::clone(flag))?;
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self {
            wakeup,
            stop,
            report,
        })
    }

    /// Takes what came in.
    pub(crate) fn take(&mut self) -> Requests {
        let mut bytes = [0; 64];
        while matches!(self.wakeup.read(&mut bytes), Ok(n) if n > 0) {}
        Requests {
            stop: self.stop.swap(false, Ordering::SeqCst),
            report: self.report.swap(false, Ordering::SeqCst),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which processor a thread polls a pool on without a pause.

use std::io::Write;

use anyhow::bail;
use clap::Args;
use rustix::io::Errno;
use schemars::JsonSchema;
use serde::Serialize;

use crate::facts::{choose, Controller, Host};
use crate::talk::Refused;
use crate::view;

/// Which controller's thread, and on which processor it is to poll.
#[derive(Debug, Args)]
pub(crate) struct Poll {
    /// The controller: its device, as `nupactl status` shows it, or its index. If it is not said, all are shown, or the only one is changed
    controller: Option<String>,

    /// Have a thread poll its pool on this processor; needs root
    #[arg(long, value_name = "N", conflicts_with = "off")]
    cpu: Option<u32>,

    /// Have no thread poll it; needs root
    #[arg(long)]
    off: bool,
}

/// Which processor a thread polls a controller's pool on.
#[derive(Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Polled {
    /// Index of the controller.
    controller: u32,
    /// Name of its device on its bus.
    device: String,
    /// The processor of the thread that does nothing but poll the pool; null if there is no such thread.
    poll_cpu: Option<u32>,
}

/// Shows it, or changes it and shows how it is then. False if somebody else has changed it meanwhile.
pub(crate) fn run(
    host: &Host,
    controllers: &[Controller],
    args: &Poll,
    json: bool,
    out: &mut impl Write,
) -> anyhow::Result<bool> {
    let (shown, text, done) = if args.changes() {
        let of = choose(controllers, args.controller.as_deref())?;
        host.poll(of, args.cpu)
            .map_err(|error| refused(error, &of.device, args.cpu))?;
        let now = look(host, of)?;
        let (text, done) = (now.outcome(args.cpu), now.poll_cpu == args.cpu);
        (vec![now], text, done)
    } else {
        let shown: Vec<_> = match &args.controller {
            None => controllers.iter().map(Polled::from).collect(),
            Some(wanted) => vec![choose(controllers, Some(wanted))?.into()],
        };
        let text = table(&shown);
        (shown, text, true)
    };
    match json {
        true => writeln!(out, "{}", view::json(&shown)?)?,
        false => writeln!(out, "{text}")?,
    }
    Ok(done)
}

/// How a controller is polled now.
fn look(host: &Host, of: &Controller) -> anyhow::Result<Polled> {
    let now = host.controllers()?;
    let Some(now) = now.iter().find(|now| now.index == of.index) else {
        bail!(
            "{} has gone: its driver was unbound or unloaded meanwhile",
            of.device
        );
    };
    Ok(now.into())
}

/// An error of the kernel, with what it means for people. `cpu`: the processor that a thread was to poll on, if one was.
fn refused(error: anyhow::Error, device: &str, cpu: Option<u32>) -> anyhow::Error {
    let why = error
        .downcast_ref::<Refused>()
        .and_then(|refused| Errno::from_io_error(&refused.0));
    let outcome = match (cpu, why) {
        // The thread that there was had to end first.
        (_, Some(Errno::NOMEM)) => format!("{device} is not polled as it was to be"),
        _ => format!("{device} is polled as before"),
    };
    let reason = match (cpu, why) {
        (_, Some(Errno::PERM)) => "this takes CAP_NET_ADMIN: run it as root".to_owned(),
        // Generic netlink says this of a command that it does not know, too.
        (_, Some(Errno::OPNOTSUPP)) => format!(
            "{device} is a fabric controller, whose hardware polls: threads poll pools; or the module nupa_fabric that is loaded cannot do \
             this, because it is older than this program (`nupactl version`)"
        ),
        (Some(cpu), Some(Errno::INVAL)) => format!(
            "there is no processor {cpu} here, or it is offline: /sys/devices/system/cpu/online has those that are online"
        ),
        (_, Some(Errno::NODEV)) => {
            "it has gone, or its driver is being unbound: `nupactl status` shows how it is".to_owned()
        }
        (_, Some(Errno::NOMEM)) => {
            "there is no memory for it, so that no thread may poll where one did: `nupactl poll` shows how it is; free memory, and try again"
                .to_owned()
        }
        _ => "`nupactl status` shows how it is, and the kernel log may say why".to_owned(),
    };
    error.context(format!("{outcome}: {reason}"))
}

/// Controllers as a table.
fn table(polled: &[Polled]) -> String {
    let mut table = view::table(&["DEVICE", "POLLED"]);
    for of in polled {
        table.add_row([of.device.clone(), of.by()]);
    }
    view::trimmed(&table)
}

impl Poll {
    /// Whether something is to change.
    fn changes(&self) -> bool {
        self.cpu.is_some() || self.off
    }
}

impl From<&Controller> for Polled {
    fn from(of: &Controller) -> Self {
        Self {
            controller: of.index,
            device: of.device.clone(),
            poll_cpu: of.poll_cpu,
        }
    }
}

impl Polled {
    /// What polls it, for people.
    fn by(&self) -> String {
        match self.poll_cpu {
            Some(cpu) => format!("by a thread on processor {cpu}"),
            None => "by no thread".to_owned(),
        }
    }

    /// What to say after a thread was to poll on a processor, or none was to.
    fn outcome(&self, wanted: Option<u32>) -> String {
        let (device, by) = (&self.device, self.by());
        match self.poll_cpu {
            now if now != wanted => {
                format!("{device} is polled {by}: somebody else changed it meanwhile")
            }
            Some(_) => format!(
                "{device} is polled {by} from now on; `nupactl poll --off {device}` ends that"
            ),
            None => format!("{device} is polled {by}"),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Verb};

    fn polled(poll_cpu: Option<u32>) -> Polled {
        Polled {
            controller: 0,
            device: "dax0.0".to_owned(),
            poll_cpu,
        }
    }

    fn parsed(arguments: &[&str]) -> Option<Poll> {
        let cli = Cli::try_parse_from([&["nupactl", "poll"], arguments].concat());
        match cli.ok()?.verb {
            Verb::Poll(poll) => Some(poll),
            _ => None,
        }
    }

    #[test]
    fn it_is_changed_only_where_that_is_said() {
        for shown in [&[][..], &["dax0.0"]] {
            assert!(!parsed(shown).unwrap().changes(), "{shown:?}");
        }
        let on = parsed(&["dax0.0", "--cpu", "0"]).unwrap();
        assert_eq!(
            (on.changes(), on.cpu, on.controller.as_deref()),
            (true, Some(0), Some("dax0.0"))
        );
        let off = parsed(&["--off", "dax0.0"]).unwrap();
        assert_eq!((off.changes(), off.cpu), (true, None));
        let bad: [&[&str]; 5] = [
            &["--cpu"],
            &["--cpu", "-1"],
            &["--cpu", "x"],
            &["--cpu", "0", "--off"],
            &["dax0.0", "dax1.0"],
        ];
        for arguments in bad {
            assert!(parsed(arguments).is_none(), "{arguments:?}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each() {
        let text = table(&[polled(None), polled(Some(3))]);
        let lines: Vec<_> = text.lines().skip(1).collect();
        let expected = ["by no thread", "by a thread on processor 3"];
        for (line, by) in lines.iter().zip(expected) {
            assert!(line.starts_with("dax0.0") && line.ends_with(by), "{line}");
        }
        assert_eq!(lines.len(), expected.len());
    }

    #[test]
    fn the_outcome_is_how_it_is() {
        let expected = [
            (Some(3), Some(3), "`nupactl poll --off dax0.0` ends that"),
            (None, None, "dax0.0 is polled by no thread"),
            (
                Some(1),
                Some(3),
                "on processor 1: somebody else changed it meanwhile",
            ),
            (
                None,
                Some(3),
                "by no thread: somebody else changed it meanwhile",
            ),
        ];
        for (now, wanted, end) in expected {
            let text = polled(now).outcome(wanted);
            assert!(text.ends_with(end), "{text}");
        }
    }

    #[test]
    fn programs_get_null_where_no_thread_polls() {
        let value = serde_json::to_value([polled(Some(0)), polled(None)]).unwrap();
        let expected = serde_json::json!([
            { "controller": 0, "device": "dax0.0", "poll_cpu": 0 },
            { "controller": 0, "device": "dax0.0", "poll_cpu": null },
        ]);
        assert_eq!(value, expected);
    }

    #[test]
    fn each_refusal_says_what_happened_and_what_to_do() {
        let expected = [
            (
                Some(3),
                Errno::PERM,
                "dax0.0 is polled as before: this takes CAP_NET_ADMIN",
            ),
            (None, Errno::PERM, "this takes CAP_NET_ADMIN"),
            (Some(3), Errno::OPNOTSUPP, "dax0.0 is a fabric controller"),
            (None, Errno::OPNOTSUPP, "older than this program"),
            (Some(3), Errno::INVAL, "there is no processor 3 here"),
            (Some(3), Errno::NODEV, "its driver is being unbound"),
            (
                Some(3),
                Errno::NOMEM,
                "dax0.0 is not polled as it was to be: there is no memory",
            ),
            (None, Errno::IO, "kernel log"),
        ];
        for (cpu, errno, part) in expected {
            let error = std::io::Error::from_raw_os_error(errno.raw_os_error());
            let error = refused(Refused(error).into(), "dax0.0", cpu);
            assert!(error.is::<Refused>());
            let text = format!("{error:#}");
            assert!(text.contains(part), "{errno:?}: {text}");
        }
    }
}

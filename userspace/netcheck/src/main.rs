// SPDX-License-Identifier: GPL-2.0 OR MIT
//! Sends seeded traffic between two nodes and verifies every byte of it.
//!
//! `netcheck serve` answers on one node; the other subcommands run on the other node and print one line of JSON. The
//! client opens a TCP connection, says in one line what it wants ([`hello::Hello`]), and both sides generate and check
//! the same bytes from the seed in it ([`netcheck::pattern`]). Exit status: 0 all well, 2 the network failed (no connection, time
//! out, connection lost), 3 the bytes that arrived were not the ones sent.

mod count;
mod datagram;
mod error;
mod hello;
mod roundtrip;
mod serve;
mod stream;

use clap::{Parser, Subcommand};
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    work: Work,
}

#[derive(Subcommand)]
enum Work {
    /// Answers clients for ever; prints "ready" once it listens.
    Serve {
        /// Address and port to listen on.
        #[arg(long, default_value = "[::]:5300")]
        listen: String,
    },
    /// Both sides send chunks of random sizes over one TCP connection and verify what they get.
    Tcp {
        #[command(flatten)]
        peer: Peer,
        /// Bytes to send; without a limit of time.
        #[arg(long, default_value_t = 1 << 20)]
        bytes: u64,
        /// Sends for so many seconds instead of a number of bytes.
        #[arg(long)]
        seconds: Option<f64>,
    },
    /// Sends datagrams of random sizes one by one; each is answered by another of the same size.
    Udp {
        #[command(flatten)]
        peer: Peer,
        /// Datagrams to send.
        #[arg(long, default_value_t = 100)]
        count: u64,
    },
    /// Floods the peer with datagrams of one size; the peer counts those that arrive.
    Pps {
        #[command(flatten)]
        peer: Peer,
        /// Payload bytes of each datagram.
        #[arg(long, default_value_t = 64)]
        size: usize,
        /// Seconds to send.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
    /// Counts request and response transactions on one TCP connection.
    Rr {
        #[command(flatten)]
        peer: Peer,
        /// Bytes of each request and of each response.
        #[arg(long, default_value_t = 1)]
        size: usize,
        /// Seconds to run.
        #[arg(long, default_value_t = 5.0)]
        seconds: f64,
    },
}

/// Where the server is, and what is common to all clients.
#[derive(clap::Args)]
struct Peer {
    /// Host and port of the server, such as 10.0.0.2:5300 or [fe80::1%nupanet0]:5300.
    #[arg(long)]
    to: String,
    /// Seed of payloads and sizes.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Largest chunk or datagram; sizes are drawn from 1 up to it.
    #[arg(long, default_value_t = 65_507)]
    max: usize,
    /// Seconds without progress after which the peer counts as lost.
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
}

impl Peer {
    fn options(&self) -> Result<hello::Options, error::Error> {
        Ok(hello::Options {
            to: self.to.clone(),
            seed: self.seed,
            max: self.max.max(1),
            timeout: seconds(self.timeout)?,
        })
    }
}

/// A duration from the command line.
fn seconds(value: f64) -> Result<Duration, error::Error> {
    match Duration::try_from_secs_f64(value) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(error::Error::Usage(format!(
            "'{value}' is not a number of seconds above 0"
        ))),
    }
}

fn run(work: &Work) -> Result<serde_json::Value, error::Error> {
    match work {
        Work::Serve { listen } => serve::run(listen),
        Work::Tcp {
            peer,
            bytes,
            seconds: time,
        } => {
            let limit = match time {
                Some(time) => stream::Limit::Time(seconds(*time)?),
                None => stream::Limit::Bytes(*bytes),
            };
            stream::client(&peer.options()?, limit)
        }
        Work::Udp { peer, count } => datagram::client(&peer.options()?, *count),
        Work::Pps {
            peer,
            size,
            seconds: time,
        } => count::client(&peer.options()?, *size, seconds(*time)?),
        Work::Rr {
            peer,
            size,
            seconds: time,
        } => roundtrip::client(&peer.options()?, *size, seconds(*time)?),
    }
}

fn main() -> ExitCode {
    match run(&Cli::parse().work) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{}", serde_json::json!({ "error": error.to_string() }));
            eprintln!("netcheck: {error}");
            error.exit_code()
        }
    }
}

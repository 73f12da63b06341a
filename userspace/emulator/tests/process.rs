// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The switch as a process: sockets, control commands, signals, and guests that come and go.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    missing_docs,
    reason = "a test may fail loudly"
)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

/// A running switch with a directory of its own; both are gone when it is dropped.
struct Switch {
    child: Child,
    dir: PathBuf,
}

impl Switch {
    fn start(name: &str, args: &[&str]) -> Self {
        let dir = std::env::temp_dir().join(format!("nupa-test-{}-{name}", std::process::id()));
        let mut child = command(&dir, args).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        let stdout = child.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut ready).unwrap();
        assert!(ready.starts_with("nupa-switch: ready, "), "{ready:?}");
        Self { child, dir }
    }

    fn control(&self, command: &str) -> Value {
        let mut stream = UnixStream::connect(self.dir.join("control.sock")).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .unwrap();
        stream.write_all(command.as_bytes()).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.lines().count(), 1, "{answer:?}");
        serde_json::from_str(&answer).unwrap()
    }

    fn is_connected(&self, node: usize) -> bool {
        let stats = self.control("stats\n");
        assert_eq!(stats["ok"], true);
        let found = stats["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .find(|n| n["node"] == node);
        found.unwrap()["connected"].as_bool().unwrap()
    }

    fn connect(&self, node: usize) -> UnixStream {
        UnixStream::connect(self.dir.join(format!("node{node}.sock"))).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill")
            .args([name, &pid])
            .status()
            .unwrap()
            .success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("the switch to end", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nupa-switch"));
    command
        .arg("--dir")
        .arg(dir)
        .args(args)
        .stdin(Stdio::null());
    command
}

fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "waited too long for {what}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A `VFIO_USER_VERSION` request without capabilities.
fn hello(stream: &mut UnixStream) -> bool {
    let request = [1, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut reply = [0; 20];
    stream
        .write_all(&request)
        .and_then(|()| stream.read_exact(&mut reply))
        .is_ok()
        && reply[8] == 1
}

#[test]
fn guests_come_and_go_and_come_back() {
    let switch = Switch::start("guests", &["--nodes", "3"]);
    for _ in 0..3 {
        let mut first = switch.connect(1);
        assert!(hello(&mut first));
        assert!(switch.is_connected(1) && !switch.is_connected(2));
        assert!(!hello(&mut switch.connect(1)), "one guest per node");
        assert!(switch.is_connected(1));
        let mut third = switch.connect(3);
        assert!(hello(&mut third));
        drop(first);
        eventually("node 1 to go", || !switch.is_connected(1));
        assert!(switch.is_connected(3));
        drop(third);
        eventually("node 3 to go", || !switch.is_connected(3));
    }
}

#[test]
fn a_guest_that_talks_nonsense_is_cut_off() {
    let switch = Switch::start("nonsense", &[]);
    let mut guest = switch.connect(1);
    guest.write_all(&[0xff; 64]).unwrap();
    let mut rest = Vec::new();
    let _ = guest.read_to_end(&mut rest);
    eventually("node 1 to go", || !switch.is_connected(1));
    assert!(hello(&mut switch.connect(1)));
}

#[test]
fn control_commands_are_answered() {
    let switch = Switch::start("control", &["--fault", "2=version"]);
    assert_eq!(switch.control("link 1 down\n"), json!({ "ok": true }));
    assert_eq!(switch.control("link 1 up"), json!({ "ok": true }));
    assert_eq!(switch.control("fault 2 none\n"), json!({ "ok": true }));
    let long = "x".repeat(1000);
    for bad in [
        "\n",
        "bogus\n",
        "link 0 up\n",
        "link 3 up\n",
        "fault 1 odd\n",
        &long,
    ] {
        let answer = switch.control(bad);
        assert_eq!(answer["ok"], false, "{bad}");
        assert!(answer["error"].is_string());
    }
    let socket = switch.dir.join("control.sock").metadata().unwrap();
    assert_eq!(socket.mode() & 0o777, 0o600, "others could break nodes");
    // A client that says nothing holds nobody up.
    let _silent = UnixStream::connect(switch.dir.join("control.sock")).unwrap();
    assert_eq!(switch.control("stats")["ok"], true);
}

#[test]
fn signals_report_and_end() {
    let mut switch = Switch::start("signals", &["--log-format", "json"]);
    switch.signal("-USR1");
    assert_eq!(switch.control("stats")["ok"], true);
    let _guest = switch.connect(1);
    switch.signal("-TERM");
    assert_eq!(switch.exit_code(), Some(0));
    let left: Vec<_> = std::fs::read_dir(&switch.dir).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn leftovers_of_a_killed_switch_are_replaced() {
    let mut first = Switch::start("killed", &[]);
    let second = command(&first.dir, &[]).output().unwrap();
    fails_with(&second, "in use by another process");
    first.child.kill().unwrap();
    first.child.wait().unwrap();
    let second = Switch::start("killed", &[]);
    assert!(hello(&mut second.connect(2)));
}

#[test]
fn mistakes_are_explained() {
    let dir = std::env::temp_dir().join(format!("nupa-test-{}-bad", std::process::id()));
    let run = |dir: &Path, args: &[&str]| command(dir, args).output().unwrap();
    fails_with(&run(&dir, &["--nodes", "0"]), "--nodes");
    fails_with(&run(&dir, &["--fault", "3=mute"]), "there is no node 3");
    fails_with(
        &run(Path::new("/dev/null/x"), &[]),
        "cannot make directory /dev/null/x",
    );
    fails_with(&run(&dir.join("long".repeat(50)), &[]), "cannot listen on");
    std::fs::write(dir.join("node2.sock"), "mine").unwrap();
    fails_with(&run(&dir, &[]), "node2.sock exists and is not a socket");
    assert_eq!(std::fs::read(dir.join("node2.sock")).unwrap(), b"mine");
    std::fs::remove_dir_all(&dir).unwrap();
}

fn fails_with(output: &Output, message: &str) {
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains(message),
        "{stderr:?} does not say {message:?}"
    );
}

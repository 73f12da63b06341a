// SPDX-License-Identifier: GPL-2.0 OR MIT

use std::time::{Duration, Instant};

use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::Terminal;

use super::super::screen::{draw, View};
use super::*;
use crate::facts::Counters;
use crate::resources::{CompletionQueue, Interface, Owner, Queues, Region};

/// A queue pair to a node, of a process.
fn qp(number: u32, node: Option<u16>, state: &str, name: &str, index: u32) -> QueuePair {
    QueuePair {
        device: "nupa_rdma0".to_owned(),
        number,
        kind: "RC".to_owned(),
        state: state.to_owned(),
        remote_node: node,
        remote_name: None,
        remote_number: None,
        send_requests: None,
        receive_requests: None,
        send_index: Some(index),
        receive_index: Some(0),
        traffic: None,
        owner: owner(name),
    }
}

fn owner(name: &str) -> Owner {
    Owner {
        pid: Some(99),
        name: Some(name.to_owned()),
    }
}

/// A look, so many seconds after the first one, when so many bytes were sent.
fn sample(begin: Instant, seconds: u64, bytes: u64, index: u32) -> Sample {
    let names = [
        "tx_bytes",
        "tx_message_bytes",
        "rx_bytes",
        "rx_message_bytes",
    ];
    let mut counters: std::collections::BTreeMap<_, _> =
        names.map(|name| (name.to_owned(), bytes)).into();
    for name in ["tx_frames", "tx_messages", "rx_frames", "rx_messages"] {
        counters.insert(name.to_owned(), seconds.saturating_mul(10));
    }
    let peer = |node| Peer {
        controller: 0,
        node,
        name: None,
        guid: String::new(),
        epoch: 4,
    };
    Sample {
        when: begin.checked_add(Duration::from_secs(seconds)).unwrap(),
        controllers: vec![Controller::example()],
        counters: vec![Counters {
            controller: 0,
            device: String::new(),
            counters,
        }],
        peers: vec![peer(2), peer(3)],
        queue_pairs: vec![
            qp(7, Some(3), "RTS", "zeta", 0),
            qp(8, None, "RESET", "eta", 0),
            qp(9, Some(2), "ERR", "theta", index),
        ],
        regions: vec![Region {
            device: "nupa_rdma0".to_owned(),
            number: 1,
            bytes: 5000,
            pages: None,
            page_size: None,
            owner: owner("zeta"),
        }],
        queues: Queues {
            completion_queues: vec![CompletionQueue {
                device: "nupa_rdma0".to_owned(),
                number: 1,
                entries: None,
                ring_entries: None,
                vector: None,
                users: None,
                owner: owner("zeta"),
            }],
            interfaces: vec![Interface {
                netdev: "nupanet0".to_owned(),
                queue_pairs: Some(2),
                receive_buffers: None,
                send_frames: None,
            }],
        },
    }
}

/// Words of each line of the page.
fn words(page: &Page<'_>) -> Vec<String> {
    let lines = page.lines();
    let words = lines
        .iter()
        .map(|line| line.text.split_whitespace().collect::<Vec<_>>().join(" "));
    words.collect()
}

#[test]
fn counters_that_a_broken_controller_says_are_added_up_all_the_same() {
    let begin = Instant::now();
    let (before, now) = (sample(begin, 0, 0, 0), sample(begin, 1, u64::MAX, 0));
    let names = ["tx_bytes", "tx_message_bytes"];
    assert_eq!(now.rate(&before, 0, &names), Some(u64::MAX - 1));
}

#[test]
fn the_page_has_links_nodes_queues_and_rates() {
    let begin = Instant::now();
    let (before, now) = (sample(begin, 0, 1000, 0), sample(begin, 2, 3_001_000, 1));
    let page = Page {
        before: Some(&before),
        now: Some(&now),
        sort: Sort::Node,
    };
    let lines = words(&page);
    let expected = "0000:00:04.0 1 (alpha) up, 256 Gb/s 3.0 MB 3.0 MB 20 20";
    assert_eq!(lines[1], expected);
    assert_eq!(
        lines[4..6],
        ["2 0000:00:04.0 4 1 0 1", "3 0000:00:04.0 4 1 1 0"]
    );
    assert_eq!(
        lines[8..10],
        ["nupa_rdma0 3 1 1 5.0 kB", "nupanet0 2 - - -"]
    );
    assert_eq!(lines[12], "9 nupa_rdma0 RC ERR 2 yes theta (99)");
    assert!(page.lines().iter().all(|line| line.text.len() <= 80));
    // Nothing is known of before, or the controller was reset.
    let later = sample(begin, 4, 5, 1);
    for before in [None, Some(&now)] {
        let page = Page {
            before,
            now: Some(&later),
            sort: Sort::Node,
        };
        assert!(words(&page)[1].starts_with("0000:00:04.0 1 (alpha) up, 256 Gb/s - - "));
    }
}

#[test]
fn queue_pairs_are_in_the_order_that_is_wanted() {
    let begin = Instant::now();
    let (before, now) = (sample(begin, 0, 0, 0), sample(begin, 1, 0, 5));
    for (sort, expected) in [
        (Sort::Node, ["9", "7", "8"]),
        (Sort::State, ["9", "8", "7"]),
        (Sort::Process, ["8", "9", "7"]),
        (Sort::Activity, ["9", "7", "8"]),
    ] {
        let page = Page {
            before: Some(&before),
            now: Some(&now),
            sort,
        };
        let lines = words(&page);
        let found = lines[12..].iter().filter_map(|line| line.split(' ').next());
        assert_eq!(found.collect::<Vec<_>>(), expected, "{sort:?}");
    }
}

/// What a screen of so many lines shows.
fn screen(view: &mut View, now: Option<&Sample>, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, view, None, now)).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content().chunks(usize::from(width));
    rows.map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>())
        .collect()
}

#[test]
fn a_small_screen_has_all_and_the_keys() {
    let now = sample(Instant::now(), 0, 0, 0);
    let view = &mut View {
        sort: Sort::Node,
        scroll: 0,
    };
    let rows = screen(view, Some(&now), 80, 24);
    for (row, part) in [
        (0, "DEVICE "),
        (3, "NODE UP "),
        (7, "QUEUES OF"),
        (11, "QP "),
        (23, "q quit "),
    ] {
        assert!(rows[row].starts_with(part), "{rows:#?}");
    }
    assert!(rows[12].contains("theta (99)"), "{rows:#?}");
    // A smaller one can be scrolled, but not past the end.
    view.scroll = 99;
    let rows = screen(view, Some(&now), 60, 8);
    assert_eq!(view.scroll, 8);
    assert!(
        rows[6].starts_with("8 ") && rows[7].starts_with("q quit"),
        "{rows:#?}"
    );
    screen(view, Some(&now), 1, 1);
    let rows = screen(view, None, 80, 24);
    assert!(rows[0].starts_with("The driver is not loaded"), "{rows:#?}");
}

#[test]
fn keys_sort_scroll_and_quit() {
    let mut view = View {
        sort: Sort::Node,
        scroll: 0,
    };
    let mut key = |code| (view.key(KeyEvent::from(code)), view.sort, view.scroll);
    assert_eq!(key(KeyCode::Char('s')), (true, Sort::State, 0));
    assert_eq!(key(KeyCode::Char('p')), (true, Sort::Process, 0));
    assert_eq!(key(KeyCode::Char('a')), (true, Sort::Activity, 0));
    assert_eq!(key(KeyCode::PageDown), (true, Sort::Activity, 10));
    assert_eq!(key(KeyCode::Up), (true, Sort::Activity, 9));
    assert_eq!(key(KeyCode::Char('n')), (true, Sort::Node, 9));
    assert_eq!(key(KeyCode::Char('c')), (true, Sort::Node, 9));
    assert!(!key(KeyCode::Char('q')).0 && !key(KeyCode::Esc).0);
    assert!(!view.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}

// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What came of measurements between all nodes, for people.

use super::{Fabric, Pair};
use crate::events::named;
use crate::measure::bandwidth;
use crate::ping::time;
use crate::view::{table, trimmed};

/// Matrices, and what is wrong.
pub(super) fn text(fabric: &Fabric) -> String {
    let latency = |pair: &Pair| Some((time(pair.latency?), pair.slow_latency));
    let rate = |pair: &Pair| Some((bandwidth::rate(pair.bytes_per_second?), pair.slow_rate));
    let mut parts = vec![
        format!("fabric {}", fabric.fabric),
        matrix(fabric, "ROUND TRIP", &latency),
        matrix(fabric, "BANDWIDTH", &rate),
    ];
    let said = said(fabric);
    if !said.is_empty() {
        parts.push(said.join("\n"));
    }
    parts.join("\n\n")
}

/// A table of each node to each other one. What does not fit to the others is marked.
fn matrix(fabric: &Fabric, title: &str, cell: &dyn Fn(&Pair) -> Option<(String, bool)>) -> String {
    let names: Vec<_> = fabric
        .nodes
        .iter()
        .map(|node| named(node.node, node.name.as_deref()))
        .collect();
    let header = names.iter().map(|name| format!("TO {name}"));
    let header: Vec<_> = [title.to_owned()].into_iter().chain(header).collect();
    let header: Vec<_> = header.iter().map(String::as_str).collect();
    let mut table = table(&header);
    for (from, name) in fabric.nodes.iter().zip(&names) {
        let cells = fabric.nodes.iter().map(|to| {
            let pair = pair(fabric, from.node, to.node);
            match pair.map(cell) {
                None => "-".to_owned(),
                Some(None) => "failed".to_owned(),
                Some(Some((value, false))) => value,
                Some(Some((value, true))) => format!("{value} !"),
            }
        });
        table.add_row([format!("from {name}")].into_iter().chain(cells));
    }
    trimmed(&table)
}

fn pair(fabric: &Fabric, from: u16, to: u16) -> Option<&Pair> {
    let mut pairs = fabric.pairs.iter();
    pairs.find(|pair| pair.from == from && pair.to == to)
}

/// What is wrong, a sentence each, or that nothing is.
fn said(fabric: &Fabric) -> Vec<String> {
    let mut said: Vec<String> = Vec::new();
    for text in fabric.nodes.iter().filter_map(|node| node.trouble.clone()) {
        said.push(text);
    }
    for (text, pairs) in troubles(fabric) {
        // Or it is said of the node already.
        if !said.iter().any(|of_node| of_node == text) {
            said.push(format!("{}: {text}", pairs.join(", ")));
        }
    }
    let odd = fabric
        .pairs
        .iter()
        .filter(|pair| pair.slow_latency || pair.slow_rate);
    let odd = odd.count();
    if odd > 0 {
        said.push(format!(
            "{odd} of {} pairs, marked by `!`, are worse than the better quarter by more than {}",
            fabric.pairs.len(),
            fabric.factor
        ));
    }
    if let Some(node) = fabric.odd_node {
        said.push(format!(
            "node {node} is in all of these pairs: see `nupactl status`, `nupactl stats`, its kernel log, and what else runs there"
        ));
    }
    if fabric.fine {
        said.push(format!("all {} pairs are well", fabric.pairs.len()));
    }
    said
}

/// Why pairs failed, each reason with all pairs that have it.
fn troubles(fabric: &Fabric) -> Vec<(&str, Vec<String>)> {
    let mut found: Vec<(&str, Vec<String>)> = Vec::new();
    for pair in &fabric.pairs {
        let Some(text) = pair.trouble.as_deref() else {
            continue;
        };
        let way = format!("from {} to {}", pair.from, pair.to);
        match found.iter_mut().find(|(known, _)| *known == text) {
            Some((_, pairs)) => pairs.push(way),
            None => found.push((text, vec![way])),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::Node;
    use super::*;

    fn pair(from: u16, to: u16) -> Pair {
        Pair {
            from,
            to,
            latency: Some(50.0),
            bytes_per_second: Some(2_000_000_000),
            trouble: None,
            slow_latency: false,
            slow_rate: false,
        }
    }

    fn fabric(pairs: Vec<Pair>, trouble: Option<&str>) -> Fabric {
        let node = |node, trouble: Option<&str>| Node {
            node,
            name: (node == 1).then(|| "alpha".to_owned()),
            trouble: trouble.map(str::to_owned),
        };
        Fabric {
            fabric: "00000000000000ab".to_owned(),
            nodes: vec![node(1, None), node(2, trouble)],
            pairs,
            latency_reference: Some(50.0),
            rate_reference: Some(2e9),
            factor: 4.0,
            odd_node: None,
            fine: false,
        }
    }

    #[test]
    fn a_matrix_has_rows_of_those_that_measure_and_marks() {
        let mut pairs = vec![pair(1, 2), pair(2, 1)];
        pairs[1].slow_rate = true;
        let text = text(&fabric(pairs, None));
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().map(words).collect();
        assert_eq!(
            lines[2..5],
            [
                "ROUND TRIP TO 1 (alpha) TO 2",
                "from 1 (alpha) - 50 us",
                "from 2 50 us -"
            ]
        );
        assert_eq!(lines[8], "from 2 2.0 GB/s ! -");
        assert!(lines.last().unwrap().starts_with("1 of 2 pairs, marked"));
    }

    #[test]
    fn what_is_said_of_a_node_is_said_once() {
        let mut pairs = vec![pair(1, 2), pair(2, 1)];
        for pair in &mut pairs {
            (pair.latency, pair.bytes_per_second) = (None, None);
            pair.trouble = Some("nobody".to_owned());
        }
        let text = text(&fabric(pairs, Some("nobody")));
        assert_eq!(text.matches("nobody").count(), 1, "{text}");
        assert_eq!(text.matches("failed").count(), 4, "{text}");
    }

    #[test]
    fn what_others_say_of_a_node_is_said_once_with_all_of_them() {
        let mut pairs = vec![pair(2, 1), pair(3, 1), pair(2, 3)];
        pairs[0].trouble = Some("nobody".to_owned());
        pairs[1].trouble = Some("nobody".to_owned());
        let text = text(&fabric(pairs, None));
        assert_eq!(
            text.lines().last(),
            Some("from 2 to 1, from 3 to 1: nobody"),
            "{text}"
        );
    }
}

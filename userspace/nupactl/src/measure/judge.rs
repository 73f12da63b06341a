// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Which of many measurements stands out from the others.
//!
//! What the better ones have is the measure, and not the mean or the median: of three nodes of which one is slow, four of six pairs are. It is the
//! quarter that is best, and not the best one, so that a lucky one does not make all others slow.

/// What is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    /// Latency.
    Less,
    /// Bandwidth.
    More,
}

/// Differences of latency that nobody has to look at, in microseconds.
const SMALL: f64 = 20.0;

/// The value that a quarter of all is as good as or better; `None` without any.
pub(super) fn reference(mut values: Vec<f64>, better: Better) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    if better == Better::More {
        values.reverse();
    }
    let last = values.len().checked_sub(1)?;
    values.get(last.checked_div(4)?).copied()
}

/// Whether a value is worse than that by more than a factor.
pub(super) fn is_odd(value: f64, reference: f64, factor: f64, better: Better) -> bool {
    match better {
        Better::Less => value > reference * factor && value > reference + SMALL,
        Better::More => value * factor < reference,
    }
}

/// The node that all pairs that do not fit have in common, if there are several, and not all nodes have it so.
pub(super) fn culprit(odd: &[(u16, u16)]) -> Option<u16> {
    let (first, rest) = odd.split_first()?;
    let common = |node: &u16| rest.iter().all(|(from, to)| node == from || node == to);
    let found: Vec<_> = [first.0, first.1].into_iter().filter(common).collect();
    match found[..] {
        [one] if !rest.is_empty() => Some(one),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of the pairs of so many nodes, the last of which is bad.
    fn pairs(nodes: u16, good: f64, bad: f64) -> Vec<f64> {
        let each = (1..=nodes).flat_map(|from| (1..=nodes).map(move |to| (from, to)));
        let pairs = each.filter(|(from, to)| from != to);
        pairs
            .map(|(from, to)| if from.max(to) == nodes { bad } else { good })
            .collect()
    }

    #[test]
    fn a_slow_node_is_found_among_three_or_more() {
        for nodes in 3..9 {
            for (better, good, bad) in [(Better::Less, 50.0, 500.0), (Better::More, 9e8, 9e7)] {
                let values = pairs(nodes, good, bad);
                let reference = reference(values.clone(), better).unwrap();
                assert_eq!(reference, good, "{nodes} nodes");
                let odd = values
                    .iter()
                    .filter(|value| is_odd(**value, reference, 4.0, better));
                assert_eq!(
                    odd.count(),
                    values.iter().filter(|value| **value == bad).count()
                );
            }
        }
    }

    #[test]
    fn noise_and_a_lucky_one_are_not_odd() {
        let values = vec![100.0, 220.0, 180.0, 390.0, 120.0, 250.0, 10.0, 150.0];
        let reference = reference(values.clone(), Better::Less).unwrap();
        assert_eq!(reference, 100.0);
        assert!(!values
            .iter()
            .any(|value| is_odd(*value, reference, 4.0, Better::Less)));
        // A factor of a very small time is not worth a word.
        assert!(!is_odd(22.0, 3.0, 4.0, Better::Less));
        assert!(is_odd(24.0, 3.0, 4.0, Better::Less));
    }

    #[test]
    fn there_may_be_little_to_compare() {
        assert_eq!(reference(vec![], Better::Less), None);
        let reference = reference(vec![7.0], Better::More).unwrap();
        assert!(!is_odd(7.0, reference, 1.5, Better::More));
        assert!(is_odd(0.0, reference, 1.5, Better::More));
    }

    #[test]
    fn the_culprit_is_in_all_odd_pairs() {
        assert_eq!(culprit(&[(1, 3), (3, 1), (3, 2)]), Some(3));
        assert_eq!(culprit(&[(1, 3), (3, 1)]), None, "it may be either");
        assert_eq!(culprit(&[(1, 3), (2, 4)]), None);
        assert_eq!(culprit(&[(1, 3)]), None);
        assert_eq!(culprit(&[]), None);
    }
}

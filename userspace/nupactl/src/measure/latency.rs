// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Round trips as people, or programs, read them.

use schemars::JsonSchema;
use serde::Serialize;

use super::Transport;
use crate::ping::time;
use crate::reach::Way;

/// Characters of the longest bar.
const BAR: u64 = 40;
/// Where the four parts of a doubling begin, in thousandths.
const PARTS: [u64; 4] = [1000, 1189, 1414, 1682];

/// Round trips to a node and back. All bytes were compared.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Latency {
    /// Id of the node.
    node: u16,
    /// Its name in /etc/nupa/nodes.conf.
    name: Option<String>,
    /// The interface here.
    netdev: String,
    /// What it was measured over: tcp or rdma.
    transport: &'static str,
    /// Bytes of each message.
    size: u32,
    /// Round trips that were measured; all times are of these, in microseconds.
    count: u64,
    /// The shortest.
    min: f64,
    /// Half are not longer than this.
    median: f64,
    /// Their mean.
    mean: f64,
    /// 99 of 100 are not longer than this.
    p99: f64,
    /// The longest.
    max: f64,
    /// How many took how long, from the first time that any took to the last.
    histogram: Vec<Bucket>,
}

/// Round trips of about a time.
#[derive(Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Bucket {
    /// From so many microseconds,
    from: f64,
    /// and below so many.
    below: f64,
    /// So many round trips.
    count: u64,
}

impl Latency {
    /// Of round trips in nanoseconds; `None` if there are none.
    pub(super) fn new(
        way: Way,
        transport: Transport,
        size: u32,
        mut times: Vec<u64>,
    ) -> Option<Self> {
        times.sort_unstable();
        let micros = |time: u64| time as f64 / 1000.0;
        let sum: f64 = times.iter().map(|time| micros(*time)).sum();
        Some(Self {
            node: way.node,
            name: way.name,
            netdev: way.netdev,
            transport: transport.name(),
            size,
            count: times.len() as u64,
            min: micros(*times.first()?),
            median: micros(percentile(&times, 50)?),
            mean: sum / times.len() as f64,
            p99: micros(percentile(&times, 99)?),
            max: micros(*times.last()?),
            histogram: histogram(&times),
        })
    }

    /// For people.
    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "{} round trips: min {}, median {}, mean {}, p99 {}, max {}",
            self.count,
            time(self.min),
            time(self.median),
            time(self.mean),
            time(self.p99),
            time(self.max)
        );
        let most = self.histogram.iter().map(|bucket| bucket.count).max();
        let most = most.unwrap_or(1).max(1);
        for bucket in &self.histogram {
            let bar = bucket.count.saturating_mul(BAR).div_ceil(most);
            let bar = "#".repeat(bar.try_into().unwrap_or_default());
            let (from, below) = (time(bucket.from), time(bucket.below));
            text.push_str(&format!(
                "\n{from:>9} to {below:>9} {bar:40} {}",
                bucket.count
            ));
        }
        text
    }
}

/// The least of sorted values that so many in a hundred are not above.
fn percentile(sorted: &[u64], percent: usize) -> Option<u64> {
    let rank = sorted.len().checked_mul(percent)?.div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

/// Four buckets for each doubling, from the first one that has any of the sorted times to the last. Times are in nanoseconds.
fn histogram(sorted: &[u64]) -> Vec<Bucket> {
    let (Some(first), Some(last)) = (sorted.first(), sorted.last()) else {
        return Vec::new();
    };
    // Wide ones where the times are far apart, so that a screen has room for them.
    let doublings = bits(*last).saturating_sub(bits(*first));
    let parts = if doublings > 4 { 1 } else { 4 };
    let mut found = Vec::new();
    let mut rest = sorted;
    let mut at = edge_below(*first, parts);
    while !rest.is_empty() {
        let (from, below) = (edge(at, parts), edge(at.saturating_add(1), parts));
        let count = rest.partition_point(|time| *time < below);
        found.push(Bucket {
            from: from as f64 / 1000.0,
            below: below as f64 / 1000.0,
            count: count as u64,
        });
        rest = rest.get(count..).unwrap_or_default();
        at = at.saturating_add(1);
        if below == u64::MAX {
            break;
        }
    }
    found
}

/// Position of the highest bit.
fn bits(value: u64) -> u32 {
    u64::BITS.saturating_sub(value.leading_zeros())
}

/// Where a bucket begins.
fn edge(at: u32, parts: u32) -> u64 {
    let (doublings, part) = match parts {
        1 => (at, 0),
        _ => (at >> 2, at & 3),
    };
    let begin = PARTS.get(part as usize).copied().unwrap_or(1000);
    1u64.checked_shl(doublings)
        .and_then(|factor| begin.checked_mul(factor))
        .unwrap_or(u64::MAX)
}

/// The last bucket that begins at a value or below it.
fn edge_below(value: u64, parts: u32) -> u32 {
    let mut at = 0u32;
    while edge(at.saturating_add(1), parts) <= value && edge(at, parts) < u64::MAX {
        at = at.saturating_add(1);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_there_are() {
        let sorted: Vec<u64> = (1..=200).collect();
        assert_eq!(percentile(&sorted, 50), Some(100));
        assert_eq!(percentile(&sorted, 99), Some(198));
        assert_eq!(percentile(&[7], 99), Some(7));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn each_time_is_in_one_bucket() {
        for times in [
            vec![1, 999, 1000],
            vec![33_000, 40_000, 41_000, 90_000],
            vec![1 << 62],
            vec![1000, 1000, 1 << 62],
            (0..3000u64).map(|n| n * n * 31).collect(),
        ] {
            let buckets = histogram(&times);
            let sum: u64 = buckets.iter().map(|bucket| bucket.count).sum();
            assert_eq!(sum, times.len() as u64, "{times:?}");
            assert!(buckets.iter().all(|bucket| bucket.from < bucket.below));
            assert!(buckets.windows(2).all(|two| two[0].below == two[1].from));
            assert!(buckets.first().unwrap().count > 0, "{buckets:?}");
        }
        let buckets = histogram(&[1_000_000, 1_100_000, 1_900_000]);
        let counts: Vec<_> = buckets.iter().map(|bucket| bucket.count).collect();
        assert_eq!(counts, [1, 1, 0, 0, 1]);
    }

    #[test]
    fn the_text_has_all_numbers_and_a_bar_for_each_bucket() {
        let way = Way::test(2);
        let times = vec![40_000, 41_000, 45_000, 100_000];
        let latency = Latency::new(way, Transport::Tcp, 64, times).unwrap();
        let text = latency.text();
        let first = "4 round trips: min 40 us, median 41 us, mean 56 us, p99 100 us, max 100 us";
        assert_eq!(text.lines().next(), Some(first));
        assert_eq!(text.lines().count(), 1 + latency.histogram.len());
        assert!(text.lines().all(|line| line.len() <= 79), "{text}");
    }
}

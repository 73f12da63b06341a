// SPDX-License-Identifier: GPL-2.0
//! What a DMA channel copies, and from which length on it is worth it. Pure logic, tested on the host.

/// Lengths that are measured: what programs have in pages up to what the engine copies at one go.
pub(super) const LENGTHS: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Times that each is measured. An odd number, for the one in the middle.
const ROUNDS: usize = 9;
/// Least bytes of a part that are worth a descriptor.
const LEAST: u64 = 512;

/// What the administrator says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The processors copy.
    Nothing,
    /// A channel is to copy what that is faster for.
    Measured,
    /// A channel is to copy this many bytes and more.
    From(u32),
}

impl Wanted {
    /// What a value of the parameter means. There are no copies of less than the shortest of [`LENGTHS`], or of more than the longest.
    pub(super) fn new(value: i32) -> Self {
        let [shortest, .., longest] = LENGTHS;
        match u32::try_from(value) {
            Ok(0) => Self::Nothing,
            Ok(from) => Self::From(from.clamp(shortest, longest)),
            Err(_) => Self::Measured,
        }
    }
}

/// Who makes a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Maker {
    Processor,
    Channel,
}

/// The least length from which on a channel is faster than a processor, up to the longest; `None` if it is not. `time` says how long one makes a
/// copy of some length, in nanoseconds. Ends with `Err` as soon as it says nothing.
pub(super) fn pays_from(
    mut time: impl FnMut(Maker, u32) -> Option<u64>,
) -> Result<Option<u32>, Unmeasured> {
    let mut from = None;
    for len in LENGTHS {
        let mut processor = [0; ROUNDS];
        let mut channel = [0; ROUNDS];
        // In turns, so that what disturbs disturbs both.
        for (one, other) in processor.iter_mut().zip(&mut channel) {
            *one = time(Maker::Processor, len).ok_or(Unmeasured)?;
            *other = time(Maker::Channel, len).ok_or(Unmeasured)?;
        }
        from = match median(&mut channel) < median(&mut processor) {
            true => from.or(Some(len)),
            false => None,
        };
    }
    Ok(from)
}

/// A copy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmeasured;

fn median(times: &mut [u64; ROUNDS]) -> u64 {
    times.sort_unstable();
    let [_, _, _, _, middle, ..] = *times;
    middle
}

/// What a channel can copy at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Source, destination and length are multiples of this power of two.
    pub(super) alignment: u32,
    /// Most bytes.
    pub(super) max_segment: u32,
}

/// A copy in parts: a processor copies the first bytes and those behind the body, and a channel the body, in segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) head: usize,
    pub(super) body: usize,
    pub(super) segment: usize,
}

impl Limits {
    /// Divides a copy. `None` if there is nothing in it for the channel.
    pub(super) fn split(self, from: u64, to: u64, len: usize) -> Option<Split> {
        let alignment = u64::from(self.alignment.max(1));
        let mask = alignment.wrapping_sub(1);
        if (from ^ to) & mask != 0 {
            return None;
        }
        let head = from.wrapping_neg() & mask;
        let body = (len as u64).checked_sub(head)? & !mask;
        let segment = u64::from(self.max_segment) & !mask;
        if body < LEAST || segment < LEAST {
            return None;
        }
        Some(Split {
            head: usize::try_from(head).ok()?,
            body: usize::try_from(body).ok()?,
            segment: usize::try_from(segment).ok()?,
        })
    }
}

impl Split {
    /// Offset and length of each segment.
    pub(super) fn segments(self) -> impl Iterator<Item = (usize, usize)> {
        let end = self.head.saturating_add(self.body);
        (self.head..end)
            .step_by(self.segment.max(1))
            .map(move |at| (at, end.saturating_sub(at).min(self.segment)))
    }
}

/// Whether a channel is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// It copies.
    Works = 0,
    /// It is not used any more, but may still copy: nobody works with the node.
    Ends = 1,
    /// It does not copy any more.
    Over = 2,
}

impl State {
    /// As it is stored.
    pub(super) fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::Works,
            1 => Self::Ends,
            _ => Self::Over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(alignment: u32, max_segment: u32, from: u64, to: u64, len: usize) -> Option<Split> {
        let limits = Limits {
            alignment,
            max_segment,
        };
        limits.split(from, to, len)
    }

    #[test]
    fn the_parameter() {
        assert_eq!(Wanted::new(0), Wanted::Nothing);
        assert_eq!(Wanted::new(-1), Wanted::Measured);
        assert_eq!(Wanted::new(1), Wanted::From(4 << 10));
        assert_eq!(Wanted::new(i32::MAX), Wanted::From(64 << 10));
    }

    #[test]
    fn a_channel_pays_from_where_it_stays_faster() {
        // 1 us to begin with, and then twice as fast.
        let time = |maker, len: u32| {
            Some(match maker {
                Maker::Processor => u64::from(len) / 8,
                Maker::Channel => 1000 + u64::from(len) / 16,
            })
        };
        assert_eq!(pays_from(time), Ok(Some(16 << 10)));
        assert_eq!(
            pays_from(|maker, _| Some(u64::from(maker == Maker::Processor))),
            Ok(Some(4 << 10))
        );
        assert_eq!(pays_from(|_, _| Some(7)), Ok(None));
        // Not where it is slower again behind.
        let time = |maker, len| Some(u64::from((maker == Maker::Channel) == (len == 64 << 10)));
        assert_eq!(pays_from(time), Ok(None));
    }

    #[test]
    fn what_disturbs_some_rounds_does_not_count() {
        let mut calls = 0u64;
        let time = |maker, _| {
            calls += 1;
            Some(match maker {
                Maker::Processor => 10,
                Maker::Channel if calls % 6 == 0 => 1000,
                Maker::Channel => 5,
            })
        };
        assert_eq!(pays_from(time), Ok(Some(4 << 10)));
    }

    #[test]
    fn a_copy_that_is_not_made_ends_the_measurement() {
        let mut calls = 0;
        let mut time = |maker, _| {
            calls += 1;
            (maker == Maker::Processor).then_some(1)
        };
        assert_eq!(pays_from(&mut time), Err(Unmeasured));
        assert_eq!(calls, 2);
    }

    #[test]
    fn parts() {
        let all = Split {
            head: 0,
            body: 4096,
            segment: 65536,
        };
        assert_eq!(split(1, 65536, 7, 13, 4096), Some(all));
        assert_eq!(all.segments().collect::<Vec<_>>(), [(0, 4096)]);
        // Other offsets in a unit.
        assert_eq!(split(64, 65536, 7, 13, 4096), None);
        let some = split(64, 1000, 0x1007, 0x2007, 4096);
        let expected = Split {
            head: 57,
            body: 4032,
            segment: 960,
        };
        assert_eq!(some, Some(expected));
        let segments: Vec<_> = expected.segments().collect();
        assert_eq!(
            segments,
            [
                (57, 960),
                (1017, 960),
                (1977, 960),
                (2937, 960),
                (3897, 192)
            ]
        );
        // Not worth it, or shorter than the head, or of a channel that can do nothing.
        assert_eq!(split(1, 65536, 0, 0, 511), None);
        assert_eq!(split(64, 65536, 1, 1, 5), None);
        assert_eq!(split(4096, 100, 0, 0, 65536), None);
        assert_eq!(
            split(0, 65536, 0, 0, 65536).map(|split| split.body),
            Some(65536)
        );
    }

    #[test]
    fn parts_are_all_of_it_once_and_aligned() {
        for alignment in [1u32, 2, 8, 64, 4096] {
            for from in [0u64, 1, 63, 64, 4095, u64::MAX - 9000] {
                for len in [0usize, 1, 511, 512, 513, 4096, 9000] {
                    let to = from.wrapping_add(u64::from(alignment) * 3);
                    let Some(found) = split(alignment, 2048, from, to, len) else {
                        continue;
                    };
                    let mut at = found.head;
                    for (offset, n) in found.segments() {
                        assert_eq!(offset, at);
                        assert!(n > 0 && n <= 2048);
                        assert_eq!((from + offset as u64) % u64::from(alignment), 0);
                        assert_eq!(n as u64 % u64::from(alignment), 0);
                        at += n;
                    }
                    assert_eq!(at, found.head + found.body);
                    assert!(at <= len);
                }
            }
        }
    }

    #[test]
    fn states_are_stored() {
        for state in [State::Works, State::Ends, State::Over] {
            assert_eq!(State::from_u32(state as u32), state);
        }
    }
}

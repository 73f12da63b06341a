// SPDX-License-Identifier: GPL-2.0
//! The rule of adaptive interrupt moderation. Pure logic, tested on the host.
//!
//! Who answers each packet before the next one comes must not wait for company, so packets that come alone are never
//! delayed; where they come in crowds anyway a short delay saves interrupts and costs nobody anything. What is looked
//! at is the number of frames that a poll finds, as Intel's drivers do.

/// Polls that are averaged.
const WINDOW: u32 = 32;

/// Moderation of each level: microseconds and frames. Longer waits than these gain nothing measurable.
pub(crate) const LEVELS: [(u16, u16); 3] = [(0, 0), (8, 4), (24, 16)];

/// Frames per poll from which on each level but the first is right.
const THRESHOLDS: [u32; LEVELS.len() - 1] = [4, 12];

/// Follows the load of one queue.
#[derive(Debug, Default)]
pub(crate) struct Adaptive {
    polls: u32,
    frames: u32,
    level: usize,
}

impl Adaptive {
    /// Notes a poll that found `frames` frames. Returns the level to go to, if it changes.
    ///
    /// Down is taken at once, since there latency is at stake; up goes one level at a time.
    #[inline]
    pub(crate) fn sample(&mut self, frames: u32) -> Option<usize> {
        if frames == 0 {
            // Completions of sent packets, or nothing: says nothing about what arrives.
            return None;
        }
        self.polls = self.polls.wrapping_add(1);
        self.frames = self.frames.wrapping_add(frames);
        if self.polls < WINDOW {
            return None;
        }
        let average = self.frames / WINDOW;
        (self.polls, self.frames) = (0, 0);
        let fits = THRESHOLDS.iter().filter(|least| average >= **least).count();
        let next = fits.min(self.level.saturating_add(1));
        let changed = next != self.level;
        self.level = next;
        changed.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Level after `windows` windows of polls that find `frames` frames each.
    fn after(adaptive: &mut Adaptive, windows: u32, frames: u32) -> usize {
        for _ in 0..windows * WINDOW {
            adaptive.sample(frames);
        }
        adaptive.level
    }

    #[test]
    fn single_packets_are_never_delayed() {
        assert_eq!(after(&mut Adaptive::default(), 100, 1), 0);
        assert_eq!(after(&mut Adaptive::default(), 100, 3), 0);
    }

    #[test]
    fn crowds_are_step_by_step() {
        let mut adaptive = Adaptive::default();
        assert_eq!(after(&mut adaptive, 1, 64), 1);
        assert_eq!(after(&mut adaptive, 1, 64), 2);
        assert_eq!(after(&mut adaptive, 50, 64), 2);
        assert_eq!(after(&mut adaptive, 1, 6), 1);
    }

    #[test]
    fn a_lone_packet_after_a_crowd_gets_its_latency_back_in_one_window() {
        let mut adaptive = Adaptive::default();
        after(&mut adaptive, 10, 64);
        assert_eq!(after(&mut adaptive, 1, 1), 0);
    }

    #[test]
    fn empty_polls_do_not_count() {
        let mut adaptive = Adaptive::default();
        after(&mut adaptive, 10, 64);
        assert_eq!(after(&mut adaptive, 100, 0), 2);
    }

    #[test]
    fn a_change_is_told_once() {
        let mut adaptive = Adaptive::default();
        let told: usize = (0..10 * WINDOW)
            .filter(|_| adaptive.sample(64).is_some())
            .count();
        assert_eq!(told, LEVELS.len() - 1);
    }
}

// SPDX-License-Identifier: GPL-2.0 OR MIT
//! All runs that differ from the plain one in no more choices than a bound allows.

/// The choices of a run. The first way of each choice is the plain one, which costs nothing; any other one is a deviation.
pub struct Choices {
    /// What was chosen in this run, and out of how many.
    path: Vec<(usize, usize)>,
    /// Choices of the run so far.
    at: usize,
    deviations: usize,
    bound: usize,
}

impl Choices {
    pub fn new(bound: usize) -> Self {
        Self {
            path: Vec::new(),
            at: 0,
            deviations: 0,
            bound,
        }
    }

    /// One of `ways`.
    pub fn choose(&mut self, ways: usize) -> usize {
        if self.deviations == self.bound {
            return 0;
        }
        let way = self.choose_freely(ways);
        self.deviations += usize::from(way != 0);
        way
    }

    /// The same, but that no way is a deviation.
    pub fn choose_freely(&mut self, ways: usize) -> usize {
        if self.at == self.path.len() {
            self.path.push((0, ways));
        }
        let (way, before) = self.path[self.at];
        assert_eq!(
            before, ways,
            "a run that begins in the same way goes on in another"
        );
        self.at += 1;
        way
    }

    /// Goes back to the start of this run, to make it once more.
    pub fn rewind(&mut self) {
        self.path.truncate(self.at);
        (self.at, self.deviations) = (0, 0);
    }

    /// Goes on to the next run; false if this was the last one.
    pub fn next_run(&mut self) -> bool {
        self.rewind();
        while let Some((way, ways)) = self.path.pop() {
            if way + 1 < ways {
                self.path.push((way + 1, ways));
                return true;
            }
        }
        false
    }
}

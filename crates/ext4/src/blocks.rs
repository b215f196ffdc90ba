//! A set of file blocks, kept as runs.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of block numbers.
#[derive(Debug, Default)]
pub(crate) struct BlockSet {
    /// Start to end of each run; runs neither touch nor overlap.
    runs: BTreeMap<u32, u32>,
    count: u64,
}

impl BlockSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Blocks in the set.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// The run that holds `block`.
    pub(crate) fn run_of(&self, block: u32) -> Option<Range<u32>> {
        let (&start, &end) = self.runs.range(..=block).next_back()?;
        (block < end).then_some(start..end)
    }

    /// The first run that ends past `block`.
    pub(crate) fn next_run(&self, block: u32) -> Option<Range<u32>> {
        self.run_of(block).or_else(|| self.runs.range(block..).next().map(|(&start, &end)| start..end))
    }

    /// Adds a range; returns how many of its blocks are new.
    pub(crate) fn insert(&mut self, range: Range<u32>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let Range { mut start, mut end } = range;
        let mut known = 0;
        let touching: Vec<(u32, u32)> = self
            .runs
            .range(..=end)
            .rev()
            .map(|(&start, &end)| (start, end))
            .take_while(|&(_, run_end)| run_end >= start)
            .collect();
        for (run_start, run_end) in touching {
            self.runs.remove(&run_start);
            known += u64::from(run_end - run_start);
            start = start.min(run_start);
            end = end.max(run_end);
        }
        self.runs.insert(start, end);
        let added = u64::from(end - start) - known;
        self.count += added;
        added
    }

    /// Takes a range out; returns how many of its blocks were in.
    pub(crate) fn remove(&mut self, range: Range<u32>) -> u64 {
        let mut removed = 0;
        let touching: Vec<(u32, u32)> = self
            .runs
            .range(..range.end)
            .rev()
            .map(|(&start, &end)| (start, end))
            .take_while(|&(_, run_end)| run_end > range.start)
            .collect();
        for (run_start, run_end) in touching {
            self.runs.remove(&run_start);
            if run_start < range.start {
                self.runs.insert(run_start, range.start);
            }
            if run_end > range.end {
                self.runs.insert(range.end, run_end);
            }
            removed += u64::from(run_end.min(range.end) - run_start.max(range.start));
        }
        self.count -= removed;
        removed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::BlockSet;

    #[test]
    fn behaves_as_a_plain_set() {
        let (mut runs, mut plain) = (BlockSet::default(), BTreeSet::new());
        let mut seed = 1u64;
        for _ in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let start = (seed >> 33) as u32 % 200;
            let end = start + (seed >> 50) as u32 % 20;
            if seed >> 62 & 1 == 0 {
                let added = (start..end).filter(|&block| plain.insert(block)).count();
                assert_eq!(runs.insert(start..end), added as u64);
            } else {
                let removed = (start..end).filter(|block| plain.remove(block)).count();
                assert_eq!(runs.remove(start..end), removed as u64);
            }
            assert_eq!(runs.count(), plain.len() as u64);
            let probe = (seed >> 20) as u32 % 220;
            assert_eq!(runs.run_of(probe).is_some(), plain.contains(&probe));
            assert_eq!(
                runs.next_run(probe).map(|run| run.start.max(probe)),
                plain.range(probe..).next().copied()
            );
        }
    }
}

//! Where the journal's blocks lie on the volume.

use onggi_disk_format::DiskBlock;

#[derive(Clone, Copy, Debug)]
struct Run {
    /// First block of the run, counted in the journal.
    start: u32,
    home: DiskBlock,
    count: u32,
}

/// The journal file's blocks in order, as runs of adjacent disk blocks.
#[derive(Clone, Debug)]
pub struct JournalMap {
    runs: Vec<Run>,
    /// `[first, end)` on disk, sorted, apart from each other.
    spans: Vec<(u64, u64)>,
    len: u32,
}

impl JournalMap {
    /// A map of `runs`, each `(first disk block, number of blocks)`, in the journal's order. What lies
    /// past 2^32 - 1 journal blocks or past the last 64-bit block number is left out.
    #[must_use]
    pub fn new(runs: Vec<(DiskBlock, u32)>) -> Self {
        let mut map = Self { runs: Vec::with_capacity(runs.len()), spans: Vec::new(), len: 0 };
        for (home, count) in runs {
            let Some(len) = map.len.checked_add(count) else { break };
            let Some(end) = home.0.checked_add(u64::from(count)) else { break };
            if count > 0 {
                map.runs.push(Run { start: map.len, home, count });
                map.spans.push((home.0, end));
                map.len = len;
            }
        }
        map.spans.sort_unstable();
        map.spans.dedup_by(|later, earlier| {
            let touches = later.0 <= earlier.1;
            if touches {
                earlier.1 = earlier.1.max(later.1);
            }
            touches
        });
        map
    }

    /// Number of journal blocks.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "an empty journal is an error everywhere")]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Disk block of a journal block, `None` past the end.
    #[must_use]
    pub fn locate(&self, journal_block: u32) -> Option<DiskBlock> {
        let after = self.runs.partition_point(|run| run.start <= journal_block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let within = journal_block - run.start;
        (within < run.count).then(|| DiskBlock(run.home.0 + u64::from(within)))
    }

    /// Whether a disk block belongs to the journal.
    #[must_use]
    pub fn contains(&self, block: DiskBlock) -> bool {
        let after = self.spans.partition_point(|span| span.0 <= block.0);
        after.checked_sub(1).is_some_and(|at| block.0 < self.spans[at].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locates_across_runs_and_knows_its_own_blocks() {
        let map = JournalMap::new(vec![(DiskBlock(100), 3), (DiskBlock(10), 2), (DiskBlock(7), 0)]);
        assert_eq!(map.len(), 5);
        let places: Vec<_> = (0..6).map(|nr| map.locate(nr).map(|block| block.0)).collect();
        assert_eq!(places, [Some(100), Some(101), Some(102), Some(10), Some(11), None]);
        for (block, inside) in [(9, false), (10, true), (11, true), (12, false), (99, false), (102, true)] {
            assert_eq!(map.contains(DiskBlock(block)), inside, "{block}");
        }
    }

    #[test]
    fn an_overlong_map_is_cut() {
        let map = JournalMap::new(vec![(DiskBlock(0), u32::MAX), (DiskBlock(9), 1)]);
        assert_eq!(map.len(), u32::MAX);
        assert_eq!(JournalMap::new(vec![(DiskBlock(u64::MAX), 2)]).len(), 0);
    }
}

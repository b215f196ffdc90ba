//! Which blocks are taken, as runs.

use std::collections::BTreeMap;
use std::ops::Range;

use onggi_disk_format::GroupNr;
use onggi_disk_format::ext4::Superblock;

/// Runs of taken blocks, none touching another. Blocks outside the groups are not counted.
pub(crate) struct SpaceMap {
    taken: BTreeMap<u64, u64>,
    volume: Range<u64>,
    free: u64,
}

impl SpaceMap {
    /// Nothing taken but the superblocks, descriptor tables and the blocks reserved for these.
    pub(crate) fn new(sb: &Superblock) -> Self {
        let volume = sb.first_data_block().0..sb.blocks_count();
        let mut space = Self { taken: BTreeMap::new(), free: volume.end - volume.start, volume };
        for group in (0..sb.groups()).map(GroupNr) {
            let head = sb.head_blocks(group).min(sb.blocks_in_group(group));
            space.take_at(sb.first_block_of_group(group).0, u64::from(head));
        }
        space
    }

    /// Free blocks.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes `[start, start + len)`, which is free.
    fn take_at(&mut self, mut start: u64, len: u64) {
        if len == 0 {
            return;
        }
        let mut end = start + len;
        self.free -= len;
        if let Some((&before, &before_end)) = self.taken.range(..start).next_back()
            && before_end == start
        {
            self.taken.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.taken.remove(&end) {
            end = after_end;
        }
        self.taken.insert(start, end);
    }

    /// The first free run that starts in `[from, limit)`, cut at `limit`.
    fn next_free(&self, from: u64, limit: u64) -> Option<Range<u64>> {
        let mut start = from.max(self.volume.start);
        if let Some((_, &end)) = self.taken.range(..=start).next_back() {
            start = start.max(end);
        }
        let limit = limit.min(self.volume.end);
        let end = self.taken.range(start..).next().map_or(limit, |(&next, _)| next.min(limit));
        (start < end).then_some(start..end)
    }

    /// Takes the first `len` free blocks in a row inside `within`.
    pub(crate) fn take_run(&mut self, within: Range<u64>, len: u64) -> Option<u64> {
        let mut from = within.start;
        while let Some(run) = self.next_free(from, within.end) {
            if run.end - run.start >= len {
                self.take_at(run.start, len);
                return Some(run.start);
            }
            from = run.end;
        }
        None
    }

    /// Takes `len` blocks: in one run from `goal` on, in one run anywhere, or in pieces from `goal` on.
    /// Takes nothing when there are too few.
    pub(crate) fn take(&mut self, goal: u64, len: u64) -> Option<Vec<Range<u64>>> {
        let volume = self.volume.clone();
        if self.free < len {
            return None;
        }
        let whole =
            self.take_run(goal..volume.end, len).or_else(|| self.take_run(volume.start..volume.end, len));
        if let Some(start) = whole {
            let run = start..start + len;
            return Some(vec![run]);
        }
        let mut pieces = Vec::new();
        let mut left = len;
        for part in [goal..volume.end, volume.start..goal] {
            let mut from = part.start;
            while left > 0
                && let Some(run) = self.next_free(from, part.end)
            {
                let piece = run.start..run.end.min(run.start + left);
                left -= piece.end - piece.start;
                from = run.end;
                self.take_at(piece.start, piece.end - piece.start);
                pieces.push(piece);
            }
        }
        Some(pieces)
    }

    /// Taken runs inside `within`, cut to it.
    pub(crate) fn taken_in(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let first = self.taken.range(..=within.start).next_back().map_or(within.start, |(&start, _)| start);
        let limits = within.clone();
        self.taken
            .range(first..within.end)
            .map(move |(&start, &end)| start.max(limits.start)..end.min(limits.end))
            .filter(|run| run.start < run.end)
    }

    /// Taken blocks inside `within`.
    pub(crate) fn taken_count(&self, within: Range<u64>) -> u64 {
        self.taken_in(within).map(|run| run.end - run.start).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(len: u64, taken: &[(u64, u64)]) -> SpaceMap {
        let mut space = SpaceMap { taken: BTreeMap::new(), volume: 0..len, free: len };
        for &(start, count) in taken {
            space.take_at(start, count);
        }
        space
    }

    fn run(start: u64, end: u64) -> Range<u64> {
        start..end
    }

    #[test]
    fn runs_merge_and_count() {
        let mut space = space(100, &[(0, 10), (20, 10), (10, 10)]);
        assert_eq!(space.taken, BTreeMap::from([(0, 30)]));
        assert_eq!(space.free(), 70);
        assert_eq!(space.take_run(0..100, 5), Some(30));
        assert_eq!(space.take_run(0..36, 5), None);
        assert_eq!(space.taken_count(33..50), 2);
        assert_eq!(space.taken_in(0..100).collect::<Vec<_>>(), [run(0, 35)]);
    }

    #[test]
    fn pieces_wrap_around_the_goal() {
        let mut space = space(30, &[(5, 5), (15, 5), (25, 3)]);
        assert_eq!(space.take(12, 6), Some(vec![12..15, 20..23]));
        assert_eq!(space.take(28, 5), Some(vec![run(0, 5)]));
        assert_eq!(space.take(0, 10), None);
        assert_eq!(space.free(), 17 - 11);
    }
}

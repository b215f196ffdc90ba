//! Taking, giving back, marking and freeing runs of blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use onggi_disk_format::ext4::group::block_bitmap_checksum;
use onggi_disk_format::{DiskBlock, GroupNr};

use super::group::{Group, GroupState};
use super::{Allocator, bits};
use crate::{BlockRun, Handle, Place, Volume, VolumeError};

/// A run this long at the exact goal, or anywhere, is as good as a longer one.
const GOOD_RUN: u32 = 2048;
/// A run this long at the exact goal is taken even when more is wanted.
const GOAL_RUN: u32 = 32;
/// Runs this long are looked for everywhere before any scrap is taken.
const FAIR_RUN: u32 = 64;
/// Bitmaps read from the device in search of a good run before a lesser one is taken.
const MOST_LOADS: u32 = 16;

/// How hard to try in one group.
struct Effort {
    /// Shortest run worth taking.
    least: u32,
    /// Wait for the group's lock.
    wait: bool,
    /// Bitmaps that may yet be loaded.
    loads: u32,
}

impl Allocator {
    /// Takes a run of 1 to `want` free blocks as near to `goal` as a good run is to be had: at the goal, in
    /// its group, in the groups after it. Only memory changes: the blocks are busy until they are given
    /// back or freed. A run lies in one group.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] when no block is free; a bitmap that breaks a rule; the device's.
    pub fn take(&self, volume: &Volume, goal: DiskBlock, want: u32) -> Result<BlockRun, VolumeError> {
        let want = want.clamp(1, self.sb.blocks_per_group());
        let home = self.sb.group_of_block(goal).unwrap_or(GroupNr(0));
        let goal_bit = goal.0.checked_sub(self.sb.first_block_of_group(home).0).map_or(0, |bit| bit as u32);
        let mut effort = Effort { least: want.min(GOOD_RUN).div_ceil(4), wait: true, loads: MOST_LOADS };
        if !self.group(home).loaded.load(Ordering::Acquire) {
            effort.wait = false;
        }
        if let Some(run) = self.take_in(volume, home, goal_bit, want, &mut effort)? {
            return Ok(run);
        }
        for (least, wait) in [(want.min(GOOD_RUN), false), (want.min(FAIR_RUN), false), (1, true)] {
            effort.least = least;
            effort.wait = wait;
            if wait {
                effort.loads = u32::MAX;
            }
            for nr in (home.0..self.sb.groups()).chain(0..home.0).map(GroupNr) {
                let from = if nr == home { goal_bit } else { 0 };
                if let Some(run) = self.take_in(volume, nr, from, want, &mut effort)? {
                    return Ok(run);
                }
            }
        }
        Err(VolumeError::NoSpace)
    }

    /// Takes the best run of one group, if it is good enough.
    fn take_in(
        &self,
        volume: &Volume,
        nr: GroupNr,
        from: u32,
        want: u32,
        effort: &mut Effort,
    ) -> Result<Option<BlockRun>, VolumeError> {
        let group = self.group(nr);
        let free = group.free.load(Ordering::Acquire);
        if free < effort.least || group.longest.load(Ordering::Acquire) < effort.least {
            return Ok(None);
        }
        let mut state = if effort.wait {
            group.state.lock()
        } else {
            match group.state.try_lock() {
                Some(state) => state,
                None => return Ok(None),
            }
        };
        if state.busy.is_none() {
            if effort.loads == 0 {
                return Ok(None);
            }
            effort.loads -= 1;
        }
        self.load(volume, nr, &mut state)?;
        let GroupState { busy: Some(busy), first_free, .. } = &mut *state else { return Ok(None) };
        let in_group = self.sb.blocks_in_group(nr);
        let found = match choose(busy, *first_free, from.min(in_group), in_group, want) {
            Choice::Run(run) => run,
            Choice::Longest(run) => {
                group.longest.store(run.len() as u32, Ordering::Release);
                if (run.len() as u32) < effort.least || run.is_empty() {
                    return Ok(None);
                }
                run
            }
        };
        bits::set(busy, found.clone());
        if found.start == *first_free {
            *first_free = bits::next_clear(busy, found.end..in_group).unwrap_or(in_group);
        }
        let len = found.len() as u32;
        group.free.fetch_sub(len, Ordering::AcqRel);
        self.free.fetch_sub(u64::from(len), Ordering::AcqRel);
        let start = DiskBlock(self.sb.first_block_of_group(nr).0 + u64::from(found.start));
        Ok(Some(BlockRun { start, len }))
    }

    /// Undoes a [`Allocator::take`], or a part of it, that was never marked used.
    pub fn give_back(&self, run: BlockRun) {
        self.make_free(run);
    }

    /// Blocks that a now durable transaction freed can be taken again.
    pub fn release(&self, run: BlockRun) {
        let freed = self.make_free(run);
        self.pending.fetch_sub(freed.min(self.pending.load(Ordering::Acquire)), Ordering::AcqRel);
    }

    /// Clears busy bits; how many were set.
    fn make_free(&self, run: BlockRun) -> u64 {
        let Ok(pieces) = self.pieces(run) else {
            debug_assert!(false, "{run:?} does not lie on the volume");
            return 0;
        };
        let mut freed = 0;
        for (nr, range) in pieces {
            let group = self.group(nr);
            let mut state = group.state.lock();
            let in_group = self.sb.blocks_in_group(nr);
            // A run comes from `take` or `mark_free`, and both load the bitmap.
            let Some(busy) = state.busy.as_deref_mut() else {
                debug_assert!(false, "{run:?} was never busy");
                continue;
            };
            let changed = bits::clear(busy, range.clone());
            debug_assert_eq!(changed as usize, range.len(), "{run:?} was not busy");
            let grown = bits::next_set(busy, range.end..in_group) - bits::clear_run_start(busy, range.start);
            state.first_free = state.first_free.min(range.start);
            group.longest.fetch_max(grown, Ordering::AcqRel);
            group.free.fetch_add(changed, Ordering::AcqRel);
            self.free.fetch_add(u64::from(changed), Ordering::AcqRel);
            freed += u64::from(changed);
        }
        freed
    }

    /// Marks a run used in the handle's transaction: bitmap, group descriptor, checksums.
    ///
    /// # Errors
    /// A block that the bitmap calls used already; the device's, the journal's.
    pub fn mark_used(&self, volume: &Volume, h: &mut Handle<'_>, run: BlockRun) -> Result<(), VolumeError> {
        for (nr, range) in self.pieces(run)? {
            let group = self.group(nr);
            let mut state = group.state.lock();
            let table = self.descriptor_buffer(volume, nr)?;
            let buffer = self.block_bitmap_for_change(volume, h, nr, &mut state, &table)?;
            let sum = h.modify(&buffer, |bytes| {
                (bits::count_set(bytes, range.clone()) == 0).then(|| {
                    bits::set(bytes, range.clone());
                    block_bitmap_checksum(&self.sb, bytes)
                })
            })?;
            let len = range.len() as u32;
            let (Some(sum), Some(free)) = (sum, state.descriptor.free_blocks.checked_sub(len)) else {
                let rule = "a block that is to be used is marked used already";
                return Err(VolumeError::corrupt("block bitmap", Place::Block(run.start), rule));
            };
            self.count_busy(group, &mut state, range);
            self.free_on_disk.fetch_sub(u64::from(len), Ordering::AcqRel);
            state.descriptor.free_blocks = free;
            state.descriptor.block_bitmap_csum = sum.unwrap_or(state.descriptor.block_bitmap_csum);
            self.write_descriptor(h, nr, &state, &table)?;
        }
        Ok(())
    }

    /// Sees to it that a run marked used is busy, even one that was never taken.
    fn count_busy(&self, group: &Group, state: &mut GroupState, range: Range<u32>) {
        let taken = state.busy.as_deref_mut().map_or(0, |busy| bits::set(busy, range));
        if taken > 0 {
            group.free.fetch_sub(taken, Ordering::AcqRel);
            self.free.fetch_sub(u64::from(taken), Ordering::AcqRel);
        }
    }

    /// Frees a run in the handle's transaction. The blocks stay busy and join the transaction's freed
    /// ones; once it is durable they go to [`Allocator::release`].
    ///
    /// # Errors
    /// A block that is free already or belongs to the volume itself; the device's, the journal's.
    pub fn mark_free(&self, volume: &Volume, h: &mut Handle<'_>, run: BlockRun) -> Result<(), VolumeError> {
        let corrupt = |rule: &str| VolumeError::corrupt("block bitmap", Place::Block(run.start), rule);
        if self.is_system(run.start, u64::from(run.len)) {
            return Err(corrupt("a block that is to be freed belongs to the volume itself"));
        }
        for (nr, range) in self.pieces(run)? {
            let group = self.group(nr);
            let mut state = group.state.lock();
            let table = self.descriptor_buffer(volume, nr)?;
            let buffer = self.block_bitmap_for_change(volume, h, nr, &mut state, &table)?;
            let len = range.len() as u32;
            let sum = h.modify(&buffer, |bytes| {
                (bits::count_set(bytes, range.clone()) == len).then(|| {
                    bits::clear(bytes, range.clone());
                    block_bitmap_checksum(&self.sb, bytes)
                })
            })?;
            let sum = sum.ok_or_else(|| corrupt("a block that is to be freed is free already"))?;
            self.free_on_disk.fetch_add(u64::from(len), Ordering::AcqRel);
            self.pending.fetch_add(u64::from(len), Ordering::AcqRel);
            state.descriptor.free_blocks += len;
            state.descriptor.block_bitmap_csum = sum.unwrap_or(state.descriptor.block_bitmap_csum);
            self.write_descriptor(h, nr, &state, &table)?;
            let start = DiskBlock(self.sb.first_block_of_group(nr).0 + u64::from(range.start));
            h.payload(|effects| effects.freed.push(BlockRun { start, len }));
        }
        Ok(())
    }
}

enum Choice {
    /// As good as wanted, or at the goal.
    Run(Range<u32>),
    /// The longest there is; nothing better lies in the group.
    Longest(Range<u32>),
}

/// The run to take in a group: at the goal, else the first after it that is long enough, else the first
/// before it, else the longest.
fn choose(busy: &[u8], first_free: u32, goal: u32, end: u32, want: u32) -> Choice {
    let cut = |run: Range<u32>| run.start..run.end.min(run.start + want);
    let enough = want.min(GOOD_RUN);
    if goal >= first_free && bits::next_clear(busy, goal..end.min(goal + 1)).is_some() {
        let run = goal..bits::next_set(busy, goal..end.min(goal.saturating_add(want)));
        if run.len() as u32 >= want.min(GOAL_RUN) {
            return Choice::Run(run);
        }
    }
    // The run around the goal may start before it, so the second search ends where the first began.
    let middle = bits::clear_run_start(busy, goal).max(first_free);
    let mut longest = 0..0;
    for run in bits::clear_runs(busy, middle..end).chain(bits::clear_runs(busy, first_free..middle)) {
        if run.len() as u32 >= enough {
            return Choice::Run(cut(run));
        }
        if run.len() > longest.len() {
            longest = run;
        }
    }
    Choice::Longest(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bitmap(free: &[Range<u32>]) -> Vec<u8> {
        let mut busy = vec![0xff; 128];
        for range in free {
            bits::clear(&mut busy, range.clone());
        }
        busy
    }

    fn chosen(free: &[Range<u32>], goal: u32, want: u32) -> Range<u32> {
        match choose(&bitmap(free), 0, goal, 1000, want) {
            Choice::Run(run) => run,
            Choice::Longest(run) => run,
        }
    }

    #[test]
    fn the_goal_comes_first_then_what_fits_after_it_then_before_it_then_the_longest() {
        let free = [10..20, 100..140, 300..310, 500..600];
        assert_eq!(chosen(&free, 100, 40), 100..140);
        assert_eq!(chosen(&free, 105, 64), 105..140, "a shorter run at the goal continues a file");
        assert_eq!(chosen(&free, 301, 20), 500..520);
        assert_eq!(chosen(&free, 700, 30), 100..130);
        assert_eq!(chosen(&free, 700, 8), 10..18);
        assert_eq!(chosen(&free, 15, 500), 500..600);
        assert_eq!(chosen(&[], 15, 5), 0..0);
        assert_eq!(chosen(std::slice::from_ref(&(990..1000)), 0, 50), 990..1000);
    }
}

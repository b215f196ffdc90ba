//! Unmapping a range.

use std::ops::Range;

use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::{DiskBlock, InodeNr};

use super::edit::Path;
use super::{Progress, credits_for_edit, part};
use crate::{BlockRun, Handle, Volume, VolumeError};

/// Data blocks revoked in one call: revoke records take log space that no credit stands for.
const MOST_REVOKES: u32 = 4096;

/// Unmaps the range from its end backwards and frees its blocks, emptied tree nodes with them. Stops when
/// the handle's credits run low: [`Progress::More`] is the end of what is left. With `data_revoke` the data
/// blocks are revoked too, as journaled data must be.
///
/// With a handle of [`super::credits_for_remove`] credits it gets ahead on every call.
///
/// # Errors
/// [`VolumeError::NoSpace`] when a hole in the middle of an extent makes a node split and no block is free;
/// what was unmapped stays unmapped, all else is as it was; the rule that a node breaks; the device's, the
/// journal's.
pub fn remove(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    range: Range<u32>,
    data_revoke: bool,
) -> Result<Progress, VolumeError> {
    let mut end = range.end;
    let mut budget =
        Budget { credits: 0, revokes: if data_revoke { MOST_REVOKES } else { u32::MAX }, groups: Vec::new() };
    let mut first = true;
    while range.start < end {
        let path = Path::to(volume, nr, inode, end - 1)?;
        budget.credits = h.credits_left().saturating_sub(credits_for_edit(path.depth()));
        budget.groups.clear();
        let cut = cut(volume, path.leaf(), range.start..end, &mut budget, first);
        if cut.runs.is_empty() {
            match cut.end {
                Some(end) => return Ok(Progress::More(end)),
                // Nothing of the range in this leaf: on to the one before it.
                None if path.low < end && path.low > range.start => end = path.low,
                None => return Ok(Progress::Done),
            }
            continue;
        }
        let low = path.low;
        path.replace_leaf(volume, h, nr, inode, cut.left, false)?;
        for run in cut.runs {
            volume.alloc.mark_free(volume, h, run)?;
            inode.blocks =
                inode.blocks.saturating_sub(u64::from(run.len) * u64::from(volume.block_size() / 512));
            if data_revoke {
                (run.start.0..run.end().0).for_each(|block| h.revoke(DiskBlock(block)));
            }
        }
        first = false;
        match cut.end {
            Some(end) => return Ok(Progress::More(end)),
            None if low > range.start => end = low,
            None => return Ok(Progress::Done),
        }
    }
    Ok(Progress::Done)
}

/// What removing a range leaves of a leaf.
struct Cut {
    left: Vec<Extent>,
    runs: Vec<BlockRun>,
    /// Where it stopped for want of credits.
    end: Option<u32>,
}

/// What one call may spend.
struct Budget {
    credits: u32,
    revokes: u32,
    /// Groups whose bitmap and descriptor are paid for.
    groups: Vec<u32>,
}

impl Budget {
    /// The tail of `extent` that can be freed, all of it where the budget allows; with `always` some of it
    /// even without credits.
    fn admit(&mut self, volume: &Volume, extent: Extent, always: bool) -> Option<Extent> {
        let tail = |extent: &Extent, len: u32| {
            part(extent, extent.end().saturating_sub(u64::from(len)), extent.end())
        };
        let mut extent = tail(&extent, self.revokes)?;
        for block in [extent.start.0, extent.start.0 + u64::from(extent.len) - 1] {
            let group = volume.sb.group_of_block(DiskBlock(block)).map(|group| group.0);
            self.groups.extend(group.filter(|nr| !self.groups.contains(nr)));
        }
        // The groups at both ends are counted one by one, those between them by number.
        let between = volume.alloc.credits_for_free(u32::from(extent.len)).saturating_sub(4);
        if self.groups.len() as u32 * 2 + between > self.credits {
            // As much as lies in two groups.
            extent = tail(&extent, if always { volume.sb.blocks_per_group() } else { 0 })?;
        }
        self.revokes -= u32::from(extent.len);
        Some(extent)
    }
}

/// Cuts the range out of a leaf from the end on, as far as the budget goes; with `always` it cuts something
/// even without credits.
fn cut(volume: &Volume, leaf: &[Extent], range: Range<u32>, budget: &mut Budget, always: bool) -> Cut {
    let (start, end) = (u64::from(range.start), u64::from(range.end));
    let mut cut = Cut { left: Vec::with_capacity(leaf.len() + 1), runs: Vec::new(), end: None };
    for extent in leaf.iter().rev() {
        let Some(inside) = part(extent, start, end).filter(|_| cut.end.is_none()) else {
            cut.left.push(*extent);
            continue;
        };
        let Some(gone) = budget.admit(volume, inside, always && cut.runs.is_empty()) else {
            cut.end = Some(inside.end() as u32);
            cut.left.push(*extent);
            continue;
        };
        if gone != inside {
            cut.end = Some(gone.block.0);
        }
        cut.left.extend(part(extent, gone.end(), u64::MAX));
        cut.left.extend(part(extent, 0, u64::from(gone.block.0)));
        cut.runs.push(BlockRun { start: gone.start, len: u32::from(gone.len) });
    }
    cut.left.reverse();
    cut
}

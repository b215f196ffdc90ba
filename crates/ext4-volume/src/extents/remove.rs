//! Unmapping a range.

use std::ops::Range;

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::inode::Inode;

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
    let mut revokes_left = if data_revoke { MOST_REVOKES } else { u32::MAX };
    let mut first = true;
    while range.start < end {
        let path = Path::to(volume, nr, inode, end - 1)?;
        let edit_credits = credits_for_edit(path.depth());
        let budget = h.credits_left().saturating_sub(edit_credits);
        let cut = cut(volume, path.leaf(), range.start..end, budget, &mut revokes_left, first);
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
                (run.start.0..run.end().0).for_each(|block| h.revoke(onggi_disk_format::DiskBlock(block)));
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

/// Cuts the range out of a leaf from the end on, as far as `budget` credits go; `always` cuts one extent
/// even without credits.
fn cut(
    volume: &Volume,
    leaf: &[Extent],
    range: Range<u32>,
    budget: u32,
    revokes_left: &mut u32,
    always: bool,
) -> Cut {
    let (start, end) = (u64::from(range.start), u64::from(range.end));
    let mut cut = Cut { left: Vec::with_capacity(leaf.len() + 1), runs: Vec::new(), end: None };
    let mut groups: Vec<u32> = Vec::new();
    for extent in leaf.iter().rev() {
        let inside = part(extent, start, end).filter(|_| cut.end.is_none());
        let Some(mut inside) = inside else {
            cut.left.push(*extent);
            continue;
        };
        if u32::from(inside.len) > *revokes_left {
            let least = inside.end() - u64::from(*revokes_left);
            cut.end = Some(least as u32);
            match part(&inside, least, inside.end()) {
                Some(tail) => inside = tail,
                None => {
                    cut.left.push(*extent);
                    continue;
                }
            }
        }
        let known = groups.len();
        let run = BlockRun { start: inside.start, len: u32::from(inside.len) };
        for block in [run.start, onggi_disk_format::DiskBlock(run.end().0 - 1)] {
            groups.extend(
                volume.sb.group_of_block(block).map(|group| group.0).filter(|nr| !groups.contains(nr)),
            );
        }
        let spanned = volume.alloc.credits_for_free(run.len).saturating_sub(4);
        if groups.len() as u32 * 2 + spanned > budget && !(always && cut.runs.is_empty()) {
            groups.truncate(known);
            cut.end = Some(inside.end() as u32);
            cut.left.push(*extent);
            continue;
        }
        if let Some(after) = part(extent, inside.end(), u64::MAX) {
            cut.left.push(after);
        }
        if let Some(before) = part(extent, 0, u64::from(inside.block.0)) {
            cut.left.push(before);
        }
        *revokes_left -= u32::from(inside.len);
        cut.runs.push(run);
    }
    cut.left.reverse();
    cut
}

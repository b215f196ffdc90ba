//! Changing whether a range is written.

use std::ops::Range;

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::inode::Inode;

use super::edit::Path;
use super::{Progress, credits_for_edit, joined, longest, part};
use crate::{Handle, Volume, VolumeError};

/// Makes the mapped blocks of the range written or unwritten, splitting and joining extents; holes stay.
///
/// With a handle of [`super::credits_for_convert`] credits it gets ahead on every call.
///
/// # Errors
/// [`VolumeError::NoSpace`] when a split needs a block and none is free: what lies before the place is
/// converted, the rest is not, and converting the range again is harmless; the rule that a node breaks; the
/// device's, the journal's.
pub fn convert(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    range: Range<u32>,
    to_unwritten: bool,
) -> Result<Progress, VolumeError> {
    let mut from = range.start;
    while from < range.end {
        let path = Path::to(volume, nr, inode, from)?;
        if from > range.start && h.credits_left() < credits_for_edit(path.depth()) {
            return Ok(Progress::More(from));
        }
        let (leaf, next) = converted(path.leaf(), from..range.end, to_unwritten);
        let Some(next) = next.or(path.high) else {
            path.replace_if_changed(volume, h, nr, inode, leaf)?;
            return Ok(Progress::Done);
        };
        path.replace_if_changed(volume, h, nr, inode, leaf)?;
        from = next.max(from.saturating_add(1));
    }
    Ok(Progress::Done)
}

impl Path {
    fn replace_if_changed(
        self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: InodeNr,
        inode: &mut Inode,
        leaf: Vec<Extent>,
    ) -> Result<(), VolumeError> {
        if leaf == self.leaf() { Ok(()) } else { self.replace_leaf(volume, h, nr, inode, leaf, false) }
    }
}

/// The leaf with the range converted, and where to go on if the leaf grew as much as one split allows.
fn converted(leaf: &[Extent], range: Range<u32>, to_unwritten: bool) -> (Vec<Extent>, Option<u32>) {
    let (start, end) = (u64::from(range.start), u64::from(range.end));
    let mut out: Vec<Extent> = Vec::with_capacity(leaf.len() + 4);
    let mut stopped = None;
    for (at, extent) in leaf.iter().enumerate() {
        let inside = part(extent, start, end).filter(|_| extent.unwritten != to_unwritten);
        if inside.is_some() && out.len() > at + 1 {
            stopped = stopped.or(Some(extent.block.0));
        }
        let Some(inside) = inside.filter(|_| stopped.is_none()) else {
            push(&mut out, *extent);
            continue;
        };
        if let Some(before) = part(extent, 0, u64::from(inside.block.0)) {
            push(&mut out, before);
        }
        let most = u64::from(longest(to_unwritten));
        let mut from = u64::from(inside.block.0);
        while let Some(piece) = part(&inside, from, from + most) {
            push(&mut out, Extent { unwritten: to_unwritten, ..piece });
            from = piece.end();
        }
        if let Some(after) = part(extent, inside.end(), u64::MAX) {
            push(&mut out, after);
        }
    }
    (out, stopped)
}

fn push(out: &mut Vec<Extent>, extent: Extent) {
    match out.last_mut().and_then(|last| joined(last, &extent).map(|whole| (last, whole))) {
        Some((last, whole)) => *last = whole,
        None => out.push(extent),
    }
}

#[cfg(test)]
mod tests {
    use onggi_disk_format::{DiskBlock, FileBlock};

    use super::*;

    #[test]
    fn a_leaf_grows_by_a_split_at_most_and_the_rest_comes_later() {
        let extent = |at: u32| Extent {
            block: FileBlock(at * 32_768),
            len: 32_768,
            start: DiskBlock(1_000_000 * u64::from(at + 1)),
            unwritten: false,
        };
        let mut leaf: Vec<Extent> = (0..84).map(extent).collect();
        let blocks: u32 = leaf.iter().map(|extent| u32::from(extent.len)).sum();
        let mut from = 5;
        let mut calls = 0;
        loop {
            let (next_leaf, next) = converted(&leaf, from..blocks - 5, true);
            assert!(next_leaf.len() <= leaf.len() + 4, "{} extents from {}", next_leaf.len(), leaf.len());
            assert_eq!(next_leaf.iter().map(|extent| u32::from(extent.len)).sum::<u32>(), blocks);
            leaf = next_leaf;
            calls += 1;
            let Some(next) = next else { break };
            assert!(next > from);
            from = next;
        }
        assert!(calls > 20);
        for extent in &leaf {
            let edge = extent.block.0 < 5 || extent.end() > u64::from(blocks) - 5;
            assert!(extent.unwritten != edge && (!extent.unwritten || extent.len <= 32_767), "{extent:?}");
        }
    }
}

//! Extent trees: which disk blocks hold a file's blocks.
//!
//! **Does:** looks up, adds, removes and converts mappings; splits and grows nodes, frees emptied ones and
//! shrinks the tree; accounts the blocks in the inode.
//! **Never does:** marking data blocks used (the caller does, before or after [`insert`]), writing the inode
//! to its table, locking the inode.
//! **Called by:** directories, the engine.
//! **Locks:** none of its own; the caller holds the inode's lock, shared for look-ups.
//!
//! Beside the signatures that the engine was designed for: [`convert`] answers [`Progress`] as [`remove`]
//! does, for a long range may need more blocks than one handle has. [`remove`] works backwards, so its
//! [`Progress::More`] is the range's new end; [`convert`] works forwards, so its is the range's new start.
//! [`list`] reads a tree without a [`Volume`], for the journal's own inode.

mod convert;
mod edit;
mod insert;
mod lookup;
mod node;
mod remove;

pub use convert::convert;
pub use insert::insert;
pub use lookup::{list, lookup, next_extent};
pub use remove::remove;

use onggi_disk_format::DiskBlock;
use onggi_disk_format::ext4::extent::{self, Extent};
use onggi_disk_format::ext4::inode::{Inode, InodeFlags};

/// How a block of a file is mapped, and for how long a stretch from it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Nothing is allocated.
    Hole {
        /// Blocks to the next extent, or to the last possible block.
        len: u32,
    },
    /// Allocated.
    Mapped {
        /// Disk block of the block asked for.
        start: DiskBlock,
        /// Blocks to the extent's end.
        len: u32,
        /// Reads as zeroes.
        unwritten: bool,
    },
}

/// How far a change of a range came with one handle's credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a range that is not done needs another handle"]
pub enum Progress {
    /// All of it.
    Done,
    /// Stopped here; go on with a new handle.
    More(u32),
}

/// Makes an inode's map an empty extent tree.
pub fn init(inode: &mut Inode) {
    inode.flags.insert(InodeFlags::EXTENTS);
    // An empty leaf always fits.
    let _ = extent::encode_leaf(&mut inode.i_block, &[]);
}

/// Blocks that the tree of `inode` needs for adding `extents` extents; marking the data used comes on top.
#[must_use]
pub fn credits_for_insert(inode: &Inode, extents: u32) -> u32 {
    credits_for_edit(depth(inode) + 1).saturating_add(extents.saturating_sub(1).saturating_mul(4))
}

/// Blocks that let [`convert`] get ahead on every call: a range of one or two extents is done at once.
#[must_use]
pub fn credits_for_convert(inode: &Inode) -> u32 {
    2 * credits_for_edit(depth(inode) + 1)
}

/// Blocks that let [`remove`] get ahead on every call. With more it does more per call.
#[must_use]
pub fn credits_for_remove(volume: &crate::Volume, inode: &Inode) -> u32 {
    credits_for_edit(depth(inode)) + volume.alloc.credits_for_free(volume.sb.blocks_per_group())
}

/// Blocks that one change of one leaf may touch: in every level the node and, where it splits, a new one
/// with its bitmap and descriptor; a new root's child. Freeing nodes costs less.
fn credits_for_edit(depth: u16) -> u32 {
    3 + 4 * u32::from(depth)
}

fn depth(inode: &Inode) -> u16 {
    u16::from_le_bytes([inode.i_block[6], inode.i_block[7]]).min(extent::MAX_DEPTH)
}

/// The one extent that both make, if they touch in the file and on the disk and it can be stored.
fn joined(left: &Extent, right: &Extent) -> Option<Extent> {
    let touches = left.unwritten == right.unwritten
        && left.end() == u64::from(right.block.0)
        && left.start.0 + u64::from(left.len) == right.start.0;
    let len = u32::from(left.len) + u32::from(right.len);
    (touches && len <= longest(left.unwritten)).then_some(Extent { len: len as u16, ..*left })
}

fn longest(unwritten: bool) -> u32 {
    u32::from(if unwritten { extent::MAX_UNWRITTEN_LEN } else { extent::MAX_LEN })
}

/// The part of an extent within `[start, end)`, which it overlaps.
fn part(whole: &Extent, start: u64, end: u64) -> Option<Extent> {
    let start = start.max(u64::from(whole.block.0));
    let end = end.min(whole.end());
    let skip = start - u64::from(whole.block.0);
    (start < end).then(|| Extent {
        block: onggi_disk_format::FileBlock(start as u32),
        len: (end - start) as u16,
        start: DiskBlock(whole.start.0 + skip),
        unwritten: whole.unwritten,
    })
}

#[cfg(test)]
mod tests {
    use onggi_disk_format::FileBlock;

    use super::*;

    #[test]
    fn neighbours_join_up_to_what_a_length_can_say() {
        let extent = |block: u32, len: u16, unwritten| Extent {
            block: FileBlock(block),
            len,
            start: DiskBlock(1000 + u64::from(block)),
            unwritten,
        };
        let written = joined(&extent(0, 20_000, false), &extent(20_000, 12_768, false));
        assert_eq!(written, Some(extent(0, 32_768, false)));
        assert_eq!(joined(&extent(0, 20_000, false), &extent(20_000, 12_769, false)), None);
        assert_eq!(joined(&extent(0, 20_000, true), &extent(20_000, 12_768, true)), None);
        assert_eq!(
            joined(&extent(0, 20_000, true), &extent(20_000, 12_767, true)),
            Some(extent(0, 32_767, true))
        );
        assert_eq!(joined(&extent(0, 5, true), &extent(5, 5, false)), None);
        assert_eq!(joined(&extent(0, 5, true), &extent(6, 5, true)), None);
        let elsewhere = Extent { start: DiskBlock(2000), ..extent(5, 5, true) };
        assert_eq!(joined(&extent(0, 5, true), &elsewhere), None);
    }
}

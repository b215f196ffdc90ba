//! Adding an extent.

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::inode::Inode;

use super::edit::Path;
use super::{joined, longest};
use crate::{Handle, Place, Volume, VolumeError};

/// Maps a hole of the file to blocks of the disk, joining neighbours where it can, and adds them to the
/// inode's block count. Marking the blocks used is the caller's matter.
///
/// # Errors
/// [`VolumeError::NoSpace`] when the tree needs a block and none is free, with nothing changed; a range that
/// is mapped already or cannot be stored; the device's, the journal's.
pub fn insert(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    extent: Extent,
) -> Result<(), VolumeError> {
    let corrupt =
        |rule: &str| VolumeError::corrupt("extent tree", Place::FileBlock(nr, extent.block.0), rule);
    let len = u64::from(extent.len);
    if len == 0 || len > u64::from(longest(extent.unwritten)) || extent.end() > u64::from(u32::MAX) {
        return Err(VolumeError::Limit("an extent of this length and place cannot be stored"));
    }
    if !volume.sb.contains_blocks(extent.start, len) || volume.alloc.is_system(extent.start, len) {
        return Err(corrupt("the new extent points outside the volume's data"));
    }
    let path = Path::to(volume, nr, inode, extent.block.0)?;
    let mut leaf = path.leaf().to_vec();
    let at = leaf.partition_point(|other| other.block <= extent.block);
    let next = leaf.get(at).map(|other| other.block.0).or(path.high);
    let left_free = at == 0 || leaf[at - 1].end() <= u64::from(extent.block.0);
    if !left_free || next.is_some_and(|next| extent.end() > u64::from(next)) {
        return Err(corrupt("the range to be mapped is mapped already"));
    }
    let appended = at == leaf.len();
    leaf.insert(at, extent);
    if let Some(whole) = leaf.get(at + 1).and_then(|right| joined(&leaf[at], right)) {
        leaf[at] = whole;
        leaf.remove(at + 1);
    }
    if let Some(whole) = at.checked_sub(1).and_then(|left| joined(&leaf[left], &leaf[at])) {
        leaf[at - 1] = whole;
        leaf.remove(at);
    }
    path.replace_leaf(volume, h, nr, inode, leaf, appended)?;
    inode.blocks += len * u64::from(volume.block_size() / 512);
    Ok(())
}

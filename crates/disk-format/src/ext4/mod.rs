//! The structures of an ext4 volume.

pub mod dir;
pub mod dirhash;
pub mod extent;
pub mod features;
mod geometry;
pub mod group;
pub mod htree;
pub mod inode;
mod one_sector;
pub mod orphan;
mod raw_superblock;
pub mod superblock;
pub mod xattr;

pub use dir::FileType;
pub use extent::{Extent, ExtentIndex, ExtentNode};
pub use features::{Compat, Incompat, RoCompat};
pub use geometry::InodeLocation;
pub use group::{GroupDescriptor, GroupFlags};
pub use inode::{Inode, InodeFlags, Time};
pub use raw_superblock::RawSuperblock;
pub use superblock::Superblock;

use crate::address::InodeNr;
use crate::checksum::crc32c;

/// Seed of everything checksummed on behalf of an inode: the inode itself, its extent blocks,
/// directory blocks and orphan-file blocks.
#[must_use]
pub fn inode_seed(volume_seed: u32, nr: InodeNr, generation: u32) -> u32 {
    crc32c(crc32c(volume_seed, &nr.0.to_le_bytes()), &generation.to_le_bytes())
}

/// `bytes[at..at + N]`, if there.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

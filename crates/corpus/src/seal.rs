//! Makes checksums right again after bytes were changed.
//!
//! Where a change hides the place of the checksum itself, it stays: a reader refuses such a block before.

use onggi_disk_format::checksum::crc32c;
use onggi_disk_format::ext4::group::{block_bitmap_checksum, inode_bitmap_checksum};
use onggi_disk_format::ext4::{GroupDescriptor, dir, extent, htree, inode, orphan, xattr};
use onggi_disk_format::jbd2::Layout;
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

use crate::survey::{Survey, block, block_mut};

/// The primary superblock.
pub(crate) fn superblock(image: &mut [u8], survey: &Survey) {
    if survey.sb.has_metadata_csum() {
        let sum = crc32c(!0, &image[1024..2044]);
        image[2044..2048].copy_from_slice(&sum.to_le_bytes());
    }
}

/// Bytes of `group`'s descriptor.
pub(crate) fn descriptor<'a>(image: &'a mut [u8], survey: &Survey, group: GroupNr) -> Option<&'a mut [u8]> {
    let (place, at) = survey.sb.descriptor_location(group);
    let len = usize::from(survey.sb.descriptor_size());
    block_mut(image, survey, place)?.get_mut(at..at + len)
}

/// A group descriptor after its bytes were changed.
pub(crate) fn group(image: &mut [u8], survey: &Survey, group: GroupNr) {
    let Some(bytes) = descriptor(image, survey, group) else { return };
    if let Ok(read) = GroupDescriptor::read(&survey.sb, group, bytes) {
        // Lengths were checked by the read.
        let _ = read.encode(&survey.sb, group, bytes);
    }
}

/// The descriptor of a group one of whose bitmaps was changed.
pub(crate) fn bitmaps(image: &mut [u8], survey: &Survey, group: GroupNr) {
    let Some(bytes) = descriptor(image, survey, group) else { return };
    let Ok(mut read) = GroupDescriptor::read(&survey.sb, group, bytes) else { return };
    let sum = |sum: Option<u32>, old| sum.unwrap_or(old);
    if let Some(bitmap) = block(image, survey, read.block_bitmap) {
        read.block_bitmap_csum = sum(block_bitmap_checksum(&survey.sb, bitmap), read.block_bitmap_csum);
    }
    if let Some(bitmap) = block(image, survey, read.inode_bitmap) {
        read.inode_bitmap_csum = sum(inode_bitmap_checksum(&survey.sb, bitmap), read.inode_bitmap_csum);
    }
    if let Some(bytes) = descriptor(image, survey, group) {
        let _ = read.encode(&survey.sb, group, bytes);
    }
}

/// An inode after its bytes were changed.
pub(crate) fn inode(image: &mut [u8], survey: &Survey, nr: InodeNr) {
    if let Some(bytes) = survey.inode_bytes(image, nr) {
        inode::set_checksum(&survey.sb, nr, bytes);
    }
}

/// A block of an extent tree.
pub(crate) fn extent_node(image: &mut [u8], survey: &Survey, place: DiskBlock, seed: u32) {
    if survey.sb.has_metadata_csum()
        && let Some(bytes) = block_mut(image, survey, place)
    {
        let _ = extent::set_checksum(bytes, seed);
    }
}

/// A block of a directory, entries or index.
pub(crate) fn directory(image: &mut [u8], survey: &Survey, place: DiskBlock, seed: u32) {
    if survey.sb.has_metadata_csum()
        && let Some(bytes) = block_mut(image, survey, place)
        && dir::set_checksum(bytes, seed).is_err()
    {
        htree::set_checksum(bytes, seed);
    }
}

/// A block of extended attributes.
pub(crate) fn xattr_block(image: &mut [u8], survey: &Survey, place: DiskBlock) {
    if let Some(bytes) = block_mut(image, survey, place) {
        let refcount = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        xattr::set_refcount(&survey.sb, bytes, place, refcount);
    }
}

/// A block of the orphan file.
pub(crate) fn orphan_block(image: &mut [u8], survey: &Survey, place: DiskBlock, seed: u32) {
    let checksum = survey.sb.has_metadata_csum().then_some((seed, place));
    if let Some(bytes) = block_mut(image, survey, place) {
        let _ = orphan::seal(bytes, checksum);
    }
}

/// The journal's superblock.
pub(crate) fn journal_superblock(bytes: &mut [u8], layout: &Layout) {
    if layout.has_checksums() && bytes.len() >= 1024 {
        bytes[0xfc..0x100].fill(0);
        let sum = crc32c(!0, &bytes[..1024]);
        bytes[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    }
}

/// A block of the log whose checksum stands at `at`: the last four bytes of descriptors and revoke
/// blocks, byte 16 of commit blocks.
pub(crate) fn log_block(bytes: &mut [u8], layout: &Layout, at: usize) {
    if layout.has_checksums() && at + 4 <= bytes.len() {
        bytes[at..at + 4].fill(0);
        let sum = crc32c(layout.seed, bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
}

//! Group descriptors and the checksums of the bitmaps they point to.

use std::mem::offset_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::superblock::Superblock;
use crate::address::{DiskBlock, GroupNr};
use crate::checksum::{crc16, crc32c};
use crate::flag_set::flag_set;

/// The 64-byte form; the 32-byte form is its first half.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawGroupDescriptor {
    pub bg_block_bitmap_lo: U32,
    pub bg_inode_bitmap_lo: U32,
    pub bg_inode_table_lo: U32,
    pub bg_free_blocks_count_lo: U16,
    pub bg_free_inodes_count_lo: U16,
    pub bg_used_dirs_count_lo: U16,
    pub bg_flags: U16,
    pub bg_exclude_bitmap_lo: U32,
    pub bg_block_bitmap_csum_lo: U16,
    pub bg_inode_bitmap_csum_lo: U16,
    pub bg_itable_unused_lo: U16,
    pub bg_checksum: U16,
    pub bg_block_bitmap_hi: U32,
    pub bg_inode_bitmap_hi: U32,
    pub bg_inode_table_hi: U32,
    pub bg_free_blocks_count_hi: U16,
    pub bg_free_inodes_count_hi: U16,
    pub bg_used_dirs_count_hi: U16,
    pub bg_itable_unused_hi: U16,
    pub bg_exclude_bitmap_hi: U32,
    pub bg_block_bitmap_csum_hi: U16,
    pub bg_inode_bitmap_csum_hi: U16,
    pub bg_reserved: U32,
}

const SHORT: usize = 32;
const LONG: usize = 64;
const CHECKSUM_AT: usize = offset_of!(RawGroupDescriptor, bg_checksum);

const _: () = {
    assert!(size_of::<RawGroupDescriptor>() == LONG);
    assert!(CHECKSUM_AT == 0x1e);
    assert!(offset_of!(RawGroupDescriptor, bg_block_bitmap_hi) == SHORT);
    assert!(offset_of!(RawGroupDescriptor, bg_block_bitmap_csum_hi) == 0x38);
};

flag_set! {
    /// `bg_flags`.
    GroupFlags(u16) {
        /// The inode bitmap and table were never written.
        INODE_UNINIT = 1, "INODE_UNINIT";
        /// The block bitmap was never written.
        BLOCK_UNINIT = 2, "BLOCK_UNINIT";
        /// The inode table is zeroed.
        INODE_ZEROED = 4, "INODE_ZEROED";
    }
}

/// The rule that a group descriptor breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum GroupError {
    #[error("group {0}: there is no such group")]
    NoSuchGroup(GroupNr),
    #[error("group {group}: {len} bytes, its descriptor has {needed}")]
    TooShort { group: GroupNr, len: usize, needed: usize },
    #[error("group {group}: bg_checksum is {stored:#06x}, computed {computed:#06x}")]
    Checksum { group: GroupNr, stored: u16, computed: u16 },
    #[error("group {group}: {field} at block {block} does not lie on the volume")]
    Place { group: GroupNr, field: &'static str, block: DiskBlock },
    #[error("group {group}: {field} is {value}, past {limit}")]
    Count { group: GroupNr, field: &'static str, value: u32, limit: u32 },
}

/// A group descriptor that passed every check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupDescriptor {
    /// Block of the block bitmap.
    pub block_bitmap: DiskBlock,
    /// Block of the inode bitmap.
    pub inode_bitmap: DiskBlock,
    /// First block of the inode table.
    pub inode_table: DiskBlock,
    /// Free blocks (clusters under `bigalloc`).
    pub free_blocks: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories among the used inodes.
    pub used_dirs: u32,
    /// What was never written.
    pub flags: GroupFlags,
    /// Inodes at the end of the table that were never used.
    pub itable_unused: u32,
    /// Checksum of the block bitmap; 16 bits in the 32-byte form.
    pub block_bitmap_csum: u32,
    /// Checksum of the inode bitmap; 16 bits in the 32-byte form.
    pub inode_bitmap_csum: u32,
}

impl GroupDescriptor {
    /// Checks `group`'s descriptor, which starts `bytes`, checksum included.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse(sb: &Superblock, group: GroupNr, bytes: &[u8]) -> Result<Self, GroupError> {
        let bytes = descriptor_bytes(sb, group, bytes)?;
        if sb.has_group_checksums() {
            let stored = u16::from_le_bytes([bytes[CHECKSUM_AT], bytes[CHECKSUM_AT + 1]]);
            let computed = checksum(sb, group, bytes);
            if stored != computed {
                return Err(GroupError::Checksum { group, stored, computed });
            }
        }
        let descriptor = Self::read(sb, group, bytes)?;
        descriptor.check(sb, group)?;
        Ok(descriptor)
    }

    /// The fields as stored, with no rule checked but the length.
    ///
    /// # Errors
    /// No such group, or too few bytes.
    pub fn read(sb: &Superblock, group: GroupNr, bytes: &[u8]) -> Result<Self, GroupError> {
        let bytes = descriptor_bytes(sb, group, bytes)?;
        let mut raw = RawGroupDescriptor::new_zeroed();
        let len = bytes.len().min(LONG);
        raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
        let block = |lo: U32, hi: U32| DiskBlock(u64::from(hi.get()) << 32 | u64::from(lo.get()));
        let count = |lo: U16, hi: U16| u32::from(hi.get()) << 16 | u32::from(lo.get());
        Ok(Self {
            block_bitmap: block(raw.bg_block_bitmap_lo, raw.bg_block_bitmap_hi),
            inode_bitmap: block(raw.bg_inode_bitmap_lo, raw.bg_inode_bitmap_hi),
            inode_table: block(raw.bg_inode_table_lo, raw.bg_inode_table_hi),
            free_blocks: count(raw.bg_free_blocks_count_lo, raw.bg_free_blocks_count_hi),
            free_inodes: count(raw.bg_free_inodes_count_lo, raw.bg_free_inodes_count_hi),
            used_dirs: count(raw.bg_used_dirs_count_lo, raw.bg_used_dirs_count_hi),
            flags: GroupFlags::from_bits(raw.bg_flags.get()),
            itable_unused: count(raw.bg_itable_unused_lo, raw.bg_itable_unused_hi),
            block_bitmap_csum: count(raw.bg_block_bitmap_csum_lo, raw.bg_block_bitmap_csum_hi),
            inode_bitmap_csum: count(raw.bg_inode_bitmap_csum_lo, raw.bg_inode_bitmap_csum_hi),
        })
    }

    fn check(&self, sb: &Superblock, group: GroupNr) -> Result<(), GroupError> {
        let places = [
            ("bg_block_bitmap", self.block_bitmap, 1),
            ("bg_inode_bitmap", self.inode_bitmap, 1),
            ("bg_inode_table", self.inode_table, u64::from(sb.inode_table_blocks())),
        ];
        for (field, block, len) in places {
            if !sb.contains_blocks(block, len) {
                return Err(GroupError::Place { group, field, block });
            }
        }
        let inodes = sb.inodes_per_group();
        let counts = [
            ("bg_free_blocks_count", self.free_blocks, sb.clusters_per_group()),
            ("bg_free_inodes_count", self.free_inodes, inodes),
            ("bg_used_dirs_count", self.used_dirs, inodes),
            ("bg_itable_unused", self.itable_unused, inodes),
        ];
        for (field, value, limit) in counts {
            if value > limit {
                return Err(GroupError::Count { group, field, value, limit });
            }
        }
        Ok(())
    }

    /// Writes the fields and the checksum into the start of `bytes`; fields not held here stay.
    ///
    /// # Errors
    /// No such group, or too few bytes.
    pub fn encode(&self, sb: &Superblock, group: GroupNr, bytes: &mut [u8]) -> Result<(), GroupError> {
        let needed = descriptor_bytes(sb, group, bytes)?.len();
        let bytes = &mut bytes[..needed];
        let mut raw = RawGroupDescriptor::new_zeroed();
        let len = needed.min(LONG);
        raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
        raw.bg_block_bitmap_lo.set(self.block_bitmap.0 as u32);
        raw.bg_block_bitmap_hi.set((self.block_bitmap.0 >> 32) as u32);
        raw.bg_inode_bitmap_lo.set(self.inode_bitmap.0 as u32);
        raw.bg_inode_bitmap_hi.set((self.inode_bitmap.0 >> 32) as u32);
        raw.bg_inode_table_lo.set(self.inode_table.0 as u32);
        raw.bg_inode_table_hi.set((self.inode_table.0 >> 32) as u32);
        raw.bg_free_blocks_count_lo.set(self.free_blocks as u16);
        raw.bg_free_blocks_count_hi.set((self.free_blocks >> 16) as u16);
        raw.bg_free_inodes_count_lo.set(self.free_inodes as u16);
        raw.bg_free_inodes_count_hi.set((self.free_inodes >> 16) as u16);
        raw.bg_used_dirs_count_lo.set(self.used_dirs as u16);
        raw.bg_used_dirs_count_hi.set((self.used_dirs >> 16) as u16);
        raw.bg_flags.set(self.flags.bits());
        raw.bg_itable_unused_lo.set(self.itable_unused as u16);
        raw.bg_itable_unused_hi.set((self.itable_unused >> 16) as u16);
        raw.bg_block_bitmap_csum_lo.set(self.block_bitmap_csum as u16);
        raw.bg_block_bitmap_csum_hi.set((self.block_bitmap_csum >> 16) as u16);
        raw.bg_inode_bitmap_csum_lo.set(self.inode_bitmap_csum as u16);
        raw.bg_inode_bitmap_csum_hi.set((self.inode_bitmap_csum >> 16) as u16);
        bytes[..len].copy_from_slice(&raw.as_bytes()[..len]);
        if sb.has_group_checksums() {
            let sum = checksum(sb, group, bytes);
            bytes[CHECKSUM_AT..SHORT].copy_from_slice(&sum.to_le_bytes());
        }
        Ok(())
    }

    /// Whether `bitmap` (the whole block) matches the stored checksum; always without `metadata_csum`.
    #[must_use]
    pub fn block_bitmap_matches(&self, sb: &Superblock, bitmap: &[u8]) -> bool {
        block_bitmap_checksum(sb, bitmap).is_none_or(|sum| sum == self.block_bitmap_csum)
    }

    /// Whether `bitmap` (the whole block) matches the stored checksum; always without `metadata_csum`.
    #[must_use]
    pub fn inode_bitmap_matches(&self, sb: &Superblock, bitmap: &[u8]) -> bool {
        inode_bitmap_checksum(sb, bitmap).is_none_or(|sum| sum == self.inode_bitmap_csum)
    }
}

/// What [`GroupDescriptor::block_bitmap_csum`] must hold for `bitmap`, the whole block; `None` without
/// `metadata_csum`.
#[must_use]
pub fn block_bitmap_checksum(sb: &Superblock, bitmap: &[u8]) -> Option<u32> {
    bitmap_checksum(sb, bitmap, sb.clusters_per_group())
}

/// What [`GroupDescriptor::inode_bitmap_csum`] must hold for `bitmap`, the whole block; `None` without
/// `metadata_csum`.
#[must_use]
pub fn inode_bitmap_checksum(sb: &Superblock, bitmap: &[u8]) -> Option<u32> {
    bitmap_checksum(sb, bitmap, sb.inodes_per_group())
}

fn bitmap_checksum(sb: &Superblock, bitmap: &[u8], bits: u32) -> Option<u32> {
    if !sb.has_metadata_csum() {
        return None;
    }
    let covered = bitmap.len().min(bits as usize / 8);
    let sum = crc32c(sb.csum_seed(), &bitmap[..covered]);
    Some(if usize::from(sb.descriptor_size()) >= LONG { sum } else { sum & 0xffff })
}

fn descriptor_bytes<'a>(sb: &Superblock, group: GroupNr, bytes: &'a [u8]) -> Result<&'a [u8], GroupError> {
    if group.0 >= sb.groups() {
        return Err(GroupError::NoSuchGroup(group));
    }
    let needed = usize::from(sb.descriptor_size());
    bytes.get(..needed).ok_or(GroupError::TooShort { group, len: bytes.len(), needed })
}

fn checksum(sb: &Superblock, group: GroupNr, bytes: &[u8]) -> u16 {
    let (before, after) = (&bytes[..CHECKSUM_AT], &bytes[SHORT..]);
    let nr = group.0.to_le_bytes();
    if sb.has_metadata_csum() {
        let sum = crc32c(crc32c(sb.csum_seed(), &nr), before);
        crc32c(crc32c(sum, &[0, 0]), after) as u16
    } else {
        crc16(crc16(crc16(crc16(!0, &sb.uuid()), &nr), before), after)
    }
}

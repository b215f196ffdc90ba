//! Where things lie on a volume: groups, descriptors, inodes.

use super::features::{Compat, Incompat, RoCompat};
use super::superblock::{SUPERBLOCK_OFFSET, Superblock};
use crate::address::{DiskBlock, GroupNr, InodeNr};

/// Where an inode lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeLocation {
    /// Group whose table holds it.
    pub group: GroupNr,
    /// Index in the group's table.
    pub index: u32,
    /// Block of the table, counted from its first.
    pub table_block: u32,
    /// Byte in that block.
    pub byte: usize,
}

impl Superblock {
    /// Whether `[start, start + len)` lies on the volume, past the superblock's block.
    #[must_use]
    pub fn contains_blocks(&self, start: DiskBlock, len: u64) -> bool {
        start > self.first_data_block()
            && start.0.checked_add(len).is_some_and(|end| end <= self.blocks_count())
    }

    /// The group that holds `block`, `None` outside every group.
    #[must_use]
    pub fn group_of_block(&self, block: DiskBlock) -> Option<GroupNr> {
        if block.0 >= self.blocks_count() {
            return None;
        }
        let from_first = block.0.checked_sub(self.first_data_block().0)?;
        u32::try_from(from_first / u64::from(self.blocks_per_group())).ok().map(GroupNr)
    }

    /// First block of `group`.
    #[must_use]
    pub fn first_block_of_group(&self, group: GroupNr) -> DiskBlock {
        DiskBlock(self.first_data_block().0 + u64::from(group.0) * u64::from(self.blocks_per_group()))
    }

    /// Blocks in `group`: the last may be short, one past the last has none.
    #[must_use]
    pub fn blocks_in_group(&self, group: GroupNr) -> u32 {
        let left = self.blocks_count().saturating_sub(self.first_block_of_group(group).0);
        left.min(u64::from(self.blocks_per_group())) as u32
    }

    /// Whether `group` starts with a copy of the superblock.
    #[must_use]
    pub fn has_super_backup(&self, group: GroupNr) -> bool {
        if group.0 == 0 {
            return true;
        }
        if self.compat().contains(Compat::SPARSE_SUPER2) {
            return self.raw().s_backup_bgs.iter().any(|backup| backup.get() == group.0);
        }
        if group.0 == 1 || !self.ro_compat().contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].iter().any(|&base| is_power(group.0, base))
    }

    /// Blocks at the start of `group` that hold the superblock, group descriptors and the blocks
    /// reserved for more of them.
    #[must_use]
    pub fn head_blocks(&self, group: GroupNr) -> u32 {
        let backup = self.has_super_backup(group);
        let meta = self.incompat().contains(Incompat::META_BG);
        let per_block = self.descriptors_per_block();
        let first_meta = self.raw().s_first_meta_bg.get();
        if meta && u64::from(group.0) >= u64::from(first_meta) * u64::from(per_block) {
            let place = group.0 % per_block;
            return u32::from(backup) + u32::from(place <= 1 || place == per_block - 1);
        }
        if !backup {
            return 0;
        }
        let table = if meta { first_meta } else { self.descriptor_blocks() };
        1 + table + u32::from(self.raw().s_reserved_gdt_blocks.get())
    }

    /// Block `index` of the group descriptor table (the primary copy).
    #[must_use]
    pub fn descriptor_block(&self, index: u32) -> DiskBlock {
        if !self.incompat().contains(Incompat::META_BG) || index < self.raw().s_first_meta_bg.get() {
            // 1 KiB blocks under `bigalloc` count from block 0, yet the superblock is block 1.
            let superblock = SUPERBLOCK_OFFSET / u64::from(self.block_size());
            return DiskBlock(superblock + 1 + u64::from(index));
        }
        let group = GroupNr(index.saturating_mul(self.descriptors_per_block()));
        DiskBlock(self.first_block_of_group(group).0 + u64::from(self.has_super_backup(group)))
    }

    /// Where `group`'s descriptor lies: block of the table and byte in it.
    #[must_use]
    pub fn descriptor_location(&self, group: GroupNr) -> (DiskBlock, usize) {
        let per_block = self.descriptors_per_block();
        let byte = (group.0 % per_block) as usize * usize::from(self.descriptor_size());
        (self.descriptor_block(group.0 / per_block), byte)
    }

    /// Where an inode lies, `None` for 0 and past the last.
    #[must_use]
    pub fn inode_location(&self, nr: InodeNr) -> Option<InodeLocation> {
        if nr.0 > self.inodes_count() {
            return None;
        }
        let from_first = nr.0.checked_sub(1)?;
        let index = from_first % self.inodes_per_group();
        Some(InodeLocation {
            group: GroupNr(from_first / self.inodes_per_group()),
            index,
            table_block: index / self.inodes_per_block(),
            byte: (index % self.inodes_per_block()) as usize * usize::from(self.inode_size()),
        })
    }

    /// The inode at `index` in `group`'s table.
    #[must_use]
    pub fn inode_at(&self, group: GroupNr, index: u32) -> Option<InodeNr> {
        if index >= self.inodes_per_group() {
            return None;
        }
        let nr = group.0.checked_mul(self.inodes_per_group())?.checked_add(index)?.checked_add(1)?;
        (nr <= self.inodes_count()).then_some(InodeNr(nr))
    }
}

fn is_power(mut value: u32, base: u32) -> bool {
    while value > 1 && value.is_multiple_of(base) {
        value /= base;
    }
    value == 1
}

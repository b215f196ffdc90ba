//! The checked superblock and the geometry that follows from it.

use zerocopy::{FromBytes, IntoBytes};

use super::features::{Compat, Incompat, RoCompat};
use super::raw_superblock::RawSuperblock;
use crate::address::{DiskBlock, GroupNr, InodeNr};
use crate::checksum::crc32c;

/// Byte address of the superblock on the volume.
pub const SUPERBLOCK_OFFSET: u64 = 1024;
/// Bytes of the superblock.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_magic`.
pub const MAGIC: u16 = 0xef53;
/// `s_state`: unmounted cleanly.
pub const STATE_VALID: u16 = 1;
/// `s_state`: errors were seen.
pub const STATE_ERROR: u16 = 2;
/// `s_state`: orphans are being recovered.
pub const STATE_ORPHANS: u16 = 4;
/// `s_flags`: directory hashes take names as signed characters.
pub const FLAG_SIGNED_HASH: u32 = 1;
/// `s_flags`: directory hashes take names as unsigned characters.
pub const FLAG_UNSIGNED_HASH: u32 = 2;
/// The root directory.
pub const ROOT_INODE: InodeNr = InodeNr(2);
/// The inode that holds the reserved descriptor blocks.
pub const RESIZE_INODE: InodeNr = InodeNr(7);
/// The journal's usual inode.
pub const JOURNAL_INODE: InodeNr = InodeNr(8);

/// The rule that a superblock breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum SuperblockError {
    #[error("superblock: {0} bytes, a superblock has 1024")]
    TooShort(usize),
    #[error("superblock: s_magic is {0:#06x}, not 0xef53: not an ext2/3/4 volume")]
    Magic(u16),
    #[error("superblock: s_rev_level {0} is unknown")]
    Revision(u32),
    #[error("superblock: s_log_block_size {0} is past 6 (64 KiB blocks)")]
    BlockSize(u32),
    #[error("superblock: s_checksum_type {0} is not 1 (crc32c)")]
    ChecksumType(u8),
    #[error("superblock: s_checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("superblock: s_log_cluster_size {0} does not fit the block size")]
    ClusterSize(u32),
    #[error(
        "superblock: s_blocks_per_group {0} is not a multiple of 8 from 8 to the bits of one bitmap block"
    )]
    BlocksPerGroup(u32),
    #[error("superblock: s_clusters_per_group {0} does not match s_blocks_per_group")]
    ClustersPerGroup(u32),
    #[error("superblock: s_inode_size {0} is not a power of two from 128 to the block size")]
    InodeSize(u16),
    #[error("superblock: s_inodes_per_group {0} is not a multiple of 8 that one bitmap block covers")]
    InodesPerGroup(u32),
    #[error("superblock: s_first_data_block {0} does not fit the block size")]
    FirstDataBlock(u32),
    #[error("superblock: {0} blocks are too few or too many for a volume")]
    BlocksCount(u64),
    #[error("superblock: s_inodes_count {stored}, but the groups hold {computed}")]
    InodesCount { stored: u32, computed: u64 },
    #[error("superblock: s_first_ino {0} is below 11 or past the last inode")]
    FirstInode(u32),
    #[error("superblock: s_desc_size {0} is not a power of two from 64 to 1024")]
    DescriptorSize(u16),
    #[error("superblock: {0} group descriptor blocks do not fit the first group")]
    DescriptorBlocks(u64),
    #[error("superblock: s_reserved_gdt_blocks {0} is past a quarter of the block size")]
    ReservedDescriptorBlocks(u16),
    #[error("superblock: s_log_groups_per_flex {0} is past 31")]
    FlexGroups(u8),
    #[error("superblock: s_first_meta_bg {0} is past the descriptor blocks")]
    FirstMetaGroup(u32),
    #[error("superblock: {field} names inode {nr}, past the last inode")]
    InodeNumber { field: &'static str, nr: u32 },
    #[error("superblock: metadata_csum and uninit_bg are both set")]
    TwoChecksumFeatures,
}

/// A superblock that passed every check, with the geometry that follows from it.
///
/// Free counts and times are the stored ones; they are hints that no check covers.
#[derive(Clone)]
pub struct Superblock {
    raw: RawSuperblock,
    block_size: u32,
    blocks_count: u64,
    groups: u32,
    inode_size: u16,
    first_inode: u32,
    desc_size: u16,
    descriptor_blocks: u32,
    csum_seed: u32,
}

impl Superblock {
    /// Checks the superblock in the first 1024 of `bytes`.
    ///
    /// Unknown feature bits are no error here: see [`Superblock::incompat`] and its siblings.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse(bytes: &[u8]) -> Result<Self, SuperblockError> {
        let (raw, _) =
            RawSuperblock::read_from_prefix(bytes).map_err(|_| SuperblockError::TooShort(bytes.len()))?;
        if raw.s_magic != MAGIC {
            return Err(SuperblockError::Magic(raw.s_magic.get()));
        }
        let ro_compat = RoCompat::from_bits(raw.s_feature_ro_compat.get());
        if ro_compat.contains(RoCompat::METADATA_CSUM) {
            if raw.s_checksum_type != 1 {
                return Err(SuperblockError::ChecksumType(raw.s_checksum_type));
            }
            let (stored, computed) = (raw.s_checksum.get(), checksum(&raw));
            if stored != computed {
                return Err(SuperblockError::Checksum { stored, computed });
            }
        }
        Self::check(raw)
    }

    /// Checks a superblock made in memory; its checksum is computed at [`Superblock::encode`].
    ///
    /// # Errors
    /// The first rule broken.
    pub fn from_raw(raw: RawSuperblock) -> Result<Self, SuperblockError> {
        if raw.s_magic != MAGIC {
            return Err(SuperblockError::Magic(raw.s_magic.get()));
        }
        Self::check(raw)
    }

    fn check(raw: RawSuperblock) -> Result<Self, SuperblockError> {
        let incompat = Incompat::from_bits(raw.s_feature_incompat.get());
        let ro_compat = RoCompat::from_bits(raw.s_feature_ro_compat.get());
        if ro_compat.contains(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM) {
            return Err(SuperblockError::TwoChecksumFeatures);
        }
        let log_block_size = raw.s_log_block_size.get();
        if log_block_size > 6 {
            return Err(SuperblockError::BlockSize(log_block_size));
        }
        let block_size = 1024u32 << log_block_size;
        let (inode_size, first_inode) = match raw.s_rev_level.get() {
            0 => (128, 11),
            1 => (raw.s_inode_size.get(), raw.s_first_ino.get()),
            other => return Err(SuperblockError::Revision(other)),
        };
        if !inode_size.is_power_of_two() || inode_size < 128 || u32::from(inode_size) > block_size {
            return Err(SuperblockError::InodeSize(inode_size));
        }
        check_groups(&raw, block_size, inode_size)?;
        let desc_size = match (incompat.contains(Incompat::BIT64), raw.s_desc_size.get()) {
            (false, _) => 32,
            (true, size) if size.is_power_of_two() && (64..=1024).contains(&size) => size,
            (true, size) => return Err(SuperblockError::DescriptorSize(size)),
        };
        let blocks_count = wide(&incompat, raw.s_blocks_count_lo.get(), raw.s_blocks_count_hi.get());
        let first_data = u64::from(raw.s_first_data_block.get());
        if blocks_count <= first_data || blocks_count > 1 << 48 {
            return Err(SuperblockError::BlocksCount(blocks_count));
        }
        let groups = (blocks_count - first_data).div_ceil(u64::from(raw.s_blocks_per_group.get()));
        let computed = groups
            .checked_mul(u64::from(raw.s_inodes_per_group.get()))
            .ok_or(SuperblockError::BlocksCount(blocks_count))?;
        let stored = raw.s_inodes_count.get();
        if u64::from(stored) != computed {
            return Err(SuperblockError::InodesCount { stored, computed });
        }
        if first_inode < 11 || first_inode > stored {
            return Err(SuperblockError::FirstInode(first_inode));
        }
        // `computed` fits 32 bits and a group has at least 8 inodes, so the group number fits too.
        let groups = u32::try_from(groups).map_err(|_| SuperblockError::BlocksCount(blocks_count))?;
        let per_block = block_size / u32::from(desc_size);
        let descriptor_blocks = groups.div_ceil(per_block);
        let mut superblock = Self {
            raw,
            block_size,
            blocks_count,
            groups,
            inode_size,
            first_inode,
            desc_size,
            descriptor_blocks,
            csum_seed: 0,
        };
        superblock.csum_seed = if incompat.contains(Incompat::CSUM_SEED) {
            raw.s_checksum_seed.get()
        } else {
            crc32c(!0, &raw.s_uuid)
        };
        superblock.check_extras()?;
        Ok(superblock)
    }

    fn check_extras(&self) -> Result<(), SuperblockError> {
        let reserved = self.raw.s_reserved_gdt_blocks.get();
        if u32::from(reserved) > self.block_size / 4 {
            return Err(SuperblockError::ReservedDescriptorBlocks(reserved));
        }
        if self.raw.s_log_groups_per_flex > 31 {
            return Err(SuperblockError::FlexGroups(self.raw.s_log_groups_per_flex));
        }
        let whole_table = if self.incompat().contains(Incompat::META_BG) {
            let first = self.raw.s_first_meta_bg.get();
            if first > self.descriptor_blocks {
                return Err(SuperblockError::FirstMetaGroup(first));
            }
            first
        } else {
            self.descriptor_blocks
        };
        let head = 1 + u64::from(whole_table) + u64::from(reserved);
        if head > u64::from(self.blocks_in_group(GroupNr(0))) {
            return Err(SuperblockError::DescriptorBlocks(u64::from(self.descriptor_blocks)));
        }
        let named = [
            ("s_journal_inum", self.raw.s_journal_inum.get(), self.compat().contains(Compat::HAS_JOURNAL)),
            ("s_last_orphan", self.raw.s_last_orphan.get(), true),
            (
                "s_orphan_file_inum",
                self.raw.s_orphan_file_inum.get(),
                self.compat().contains(Compat::ORPHAN_FILE),
            ),
        ];
        for (field, nr, used) in named {
            if used && nr > self.inodes_count() {
                return Err(SuperblockError::InodeNumber { field, nr });
            }
        }
        Ok(())
    }

    /// The superblock's bytes with a fresh checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = self.raw;
        if self.has_metadata_csum() {
            raw.s_checksum.set(checksum(&raw));
        }
        zerocopy::transmute!(raw)
    }

    /// The bytes for the backup in `group`: as [`Superblock::encode`], with that group's number.
    #[must_use]
    pub fn encode_backup(&self, group: GroupNr) -> [u8; SUPERBLOCK_SIZE] {
        let mut copy = self.clone();
        copy.raw.s_block_group_nr.set(group.0 as u16);
        copy.encode()
    }

    /// The stored fields.
    #[must_use]
    pub fn raw(&self) -> &RawSuperblock {
        &self.raw
    }

    /// Changes stored fields, then checks everything again; nothing changes when a rule breaks.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn update(&mut self, change: impl FnOnce(&mut RawSuperblock)) -> Result<(), SuperblockError> {
        let mut raw = self.raw;
        change(&mut raw);
        *self = Self::from_raw(raw)?;
        Ok(())
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Blocks in an allocation cluster; 1 without `bigalloc`.
    #[must_use]
    pub fn blocks_per_cluster(&self) -> u32 {
        1 << (self.raw.s_log_cluster_size.get() - self.raw.s_log_block_size.get())
    }

    /// Blocks on the volume.
    #[must_use]
    pub fn blocks_count(&self) -> u64 {
        self.blocks_count
    }

    /// Inodes on the volume.
    #[must_use]
    pub fn inodes_count(&self) -> u32 {
        self.raw.s_inodes_count.get()
    }

    /// Block groups on the volume.
    #[must_use]
    pub fn groups(&self) -> u32 {
        self.groups
    }

    /// Blocks in every group but perhaps the last.
    #[must_use]
    pub fn blocks_per_group(&self) -> u32 {
        self.raw.s_blocks_per_group.get()
    }

    /// Clusters in every group but perhaps the last: the bits of a block bitmap.
    #[must_use]
    pub fn clusters_per_group(&self) -> u32 {
        self.blocks_per_group() / self.blocks_per_cluster()
    }

    /// Inodes in every group.
    #[must_use]
    pub fn inodes_per_group(&self) -> u32 {
        self.raw.s_inodes_per_group.get()
    }

    /// Block in which group 0 starts: 1 for 1 KiB blocks, else 0.
    #[must_use]
    pub fn first_data_block(&self) -> DiskBlock {
        DiskBlock(u64::from(self.raw.s_first_data_block.get()))
    }

    /// Bytes of an inode.
    #[must_use]
    pub fn inode_size(&self) -> u16 {
        self.inode_size
    }

    /// Bytes of a group descriptor.
    #[must_use]
    pub fn descriptor_size(&self) -> u16 {
        self.desc_size
    }

    /// Blocks of the group descriptor table.
    #[must_use]
    pub fn descriptor_blocks(&self) -> u32 {
        self.descriptor_blocks
    }

    /// Group descriptors in one block.
    #[must_use]
    pub fn descriptors_per_block(&self) -> u32 {
        self.block_size / u32::from(self.desc_size)
    }

    /// Blocks of one group's inode table.
    #[must_use]
    pub fn inode_table_blocks(&self) -> u32 {
        self.inodes_per_group().div_ceil(self.inodes_per_block())
    }

    /// Inodes in one block of a table.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size / u32::from(self.inode_size)
    }

    /// First inode that is not reserved.
    #[must_use]
    pub fn first_inode(&self) -> InodeNr {
        InodeNr(self.first_inode)
    }

    /// Features that may be ignored.
    #[must_use]
    pub fn compat(&self) -> Compat {
        Compat::from_bits(self.raw.s_feature_compat.get())
    }

    /// Features that must be known to read.
    #[must_use]
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits(self.raw.s_feature_incompat.get())
    }

    /// Features that must be known to write.
    #[must_use]
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits(self.raw.s_feature_ro_compat.get())
    }

    /// Whether all metadata carries CRC-32C.
    #[must_use]
    pub fn has_metadata_csum(&self) -> bool {
        self.ro_compat().contains(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors carry a checksum of either kind, so that groups may be uninitialised.
    #[must_use]
    pub fn has_group_checksums(&self) -> bool {
        self.ro_compat().intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// Seed of all metadata checksums.
    #[must_use]
    pub fn csum_seed(&self) -> u32 {
        self.csum_seed
    }

    /// The volume's UUID.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.s_uuid
    }

    /// The volume's label, without padding.
    #[must_use]
    pub fn label(&self) -> &[u8] {
        let name = &self.raw.s_volume_name;
        name.split(|&byte| byte == 0).next().unwrap_or_default()
    }

    /// `s_state`.
    #[must_use]
    pub fn state(&self) -> u16 {
        self.raw.s_state.get()
    }

    /// Blocks that only the reserved user may allocate, never more than the volume has.
    #[must_use]
    pub fn reserved_blocks(&self) -> u64 {
        let (low, high) = (self.raw.s_r_blocks_count_lo.get(), self.raw.s_r_blocks_count_hi.get());
        wide(&self.incompat(), low, high).min(self.blocks_count)
    }

    /// Stored count of free blocks (of clusters, under `bigalloc`).
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        let (low, high) = (self.raw.s_free_blocks_count_lo.get(), self.raw.s_free_blocks_count_hi.get());
        wide(&self.incompat(), low, high)
    }

    /// Stores the count of free blocks.
    pub fn set_free_blocks(&mut self, count: u64) {
        self.raw.s_free_blocks_count_lo.set(count as u32);
        if self.incompat().contains(Incompat::BIT64) {
            self.raw.s_free_blocks_count_hi.set((count >> 32) as u32);
        }
    }

    /// Stored count of free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u32 {
        self.raw.s_free_inodes_count.get()
    }

    /// Stores the count of free inodes.
    pub fn set_free_inodes(&mut self, count: u32) {
        self.raw.s_free_inodes_count.set(count);
    }

    /// The journal's inode, `None` without an internal journal.
    #[must_use]
    pub fn journal_inode(&self) -> Option<InodeNr> {
        let nr = self.raw.s_journal_inum.get();
        (nr != 0 && self.compat().contains(Compat::HAS_JOURNAL)).then_some(InodeNr(nr))
    }

    /// The orphan file's inode, `None` without one.
    #[must_use]
    pub fn orphan_file(&self) -> Option<InodeNr> {
        let nr = self.raw.s_orphan_file_inum.get();
        (nr != 0 && self.compat().contains(Compat::ORPHAN_FILE)).then_some(InodeNr(nr))
    }

    /// Head of the orphan list, `None` when it is empty.
    #[must_use]
    pub fn last_orphan(&self) -> Option<InodeNr> {
        let nr = self.raw.s_last_orphan.get();
        (nr != 0).then_some(InodeNr(nr))
    }

    /// Seed of directory hashes, `None` for the algorithms' own.
    #[must_use]
    pub fn hash_seed(&self) -> Option<[u32; 4]> {
        let seed = self.raw.s_hash_seed.map(|word| word.get());
        seed.iter().any(|&word| word != 0).then_some(seed)
    }

    /// Hash algorithm of new directories, as stored (0 legacy, 1 half MD4, 2 TEA).
    #[must_use]
    pub fn default_hash_version(&self) -> u8 {
        self.raw.s_def_hash_version
    }

    /// Whether directory hashes take names as unsigned characters; where neither flag is set, signed.
    #[must_use]
    pub fn hash_unsigned(&self) -> bool {
        self.raw.s_flags.get() & FLAG_UNSIGNED_HASH != 0
    }

    /// `i_extra_isize` of new inodes, cut to what fits.
    #[must_use]
    pub fn want_extra_isize(&self) -> u16 {
        let room = self.inode_size - 128;
        let wanted = if self.ro_compat().contains(RoCompat::EXTRA_ISIZE) {
            self.raw.s_want_extra_isize.get().max(self.raw.s_min_extra_isize.get())
        } else {
            0
        };
        (if wanted == 0 { 32 } else { wanted & !3 }).min(room)
    }

    /// Groups in one flexible group; 1 without `flex_bg`.
    #[must_use]
    pub fn groups_per_flex(&self) -> u32 {
        if self.incompat().contains(Incompat::FLEX_BG) { 1 << self.raw.s_log_groups_per_flex } else { 1 }
    }
}

impl std::fmt::Debug for Superblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Superblock")
            .field("block_size", &self.block_size)
            .field("blocks_count", &self.blocks_count)
            .field("groups", &self.groups)
            .field("inodes_count", &self.inodes_count())
            .field("compat", &self.compat().names())
            .field("incompat", &self.incompat().names())
            .field("ro_compat", &self.ro_compat().names())
            .finish_non_exhaustive()
    }
}

fn check_groups(raw: &RawSuperblock, block_size: u32, inode_size: u16) -> Result<(), SuperblockError> {
    let bigalloc = RoCompat::from_bits(raw.s_feature_ro_compat.get()).contains(RoCompat::BIGALLOC);
    let log_cluster = raw.s_log_cluster_size.get();
    let log_ratio = log_cluster
        .checked_sub(raw.s_log_block_size.get())
        .filter(|&ratio| ratio <= 16 && (bigalloc || ratio == 0))
        .ok_or(SuperblockError::ClusterSize(log_cluster))?;
    let bits = u64::from(block_size) * 8;
    let per_group = raw.s_blocks_per_group.get();
    if per_group == 0 || !per_group.is_multiple_of(8) || u64::from(per_group) > bits << log_ratio {
        return Err(SuperblockError::BlocksPerGroup(per_group));
    }
    let clusters = raw.s_clusters_per_group.get();
    if u64::from(clusters) << log_ratio != u64::from(per_group) || !clusters.is_multiple_of(8) {
        return Err(SuperblockError::ClustersPerGroup(clusters));
    }
    let inodes = raw.s_inodes_per_group.get();
    let per_block = block_size / u32::from(inode_size);
    if !inodes.is_multiple_of(8) || inodes < per_block.max(8) || u64::from(inodes) > bits {
        return Err(SuperblockError::InodesPerGroup(inodes));
    }
    let first_data = raw.s_first_data_block.get();
    if first_data != u32::from(block_size == 1024 && log_ratio == 0) {
        return Err(SuperblockError::FirstDataBlock(first_data));
    }
    Ok(())
}

fn checksum(raw: &RawSuperblock) -> u32 {
    crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_SIZE - 4])
}

fn wide(incompat: &Incompat, low: u32, high: u32) -> u64 {
    let high = if incompat.contains(Incompat::BIT64) { u64::from(high) } else { 0 };
    high << 32 | u64::from(low)
}

//! From options and a device's size to a superblock: blocks, groups, inodes, reserved blocks.
//!
//! The rules and their order are those that `mke2fs` shows from outside, so that both make volumes of the
//! same shape.

use onggi_block_device::{AfterDiscard, Attributes};
use onggi_disk_format::GroupNr;
use onggi_disk_format::ext4::superblock::{FLAG_SIGNED_HASH, MAGIC, STATE_VALID};
use onggi_disk_format::ext4::{Compat, Incompat, RawSuperblock, RoCompat, Superblock};
use zerocopy::FromZeros;

use crate::content::FilePlan;
use crate::{Features, HashAlgorithm, JournalSize, LazyTables, MkfsError, Options, SizeClass};

/// First inode that is not reserved.
const FIRST_INODE: u32 = 11;
/// Largest block size that needs no larger pages.
const MAX_BLOCK_SIZE: u32 = 4096;
/// A whole device is used up to a multiple of this many bytes.
const WHOLE_PAGES: u32 = 4096;
/// Bytes past the first 128 that new inodes use.
const EXTRA_ISIZE: u16 = 32;
/// Default mount options `user_xattr` and `acl`.
const MOUNT_OPTIONS: u32 = 0x4 | 0x8;

/// What to make.
pub(crate) struct Plan {
    /// Complete but for free counts and what depends on where files lie.
    pub(crate) superblock: Superblock,
    pub(crate) files: FilePlan,
    pub(crate) zero_tables: bool,
    pub(crate) notes: Vec<String>,
}

/// The shape under trial.
#[derive(Clone, Copy)]
struct Shape {
    block_size: u32,
    blocks: u64,
    blocks_per_group: u32,
    inodes: u64,
    inodes_per_group: u32,
    reserved_gdt: u16,
    reserved_blocks: u64,
}

/// Plans the volume.
pub(crate) fn plan(device: &Attributes, options: &Options) -> Result<Plan, MkfsError> {
    check_scalars(options)?;
    let mut features = options.features;
    let mut notes = Vec::new();
    let class_bytes = match options.size_blocks {
        Some(blocks) => blocks.saturating_mul(u64::from(options.block_size.unwrap_or(1024))),
        None => device.size,
    };
    let class = SizeClass::of(class_bytes);
    let block_size = block_size(device, options, class)?;
    let mut blocks = class_bytes / u64::from(block_size);
    if options.size_blocks.is_none() {
        blocks &= !u64::from(WHOLE_PAGES / block_size - 1);
    }
    let available = device.size / u64::from(block_size);
    if blocks > available {
        return Err(MkfsError::PastDevice { blocks, block_size, available });
    }
    let past_32_bits = blocks > u64::from(u32::MAX);
    if past_32_bits && !features.incompat.contains(Incompat::BIT64) {
        return Err(MkfsError::TooBig(blocks));
    }
    if past_32_bits && options.resize.is_none() {
        // The resize inode maps 32-bit block numbers.
        features.compat.remove(Compat::RESIZE_INODE);
    }
    if options.resize.is_some() && reserved_for_resize(options, &features, block_size, blocks)? > 0 {
        features.compat.insert(Compat::RESIZE_INODE);
    }
    features.check()?;
    let inodes = wanted_inodes(options, class, blocks, block_size)?;
    let superblock = fit(options, &features, block_size, blocks, inodes)?;
    let (superblock, files) = plan_files(superblock, options, &mut notes)?;
    if superblock.blocks_count() != blocks {
        notes.push(format!(
            "the last {} blocks are too few for a group and stay unused",
            blocks - superblock.blocks_count()
        ));
    }
    let zero_tables = match options.lazy_tables {
        LazyTables::Zeroed => true,
        LazyTables::Lazy => false,
        LazyTables::Auto => device.discard.is_some_and(|limits| limits.after == AfterDiscard::Zero),
    };
    Ok(Plan { superblock, files, zero_tables, notes })
}

fn check_scalars(options: &Options) -> Result<(), MkfsError> {
    if options.label.len() > 16 {
        return Err(MkfsError::Label(options.label.len()));
    }
    if !(0.0..=50.0).contains(&options.reserved_percent) {
        return Err(MkfsError::Reserved(options.reserved_percent));
    }
    if let Some(ratio) = options.inode_ratio
        && !(1024..=1 << 26).contains(&ratio)
    {
        return Err(MkfsError::InodeRatio(ratio));
    }
    if !options.groups_per_flex.is_power_of_two() {
        return Err(MkfsError::GroupsPerFlex(options.groups_per_flex));
    }
    Ok(())
}

fn block_size(device: &Attributes, options: &Options, class: SizeClass) -> Result<u32, MkfsError> {
    let sector = device.logical_sector;
    let block_size = options.block_size.unwrap_or(class.block_size().max(sector));
    if !block_size.is_power_of_two() || !(1024..=MAX_BLOCK_SIZE).contains(&block_size) {
        return Err(MkfsError::BlockSize(block_size));
    }
    if block_size < sector {
        return Err(MkfsError::BlockBelowSector { block_size, sector });
    }
    let inode_size = options.inode_size;
    if !inode_size.is_power_of_two() || inode_size < 128 || u32::from(inode_size) > block_size {
        return Err(MkfsError::InodeSize { inode_size, block_size });
    }
    Ok(block_size)
}

fn wanted_inodes(
    options: &Options,
    class: SizeClass,
    blocks: u64,
    block_size: u32,
) -> Result<u64, MkfsError> {
    let limit = u64::from(u32::MAX);
    if let Some(inodes) = options.inodes {
        return Ok(u64::from(inodes));
    }
    let bytes = blocks * u64::from(block_size);
    let mut ratio = u64::from(options.inode_ratio.unwrap_or(class.inode_ratio()));
    if bytes / ratio > limit && options.inode_ratio.is_some() {
        return Err(MkfsError::TooManyInodes(bytes / ratio));
    }
    while bytes / ratio > limit {
        ratio *= 2;
    }
    Ok(bytes / ratio)
}

/// Finds the largest shape that fits: a last group too small for its own metadata is left out.
fn fit(
    options: &Options,
    features: &Features,
    block_size: u32,
    blocks: u64,
    inodes: u64,
) -> Result<Superblock, MkfsError> {
    let mut shape = Shape {
        block_size,
        blocks,
        blocks_per_group: (block_size * 8).min(65528),
        inodes: inodes.max(u64::from(FIRST_INODE) + 1),
        inodes_per_group: 0,
        reserved_gdt: 0,
        reserved_blocks: (options.reserved_percent * blocks as f64 / 100.0) as u64,
    };
    let reserved = shape.reserved_blocks;
    let first = u64::from(block_size == 1024);
    loop {
        let too_small = MkfsError::TooSmall(shape.blocks);
        if shape.blocks <= first {
            return Err(too_small);
        }
        let groups = (shape.blocks - first).div_ceil(u64::from(shape.blocks_per_group));
        if !spread_inodes(&mut shape, options.inode_size, groups)? {
            shape.blocks = blocks;
            continue;
        }
        shape.reserved_gdt = reserved_descriptor_blocks(options, features, &shape, groups)?;
        let table = (groups * descriptor_size(features)).div_ceil(u64::from(block_size));
        if u64::from(shape.reserved_gdt) + table > u64::from(shape.blocks_per_group) * 3 / 4 {
            return Err(MkfsError::Unsupported("meta_bg"));
        }
        let last_start = first + (groups - 1) * u64::from(shape.blocks_per_group);
        let in_last = shape.blocks - last_start;
        let head = 1 + table + u64::from(shape.reserved_gdt);
        if groups == 1 && in_last < head {
            return Err(too_small);
        }
        let sb = Superblock::from_raw(raw_superblock(options, features, &shape, groups))?;
        let last = GroupNr(sb.groups() - 1);
        let overhead = 2 + u64::from(sb.inode_table_blocks()) + u64::from(sb.head_blocks(last));
        if overhead > u64::from(shape.blocks_per_group) {
            return Err(MkfsError::TooManyInodes(shape.inodes));
        }
        let partial = in_last < u64::from(shape.blocks_per_group);
        if groups == 1 && partial && in_last < overhead {
            return Err(too_small);
        }
        if groups > 1 && partial && in_last < overhead + 50 {
            shape.blocks -= in_last;
            shape.reserved_blocks =
                (u128::from(reserved) * u128::from(shape.blocks) / u128::from(blocks)) as u64;
            continue;
        }
        return Ok(sb);
    }
}

/// Rounds the inodes of a group to whole blocks and multiples of 8. False: another shape must be tried.
fn spread_inodes(shape: &mut Shape, inode_size: u16, groups: u64) -> Result<bool, MkfsError> {
    let (block_size, inode_size) = (u64::from(shape.block_size), u64::from(inode_size));
    let mut per_group = shape.inodes.div_ceil(groups);
    if per_group > block_size * 8 {
        if shape.blocks_per_group < 256 {
            return Err(MkfsError::TooManyInodes(shape.inodes));
        }
        shape.blocks_per_group -= 8;
        return Ok(false);
    }
    per_group = per_group.min(65536 - block_size / inode_size);
    loop {
        let table = (per_group * inode_size).div_ceil(block_size);
        let whole = (table * block_size / inode_size).max(8) & !7;
        let total = whole * groups;
        if total <= u64::from(u32::MAX) {
            if total < u64::from(FIRST_INODE) + 2 {
                shape.inodes += 8;
                return Ok(false);
            }
            shape.inodes_per_group = whole as u32;
            return Ok(true);
        }
        per_group = per_group.checked_sub(1).ok_or(MkfsError::TooManyInodes(shape.inodes))?;
    }
}

fn descriptor_size(features: &Features) -> u64 {
    if features.incompat.contains(Incompat::BIT64) { 64 } else { 32 }
}

/// Descriptor blocks to reserve so that the volume can grow to `options.resize`.
fn reserved_for_resize(
    options: &Options,
    features: &Features,
    block_size: u32,
    blocks: u64,
) -> Result<u16, MkfsError> {
    let Some(resize) = options.resize else { return Ok(0) };
    if resize < blocks {
        return Err(MkfsError::Resize { resize, blocks });
    }
    let per_block = u64::from(block_size) / descriptor_size(features);
    let descriptor_blocks = |blocks: u64| blocks.div_ceil(u64::from(block_size) * 8).div_ceil(per_block);
    let more = descriptor_blocks(resize) - descriptor_blocks(blocks);
    Ok(more.min(u64::from(block_size / 4)) as u16)
}

/// Descriptor blocks to reserve: for growth to 1024 times the size, or as asked for.
fn reserved_descriptor_blocks(
    options: &Options,
    features: &Features,
    shape: &Shape,
    groups: u64,
) -> Result<u16, MkfsError> {
    if !features.compat.contains(Compat::RESIZE_INODE) {
        return Ok(0);
    }
    let asked = reserved_for_resize(options, features, shape.block_size, shape.blocks)?;
    if asked > 0 {
        return Ok(asked);
    }
    let per_block = u64::from(shape.block_size) / descriptor_size(features);
    let most = shape.blocks.saturating_mul(1024).min(u64::from(u32::MAX));
    let first = u64::from(shape.block_size == 1024);
    let future = (most - first).div_ceil(u64::from(shape.blocks_per_group)).div_ceil(per_block);
    let more = future.saturating_sub(groups.div_ceil(per_block));
    Ok(more.min(u64::from(shape.block_size / 4)) as u16)
}

/// A 64-bit time: its low word and the byte above.
fn time_words(now: u64) -> (u32, u8) {
    (now as u32, (now >> 32) as u8)
}

fn raw_superblock(options: &Options, features: &Features, shape: &Shape, groups: u64) -> RawSuperblock {
    let mut raw = RawSuperblock::new_zeroed();
    let (now, now_hi) = time_words(options.now);
    raw.s_magic.set(MAGIC);
    raw.s_rev_level.set(1);
    raw.s_state.set(STATE_VALID);
    raw.s_errors.set(1);
    raw.s_max_mnt_count.set(u16::MAX);
    raw.s_inodes_count.set((groups * u64::from(shape.inodes_per_group)) as u32);
    raw.s_inodes_per_group.set(shape.inodes_per_group);
    raw.s_blocks_count_lo.set(shape.blocks as u32);
    raw.s_blocks_count_hi.set((shape.blocks >> 32) as u32);
    raw.s_r_blocks_count_lo.set(shape.reserved_blocks as u32);
    raw.s_r_blocks_count_hi.set((shape.reserved_blocks >> 32) as u32);
    raw.s_first_data_block.set(u32::from(shape.block_size == 1024));
    raw.s_log_block_size.set(shape.block_size.ilog2() - 10);
    raw.s_log_cluster_size.set(shape.block_size.ilog2() - 10);
    raw.s_blocks_per_group.set(shape.blocks_per_group);
    raw.s_clusters_per_group.set(shape.blocks_per_group);
    raw.s_reserved_gdt_blocks.set(shape.reserved_gdt);
    raw.s_first_ino.set(FIRST_INODE);
    raw.s_inode_size.set(options.inode_size);
    raw.s_wtime.set(now);
    raw.s_lastcheck.set(now);
    raw.s_mkfs_time.set(now);
    (raw.s_wtime_hi, raw.s_lastcheck_hi, raw.s_mkfs_time_hi) = (now_hi, now_hi, now_hi);
    raw.s_feature_compat.set(features.compat.bits());
    raw.s_feature_incompat.set(features.incompat.bits());
    raw.s_feature_ro_compat.set(features.ro_compat.bits());
    raw.s_uuid = options.uuid;
    raw.s_volume_name[..options.label.len()].copy_from_slice(&options.label);
    for (word, bytes) in raw.s_hash_seed.iter_mut().zip(options.hash_seed.chunks_exact(4)) {
        word.set(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    raw.s_def_hash_version = match options.hash_algorithm {
        HashAlgorithm::Legacy => 0,
        HashAlgorithm::HalfMd4 => 1,
        HashAlgorithm::Tea => 2,
    };
    raw.s_flags.set(FLAG_SIGNED_HASH);
    raw.s_default_mount_opts.set(MOUNT_OPTIONS);
    if features.incompat.contains(Incompat::BIT64) {
        raw.s_desc_size.set(64);
    }
    if options.inode_size > 128 {
        raw.s_min_extra_isize.set(EXTRA_ISIZE);
        raw.s_want_extra_isize.set(EXTRA_ISIZE);
    }
    if features.incompat.contains(Incompat::FLEX_BG) {
        raw.s_log_groups_per_flex = options.groups_per_flex.ilog2() as u8;
    }
    raw.s_raid_stride.set(options.stride);
    raw.s_raid_stripe_width.set(options.stripe_width);
    if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
        raw.s_checksum_type = 1;
    }
    if features.incompat.contains(Incompat::CSUM_SEED) {
        raw.s_checksum_seed.set(onggi_disk_format::checksum::crc32c(!0, &options.uuid));
    }
    raw
}

/// Sizes of the journal and the orphan file. A volume too small for a journal by default gets none.
fn plan_files(
    mut sb: Superblock,
    options: &Options,
    notes: &mut Vec<String>,
) -> Result<(Superblock, FilePlan), MkfsError> {
    let block_size = u64::from(sb.block_size());
    let mut journal_blocks = 0;
    if sb.compat().contains(Compat::HAS_JOURNAL) {
        journal_blocks = match options.journal {
            JournalSize::Default => default_journal_blocks(sb.blocks_count()),
            JournalSize::Bytes(bytes) => u32::try_from(bytes / block_size)
                .ok()
                .filter(|blocks| (1024..=10_240_000).contains(blocks))
                .ok_or(MkfsError::JournalSize { blocks: bytes / block_size, free: sb.blocks_count() })?,
        };
        if journal_blocks == 0 {
            notes.push("the volume is too small for a journal and gets none".into());
            let without = sb.compat().without(Compat::HAS_JOURNAL | Compat::ORPHAN_FILE);
            sb.update(|raw| raw.s_feature_compat.set(without.bits()))?;
        }
    }
    let mut orphan_blocks = 0;
    if sb.compat().contains(Compat::ORPHAN_FILE) {
        let blocks = match options.orphan_file_size {
            None => (sb.blocks_count() / 4096).clamp(32, 512),
            Some(bytes) => bytes.div_ceil(block_size),
        };
        if !(1..=512).contains(&blocks) {
            let bytes = options.orphan_file_size.unwrap_or(0);
            return Err(MkfsError::OrphanFileSize { bytes, block_size: sb.block_size() });
        }
        orphan_blocks = blocks as u32;
    }
    Ok((sb, FilePlan { journal_blocks, orphan_blocks }))
}

/// Journal blocks of a volume; 0 for one too small.
fn default_journal_blocks(blocks: u64) -> u32 {
    match blocks {
        0..2048 => 0,
        2048..32768 => 1024,
        32768..0x4_0000 => 4096,
        0x4_0000..0x8_0000 => 8192,
        0x8_0000..0x40_0000 => 16384,
        0x40_0000..0x80_0000 => 32768,
        0x80_0000..0x100_0000 => 65536,
        0x100_0000..0x200_0000 => 131_072,
        _ => 262_144,
    }
}

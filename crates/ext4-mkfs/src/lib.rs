//! Makes ext4 volumes.
//!
//! **Does:** plans a volume as `mke2fs -t ext4` does (sizes, groups, inodes, reserved blocks, journal),
//! places its metadata and writes it in large batches, the superblock last, then flushes.
//! **Never does:** clocks, random numbers, reading what was on the device before, features it cannot make
//! whole ([`MkfsError::Unsupported`]). The same options give the same bytes.
//! **Called by:** the command line and tests.
//! **Locks:** none; nobody else may use the device meanwhile.

mod content;
mod error;
mod features;
mod geometry;
mod groups;
mod mapping;
mod options;
mod output;
mod space;

pub use error::MkfsError;
pub use features::Features;
pub use options::{HashAlgorithm, JournalSize, LazyTables, Options, SizeClass};

use onggi_block_device::{BlockDevice, ByteRange};
use onggi_disk_format::GroupNr;
use onggi_disk_format::ext4::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};

use content::Contents;
use groups::GroupTables;
use output::Output;
use space::SpaceMap;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks on the volume; fewer than asked for where the last group would have been too small.
    pub blocks: u64,
    /// Inodes on the volume.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free inodes.
    pub free_inodes: u32,
    /// Blocks kept for the superuser.
    pub reserved_blocks: u64,
    /// Blocks of the journal; 0 without one.
    pub journal_blocks: u32,
    /// Features set, in mke2fs's spelling.
    pub features: Vec<String>,
    /// Blocks that hold a copy of the superblock.
    pub backups: Vec<u64>,
    /// What was done otherwise than asked, in words.
    pub notes: Vec<String>,
}

/// Bytes at both ends of the device where other file systems and RAID keep their superblocks.
const SIGNATURES: u64 = 128 << 10;

/// Makes an empty ext4 volume on `device`. Everything is durable on return; until then the device holds
/// no volume.
///
/// # Errors
/// Options that no volume can have, a device too small, the device's own errors.
pub fn format(device: &dyn BlockDevice, options: &Options) -> Result<Summary, MkfsError> {
    let plan = geometry::plan(device.attributes(), options)?;
    let mut sb = plan.superblock;
    let mut space = SpaceMap::new(&sb);
    let tables = GroupTables::place(&sb, &mut space)?;
    let contents = Contents::place(&mut sb, &mut space, &plan.files, options)?;
    let inodes_used = contents.last_inode().0;
    sb.set_free_blocks(space.free());
    sb.set_free_inodes(sb.inodes_count() - inodes_used);

    let mut output = Output::new(device, sb.block_size());
    let volume = sb.blocks_count() * u64::from(sb.block_size());
    if options.discard {
        output.discard(ByteRange { offset: 0, len: volume })?;
    }
    output.zero_bytes(ByteRange { offset: 0, len: volume.min(SIGNATURES) })?;
    let tail = volume.saturating_sub(SIGNATURES) & !0xfff;
    output.zero_bytes(ByteRange { offset: tail, len: volume - tail })?;

    let zero_tables = plan.zero_tables || !sb.has_group_checksums();
    let descriptors = tables.write(&mut output, &sb, &space, &contents, zero_tables)?;
    contents.write(&mut output, &sb, &tables)?;
    write_backups(&mut output, &mut sb, &descriptors)?;
    output.finish()?;
    device.flush()?;
    write_primary(device, &sb)?;
    device.flush()?;
    Ok(summary(&sb, plan.files.journal_blocks, plan.notes))
}

/// Writes the descriptor table to every group that has a copy, and the superblock to all of them but the
/// first, which makes the volume one.
fn write_backups(
    output: &mut Output<'_>,
    sb: &mut onggi_disk_format::ext4::Superblock,
    descriptors: &[u8],
) -> Result<(), MkfsError> {
    let backups: Vec<GroupNr> =
        (0..sb.groups()).map(GroupNr).filter(|&group| sb.has_super_backup(group)).collect();
    let table_blocks = u64::from(sb.descriptor_blocks());
    let reserved = u64::from(sb.raw().s_reserved_gdt_blocks.get());
    // Descriptors, the reserved blocks after them where they hold nothing, and the superblocks.
    let written = descriptors.len() as u64 * backups.len() as u64 + 1024 * backups.len() as u64;
    let kbytes = (output.written() + written) / 1024;
    sb.update(|raw| raw.s_kbytes_written.set(kbytes))?;
    for &group in &backups {
        let start = sb.descriptor_block(0).0 + sb.first_block_of_group(group).0
            - sb.first_block_of_group(GroupNr(0)).0;
        output.write(start, descriptors.to_vec())?;
        if group.0 == 0 {
            continue;
        }
        output.zero(start + table_blocks, reserved)?;
        let mut block = vec![0; sb.block_size() as usize];
        block[..SUPERBLOCK_SIZE].copy_from_slice(&sb.encode_backup(group));
        output.write(sb.first_block_of_group(group).0, block)?;
    }
    Ok(())
}

/// Writes the superblock in the whole sectors that hold it.
fn write_primary(
    device: &dyn BlockDevice,
    sb: &onggi_disk_format::ext4::Superblock,
) -> Result<(), MkfsError> {
    let sector = u64::from(device.attributes().logical_sector).max(SUPERBLOCK_SIZE as u64);
    let start = SUPERBLOCK_OFFSET / sector * sector;
    let mut bytes = onggi_block_device::AlignedBuf::zeroed(sector as usize);
    let at = (SUPERBLOCK_OFFSET - start) as usize;
    bytes[at..at + SUPERBLOCK_SIZE].copy_from_slice(&sb.encode());
    Ok(device.write_at(start, &bytes)?)
}

fn summary(sb: &onggi_disk_format::ext4::Superblock, journal_blocks: u32, notes: Vec<String>) -> Summary {
    let features = Features { compat: sb.compat(), incompat: sb.incompat(), ro_compat: sb.ro_compat() };
    Summary {
        block_size: sb.block_size(),
        blocks: sb.blocks_count(),
        inodes: sb.inodes_count(),
        groups: sb.groups(),
        free_blocks: sb.free_blocks(),
        free_inodes: sb.free_inodes(),
        reserved_blocks: sb.reserved_blocks(),
        journal_blocks,
        features: features.names(),
        backups: (1..sb.groups())
            .map(GroupNr)
            .filter(|&group| sb.has_super_backup(group))
            .map(|group| sb.first_block_of_group(group).0)
            .collect(),
        notes,
    }
}

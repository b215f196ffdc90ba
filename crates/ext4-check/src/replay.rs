//! Bringing home what the journal holds.

use onggi_disk_format::ext4::group::GroupError;
use onggi_disk_format::ext4::{FileType, GroupDescriptor, Incompat, Inode, Superblock, inode};
use onggi_disk_format::jbd2::JournalSuperblock;
use onggi_disk_format::{DiskBlock, InodeNr};
use onggi_jbd2::{JournalMap, recover};

use crate::CheckError;
use crate::analysis::mapping;
use crate::report::Replay;
use crate::volume::Volume;

/// Whether the superblock says that the journal must be replayed.
pub(crate) fn is_needed(volume: &Volume<'_>) -> bool {
    volume.sb.incompat().contains(Incompat::RECOVER)
}

/// Replays the journal onto the volume's device. `None` when the log was empty.
pub(crate) fn replay(volume: &Volume<'_>) -> Result<Option<Replay>, CheckError> {
    let sb = &volume.sb;
    let Some(nr) = sb.journal_inode() else {
        return Err(CheckError::JournalInode("the superblock names none".into()));
    };
    let map = journal_map(volume, nr)?;
    let recovery = recover(volume.device, sb.block_size(), &map, sb.blocks_count())?;
    Ok(recovery.was_dirty.then(|| Replay {
        transactions: u64::from(recovery.transactions),
        blocks: recovery.blocks,
        in_memory: false,
    }))
}

/// The journal's superblock, where it can be read; where it lies; the blocks of its file.
pub(crate) fn journal_superblock(
    volume: &Volume<'_>,
) -> Result<Option<(JournalSuperblock, DiskBlock, u32)>, CheckError> {
    let Some(nr) = volume.sb.journal_inode() else { return Ok(None) };
    let Ok(map) = journal_map(volume, nr) else { return Ok(None) };
    let Some(place) = map.locate(0) else { return Ok(None) };
    let block = volume.read(place, 1)?;
    Ok(JournalSuperblock::parse(&block).ok().map(|superblock| (superblock, place, map.len())))
}

fn journal_map(volume: &Volume<'_>, nr: InodeNr) -> Result<JournalMap, CheckError> {
    let broken = |what: &str| CheckError::JournalInode(what.into());
    let sb = &volume.sb;
    let (block, at) = inode_place(volume, nr)?.ok_or_else(|| broken("its group is broken"))?;
    let bytes = volume.read(block, 1)?;
    let bytes = bytes.get(at..).unwrap_or_default();
    inode::verify_checksum(sb, nr, bytes).map_err(|error| broken(&error.to_string()))?;
    let inode = Inode::read(sb, nr, bytes).map_err(|error| broken(&error.to_string()))?;
    if inode.kind() != FileType::Regular || inode.links_count == 0 {
        return Err(broken("it is no regular file"));
    }
    let mapping = mapping::map_alone(volume, nr, &inode)?;
    if let Some(fault) = mapping.faults.first() {
        return Err(broken(&fault.what));
    }
    let mut next = 0;
    for run in &mapping.runs {
        if run.block != next || run.unwritten {
            return Err(broken("it has a hole"));
        }
        next += run.len;
    }
    Ok(JournalMap::new(mapping.runs.iter().map(|run| (run.start, run.len)).collect()))
}

fn inode_place(volume: &Volume<'_>, nr: InodeNr) -> Result<Option<(DiskBlock, usize)>, CheckError> {
    let sb: &Superblock = &volume.sb;
    let Some(location) = sb.inode_location(nr) else { return Ok(None) };
    let (block, at) = sb.descriptor_location(location.group);
    if !sb.contains_blocks(block, 1) {
        return Ok(None);
    }
    let bytes = volume.read(block, 1)?;
    let bytes = bytes.get(at..).unwrap_or_default();
    // A wrong checksum alone does not keep the journal from its work.
    let descriptor = match GroupDescriptor::parse(sb, location.group, bytes) {
        Err(GroupError::Checksum { .. }) => GroupDescriptor::read(sb, location.group, bytes),
        other => other,
    };
    Ok(descriptor
        .ok()
        .filter(|found| sb.contains_blocks(found.inode_table, u64::from(sb.inode_table_blocks())))
        .map(|found| (DiskBlock(found.inode_table.0 + u64::from(location.table_block)), location.byte)))
}

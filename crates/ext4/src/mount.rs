//! Opening a volume and leaving it clean.
//!
//! What is on the device at each instant of a read-write mount: first the journal is replayed and marked
//! empty; then the superblock says *needs recovery* and *not cleanly unmounted*, flushed before the first
//! commit, so that any other implementation replays what is committed from there on. Unmount goes the way
//! back: everything committed and home, the journal marked empty, and only then, flushed, the superblock
//! says *clean*.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use onggi_block_device::{AlignedBuf, BlockDevice, DeviceError};
use onggi_disk_format::ext4::superblock::{STATE_ERROR, STATE_VALID, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use onggi_disk_format::ext4::{Compat, Incompat, RawSuperblock, RoCompat, Superblock};
use onggi_disk_format::{FileBlock, GroupNr, InodeNr};
use onggi_ext4_volume::alloc::Allocator;
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_ext4_volume::{BlockRun, Place, Volume, VolumeError};
use onggi_jbd2::{Buffers, Journal, JournalMap, Settings};
use onggi_vfs::Timestamp;

use crate::Ext4;
use crate::error::MountError;
use crate::options::MountOptions;
use crate::orphan::Orphans;

/// Features without which nothing can be read here.
const REQUIRED: Incompat = Incompat::EXTENTS;
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::FLEX_BG)
    .union(Incompat::CSUM_SEED);
/// Features that can be written.
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::ORPHAN_PRESENT);
/// Features that change what reading means although the format calls them write-only.
const UNREADABLE: RoCompat = RoCompat::BIGALLOC.union(RoCompat::SHARED_BLOCKS).union(RoCompat::REPLICA);

impl Ext4 {
    /// Mounts the volume on `device`, replaying its journal first where that is needed.
    ///
    /// # Errors
    /// Why it cannot be mounted: the broken rule, the feature, the device's error.
    pub fn mount(
        device: Arc<dyn BlockDevice>,
        options: MountOptions,
        now: Timestamp,
    ) -> Result<Arc<Self>, MountError> {
        let superblock = read_superblock(&*device)?;
        check_features(&superblock, options.read_only)?;
        let (volume, replayed) = open_volume(&device, superblock, &options)?;
        if replayed {
            tracing::info!("the journal was replayed");
        }
        let (orphans, found) = Orphans::open(&volume)?;
        let overhead = overhead(&volume)?;
        if !options.read_only {
            mark_in_use(&volume, &orphans, now)?;
        }
        let ext4 = Arc::new(Self::new(volume, options, orphans, overhead, now));
        if !ext4.options.read_only {
            ext4.finish_orphans(&found, now)?;
        }
        if ext4.options.background {
            ext4.start_read_ahead();
            if !ext4.options.read_only {
                ext4.start_flusher();
            }
        }
        Ok(ext4)
    }

    /// Everything home, the journal empty, the superblock clean. The second call finds nothing to do.
    pub(crate) fn leave_clean(&self) -> Result<(), VolumeError> {
        self.stop_read_ahead();
        if self.read_only.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.stop_flusher();
        let flushed = self.write_everything();
        self.drop_preallocations();
        flushed?;
        self.commit_all()?;
        let volume = &self.volume;
        volume.journal.close()?;
        let totals = volume.alloc.totals();
        let (blocks, inodes) = (totals.free_blocks, totals.free_inodes);
        let errors = volume.current_superblock()?.state() & STATE_ERROR;
        let no_orphans = self.orphans.is_empty();
        write_superblock(volume, |raw| {
            raw.s_free_blocks_count_lo.set(blocks as u32);
            if Incompat::from_bits(raw.s_feature_incompat.get()).contains(Incompat::BIT64) {
                raw.s_free_blocks_count_hi.set((blocks >> 32) as u32);
            }
            raw.s_free_inodes_count.set(inodes);
            raw.s_state.set(STATE_VALID | errors);
            let incompat = Incompat::from_bits(raw.s_feature_incompat.get()).without(Incompat::RECOVER);
            raw.s_feature_incompat.set(incompat.bits());
            if no_orphans {
                let ro = RoCompat::from_bits(raw.s_feature_ro_compat.get()).without(RoCompat::ORPHAN_PRESENT);
                raw.s_feature_ro_compat.set(ro.bits());
            }
        })
    }
}

/// Reads the superblock through requests aligned to any sector.
fn read_superblock(device: &dyn BlockDevice) -> Result<Superblock, MountError> {
    let sector = device.attributes().logical_sector as usize;
    let mut head =
        AlignedBuf::zeroed((SUPERBLOCK_OFFSET as usize + SUPERBLOCK_SIZE).next_multiple_of(sector));
    if device.attributes().size < head.len() as u64 {
        return Err(MountError::TooSmall { size: device.attributes().size });
    }
    device.read_at(0, &mut head)?;
    let superblock = Superblock::parse(&head[SUPERBLOCK_OFFSET as usize..])?;
    let (size, needed) = (device.attributes().size, superblock.blocks_count());
    if needed.checked_mul(u64::from(superblock.block_size())).is_none_or(|bytes| bytes > size) {
        return Err(MountError::Truncated { size, blocks: needed, block_size: superblock.block_size() });
    }
    if device.attributes().logical_sector > superblock.block_size() {
        let (sector, block) = (device.attributes().logical_sector, superblock.block_size());
        return Err(MountError::SectorSize { sector, block });
    }
    Ok(superblock)
}

fn check_features(superblock: &Superblock, read_only: bool) -> Result<(), MountError> {
    let mut unreadable = superblock.incompat().without(INCOMPAT).names();
    unreadable.extend(RoCompat::from_bits(superblock.ro_compat().bits() & UNREADABLE.bits()).names());
    if !unreadable.is_empty() {
        return Err(MountError::Unsupported(unreadable.join(", ")));
    }
    if !superblock.incompat().contains(REQUIRED) {
        return Err(MountError::Unsupported("block maps (a volume without the extent feature)".into()));
    }
    if superblock.block_size() > 4096 {
        return Err(MountError::Unsupported(format!("blocks of {} bytes", superblock.block_size())));
    }
    if superblock.compat().contains(Compat::HAS_JOURNAL) && superblock.raw().s_journal_inum.get() == 0 {
        return Err(MountError::Unsupported("an external journal".into()));
    }
    let unwritable = superblock.ro_compat().without(RO_COMPAT);
    if !read_only && !unwritable.is_empty() {
        return Err(MountError::ReadOnlyOnly(unwritable.names().join(", ")));
    }
    Ok(())
}

/// Opens the volume's structures; replays the journal and opens them anew where it was dirty.
fn open_volume(
    device: &Arc<dyn BlockDevice>,
    superblock: Superblock,
    options: &MountOptions,
) -> Result<(Volume, bool), MountError> {
    let mut volume = bare_volume(device, superblock, options)?;
    let Some(nr) = volume.sb.journal_inode() else { return Ok((volume, false)) };
    let runs = journal_runs(&volume, nr)?;
    let map = JournalMap::new(runs.iter().map(|run| (run.start, run.len)).collect());
    let (block_size, blocks) = (volume.block_size(), volume.sb.blocks_count());
    let mut replayed = false;
    if volume.sb.incompat().contains(Incompat::RECOVER) {
        if device.attributes().read_only {
            return Err(MountError::DirtyJournal);
        }
        let recovery = onggi_jbd2::recover(&**device, block_size, &map, blocks)?;
        tracing::info!(?recovery, "journal replayed");
        let superblock = read_superblock(&**device)?;
        check_features(&superblock, options.read_only)?;
        volume = bare_volume(device, superblock, options)?;
        replayed = true;
    }
    if options.read_only {
        return Ok((volume, replayed));
    }
    volume.alloc.protect(&runs);
    let settings = Settings {
        checksum_v3: volume.sb.has_metadata_csum(),
        sixty_four_bit: volume.sb.incompat().contains(Incompat::BIT64),
        volume_blocks: blocks,
    };
    volume.journal = Journal::open(Arc::clone(&volume.buffers), map, settings)?;
    Ok((volume, replayed))
}

fn bare_volume(
    device: &Arc<dyn BlockDevice>,
    sb: Superblock,
    options: &MountOptions,
) -> Result<Volume, MountError> {
    let buffers = Buffers::new(Arc::clone(device), sb.block_size(), options.cache_bytes / 4);
    let alloc = Allocator::open(&sb, &buffers)?;
    let journal = Journal::without_log(Arc::clone(&buffers));
    Ok(Volume { sb, buffers, journal, alloc })
}

/// Where the journal's blocks lie.
fn journal_runs(volume: &Volume, nr: InodeNr) -> Result<Vec<BlockRun>, MountError> {
    let inode = volume.read_inode(nr)?;
    let blocks = u32::try_from(inode.size / u64::from(volume.block_size()))
        .map_err(|_| VolumeError::corrupt("journal", Place::Inode(nr), "it has 2^32 blocks or more"))?;
    let mut runs = Vec::new();
    let mut at = 0;
    while at < blocks {
        let Mapping::Mapped { start, len, unwritten: false } =
            extents::lookup(volume, nr, &inode, FileBlock(at))?
        else {
            return Err(
                VolumeError::corrupt("journal", Place::FileBlock(nr, at), "not a written block").into()
            );
        };
        let len = len.min(blocks - at);
        runs.push(BlockRun { start, len });
        at += len;
    }
    Ok(runs)
}

/// Marks the volume as in use, durably, before anything is committed to its journal.
fn mark_in_use(volume: &Volume, orphans: &Orphans, now: Timestamp) -> Result<(), VolumeError> {
    let has_journal = volume.sb.journal_inode().is_some();
    let orphan_file = orphans.uses_file();
    write_superblock(volume, |raw| {
        if has_journal {
            raw.s_feature_incompat.set(raw.s_feature_incompat.get() | Incompat::RECOVER.bits());
        }
        if orphan_file {
            raw.s_feature_ro_compat.set(raw.s_feature_ro_compat.get() | RoCompat::ORPHAN_PRESENT.bits());
        }
        // A volume with a journal stays valid: replay makes it so. Without one only unmount does.
        if !has_journal {
            raw.s_state.set(raw.s_state.get() & !STATE_VALID);
        }
        raw.s_mtime.set(now.sec as u32);
        raw.s_mnt_count.set(raw.s_mnt_count.get().wrapping_add(1));
        raw.s_wtime.set(now.sec as u32);
    })
}

/// Changes the superblock on the device, past the journal: only while no transaction holds it.
fn write_superblock(volume: &Volume, change: impl FnOnce(&mut RawSuperblock)) -> Result<(), VolumeError> {
    let mut superblock = volume.current_superblock()?;
    superblock
        .update(change)
        .map_err(|error| VolumeError::corrupt("superblock", Place::Superblock, error))?;
    let (block, byte) = volume.superblock_place();
    let mut bytes = AlignedBuf::copy_of(&volume.buffers.read(block)?.snapshot());
    let encoded = superblock.encode_over(&bytes[byte..byte + SUPERBLOCK_SIZE]);
    bytes[byte..byte + SUPERBLOCK_SIZE].copy_from_slice(&encoded);
    let written = volume
        .device()
        .write_at(block.0 * u64::from(volume.block_size()), &bytes)
        .and_then(|()| volume.device().flush());
    volume.buffers.forget(block);
    written.map_err(|error: DeviceError| error.into())
}

/// Blocks of the volume's own structures, which statfs leaves out as Linux does.
fn overhead(volume: &Volume) -> Result<u64, VolumeError> {
    let sb = &volume.sb;
    let per_group = 2 + u64::from(sb.inode_table_blocks());
    let heads: u64 = (0..sb.groups()).map(|group| u64::from(sb.head_blocks(GroupNr(group)))).sum();
    let journal = match sb.journal_inode() {
        Some(nr) => volume.read_inode(nr)?.size / u64::from(sb.block_size()),
        None => 0,
    };
    Ok(sb.first_data_block().0 + heads + per_group * u64::from(sb.groups()) + journal)
}

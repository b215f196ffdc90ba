//! Free blocks and inodes.
//!
//! **Does:** finds free blocks and inodes, keeps bitmaps, group descriptors and their checksums right within
//! the caller's transaction, counts and promises free space.
//! **Never does:** extent trees, inodes' contents, a global lock.
//! **Called by:** extent trees, directories, attributes, the engine.
//! **Locks:** one group's mutex at a time, above the buffers' own; it may be held over one block's read.
//!
//! A group's `busy` bitmap in memory is its bitmap on disk, plus blocks taken and not journaled yet, plus
//! blocks freed by a transaction that is not durable yet. So a block is only ever handed out when no
//! transaction that could still be lost depends on what it held.
//!
//! The life of a block: [`Allocator::promise`] (user data only) → [`Allocator::take`] (busy, and the
//! promise can go: [`Allocator::unpromise`]) → [`Allocator::mark_used`] in a handle, or
//! [`Allocator::give_back`] → [`Allocator::mark_free`] in a handle → the transaction is durable →
//! [`Allocator::release`].
//!
//! Beside the signatures that the engine was designed for there are [`Allocator::promise_privileged`]
//! (may use the blocks reserved for root), [`Allocator::pending_blocks`] (what a commit would make
//! allocatable; commit and try again before answering that the volume is full),
//! [`Allocator::is_system`] and [`Allocator::protect`] (for the journal's blocks, before the volume is shared).

mod bits;
mod blocks;
mod group;
mod inodes;
mod zones;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use onggi_disk_format::ext4::features::RoCompat;
use onggi_disk_format::ext4::group::GroupDescriptor;
use onggi_disk_format::ext4::superblock::Superblock;
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};
use onggi_jbd2::Buffers;

use crate::{BlockRun, Place, VolumeError};
use group::Group;
use zones::Zones;

/// Blocks that [`Allocator::mark_used`] changes for a run that came from [`Allocator::take`].
pub const CREDITS_MARK_USED: u32 = 2;
/// Blocks that [`Allocator::allocate_inode`] changes, the inode's table block among them.
pub const CREDITS_ALLOCATE_INODE: u32 = 4;
/// Blocks that [`Allocator::free_inode`] changes.
pub const CREDITS_FREE_INODE: u32 = 2;

/// More groups than any volume in use; keeps the memory that a broken superblock can ask for bounded.
const MOST_GROUPS: u32 = 1 << 21;
/// Group descriptor blocks read in one batch.
const READ_AHEAD: usize = 1024;

/// Counts as the group descriptors hold them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Free blocks.
    pub free_blocks: u64,
    /// Free inodes.
    pub free_inodes: u32,
    /// Directories.
    pub directories: u32,
}

/// Free blocks and inodes of a volume.
pub struct Allocator {
    /// Geometry only.
    sb: Superblock,
    groups: Box<[Group]>,
    zones: Zones,
    /// Blocks that are not busy.
    free: AtomicU64,
    /// Blocks that delayed writes will take.
    promised: AtomicU64,
    /// Sum of the descriptors' free blocks.
    free_on_disk: AtomicU64,
    /// Blocks freed by transactions that are not durable.
    pending: AtomicU64,
    free_inodes: AtomicU32,
    directories: AtomicU32,
    /// Where the search for a new top-level directory's group starts.
    rotor: AtomicU32,
    /// Blocks that promises leave for metadata.
    cushion: u64,
}

impl Allocator {
    /// Reads and checks all group descriptors.
    ///
    /// # Errors
    /// A descriptor that breaks a rule, `bigalloc`, more groups than any volume has; the device's.
    pub fn open(sb: &Superblock, buffers: &Arc<Buffers>) -> Result<Self, VolumeError> {
        if sb.ro_compat().contains(RoCompat::BIGALLOC) {
            return Err(VolumeError::Unsupported { feature: "bigalloc" });
        }
        if sb.groups() > MOST_GROUPS {
            return Err(VolumeError::Limit("the volume has more block groups than are supported"));
        }
        let descriptors = read_descriptors(sb, buffers)?;
        let zones = Zones::new(sb, descriptors.iter())?;
        let free: u64 = descriptors.iter().map(|group| u64::from(group.free_blocks)).sum();
        let sum = |field: fn(&GroupDescriptor) -> u32| -> u32 {
            descriptors.iter().fold(0, |sum: u32, group| sum.saturating_add(field(group)))
        };
        Ok(Self {
            free: AtomicU64::new(free),
            promised: AtomicU64::new(0),
            free_on_disk: AtomicU64::new(free),
            pending: AtomicU64::new(0),
            free_inodes: AtomicU32::new(sum(|group| group.free_inodes)),
            directories: AtomicU32::new(sum(|group| group.used_dirs)),
            rotor: AtomicU32::new(0),
            cushion: (sb.blocks_count() / 50).min(4096),
            zones,
            groups: descriptors.into_iter().map(Group::new).collect(),
            sb: sb.clone(),
        })
    }

    /// First block of a group's inode table; of the last group's where there is no such group.
    #[must_use]
    pub fn inode_table(&self, group: GroupNr) -> DiskBlock {
        self.groups[(group.0 as usize).min(self.groups.len() - 1)].inode_table
    }

    /// Where the first data of an inode is best put.
    #[must_use]
    pub fn inode_goal(&self, nr: InodeNr) -> DiskBlock {
        let group = self.sb.inode_location(nr).map_or(GroupNr(0), |location| location.group);
        self.sb.first_block_of_group(group)
    }

    /// Whether any block of the range holds a superblock, group descriptors, a bitmap or an inode table.
    #[must_use]
    pub fn is_system(&self, start: DiskBlock, len: u64) -> bool {
        self.zones.touches(start, len)
    }

    /// Makes blocks the volume's own from now on: the journal's, which no other inode's tree may point at.
    pub fn protect(&mut self, runs: &[BlockRun]) {
        self.zones.add(runs);
    }

    /// Sets blocks aside for a delayed write of an unprivileged user. Every take on behalf of user data is
    /// best preceded by a promise: then blocks promised to one writer are not taken by another.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] when what is free and not promised, less the blocks reserved for root and
    /// for metadata, does not suffice.
    pub fn promise(&self, blocks: u64) -> Result<(), VolumeError> {
        self.promise_above(blocks, self.cushion.saturating_add(self.sb.reserved_blocks()))
    }

    /// As [`Allocator::promise`] for a user who may have the reserved blocks.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`].
    pub fn promise_privileged(&self, blocks: u64) -> Result<(), VolumeError> {
        self.promise_above(blocks, self.cushion)
    }

    fn promise_above(&self, blocks: u64, reserve: u64) -> Result<(), VolumeError> {
        self.promised
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |promised| {
                let after = promised.checked_add(blocks)?;
                (after.checked_add(reserve)? <= self.free.load(Ordering::Acquire)).then_some(after)
            })
            .map(|_| ())
            .map_err(|_| VolumeError::NoSpace)
    }

    /// Ends a promise: the blocks were taken, or will not be.
    pub fn unpromise(&self, blocks: u64) {
        // The closure always answers, so this cannot fail.
        let _ = self.promised.fetch_update(Ordering::AcqRel, Ordering::Acquire, |promised| {
            debug_assert!(promised >= blocks, "{blocks} unpromised of {promised}");
            Some(promised.saturating_sub(blocks))
        });
    }

    /// Blocks that hold nothing and are promised to nobody; those freed lately count already.
    #[must_use]
    pub fn free_blocks(&self) -> u64 {
        let free = self.free_on_disk.load(Ordering::Acquire);
        free.saturating_sub(self.promised.load(Ordering::Acquire))
    }

    /// [`Allocator::free_blocks`] that an unprivileged user may have.
    #[must_use]
    pub fn available_blocks(&self) -> u64 {
        self.free_blocks().saturating_sub(self.cushion.saturating_add(self.sb.reserved_blocks()))
    }

    /// Blocks that become allocatable when running transactions are durable.
    #[must_use]
    pub fn pending_blocks(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    /// Free inodes.
    #[must_use]
    pub fn free_inodes(&self) -> u32 {
        self.free_inodes.load(Ordering::Acquire)
    }

    /// The sums that the superblock holds after a clean unmount.
    #[must_use]
    pub fn totals(&self) -> Totals {
        Totals {
            free_blocks: self.free_on_disk.load(Ordering::Acquire),
            free_inodes: self.free_inodes(),
            directories: self.directories.load(Ordering::Acquire),
        }
    }

    /// Blocks that [`Allocator::mark_free`] of a run of `len` blocks may change.
    #[must_use]
    pub fn credits_for_free(&self, len: u32) -> u32 {
        (len / self.sb.blocks_per_group() + 2).min(self.sb.groups()).saturating_mul(2)
    }

    fn group(&self, nr: GroupNr) -> &Group {
        &self.groups[nr.0 as usize]
    }

    /// Cuts a run at group borders: the group and the range of its bits.
    ///
    /// # Errors
    /// A run that does not lie on the volume.
    fn pieces(&self, run: BlockRun) -> Result<impl Iterator<Item = (GroupNr, Range<u32>)>, VolumeError> {
        if !self.sb.contains_blocks(run.start, u64::from(run.len)) {
            let rule = format!("{} blocks do not lie on the volume", run.len);
            return Err(VolumeError::corrupt("run of blocks", Place::Block(run.start), rule));
        }
        let per_group = u64::from(self.sb.blocks_per_group());
        let mut from = run.start.0 - self.sb.first_data_block().0;
        let end = from + u64::from(run.len);
        Ok(std::iter::from_fn(move || {
            (from < end).then(|| {
                let group = from / per_group;
                let first = from - group * per_group;
                let last = (end - group * per_group).min(per_group);
                from = group * per_group + last;
                (GroupNr(group as u32), first as u32..last as u32)
            })
        }))
    }
}

fn read_descriptors(sb: &Superblock, buffers: &Arc<Buffers>) -> Result<Vec<GroupDescriptor>, VolumeError> {
    let mut descriptors = Vec::with_capacity(sb.groups() as usize);
    let per_block = sb.descriptors_per_block();
    let blocks: Vec<DiskBlock> =
        (0..sb.descriptor_blocks()).map(|index| sb.descriptor_block(index)).collect();
    for (chunk, nrs) in (0u32..).zip(blocks.chunks(READ_AHEAD)) {
        buffers.read_ahead(nrs)?;
        for (index, &nr) in (chunk * READ_AHEAD as u32..).zip(nrs) {
            let bytes = buffers.read(nr)?.snapshot();
            let first = index * per_block;
            for group in first..sb.groups().min(first + per_block) {
                let group = GroupNr(group);
                let (_, at) = sb.descriptor_location(group);
                let descriptor = GroupDescriptor::parse(sb, group, bytes.get(at..).unwrap_or_default())
                    .map_err(|error| {
                        VolumeError::corrupt("group descriptor", Place::Group(group.0), error)
                    })?;
                descriptors.push(descriptor);
            }
        }
    }
    Ok(descriptors)
}

impl std::fmt::Debug for Allocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Allocator").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

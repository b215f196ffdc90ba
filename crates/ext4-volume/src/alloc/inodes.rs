//! Allocating and freeing inodes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onggi_disk_format::ext4::group::{GroupFlags, inode_bitmap_checksum};
use onggi_disk_format::ext4::superblock::ROOT_INODE;
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};
use onggi_jbd2::Buffer;

use super::group::{Group, GroupState};
use super::{Allocator, bits};
use crate::{Handle, Place, Volume, VolumeError};

impl Allocator {
    /// Takes a free inode and zeroes its slot in the inode table. A file goes to its directory's group or
    /// as near as there is room; a directory directly under the root goes where few directories are, others
    /// near their parent while that has its share of free inodes and blocks.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] when no inode is free; a bitmap that breaks a rule; the device's, the
    /// journal's.
    pub fn allocate_inode(
        &self,
        volume: &Volume,
        h: &mut Handle<'_>,
        parent: InodeNr,
        directory: bool,
    ) -> Result<InodeNr, VolumeError> {
        if self.free_inodes() == 0 {
            return Err(VolumeError::NoSpace);
        }
        let home = self.sb.inode_location(parent).map_or(GroupNr(0), |location| location.group);
        let first = if directory { self.directory_group(parent, home) } else { home };
        let groups = self.sb.groups();
        let flex = self.sb.groups_per_flex().min(groups);
        let flex_start = first.0 / flex * flex;
        let flex_end = flex_start.saturating_add(flex).min(groups);
        // Jumps of 1, 2, 4, ... from a place that depends on the parent keep full neighbourhoods from
        // flowing over into one and the same group.
        let hashed = ((u64::from(first.0) + u64::from(parent.0)) % u64::from(groups)) as u32;
        let jumps = (0..32).map_while(|step| 1u64.checked_shl(step).filter(|&jump| jump < u64::from(groups)));
        let jumped = jumps.map(|jump| ((u64::from(hashed) + jump) % u64::from(groups)) as u32);
        let near = std::iter::once(first.0).chain(flex_start..flex_end).chain(jumped);
        for nr in near.filter(|&nr| self.groups[nr as usize].free.load(Ordering::Acquire) > 0) {
            if let Some(inode) = self.claim_inode(volume, h, GroupNr(nr), directory)? {
                return Ok(inode);
            }
        }
        for nr in (first.0..groups).chain(0..first.0) {
            if let Some(inode) = self.claim_inode(volume, h, GroupNr(nr), directory)? {
                return Ok(inode);
            }
        }
        Err(VolumeError::NoSpace)
    }

    /// The group for a new directory, after Orlov.
    fn directory_group(&self, parent: InodeNr, home: GroupNr) -> GroupNr {
        let groups = self.sb.groups();
        let flex = self.sb.groups_per_flex().min(groups);
        let count = groups.div_ceil(flex);
        let (mean_inodes, mean_blocks, mean_directories) = (
            self.free_inodes() / count,
            self.free.load(Ordering::Acquire) / u64::from(count),
            self.directories.load(Ordering::Acquire) / count,
        );
        let load = |nr: u32| {
            let first = nr * flex;
            let members = &self.groups[first as usize..first.saturating_add(flex).min(groups) as usize];
            members.iter().fold(Load::default(), |sum, group| sum.with(group))
        };
        // Groups with copies of the superblock are always somewhat below the mean.
        let fair = |mean: u64| mean - mean / 8;
        let best = if parent == ROOT_INODE {
            let start = self.rotor.fetch_add(1, Ordering::Relaxed) % count;
            (start..count)
                .chain(0..start)
                .map(|nr| (nr, load(nr)))
                .filter(|(_, load)| {
                    load.inodes > 0
                        && load.inodes >= fair(mean_inodes.into()) as u32
                        && load.blocks >= fair(mean_blocks)
                })
                .min_by_key(|(_, load)| load.directories)
                .map(|(nr, _)| nr)
        } else {
            let least_inodes = mean_inodes.saturating_sub(self.sb.inodes_per_group() * flex / 4).max(1);
            let share = u64::from(self.sb.blocks_per_group()) * u64::from(flex) / 4;
            let least_blocks = mean_blocks.saturating_sub(share);
            let most_directories = mean_directories + self.sb.inodes_per_group() * flex / 16;
            let start = home.0 / flex;
            (start..count).chain(0..start).find(|&nr| {
                let load = load(nr);
                load.inodes >= least_inodes
                    && load.blocks >= least_blocks
                    && load.directories <= most_directories
            })
        };
        match best {
            Some(nr) if nr == home.0 / flex && parent != ROOT_INODE => home,
            Some(nr) => GroupNr(nr * flex),
            None => home,
        }
    }

    /// Takes the first free inode of a group.
    fn claim_inode(
        &self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: GroupNr,
        directory: bool,
    ) -> Result<Option<InodeNr>, VolumeError> {
        let group = self.group(nr);
        if group.free_inodes.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let mut state = group.state.lock();
        if state.descriptor.free_inodes == 0 {
            return Ok(None);
        }
        let inodes = self.sb.inodes_per_group();
        let table = self.descriptor_buffer(volume, nr)?;
        // A group whose inode table is in use has a written block bitmap.
        if self.has_flag(&state, GroupFlags::BLOCK_UNINIT) {
            self.block_bitmap_for_change(volume, h, nr, &mut state, &table)?;
        }
        let bitmap = self.inode_bitmap_for_change(volume, h, nr, &mut state, &table)?;
        let used_part = self.used_part(&state);
        let index = self.first_free(nr, &state, &bitmap.snapshot(), used_part)?;
        let slot = self.slot(volume, &state, index, index == used_part)?;
        let sum = h.modify(&bitmap, |bytes| {
            bits::set(bytes, index..index + 1);
            inode_bitmap_checksum(&self.sb, bytes)
        })?;
        h.modify(&slot.0, |bytes| bytes[slot.1].fill(0))?;
        if index == used_part {
            state.descriptor.itable_unused = inodes - index - 1;
        }
        state.first_free_inode = index + 1;
        state.descriptor.free_inodes -= 1;
        state.descriptor.used_dirs = (state.descriptor.used_dirs + u32::from(directory)).min(inodes);
        state.descriptor.inode_bitmap_csum = sum.unwrap_or(state.descriptor.inode_bitmap_csum);
        self.write_descriptor(h, nr, &state, &table)?;
        self.free_inodes.fetch_sub(1, Ordering::AcqRel);
        self.directories.fetch_add(u32::from(directory), Ordering::AcqRel);
        group.mirror(&state);
        Ok(self.sb.inode_at(nr, index))
    }

    /// How many inodes from the start of the group's table have ever been used.
    fn used_part(&self, state: &GroupState) -> u32 {
        let inodes = self.sb.inodes_per_group();
        if self.sb.has_group_checksums() { inodes - state.descriptor.itable_unused } else { inodes }
    }

    fn first_free(
        &self,
        nr: GroupNr,
        state: &GroupState,
        bitmap: &[u8],
        used_part: u32,
    ) -> Result<u32, VolumeError> {
        let corrupt = |rule: &str| VolumeError::corrupt("inode bitmap", Place::Group(nr.0), rule);
        let reserved = if nr.0 == 0 { self.sb.first_inode().0 - 1 } else { 0 };
        let inodes = self.sb.inodes_per_group();
        let from = state.first_free_inode.max(reserved).min(inodes);
        let index = bits::next_clear(bitmap, from..inodes)
            .ok_or_else(|| corrupt("no inode is free, yet the group descriptor counts some"))?;
        if index > used_part {
            return Err(corrupt("an inode of the table's unused part is marked used"));
        }
        Ok(index)
    }

    /// What to zero for a new inode: its slot, or all of a block of the table that never held an inode,
    /// which is not read first.
    fn slot(
        &self,
        volume: &Volume,
        state: &GroupState,
        index: u32,
        never_used: bool,
    ) -> Result<(Arc<Buffer>, Range<usize>), VolumeError> {
        let per_block = self.sb.inodes_per_block();
        let block = DiskBlock(state.descriptor.inode_table.0 + u64::from(index / per_block));
        let at = (index % per_block) as usize * usize::from(self.sb.inode_size());
        if never_used && at == 0 {
            return Ok((volume.buffers.fresh(block), 0..self.sb.block_size() as usize));
        }
        Ok((volume.buffers.read(block)?, at..at + usize::from(self.sb.inode_size())))
    }

    /// Frees an inode: the bitmap and the counts. Its slot in the table is the caller's matter.
    ///
    /// # Errors
    /// An inode that is reserved, free already or not on the volume; the device's, the journal's.
    pub fn free_inode(
        &self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: InodeNr,
        directory: bool,
    ) -> Result<(), VolumeError> {
        let corrupt = |rule: &str| VolumeError::corrupt("inode bitmap", Place::Inode(nr), rule);
        let place = self.sb.inode_location(nr).ok_or_else(|| corrupt("outside the volume"))?;
        if nr < self.sb.first_inode() {
            return Err(corrupt("a reserved inode is to be freed"));
        }
        let group = self.group(place.group);
        let mut state = group.state.lock();
        if self.has_flag(&state, GroupFlags::INODE_UNINIT) {
            return Err(corrupt("an inode of a group without inodes is to be freed"));
        }
        let table = self.descriptor_buffer(volume, place.group)?;
        let buffer = self.inode_bitmap_for_change(volume, h, place.group, &mut state, &table)?;
        let range = place.index..place.index + 1;
        let sum = h.modify(&buffer, |bytes| {
            (bits::clear(bytes, range) == 1).then(|| inode_bitmap_checksum(&self.sb, bytes))
        })?;
        let sum = sum.ok_or_else(|| corrupt("an inode that is to be freed is free already"))?;
        state.first_free_inode = state.first_free_inode.min(place.index);
        state.descriptor.free_inodes += 1;
        let counted = directory && state.descriptor.used_dirs > 0;
        state.descriptor.used_dirs -= u32::from(counted);
        state.descriptor.inode_bitmap_csum = sum.unwrap_or(state.descriptor.inode_bitmap_csum);
        self.write_descriptor(h, place.group, &state, &table)?;
        self.free_inodes.fetch_add(1, Ordering::AcqRel);
        self.directories.fetch_sub(u32::from(counted), Ordering::AcqRel);
        group.mirror(&state);
        Ok(())
    }
}

impl Group {
    fn mirror(&self, state: &GroupState) {
        self.free_inodes.store(state.descriptor.free_inodes, Ordering::Release);
        self.directories.store(state.descriptor.used_dirs, Ordering::Release);
    }
}

/// What a flexible group has left.
#[derive(Clone, Copy, Default)]
struct Load {
    inodes: u32,
    blocks: u64,
    directories: u32,
}

impl Load {
    fn with(self, group: &Group) -> Self {
        Self {
            inodes: self.inodes.saturating_add(group.free_inodes.load(Ordering::Acquire)),
            blocks: self.blocks + u64::from(group.free.load(Ordering::Acquire)),
            directories: self.directories.saturating_add(group.directories.load(Ordering::Acquire)),
        }
    }
}

//! One block group: its descriptor, its bitmaps, what of it is busy.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use onggi_disk_format::ext4::group::{
    GroupDescriptor, GroupFlags, block_bitmap_checksum, inode_bitmap_checksum,
};
use onggi_disk_format::{DiskBlock, GroupNr};
use onggi_jbd2::Buffer;
use parking_lot::Mutex;

use super::{Allocator, bits};
use crate::{Handle, Place, Volume, VolumeError};

/// A block group. The atomics mirror what the mutex guards, for searches that hold no lock.
pub(super) struct Group {
    pub(super) state: Mutex<GroupState>,
    pub(super) inode_table: DiskBlock,
    /// Blocks that are not busy; the descriptor's count until the bitmap is loaded.
    pub(super) free: AtomicU32,
    /// No run of free blocks is longer.
    pub(super) longest: AtomicU32,
    pub(super) loaded: AtomicBool,
    pub(super) free_inodes: AtomicU32,
    pub(super) directories: AtomicU32,
}

pub(super) struct GroupState {
    /// As it stands in the running transaction.
    pub(super) descriptor: GroupDescriptor,
    /// Loaded at first use. Bits past the group's end are set.
    pub(super) busy: Option<Box<[u8]>>,
    /// No block before this bit is free.
    pub(super) first_free: u32,
    /// No inode before this index is free.
    pub(super) first_free_inode: u32,
}

impl Group {
    pub(super) fn new(descriptor: GroupDescriptor) -> Self {
        Self {
            inode_table: descriptor.inode_table,
            free: AtomicU32::new(descriptor.free_blocks),
            longest: AtomicU32::new(descriptor.free_blocks),
            loaded: AtomicBool::new(false),
            free_inodes: AtomicU32::new(descriptor.free_inodes),
            directories: AtomicU32::new(descriptor.used_dirs),
            state: Mutex::new(GroupState { descriptor, busy: None, first_free: 0, first_free_inode: 0 }),
        }
    }
}

impl Allocator {
    /// Whether the descriptor's flag holds; without descriptor checksums no flag counts.
    pub(super) fn has_flag(&self, state: &GroupState, flag: GroupFlags) -> bool {
        self.sb.has_group_checksums() && state.descriptor.flags.contains(flag)
    }

    fn blocks_of(&self, nr: GroupNr) -> Range<u64> {
        let first = self.sb.first_block_of_group(nr).0;
        first..first + u64::from(self.sb.blocks_in_group(nr))
    }

    /// The block bitmap of a group that holds nothing but the volume's own structures.
    fn initial_bitmap(&self, nr: GroupNr, bitmap: &mut [u8]) {
        bitmap.fill(0);
        let blocks = self.blocks_of(nr);
        bits::set(bitmap, self.sb.blocks_in_group(nr)..bitmap.len() as u32 * 8);
        for zone in self.zones.system(blocks.clone()) {
            bits::set(bitmap, (zone.start - blocks.start) as u32..(zone.end - blocks.start) as u32);
        }
    }

    /// The group's block bitmap from the cache or the disk, checked once.
    fn block_bitmap(
        &self,
        volume: &Volume,
        nr: GroupNr,
        state: &GroupState,
    ) -> Result<Arc<Buffer>, VolumeError> {
        let descriptor = &state.descriptor;
        let buffer = volume.buffers.read(descriptor.block_bitmap)?;
        buffer.verify_once(|bytes| {
            let corrupt = |rule: String| VolumeError::corrupt("block bitmap", Place::Group(nr.0), rule);
            if !descriptor.block_bitmap_matches(&self.sb, bytes) {
                return Err(corrupt("its checksum does not match the group descriptor's".into()));
            }
            let blocks = self.blocks_of(nr);
            let in_group = self.sb.blocks_in_group(nr);
            let free = in_group - bits::count_set(bytes, 0..in_group);
            if free != descriptor.free_blocks {
                let counted = descriptor.free_blocks;
                return Err(corrupt(format!(
                    "{free} blocks are free, the group descriptor counts {counted}"
                )));
            }
            for zone in self.zones.tables(blocks.clone()) {
                let range = (zone.start - blocks.start) as u32..(zone.end - blocks.start) as u32;
                if bits::count_set(bytes, range.clone()) != range.len() as u32 {
                    return Err(corrupt(format!(
                        "a bitmap or inode table in blocks {zone:?} is marked free"
                    )));
                }
            }
            Ok(())
        })?;
        Ok(buffer)
    }

    /// Loads the group's busy bitmap at first use.
    ///
    /// # Errors
    /// A bitmap that breaks a rule; the device's.
    pub(super) fn load(
        &self,
        volume: &Volume,
        nr: GroupNr,
        state: &mut GroupState,
    ) -> Result<(), VolumeError> {
        if state.busy.is_none() {
            let mut busy = vec![0; self.sb.block_size() as usize].into_boxed_slice();
            self.initial_bitmap(nr, &mut busy);
            if !self.has_flag(state, GroupFlags::BLOCK_UNINIT) {
                let on_disk = self.block_bitmap(volume, nr, state)?.snapshot();
                for (byte, stored) in busy.iter_mut().zip(on_disk.iter()) {
                    *byte |= stored;
                }
            }
            let in_group = self.sb.blocks_in_group(nr);
            let free = in_group - bits::count_set(&busy, 0..in_group);
            let counted = state.descriptor.free_blocks;
            if free > counted {
                let rule = format!("{free} blocks are free, the group descriptor counts {counted}");
                return Err(VolumeError::corrupt("block bitmap", Place::Group(nr.0), rule));
            }
            // Blocks that the bitmap calls free and that hold a superblock or descriptors stay busy.
            self.free.fetch_sub(u64::from(counted - free), Ordering::AcqRel);
            let group = self.group(nr);
            group.free.store(free, Ordering::Release);
            group.loaded.store(true, Ordering::Release);
            state.first_free = bits::next_clear(&busy, 0..in_group).unwrap_or(in_group);
            state.busy = Some(busy);
        }
        Ok(())
    }

    /// The group's block bitmap for a change; one that was never written is written in full first. `table` is
    /// the descriptor's block.
    ///
    /// # Errors
    /// As [`Allocator::load`]; the journal's.
    pub(super) fn block_bitmap_for_change(
        &self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: GroupNr,
        state: &mut GroupState,
        table: &Arc<Buffer>,
    ) -> Result<Arc<Buffer>, VolumeError> {
        self.load(volume, nr, state)?;
        if !self.has_flag(state, GroupFlags::BLOCK_UNINIT) {
            return self.block_bitmap(volume, nr, state);
        }
        let buffer = volume.buffers.fresh(state.descriptor.block_bitmap);
        let (free, sum) = h.modify(&buffer, |bytes| {
            self.initial_bitmap(nr, bytes);
            let in_group = self.sb.blocks_in_group(nr);
            (in_group - bits::count_set(bytes, 0..in_group), block_bitmap_checksum(&self.sb, bytes))
        })?;
        // `load` has checked that the count is not below `free`; above it, blocks would be free twice.
        let counted = std::mem::replace(&mut state.descriptor.free_blocks, free);
        self.free_on_disk.fetch_sub(u64::from(counted - free), Ordering::AcqRel);
        state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        state.descriptor.block_bitmap_csum = sum.unwrap_or(state.descriptor.block_bitmap_csum);
        self.write_descriptor(h, nr, state, table)?;
        Ok(buffer)
    }

    /// The group's inode bitmap for a change, checked once; one that was never written is made. `table` is the
    /// descriptor's block.
    ///
    /// # Errors
    /// A bitmap that breaks a rule; the device's, the journal's.
    pub(super) fn inode_bitmap_for_change(
        &self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: GroupNr,
        state: &mut GroupState,
        table: &Arc<Buffer>,
    ) -> Result<Arc<Buffer>, VolumeError> {
        let corrupt = |rule: String| VolumeError::corrupt("inode bitmap", Place::Group(nr.0), rule);
        let inodes = self.sb.inodes_per_group();
        if self.has_flag(state, GroupFlags::INODE_UNINIT) {
            if state.descriptor.free_inodes != inodes {
                let counted = state.descriptor.free_inodes;
                return Err(corrupt(format!(
                    "never written, yet the group descriptor counts {counted} free"
                )));
            }
            let buffer = volume.buffers.fresh(state.descriptor.inode_bitmap);
            let sum = h.modify(&buffer, |bytes| {
                bytes.fill(0);
                bits::set(bytes, inodes..bytes.len() as u32 * 8);
                inode_bitmap_checksum(&self.sb, bytes)
            })?;
            state.descriptor.flags.remove(GroupFlags::INODE_UNINIT);
            state.descriptor.itable_unused = inodes;
            state.descriptor.inode_bitmap_csum = sum.unwrap_or(state.descriptor.inode_bitmap_csum);
            self.write_descriptor(h, nr, state, table)?;
            return Ok(buffer);
        }
        let buffer = volume.buffers.read(state.descriptor.inode_bitmap)?;
        buffer.verify_once(|bytes| {
            if !state.descriptor.inode_bitmap_matches(&self.sb, bytes) {
                return Err(corrupt("its checksum does not match the group descriptor's".into()));
            }
            let (free, counted) = (inodes - bits::count_set(bytes, 0..inodes), state.descriptor.free_inodes);
            if free != counted {
                return Err(corrupt(format!(
                    "{free} inodes are free, the group descriptor counts {counted}"
                )));
            }
            Ok(())
        })?;
        Ok(buffer)
    }

    /// The block that holds the group's descriptor. Got before the first change of an operation, so that a
    /// failing device stops it while nothing is changed.
    ///
    /// # Errors
    /// The device's.
    pub(super) fn descriptor_buffer(&self, volume: &Volume, nr: GroupNr) -> Result<Arc<Buffer>, VolumeError> {
        Ok(volume.buffers.read(self.sb.descriptor_location(nr).0)?)
    }

    /// Writes the group's descriptor into its block.
    ///
    /// # Errors
    /// The journal's.
    pub(super) fn write_descriptor(
        &self,
        h: &mut Handle<'_>,
        nr: GroupNr,
        state: &GroupState,
        buffer: &Arc<Buffer>,
    ) -> Result<(), VolumeError> {
        let at = self.sb.descriptor_location(nr).1;
        h.modify(buffer, |bytes| {
            state.descriptor.encode(&self.sb, nr, bytes.get_mut(at..).unwrap_or_default())
        })?
        .map_err(|error| VolumeError::corrupt("group descriptor", Place::Group(nr.0), error))
    }
}

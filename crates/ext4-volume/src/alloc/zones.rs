//! Blocks that belong to the volume itself: superblocks, group descriptors, bitmaps, inode tables.

use std::ops::Range;

use onggi_disk_format::ext4::group::GroupDescriptor;
use onggi_disk_format::ext4::superblock::Superblock;
use onggi_disk_format::{DiskBlock, GroupNr};

use crate::{BlockRun, Place, VolumeError};

/// Sorted ranges of blocks, apart from each other.
pub(super) struct Zones {
    /// All system blocks.
    system: Vec<Range<u64>>,
    /// Bitmaps and inode tables only.
    tables: Vec<Range<u64>>,
}

impl Zones {
    /// Finds them from the superblock and all group descriptors.
    ///
    /// # Errors
    /// Two bitmaps or inode tables that share a block.
    pub(super) fn new<'a>(
        sb: &Superblock,
        descriptors: impl Iterator<Item = &'a GroupDescriptor>,
    ) -> Result<Self, VolumeError> {
        let mut tables = Vec::new();
        let mut system = Vec::new();
        for (group, descriptor) in (0..sb.groups()).map(GroupNr).zip(descriptors) {
            tables.push(span(descriptor.block_bitmap, 1));
            tables.push(span(descriptor.inode_bitmap, 1));
            tables.push(span(descriptor.inode_table, sb.inode_table_blocks()));
            let head = sb.head_blocks(group).min(sb.blocks_in_group(group));
            if head > 0 {
                system.push(span(sb.first_block_of_group(group), head));
            }
        }
        tables.sort_unstable_by_key(|zone| zone.start);
        if let Some(pair) = tables.windows(2).find(|pair| pair[1].start < pair[0].end) {
            let place = Place::Block(DiskBlock(pair[1].start));
            return Err(VolumeError::corrupt(
                "group descriptors",
                place,
                "two bitmaps or inode tables overlap",
            ));
        }
        system.extend(tables.iter().cloned());
        system.sort_unstable_by_key(|zone| zone.start);
        Ok(Self { system: merge(system), tables: merge(tables) })
    }

    /// Adds blocks that no file may hold.
    pub(super) fn add(&mut self, runs: &[BlockRun]) {
        self.system.extend(runs.iter().map(|run| span(run.start, run.len)));
        self.system.sort_unstable_by_key(|zone| zone.start);
        self.system = merge(std::mem::take(&mut self.system));
    }

    /// Whether any block of the range is the volume's own.
    pub(super) fn touches(&self, start: DiskBlock, len: u64) -> bool {
        overlapping(&self.system, start.0..start.0.saturating_add(len)).next().is_some()
    }

    /// System blocks within the range.
    pub(super) fn system(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        overlapping(&self.system, range)
    }

    /// Blocks of bitmaps and inode tables within the range.
    pub(super) fn tables(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
        overlapping(&self.tables, range)
    }
}

fn span(start: DiskBlock, len: u32) -> Range<u64> {
    start.0..start.0.saturating_add(u64::from(len))
}

fn merge(sorted: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut merged: Vec<Range<u64>> = Vec::new();
    for zone in sorted {
        match merged.last_mut() {
            Some(last) if zone.start <= last.end => last.end = last.end.max(zone.end),
            _ => merged.push(zone),
        }
    }
    merged
}

fn overlapping(zones: &[Range<u64>], range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let first = zones.partition_point(|zone| zone.end <= range.start);
    zones[first..]
        .iter()
        .take_while(move |zone| zone.start < range.end)
        .map(move |zone| zone.start.max(range.start)..zone.end.min(range.end))
}

//! Bitmaps, inode tables and descriptors of the groups.

use std::ops::Range;

use onggi_disk_format::ext4::group::{block_bitmap_checksum, inode_bitmap_checksum};
use onggi_disk_format::ext4::{GroupDescriptor, GroupFlags, Incompat, Superblock};
use onggi_disk_format::{DiskBlock, GroupNr};

use crate::MkfsError;
use crate::content::Contents;
use crate::output::Output;
use crate::space::SpaceMap;

/// Where a group's own metadata lies.
#[derive(Clone, Copy, Default)]
struct Places {
    block_bitmap: u64,
    inode_bitmap: u64,
    inode_table: u64,
}

/// Where every group's bitmaps and inode table lie.
pub(crate) struct GroupTables {
    places: Vec<Places>,
}

/// Blocks of `group`.
pub(crate) fn blocks_of(sb: &Superblock, group: GroupNr) -> Range<u64> {
    let start = sb.first_block_of_group(group).0;
    start..start + u64::from(sb.blocks_in_group(group))
}

impl GroupTables {
    /// Takes the blocks: under `flex_bg` the block bitmaps of a flexible group, then its inode bitmaps,
    /// then its tables, from its first free block on; else each group in itself.
    pub(crate) fn place(sb: &Superblock, space: &mut SpaceMap) -> Result<Self, MkfsError> {
        let mut places = vec![Places::default(); sb.groups() as usize];
        let per_flex = sb.groups_per_flex() as usize;
        for (flex, chunk) in places.chunks_mut(per_flex).enumerate() {
            let first = GroupNr((flex * per_flex) as u32);
            let last = GroupNr(first.0 + chunk.len() as u32 - 1);
            let within = blocks_of(sb, first).start..blocks_of(sb, last).end;
            let mut cursor = within.start;
            for place in chunk.iter_mut() {
                place.block_bitmap = take(sb, space, &within, &mut cursor, 1)?;
            }
            for place in chunk.iter_mut() {
                place.inode_bitmap = take(sb, space, &within, &mut cursor, 1)?;
            }
            let table = u64::from(sb.inode_table_blocks());
            for place in chunk.iter_mut() {
                place.inode_table = take(sb, space, &within, &mut cursor, table)?;
            }
        }
        Ok(Self { places })
    }

    /// The block that holds inode `index` of `group`.
    pub(crate) fn table_block(&self, group: GroupNr, table_block: u32) -> u64 {
        self.places[group.0 as usize].inode_table + u64::from(table_block)
    }

    /// Writes bitmaps, zeroes tables, and returns the descriptor table in whole blocks.
    pub(crate) fn write(
        &self,
        output: &mut Output<'_>,
        sb: &Superblock,
        space: &SpaceMap,
        contents: &Contents,
        zero_tables: bool,
    ) -> Result<Vec<u8>, MkfsError> {
        let described: Vec<(GroupNr, GroupDescriptor)> = (0..sb.groups())
            .map(GroupNr)
            .map(|group| (group, self.describe(sb, space, contents, group, zero_tables)))
            .collect();
        let mut zeroes = Zeroes::default();
        for (_, descriptor) in &described {
            if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
                zeroes.add(output, descriptor.block_bitmap.0, 1)?;
            }
            if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
                zeroes.add(output, descriptor.inode_bitmap.0, 1)?;
            }
        }
        for (_, descriptor) in described.iter().filter(|_| zero_tables) {
            zeroes.add(output, descriptor.inode_table.0, u64::from(sb.inode_table_blocks()))?;
        }
        zeroes.finish(output)?;
        let size = usize::from(sb.descriptor_size());
        let mut table = vec![0; sb.descriptor_blocks() as usize * sb.block_size() as usize];
        for (group, mut descriptor) in described {
            if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
                let bitmap = block_bitmap(sb, space, group);
                descriptor.block_bitmap_csum = block_bitmap_checksum(sb, &bitmap).unwrap_or(0);
                output.write(descriptor.block_bitmap.0, bitmap)?;
            }
            if !descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
                let bitmap = inode_bitmap(sb, sb.inodes_per_group() - descriptor.free_inodes);
                descriptor.inode_bitmap_csum = inode_bitmap_checksum(sb, &bitmap).unwrap_or(0);
                output.write(descriptor.inode_bitmap.0, bitmap)?;
            }
            descriptor.encode(sb, group, &mut table[group.0 as usize * size..])?;
        }
        Ok(table)
    }

    fn describe(
        &self,
        sb: &Superblock,
        space: &SpaceMap,
        contents: &Contents,
        group: GroupNr,
        zero_tables: bool,
    ) -> GroupDescriptor {
        let place = self.places[group.0 as usize];
        let blocks = blocks_of(sb, group);
        let taken = space.taken_count(blocks.clone());
        let used_inodes = contents.inodes_in(sb, group);
        let mut flags = GroupFlags::default();
        if sb.has_group_checksums() {
            // The last group's bitmap is padded, so it must be there.
            let inside = group.0 != 0 && group.0 + 1 != sb.groups();
            flags.set(GroupFlags::BLOCK_UNINIT, inside && taken == self.own_blocks(sb, group));
            flags.set(GroupFlags::INODE_UNINIT, used_inodes == 0);
            flags.set(GroupFlags::INODE_ZEROED, zero_tables);
        }
        let unused = sb.inodes_per_group() - used_inodes;
        GroupDescriptor {
            block_bitmap: DiskBlock(place.block_bitmap),
            inode_bitmap: DiskBlock(place.inode_bitmap),
            inode_table: DiskBlock(place.inode_table),
            free_blocks: (blocks.end - blocks.start - taken) as u32,
            free_inodes: unused,
            used_dirs: contents.directories_in(sb, group),
            flags,
            itable_unused: if sb.has_group_checksums() { unused } else { 0 },
            block_bitmap_csum: 0,
            inode_bitmap_csum: 0,
        }
    }

    /// Blocks that a reader takes for used in a group whose bitmap was never written.
    fn own_blocks(&self, sb: &Superblock, group: GroupNr) -> u64 {
        let place = self.places[group.0 as usize];
        let blocks = blocks_of(sb, group);
        let table = place.inode_table..place.inode_table + u64::from(sb.inode_table_blocks());
        let overlap = table.end.min(blocks.end).saturating_sub(table.start.max(blocks.start));
        u64::from(sb.head_blocks(group))
            + u64::from(blocks.contains(&place.block_bitmap))
            + u64::from(blocks.contains(&place.inode_bitmap))
            + overlap
    }
}

fn take(
    sb: &Superblock,
    space: &mut SpaceMap,
    within: &Range<u64>,
    cursor: &mut u64,
    len: u64,
) -> Result<u64, MkfsError> {
    let mut start = space.take_run(*cursor..within.end, len).or_else(|| space.take_run(within.clone(), len));
    if start.is_none() && sb.incompat().contains(Incompat::FLEX_BG) {
        start = space.take_run(0..sb.blocks_count(), len);
    }
    let start = start.ok_or(MkfsError::NoRoom("bitmaps and inode tables"))?;
    if within.contains(&start) {
        *cursor = (*cursor).max(start + len);
    }
    Ok(start)
}

fn set_bits(bitmap: &mut [u8], bits: Range<usize>) {
    for bit in bits {
        bitmap[bit / 8] |= 1 << (bit % 8);
    }
}

fn block_bitmap(sb: &Superblock, space: &SpaceMap, group: GroupNr) -> Vec<u8> {
    let blocks = blocks_of(sb, group);
    let mut bitmap = vec![0; sb.block_size() as usize];
    for run in space.taken_in(blocks.clone()) {
        set_bits(&mut bitmap, (run.start - blocks.start) as usize..(run.end - blocks.start) as usize);
    }
    let bits = bitmap.len() * 8;
    set_bits(&mut bitmap, (blocks.end - blocks.start) as usize..bits);
    bitmap
}

fn inode_bitmap(sb: &Superblock, used: u32) -> Vec<u8> {
    let mut bitmap = vec![0; sb.block_size() as usize];
    let bits = bitmap.len() * 8;
    set_bits(&mut bitmap, 0..used as usize);
    set_bits(&mut bitmap, sb.inodes_per_group() as usize..bits);
    bitmap
}

/// Joins neighbouring ranges before they are zeroed.
#[derive(Default)]
struct Zeroes {
    run: Range<u64>,
}

impl Zeroes {
    fn add(&mut self, output: &mut Output<'_>, start: u64, len: u64) -> Result<(), MkfsError> {
        if self.run.end != start {
            self.finish(output)?;
            self.run = start..start;
        }
        self.run.end = start + len;
        Ok(())
    }

    fn finish(&mut self, output: &mut Output<'_>) -> Result<(), MkfsError> {
        let run = std::mem::take(&mut self.run);
        Ok(output.zero(run.start, run.end - run.start)?)
    }
}

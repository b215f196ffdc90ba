//! From runs of blocks to the map in an inode: an extent tree, or pointers where the volume has no extents.

use std::ops::Range;

use onggi_disk_format::ext4::extent::{self, Extent, ExtentIndex, MAX_LEN};
use onggi_disk_format::ext4::{Incompat, Superblock, inode_seed};
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};

use crate::MkfsError;
use crate::space::SpaceMap;

/// A file's map.
pub(crate) struct Mapping {
    pub(crate) i_block: [u8; 60],
    /// Blocks of the map itself.
    pub(crate) nodes: Vec<(u64, Vec<u8>)>,
}

const NO_ROOM: MkfsError = MkfsError::NoRoom("a file's block map");

/// Maps `runs`, in file order, to inode `nr`; takes the blocks that the map itself needs.
pub(crate) fn map(
    sb: &Superblock,
    space: &mut SpaceMap,
    nr: InodeNr,
    runs: &[Range<u64>],
) -> Result<Mapping, MkfsError> {
    if sb.incompat().contains(Incompat::EXTENTS) {
        extent_tree(sb, space, nr, runs)
    } else {
        pointers(sb, space, runs)
    }
}

fn extent_tree(
    sb: &Superblock,
    space: &mut SpaceMap,
    nr: InodeNr,
    runs: &[Range<u64>],
) -> Result<Mapping, MkfsError> {
    let mut i_block = [0; 60];
    let extents = cut(runs);
    let room = extent::capacity(i_block.len());
    if extents.len() <= room {
        extent::encode_leaf(&mut i_block, &extents)?;
        return Ok(Mapping { i_block, nodes: Vec::new() });
    }
    let seed = inode_seed(sb.csum_seed(), nr, 0);
    let block_size = sb.block_size() as usize;
    let per_node = extent::capacity(block_size);
    let goal = runs.first().map_or(0, |run| run.start);
    let mut nodes = Vec::new();
    let mut seal = |space: &mut SpaceMap, block: FileBlock, mut bytes: Vec<u8>| {
        if sb.has_metadata_csum() {
            extent::set_checksum(&mut bytes, seed)?;
        }
        let place = take_near(space, sb, goal)?;
        nodes.push((place, bytes));
        Ok::<_, MkfsError>(ExtentIndex { block, child: DiskBlock(place) })
    };
    let mut children = Vec::new();
    for leaf in extents.chunks(per_node) {
        let mut bytes = vec![0; block_size];
        extent::encode_leaf(&mut bytes, leaf)?;
        children.push(seal(space, leaf[0].block, bytes)?);
    }
    let mut depth = 1;
    while children.len() > room {
        let mut above = Vec::new();
        for node in children.chunks(per_node) {
            let mut bytes = vec![0; block_size];
            extent::encode_index(&mut bytes, depth, node)?;
            above.push(seal(space, node[0].block, bytes)?);
        }
        children = above;
        depth += 1;
    }
    extent::encode_index(&mut i_block, depth, &children)?;
    Ok(Mapping { i_block, nodes })
}

/// Cuts runs at the longest extent.
fn cut(runs: &[Range<u64>]) -> Vec<Extent> {
    let mut extents = Vec::new();
    let mut block = 0;
    for run in runs {
        let mut start = run.start;
        while start < run.end {
            let len = (run.end - start).min(u64::from(MAX_LEN)) as u16;
            extents.push(Extent { block: FileBlock(block), len, start: DiskBlock(start), unwritten: false });
            start += u64::from(len);
            block += u32::from(len);
        }
    }
    extents
}

fn take_near(space: &mut SpaceMap, sb: &Superblock, goal: u64) -> Result<u64, MkfsError> {
    let end = sb.blocks_count();
    space.take_run(goal..end, 1).or_else(|| space.take_run(0..end, 1)).ok_or(NO_ROOM)
}

/// Twelve direct pointers, then one, two and three levels of blocks full of pointers.
fn pointers(sb: &Superblock, space: &mut SpaceMap, runs: &[Range<u64>]) -> Result<Mapping, MkfsError> {
    let mut rest = runs.iter().cloned().flatten().peekable();
    let mut mapping = Mapping { i_block: [0; 60], nodes: Vec::new() };
    let mut slots = [0u32; 15];
    for slot in &mut slots[..12] {
        *slot = rest.next().unwrap_or(0) as u32;
    }
    let goal = runs.first().map_or(0, |run| run.start);
    for (slot, levels) in slots[12..].iter_mut().zip(1..) {
        if rest.peek().is_some() {
            *slot = indirect(sb, space, goal, levels, &mut rest, &mut mapping.nodes)?;
        }
    }
    if rest.peek().is_some() {
        return Err(NO_ROOM);
    }
    for (bytes, slot) in mapping.i_block.chunks_exact_mut(4).zip(slots) {
        bytes.copy_from_slice(&slot.to_le_bytes());
    }
    Ok(mapping)
}

fn indirect<I: Iterator<Item = u64>>(
    sb: &Superblock,
    space: &mut SpaceMap,
    goal: u64,
    levels: u32,
    rest: &mut std::iter::Peekable<I>,
    nodes: &mut Vec<(u64, Vec<u8>)>,
) -> Result<u32, MkfsError> {
    let place = take_near(space, sb, goal)?;
    let mut bytes = vec![0; sb.block_size() as usize];
    for slot in bytes.chunks_exact_mut(4) {
        if rest.peek().is_none() {
            break;
        }
        let pointer = if levels == 1 {
            rest.next().unwrap_or(0) as u32
        } else {
            indirect(sb, space, goal, levels - 1, rest, nodes)?
        };
        slot.copy_from_slice(&pointer.to_le_bytes());
    }
    nodes.push((place, bytes));
    Ok(place as u32)
}

//! Cutting a file's blocks to its size.

use std::collections::HashSet;

use onggi_disk_format::ext4::extent::{self, Entries};
use onggi_disk_format::ext4::{Extent, ExtentNode, InodeFlags, inode_seed};
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};

use super::apply;
use crate::CheckError;
use crate::analysis::Outcome;
use crate::volume::Volume;

const DIRECT: u64 = 12;

/// Forgets the blocks past the file's end and zeroes what its last block holds past it. Block counts and
/// bitmaps follow.
pub(super) fn truncate(volume: &Volume<'_>, look: &Outcome, nr: InodeNr) -> Result<(), CheckError> {
    let Some(mut inode) = apply::read_inode(volume, look, nr)? else { return Ok(()) };
    let block_size = u64::from(volume.sb.block_size());
    let keep = inode.size.div_ceil(block_size);
    let seed = inode_seed(volume.sb.csum_seed(), nr, inode.generation);
    zero_rest(volume, nr, &inode)?;
    if inode.flags.contains(InodeFlags::EXTENTS) {
        if cut_node(volume, &mut inode.i_block, None, keep, seed)? {
            let _ = extent::encode_leaf(&mut inode.i_block, &[]);
        }
    } else {
        cut_map(volume, &mut inode.i_block, keep)?;
    }
    apply::edit(volume, look, nr, |fresh| fresh.i_block = inode.i_block)?;
    Ok(())
}

fn zero_rest(
    volume: &Volume<'_>,
    nr: InodeNr,
    inode: &onggi_disk_format::ext4::Inode,
) -> Result<(), CheckError> {
    let block_size = u64::from(volume.sb.block_size());
    let (last, within) = (inode.size / block_size, (inode.size % block_size) as usize);
    if within == 0 {
        return Ok(());
    }
    let mapping = apply::blocks_of(volume, nr, inode)?;
    let run = mapping.runs.iter().find(|run| u64::from(run.block) <= last && last < run.end());
    if let Some(run) = run.filter(|run| !run.unwritten) {
        let place = DiskBlock(run.start.0 + (last - u64::from(run.block)));
        apply::edit_block(volume, place, |block| {
            block[within..].fill(0);
            true
        })?;
    }
    Ok(())
}

/// Cuts the tree under a node to logical blocks below `keep`. `true` when nothing is left of it; the node
/// is then unchanged.
fn cut_node(
    volume: &Volume<'_>,
    bytes: &mut [u8],
    depth: Option<u16>,
    keep: u64,
    seed: u32,
) -> Result<bool, CheckError> {
    let Ok(node) = ExtentNode::parse(&volume.sb, bytes, depth) else { return Ok(false) };
    let written = match node.entries {
        Entries::Leaf(extents) => {
            let left: Vec<Extent> = extents.iter().filter_map(|extent| cut_extent(extent, keep)).collect();
            if left.is_empty() {
                return Ok(true);
            }
            extent::encode_leaf(bytes, &left)
        }
        Entries::Index(children) => {
            let mut left = Vec::new();
            for child in children {
                if u64::from(child.block.0) >= keep {
                    continue;
                }
                let mut block = volume.read(child.child, 1)?;
                if !cut_node(volume, &mut block, Some(node.depth - 1), keep, seed)? {
                    volume.write(child.child, &block)?;
                    left.push(child);
                }
            }
            if left.is_empty() {
                return Ok(true);
            }
            extent::encode_index(bytes, node.depth, &left)
        }
    };
    if written.is_ok() && depth.is_some() && volume.sb.has_metadata_csum() {
        let _ = extent::set_checksum(bytes, seed);
    }
    Ok(false)
}

fn cut_extent(extent: &Extent, keep: u64) -> Option<Extent> {
    let start = u64::from(extent.block.0);
    let len = extent.end().min(keep).checked_sub(start).filter(|&len| len > 0)?;
    Some(Extent { block: FileBlock(extent.block.0), len: len as u16, ..*extent })
}

fn cut_map(volume: &Volume<'_>, i_block: &mut [u8; 60], keep: u64) -> Result<(), CheckError> {
    let per_block = volume.block_size() as u64 / 4;
    let mut seen = HashSet::new();
    for (index, slot) in i_block.chunks_exact_mut(4).enumerate() {
        let index = index as u64;
        if index < DIRECT {
            if index >= keep {
                slot.fill(0);
            }
            continue;
        }
        let level = (index - DIRECT + 1) as u32;
        let first = DIRECT + (1..level).map(|level| per_block.pow(level)).sum::<u64>();
        cut_indirect(volume, slot, first, level, keep, &mut seen)?;
    }
    Ok(())
}

fn cut_indirect(
    volume: &Volume<'_>,
    slot: &mut [u8],
    first: u64,
    level: u32,
    keep: u64,
    seen: &mut HashSet<DiskBlock>,
) -> Result<(), CheckError> {
    if first >= keep {
        slot.fill(0);
        return Ok(());
    }
    let place = DiskBlock(u64::from(u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]])));
    if place.0 == 0 || level == 0 || !volume.sb.contains_blocks(place, 1) || !seen.insert(place) {
        return Ok(());
    }
    let span = (volume.block_size() as u64 / 4).pow(level - 1);
    let mut block = volume.read(place, 1)?;
    for (index, slot) in block.chunks_exact_mut(4).enumerate() {
        cut_indirect(volume, slot, first + index as u64 * span, level - 1, keep, seen)?;
    }
    volume.write(place, &block)
}

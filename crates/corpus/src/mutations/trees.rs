//! Extent trees and pointer blocks.

use std::ops::Range;

use onggi_disk_format::ext4::InodeFlags;
use onggi_disk_format::ext4::extent::{ENTRY_SIZE, RawExtent, RawExtentHeader, RawExtentIndex};

use crate::field::{Order, fields};
use crate::survey::{Survey, Used, block_mut};
use crate::{Random, seal, value};

/// Bytes of `i_block` in an inode.
const I_BLOCK: Range<usize> = 40..100;

/// The header or an entry of the node in `bytes`.
fn spoil(bytes: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let word = |at: usize| Some(u16::from_le_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]));
    let (count, depth) = (usize::from(word(2)?), word(6)?);
    if count == 0 || random.chance(1, 3) {
        let fields = fields!(RawExtentHeader: eh_magic eh_entries eh_max eh_depth eh_generation);
        let text = value::spoil(&mut bytes[..ENTRY_SIZE], &fields, Order::Little, Some(survey), random)?;
        return Some(text);
    }
    let fields = if depth == 0 {
        fields!(RawExtent: ee_block ee_len ee_start_hi ee_start_lo)
    } else {
        fields!(RawExtentIndex: ei_block ei_leaf_lo ei_leaf_hi)
    };
    let index = random.index(count);
    let entry = bytes.get_mut((1 + index) * ENTRY_SIZE..(2 + index) * ENTRY_SIZE)?;
    let text = value::spoil(entry, &fields, Order::Little, Some(survey), random)?;
    Some(format!("entry {index}: {text}"))
}

fn with_extents<'a>(survey: &'a Survey, random: &mut Random) -> Option<&'a Used> {
    let all: Vec<&Used> =
        survey.inodes.iter().filter(|used| used.inode.flags.contains(InodeFlags::EXTENTS)).collect();
    random.pick(&all).copied()
}

/// The root of an extent tree, in its inode.
pub(super) fn root(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let nr = with_extents(survey, random)?.nr;
    let bytes = survey.inode_bytes(image, nr)?.get_mut(I_BLOCK)?;
    let text = spoil(bytes, survey, random)?;
    seal::inode(image, survey, nr);
    Some(format!("extent root of inode {nr}: {text}"))
}

/// A block of an extent tree.
pub(super) fn node(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let node = *random.pick(&survey.extent_nodes)?;
    let text = spoil(block_mut(image, survey, node.place)?, survey, random)?;
    seal::extent_node(image, survey, node.place, node.seed);
    Some(format!("extent node {} of inode {}: {text}", node.place, node.owner))
}

/// An entry that points at a block chosen to hurt: the node itself, another node, metadata, the blocks
/// of its neighbour.
pub(super) fn target(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let node = random.pick(&survey.extent_nodes).copied().filter(|_| random.chance(2, 3));
    let owner = match node {
        Some(node) => node.owner,
        None => with_extents(survey, random)?.nr,
    };
    let same_tree: Vec<u64> =
        survey.extent_nodes.iter().filter(|node| node.owner == owner).map(|node| node.place.0).collect();
    let target = match random.below(3) {
        0 => random.pick(&same_tree).copied().unwrap_or_else(|| survey.metadata_block(random)),
        1 => node.map_or_else(|| survey.metadata_block(random), |node| node.place.0),
        _ => survey.metadata_block(random),
    };
    let bytes = match node {
        Some(node) => block_mut(image, survey, node.place)?,
        None => survey.inode_bytes(image, owner)?.get_mut(I_BLOCK)?,
    };
    let count = usize::from(u16::from_le_bytes([bytes[2], bytes[3]]));
    let leaf = u16::from_le_bytes([bytes[6], bytes[7]]) == 0;
    if count == 0 {
        return None;
    }
    let index = random.index(count);
    let entry = bytes.get_mut((1 + index) * ENTRY_SIZE..(2 + index) * ENTRY_SIZE)?;
    let (low, high) = ((target as u32).to_le_bytes(), ((target >> 32) as u16).to_le_bytes());
    let (low_at, high_at) = if leaf { (8, 6) } else { (4, 8) };
    entry[low_at..low_at + 4].copy_from_slice(&low);
    entry[high_at..high_at + 2].copy_from_slice(&high);
    match node {
        Some(node) => seal::extent_node(image, survey, node.place, node.seed),
        None => seal::inode(image, survey, owner),
    }
    let place = node.map_or("the root".to_string(), |node| format!("block {}", node.place));
    Some(format!("extent tree of inode {owner}: entry {index} of {place} points at block {target}"))
}

/// A pointer of a pointer block, or of an inode without extents.
pub(super) fn pointer(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let node = *random.pick(&survey.pointer_blocks)?;
    let target = match random.below(3) {
        0 => node.place.0,
        1 => survey.metadata_block(random),
        _ => value::hostile(0, 4, Some(survey), random),
    } as u32;
    let bytes = block_mut(image, survey, node.place)?;
    let index = if random.chance(1, 2) { random.index(4) } else { random.index(bytes.len() / 4) };
    bytes[index * 4..index * 4 + 4].copy_from_slice(&target.to_le_bytes());
    Some(format!("pointer {index} in block {} of inode {} becomes {target:#x}", node.place, node.owner))
}

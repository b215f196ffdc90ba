//! Extent trees and block maps: which blocks a file has.

use std::collections::HashSet;

use onggi_disk_format::ext4::{Extent, ExtentNode, Inode, InodeFlags, extent, inode_seed};
use onggi_disk_format::{DiskBlock, InodeNr};

use crate::CheckError;
use crate::fix::Fix;
use crate::report::Code;
use crate::volume::Volume;

const DIRECT: usize = 12;

/// Blocks of a file side by side on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) block: u32,
    pub(crate) len: u32,
    pub(crate) start: DiskBlock,
    pub(crate) unwritten: bool,
}

impl Run {
    /// The logical block after the last.
    pub(crate) fn end(&self) -> u64 {
        u64::from(self.block) + u64::from(self.len)
    }
}

/// A broken rule.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) what: String,
    pub(crate) fix: Fix,
}

/// The blocks of a file.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    /// In logical order, as far as the map is sound.
    pub(crate) runs: Vec<Run>,
    /// Extent or indirect blocks.
    pub(crate) nodes: u64,
    pub(crate) faults: Vec<Fault>,
}

impl Mapping {
    pub(crate) fn blocks(&self) -> u64 {
        self.nodes + self.runs.iter().map(|run| u64::from(run.len)).sum::<u64>()
    }

    /// Logical end of the last block.
    pub(crate) fn end(&self) -> u64 {
        self.runs.last().map_or(0, Run::end)
    }
}

/// Collects the blocks of an inode without claiming them. A node is read once.
pub(crate) fn map_alone(volume: &Volume<'_>, nr: InodeNr, inode: &Inode) -> Result<Mapping, CheckError> {
    let mut seen = HashSet::new();
    map(volume, nr, inode, &mut |block| seen.insert(block))
}

struct Walk<'a, 'd> {
    volume: &'a Volume<'d>,
    nr: InodeNr,
    seed: u32,
    /// Claims an extent or indirect block; `false` forbids the descent.
    enter: &'a mut dyn FnMut(DiskBlock) -> bool,
    mapping: Mapping,
}

/// Collects the blocks of an inode. Every node is passed to `enter` first.
pub(crate) fn map(
    volume: &Volume<'_>,
    nr: InodeNr,
    inode: &Inode,
    enter: &mut dyn FnMut(DiskBlock) -> bool,
) -> Result<Mapping, CheckError> {
    let seed = inode_seed(volume.sb.csum_seed(), nr, inode.generation);
    let mut walk = Walk { volume, nr, seed, enter, mapping: Mapping::default() };
    if inode.flags.contains(InodeFlags::EXTENTS) {
        walk.extents(&inode.i_block, None, None)?;
    } else {
        walk.block_map(inode)?;
    }
    Ok(walk.mapping)
}

impl Walk<'_, '_> {
    fn fault(&mut self, code: Code, what: String, fix: Fix) {
        self.mapping.faults.push(Fault { code, what, fix });
    }

    fn broken(&mut self, what: String) {
        self.fault(Code::Mapping, what, Fix::ResetMap(self.nr));
    }

    /// `range` is what the parent leaves to this node: first logical block and end.
    fn extents(
        &mut self,
        bytes: &[u8],
        depth: Option<u16>,
        range: Option<(u32, u64)>,
    ) -> Result<(), CheckError> {
        let node = match ExtentNode::parse(&self.volume.sb, bytes, depth) {
            Ok(node) => node,
            Err(error) => {
                self.broken(error.to_string());
                return Ok(());
            }
        };
        // Two entries at the end of a block may be left for other uses.
        let room = extent::capacity(bytes.len());
        if usize::from(node.max) + 2 < room {
            self.broken(format!("an extent node counts room for {} entries where {room} fit", node.max));
        }
        let first = node
            .extents()
            .first()
            .map(|extent| extent.block)
            .or_else(|| node.children().first().map(|child| child.block));
        if let (Some((start, _)), Some(first)) = (range, first)
            && first.0 != start
        {
            self.broken(format!("an extent node starts at logical block {first}, its parent says {start}"));
            return Ok(());
        }
        if let (Some((_, end)), Some(last)) = (range, node.extents().last())
            && last.end() > end
        {
            self.broken(format!("extents run to logical block {}, past their parent's {end}", last.end()));
            return Ok(());
        }
        self.mapping.runs.extend(node.extents().iter().map(run_of));
        for (index, child) in node.children().iter().enumerate() {
            let next = node.children().get(index + 1).map(|next| u64::from(next.block.0));
            let end = next.or(range.map(|range| range.1)).unwrap_or(u64::from(u32::MAX));
            self.mapping.nodes += 1;
            if !(self.enter)(child.child) {
                continue;
            }
            let block = self.volume.read(child.child, 1)?;
            if self.volume.sb.has_metadata_csum()
                && let Err(error) = extent::verify_checksum(&block, self.seed)
            {
                let what = format!("block {}: {error}", child.child);
                let fix = Fix::ExtentChecksum(child.child, self.seed);
                self.fault(Code::MappingChecksum, what, fix);
            }
            self.extents(&block, Some(node.depth - 1), Some((child.block.0, end)))?;
        }
        Ok(())
    }

    fn block_map(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let pointers = words(&inode.i_block);
        for (block, &pointer) in pointers[..DIRECT].iter().enumerate() {
            self.data(block as u64, pointer);
        }
        let per_block = self.volume.block_size() as u64 / 4;
        let mut first = DIRECT as u64;
        for (level, &pointer) in (1..).zip(&pointers[DIRECT..]) {
            self.indirect(first, pointer, level)?;
            first += per_block.pow(level);
        }
        Ok(())
    }

    fn indirect(&mut self, first: u64, pointer: u32, level: u32) -> Result<(), CheckError> {
        if pointer == 0 {
            return Ok(());
        }
        let block = DiskBlock(u64::from(pointer));
        if !self.volume.sb.contains_blocks(block, 1) {
            self.broken(format!("indirect block {block} does not lie on the volume"));
            return Ok(());
        }
        self.mapping.nodes += 1;
        if !(self.enter)(block) {
            return Ok(());
        }
        let pointers = words(&self.volume.read(block, 1)?);
        let span = (self.volume.block_size() as u64 / 4).pow(level - 1);
        for (index, &pointer) in (0u64..).zip(&pointers) {
            let at = first + index * span;
            if level == 1 {
                self.data(at, pointer);
            } else {
                self.indirect(at, pointer, level - 1)?;
            }
        }
        Ok(())
    }

    fn data(&mut self, at: u64, pointer: u32) {
        if pointer == 0 {
            return;
        }
        let start = DiskBlock(u64::from(pointer));
        let Ok(block) = u32::try_from(at) else { return };
        if !self.volume.sb.contains_blocks(start, 1) {
            self.broken(format!("block {block} lies at {start}, off the volume"));
            return;
        }
        if let Some(last) = self.mapping.runs.last_mut()
            && last.end() == at
            && last.start.0 + u64::from(last.len) == start.0
        {
            last.len += 1;
            return;
        }
        self.mapping.runs.push(Run { block, len: 1, start, unwritten: false });
    }
}

fn run_of(extent: &Extent) -> Run {
    Run {
        block: extent.block.0,
        len: u32::from(extent.len),
        start: extent.start,
        unwritten: extent.unwritten,
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

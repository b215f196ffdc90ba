//! The index of a hashed directory.

use onggi_disk_format::ext4::Incompat;
use onggi_disk_format::ext4::dirhash::HashVersion;
use onggi_disk_format::ext4::htree::{DxNode, HtreeError};
use onggi_disk_format::{FileBlock, InodeNr};

use super::Analysis;
use super::mapping::Run;
use crate::CheckError;
use crate::fix::Fix;
use crate::report::{Code, Place};

/// What the index says of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Entries, with any hash.
    Plain,
    /// A block of the index.
    Index,
    /// Entries with hashes in this range, both ends included.
    Leaf { low: u32, high: u32 },
}

/// The roles of a directory's blocks.
pub(super) struct Roles {
    pub(super) version: Option<HashVersion>,
    roles: Vec<Role>,
}

impl Roles {
    pub(super) fn of(&self, block: u32) -> Role {
        self.roles.get(block as usize).copied().unwrap_or(Role::Plain)
    }
}

struct Walk {
    dir: InodeNr,
    index: usize,
    seed: Option<u32>,
    roles: Vec<Option<Role>>,
}

impl Analysis<'_, '_> {
    /// Walks the index; a plain directory has none.
    pub(super) fn check_htree(&mut self, index: usize) -> Result<Roles, CheckError> {
        let plain = Roles { version: None, roles: Vec::new() };
        let directory = &self.directories[index];
        if !directory.hashed {
            return Ok(plain);
        }
        let (dir, seed) = (directory.nr, directory.seed);
        let blocks = directory.runs.last().map_or(0, Run::end);
        let present: u64 = directory.runs.iter().map(|run| u64::from(run.len)).sum();
        if blocks != present || blocks > self.volume.sb.blocks_count() {
            // Holes are reported elsewhere.
            return Ok(plain);
        }
        let Some(place) = directory.locate(0) else { return Ok(plain) };
        let block = self.volume.read(place, 1)?;
        let root = match DxNode::parse_root(&block, seed) {
            Ok(root) => root,
            Err(error) => {
                self.bad_index(dir, 0, &error);
                let checksum_only = matches!(error, HtreeError::Checksum { .. });
                let Some(root) = checksum_only.then(|| unchecked_root(&block, seed)).flatten() else {
                    return Ok(plain);
                };
                root
            }
        };
        let Some(info) = root.root else { return Ok(plain) };
        let version = HashVersion::from_stored(info.hash_version, self.volume.sb.hash_unsigned());
        let deepest = if self.volume.sb.incompat().contains(Incompat::LARGEDIR) { 2 } else { 1 };
        if info.levels > deepest || version.is_none() {
            self.bad_index(dir, 0, &HtreeError::Levels(info.levels));
            return Ok(plain);
        }
        let mut walk = Walk { dir, index, seed, roles: vec![None; blocks as usize] };
        if let Some(slot) = walk.roles.first_mut() {
            *slot = Some(Role::Index);
        }
        self.walk_index(&mut walk, &root, info.levels, (0, u32::MAX))?;
        let Walk { roles, .. } = walk;
        if let Some(lost) = roles.iter().position(Option::is_none) {
            let place = Place::Directory { dir, block: FileBlock(lost as u32) };
            self.problem(Code::Htree, place, "the index leaves this block out", Some(Fix::Unindex(dir)));
        }
        let roles = roles.into_iter().map(|role| role.unwrap_or(Role::Plain)).collect();
        Ok(Roles { version, roles })
    }

    fn bad_index(&mut self, dir: InodeNr, block: u32, error: &HtreeError) {
        let place = Place::Directory { dir, block: FileBlock(block) };
        self.problem(Code::Htree, place, error.to_string(), Some(Fix::Unindex(dir)));
    }

    /// `range` holds the first hash of `node` and its last.
    fn walk_index(
        &mut self,
        walk: &mut Walk,
        node: &DxNode,
        levels: u8,
        range: (u32, u32),
    ) -> Result<(), CheckError> {
        for (position, entry) in node.entries.iter().enumerate() {
            let low = if position == 0 { range.0 } else { entry.hash };
            let high = match node.entries.get(position + 1) {
                // A set low bit says that the hash without it began in the block before.
                Some(next) if next.hash & 1 == 1 => next.hash & !1,
                Some(next) => next.hash.saturating_sub(1),
                None => range.1,
            };
            let slot = walk.roles.get_mut(entry.block.0 as usize);
            let role = if levels == 0 { Role::Leaf { low: low & !1, high } } else { Role::Index };
            let fresh = match slot {
                Some(slot @ None) => {
                    *slot = Some(role);
                    true
                }
                _ => false,
            };
            if !fresh || low < range.0 || entry.hash > range.1 {
                let place = Place::Directory { dir: walk.dir, block: entry.block };
                let what = "the index names this block twice, out of order, or past the directory's end";
                self.problem(Code::Htree, place, what, Some(Fix::Unindex(walk.dir)));
                continue;
            }
            if levels == 0 {
                continue;
            }
            let Some(place) = self.directories[walk.index].locate(entry.block.0) else { continue };
            let block = self.volume.read(place, 1)?;
            match DxNode::parse_node(&block, walk.seed) {
                Ok(child) => self.walk_index(walk, &child, levels - 1, (low, high))?,
                Err(error) => self.bad_index(walk.dir, entry.block.0, &error),
            }
        }
        Ok(())
    }
}

/// A root whose checksum alone is wrong.
fn unchecked_root(block: &[u8], seed: Option<u32>) -> Option<DxNode> {
    let mut copy = block.to_vec();
    if let Some(seed) = seed {
        onggi_disk_format::ext4::htree::set_checksum(&mut copy, seed);
    }
    DxNode::parse_root(&copy, seed).ok()
}

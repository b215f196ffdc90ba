//! Directory blocks: their entries and whom they name.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use onggi_disk_format::ext4::dir::{self, DirEntryRef, DirError};
use onggi_disk_format::ext4::dirhash::HashVersion;
use onggi_disk_format::ext4::{FileType, Incompat, superblock};
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};

use super::Analysis;
use super::htree::Role;
use super::mapping::Run;
use crate::fix::Fix;
use crate::report::{Code, Place};
use crate::{CheckError, Pass};

/// Blocks read at once.
const CHUNK: u32 = 64;

/// A directory to be read.
pub(crate) struct Directory {
    pub(super) nr: InodeNr,
    /// Checksum seed of its blocks, where they have checksums.
    pub(super) seed: Option<u32>,
    pub(super) hashed: bool,
    pub(super) runs: Vec<Run>,
    /// Whom `..` names, and where it stands.
    pub(super) dotdot: Option<(InodeNr, DiskBlock, usize)>,
}

impl Directory {
    pub(super) fn new(nr: InodeNr, seed: Option<u32>, hashed: bool, runs: Vec<Run>) -> Self {
        Self { nr, seed, hashed, runs, dotdot: None }
    }

    /// Where block `at` lies.
    pub(super) fn locate(&self, at: u32) -> Option<DiskBlock> {
        let index = self.runs.partition_point(|run| run.end() <= u64::from(at));
        let run = self.runs.get(index)?;
        let within = at.checked_sub(run.block)?;
        Some(DiskBlock(run.start.0 + u64::from(within)))
    }
}

/// A block of a directory on its way through the check.
struct BlockOf<'a> {
    dir: InodeNr,
    index: usize,
    seed: Option<u32>,
    block: u32,
    place: DiskBlock,
    /// First and last hash allowed, in a leaf of a hashed directory.
    hashes: Option<(HashVersion, u32, u32)>,
    bytes: &'a [u8],
    has_tail: bool,
}

impl BlockOf<'_> {
    fn at(&self) -> Place {
        Place::Directory { dir: self.dir, block: FileBlock(self.block) }
    }

    fn remove(&self, offset: usize) -> Fix {
        Fix::RemoveEntry { place: self.place, seed: self.seed, offset }
    }

    fn set(&self, offset: usize, nr: InodeNr, kind: u8) -> Fix {
        Fix::SetEntry { place: self.place, seed: self.seed, offset, nr, kind }
    }
}

impl Analysis<'_, '_> {
    /// Reads every directory.
    pub(super) fn check_directories(&mut self) -> Result<(), CheckError> {
        let total = self.directories.len() as u64;
        for index in 0..self.directories.len() {
            self.check_directory(index)?;
            self.progress(Pass::Directories, index as u64 + 1, total);
        }
        Ok(())
    }

    fn check_directory(&mut self, index: usize) -> Result<(), CheckError> {
        let runs = std::mem::take(&mut self.directories[index].runs);
        let mut expected = 0;
        for run in &runs {
            let nr = self.directories[index].nr;
            if run.block != expected || run.unwritten {
                let what = format!("no block that can be read from block {expected} on");
                self.problem(Code::DirectoryHole, Place::Inode(nr), what, None);
            }
            expected = run.block.saturating_add(run.len);
        }
        self.directories[index].runs = runs;
        let roles = self.check_htree(index)?;
        let mut names = HashSet::new();
        for at in 0..self.directories[index].runs.len() {
            let run = self.directories[index].runs[at];
            let mut done = 0;
            while done < run.len && !run.unwritten {
                let count = CHUNK.min(run.len - done);
                let start = DiskBlock(run.start.0 + u64::from(done));
                let bytes = self.volume.read(start, count)?;
                let blocks = bytes.chunks_exact(self.volume.block_size());
                for (ahead, bytes) in (0..count).zip(blocks) {
                    let block = run.block + done + ahead;
                    let place = DiskBlock(start.0 + u64::from(ahead));
                    self.check_block(index, block, place, bytes, &roles, &mut names);
                }
                done += count;
            }
        }
        Ok(())
    }

    fn check_block(
        &mut self,
        index: usize,
        block: u32,
        place: DiskBlock,
        bytes: &[u8],
        roles: &super::htree::Roles,
        names: &mut HashSet<(u64, u64)>,
    ) {
        let Directory { nr: dir, seed, .. } = self.directories[index];
        let role = roles.of(block);
        let hashes = match role {
            Role::Leaf { low, high } => roles.version.map(|version| (version, low, high)),
            _ => None,
        };
        // An index block has its own checksum, verified on the way from the root.
        let has_tail = seed.is_some() && !matches!(role, Role::Index);
        let block = BlockOf { dir, index, seed, block, place, hashes, bytes, has_tail };
        if matches!(role, Role::Index) && block.block != 0 {
            return;
        }
        if let (true, Some(seed)) = (has_tail, seed)
            && let Err(error) = dir::verify_checksum(bytes, seed)
        {
            let fix = match error {
                DirError::NoTail => {
                    let keep = bytes.len() - dir::TAIL_SIZE;
                    Fix::CutDirectory { place, seed: Some(seed), keep }
                }
                _ => Fix::DirectoryChecksum { place, seed },
            };
            self.problem(Code::DirectoryChecksum, block.at(), error.to_string(), Some(fix));
        }
        self.check_entries(&block, names);
    }

    fn check_entries(&mut self, block: &BlockOf<'_>, names: &mut HashSet<(u64, u64)>) {
        let mut position = 0;
        for entry in dir::entries(block.bytes, u32::MAX, block.has_tail) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(error) => {
                    let keep = failed_at(&error);
                    let fix = if block.block == 0 && keep < 24 {
                        self.first_block(block)
                    } else {
                        Fix::CutDirectory { place: block.place, seed: block.seed, keep }
                    };
                    self.problem(Code::DirectoryBlock, block.at(), error.to_string(), Some(fix));
                    break;
                }
            };
            if block.block == 0 && position < 2 {
                if !self.check_dots(block, position, &entry) {
                    break;
                }
            } else if entry.inode.0 != 0 {
                self.check_entry(block, &entry, names);
            }
            position += 1;
        }
        if block.block == 0 && position < 2 {
            let fix = self.first_block(block);
            self.problem(Code::DotEntries, block.at(), "does not start with '.' and '..'", Some(fix));
        }
    }

    fn first_block(&self, block: &BlockOf<'_>) -> Fix {
        let parent = self.find(block.dir).map_or(InodeNr(0), |index| self.records[index].parent);
        let parent = if parent.0 == 0 { superblock::ROOT_INODE } else { parent };
        Fix::FirstBlock { place: block.place, seed: block.seed, dir: block.dir, parent }
    }

    /// Checks `.` (position 0) or `..`. `false` when the block has to be made anew.
    fn check_dots(&mut self, block: &BlockOf<'_>, position: usize, entry: &DirEntryRef<'_>) -> bool {
        let expected: &[u8] = if position == 0 { b"." } else { b".." };
        if entry.name != expected || entry.inode.0 == 0 {
            return false;
        }
        let kind = self.stored_kind(FileType::Directory);
        if entry.kind != kind {
            let what = format!("'{}' is stored as file type {}", text(entry.name), entry.kind);
            let fix = block.set(entry.offset, entry.inode, kind);
            self.problem(Code::EntryType, block.at(), what, Some(fix));
        }
        let end = entry.offset + dir::ENTRY_HEADER + entry.name.len();
        if block.bytes[end] != 0 {
            let what = format!("no zero behind '{}'", text(entry.name));
            let fix = block.set(entry.offset, entry.inode, kind);
            self.problem(Code::DotEntries, block.at(), what, Some(fix));
        }
        if position == 0 {
            if entry.inode != block.dir {
                let what = format!("'.' names inode {}", entry.inode);
                let fix = block.set(entry.offset, block.dir, kind);
                self.problem(Code::DotEntries, block.at(), what, Some(fix));
            }
        } else {
            self.directories[block.index].dotdot = Some((entry.inode, block.place, entry.offset));
        }
        if let Some(target) = self.find(entry.inode) {
            self.records[target].names += 1;
        }
        true
    }

    fn stored_kind(&self, kind: FileType) -> u8 {
        if self.volume.sb.incompat().contains(Incompat::FILETYPE) { kind as u8 } else { 0 }
    }

    fn check_entry(&mut self, block: &BlockOf<'_>, entry: &DirEntryRef<'_>, names: &mut HashSet<(u64, u64)>) {
        let sb = &self.volume.sb;
        let name = entry.name;
        let remove = || Some(block.remove(entry.offset));
        self.stats.names += 1;
        if name == b"." || name == b".." {
            let what = format!("another '{}'", text(name));
            self.problem(Code::DotEntries, block.at(), what, remove());
            return;
        }
        if !names.insert(fingerprint(name)) {
            let what = format!("'{}' stands twice", text(name));
            self.problem(Code::DuplicateName, block.at(), what, remove());
            return;
        }
        if let Some((version, low, high)) = block.hashes {
            let (hash, _) = version.hash(name, sb.hash_seed());
            if hash < low || hash > high {
                let what =
                    format!("the hash of '{}' is {hash:#x}, its block has {low:#x} to {high:#x}", text(name));
                self.problem(Code::Htree, block.at(), what, Some(Fix::Unindex(block.dir)));
            }
        }
        let target = if entry.inode < sb.first_inode() { None } else { self.find(entry.inode) };
        let Some(target) = target else {
            let what = format!("'{}' names inode {}, which no name may have", text(name), entry.inode);
            self.problem(Code::EntryInode, block.at(), what, remove());
            return;
        };
        let record = &mut self.records[target];
        if record.value.is_some() {
            let what =
                format!("'{}' names inode {}, which holds an attribute's value", text(name), entry.inode);
            self.problem(Code::EntryInode, block.at(), what, remove());
            return;
        }
        if record.kind == FileType::Directory {
            if record.parent.0 != 0 {
                let what = format!("'{}' is a second name of directory {}", text(name), entry.inode);
                self.problem(Code::DirectoryLinkedTwice, block.at(), what, remove());
                return;
            }
            record.parent = block.dir;
        }
        record.names += 1;
        let (kind, broken) = (record.kind, record.broken);
        let stored = self.stored_kind(kind);
        if !broken && entry.kind != stored {
            let what = format!("'{}' is stored as file type {}, not {stored}", text(name), entry.kind);
            let fix = block.set(entry.offset, entry.inode, stored);
            self.problem(Code::EntryType, block.at(), what, Some(fix));
        }
    }
}

/// The byte at which the chain of entries broke.
fn failed_at(error: &DirError) -> usize {
    match error {
        DirError::Truncated(offset) | DirError::Name(offset) => *offset,
        DirError::RecLen { offset, .. }
        | DirError::PastBlock { offset, .. }
        | DirError::InodeNumber { offset, .. } => *offset,
        _ => 0,
    }
}

/// 128 bits that stand for a name, so that the names themselves need not be kept.
fn fingerprint(name: &[u8]) -> (u64, u64) {
    let mut first = DefaultHasher::new();
    name.hash(&mut first);
    let mut second = first.clone();
    0x5au8.hash(&mut second);
    (first.finish(), second.finish())
}

fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

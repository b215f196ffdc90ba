//! What a fresh volume holds: the root, `lost+found`, the resize inode, the journal, the orphan file.

use std::collections::BTreeMap;
use std::ops::Range;

use onggi_disk_format::ext4::superblock::{JOURNAL_INODE, RESIZE_INODE, ROOT_INODE};
use onggi_disk_format::ext4::{
    Compat, FileType, Incompat, Inode, InodeFlags, Superblock, Time, dir, inode, inode_seed, orphan,
};
use onggi_disk_format::jbd2::{self, JournalSuperblock};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

use crate::groups::GroupTables;
use crate::mapping::{self, Mapping};
use crate::output::Output;
use crate::space::SpaceMap;
use crate::{JournalSize, MkfsError, Options};

/// Sizes of the files that are not directories; 0 for none.
#[derive(Clone, Copy)]
pub(crate) struct FilePlan {
    pub(crate) journal_blocks: u32,
    pub(crate) orphan_blocks: u32,
}

/// Bytes that `lost+found` gets, as far as direct pointers reach.
const LOST_AND_FOUND: u32 = 16 << 10;
/// `s_jnl_backup_type`: `s_jnl_blocks` holds the journal inode's map and size.
const JOURNAL_BACKUP: u8 = 1;

/// A file of the fresh volume.
struct File {
    nr: InodeNr,
    inode: Inode,
    /// Blocks to write.
    blocks: Vec<(u64, Vec<u8>)>,
    /// Blocks to zero before.
    zero: Vec<Range<u64>>,
}

/// All of them, with their places.
pub(crate) struct Contents {
    files: Vec<File>,
}

impl Contents {
    /// Takes the blocks and fills in what the superblock says of them.
    pub(crate) fn place(
        sb: &mut Superblock,
        space: &mut SpaceMap,
        plan: &FilePlan,
        options: &Options,
    ) -> Result<Self, MkfsError> {
        let overhead = sb.blocks_count() - space.free() + u64::from(plan.journal_blocks);
        let lost_and_found = sb.first_inode();
        let mut files = vec![
            root(sb, space, options, lost_and_found)?,
            empty_directory(sb, space, options, lost_and_found)?,
        ];
        if sb.compat().contains(Compat::RESIZE_INODE) {
            files.push(resize_inode(sb, space, options)?);
        }
        if plan.journal_blocks > 0 {
            let file = journal(sb, space, options, plan.journal_blocks)?;
            let backup = journal_backup(&file.inode);
            sb.update(|raw| {
                raw.s_journal_inum.set(JOURNAL_INODE.0);
                raw.s_jnl_backup_type = JOURNAL_BACKUP;
                for (word, value) in raw.s_jnl_blocks.iter_mut().zip(backup) {
                    word.set(value);
                }
            })?;
            files.push(file);
        }
        if plan.orphan_blocks > 0 {
            let nr = InodeNr(lost_and_found.0 + 1);
            files.push(orphan_file(sb, space, options, nr, plan.orphan_blocks)?);
            sb.update(|raw| raw.s_orphan_file_inum.set(nr.0))?;
        }
        // Past 32 bits the kernel counts it itself.
        sb.update(|raw| raw.s_overhead_blocks.set(u32::try_from(overhead).unwrap_or(0)))?;
        Ok(Self { files })
    }

    /// The last inode in use; all before it are in use or reserved.
    pub(crate) fn last_inode(&self) -> InodeNr {
        self.files.iter().map(|file| file.nr).max().unwrap_or(ROOT_INODE)
    }

    /// Inodes in use in `group`: the first ones of its table.
    pub(crate) fn inodes_in(&self, sb: &Superblock, group: GroupNr) -> u32 {
        let before = u64::from(group.0) * u64::from(sb.inodes_per_group());
        let used = u64::from(self.last_inode().0).saturating_sub(before);
        used.min(u64::from(sb.inodes_per_group())) as u32
    }

    /// Directories in `group`.
    pub(crate) fn directories_in(&self, sb: &Superblock, group: GroupNr) -> u32 {
        let here = |file: &&File| sb.inode_location(file.nr).is_some_and(|at| at.group == group);
        let directory = |file: &&File| file.inode.kind() == FileType::Directory;
        self.files.iter().filter(here).filter(directory).count() as u32
    }

    /// Writes inodes and blocks.
    pub(crate) fn write(
        self,
        output: &mut Output<'_>,
        sb: &Superblock,
        tables: &GroupTables,
    ) -> Result<(), MkfsError> {
        let size = usize::from(sb.inode_size());
        let mut table: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for nr in (1..=self.last_inode().0).map(InodeNr) {
            let at = sb.inode_location(nr).ok_or(MkfsError::NoRoom("the first inodes"))?;
            let block = table
                .entry(tables.table_block(at.group, at.table_block))
                .or_insert_with(|| vec![0; sb.block_size() as usize]);
            let bytes = &mut block[at.byte..at.byte + size];
            match self.files.iter().find(|file| file.nr == nr) {
                Some(file) => file.inode.encode(sb, nr, bytes)?,
                None => inode::set_checksum(sb, nr, bytes),
            }
        }
        for run in self.files.iter().flat_map(|file| &file.zero) {
            output.zero(run.start, run.end - run.start)?;
        }
        for (block, bytes) in table.into_iter().chain(self.files.into_iter().flat_map(|file| file.blocks)) {
            output.write(block, bytes)?;
        }
        Ok(())
    }
}

/// An inode of `blocks` blocks, its map included.
fn new_inode(sb: &Superblock, options: &Options, mode: u16, size: u64, blocks: u64) -> Inode {
    let now = Time { sec: i64::try_from(options.now).unwrap_or(Time::MAX_SEC), nsec: 0 };
    Inode {
        mode,
        uid: 0,
        gid: 0,
        size,
        links_count: 1,
        blocks: blocks * u64::from(sb.block_size() / 512),
        flags: InodeFlags::default(),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        dtime: 0,
        generation: 0,
        file_acl: DiskBlock(0),
        i_block: [0; 60],
        version: 0,
        extra_isize: sb.want_extra_isize(),
        projid: 0,
    }
}

/// An inode whose data lie in `runs`.
fn mapped_inode(
    sb: &Superblock,
    options: &Options,
    mode: u16,
    runs: &[Range<u64>],
    mapping: &Mapping,
) -> Inode {
    let data: u64 = runs.iter().map(|run| run.end - run.start).sum();
    let size = data * u64::from(sb.block_size());
    let mut inode = new_inode(sb, options, mode, size, data + mapping.nodes.len() as u64);
    inode.flags.set(InodeFlags::EXTENTS, sb.incompat().contains(Incompat::EXTENTS));
    inode.i_block = mapping.i_block;
    inode
}

fn directory_kind(sb: &Superblock) -> u8 {
    if sb.incompat().contains(Incompat::FILETYPE) { FileType::Directory as u8 } else { 0 }
}

/// A directory of `count` blocks whose first is `first`.
fn directory(
    sb: &Superblock,
    space: &mut SpaceMap,
    options: &Options,
    nr: InodeNr,
    mode: u16,
    mut content: Vec<Vec<u8>>,
) -> Result<File, MkfsError> {
    let runs = space.take(0, content.len() as u64).ok_or(MkfsError::NoRoom("the first directories"))?;
    let mapping = mapping::map(sb, space, nr, &runs)?;
    if sb.has_metadata_csum() {
        let seed = inode_seed(sb.csum_seed(), nr, 0);
        for block in &mut content {
            dir::set_checksum(block, seed)?;
        }
    }
    let mut inode = mapped_inode(sb, options, FileType::Directory.mode_bits() | mode, &runs, &mapping);
    inode.links_count = 2;
    let places = runs.into_iter().flatten();
    let blocks = places.zip(content).chain(mapping.nodes).collect();
    Ok(File { nr, inode, blocks, zero: Vec::new() })
}

fn root(
    sb: &Superblock,
    space: &mut SpaceMap,
    options: &Options,
    lost_and_found: InodeNr,
) -> Result<File, MkfsError> {
    let mut block = vec![0; sb.block_size() as usize];
    let (tail, kind) = (sb.has_metadata_csum(), directory_kind(sb));
    dir::init_first_block(&mut block, tail, ROOT_INODE, ROOT_INODE, kind)?;
    dir::insert(&mut block, tail, b"lost+found", lost_and_found, kind)?;
    let perms = options.root_perms & 0o7777;
    let mut file = directory(sb, space, options, ROOT_INODE, perms, vec![block])?;
    file.inode.links_count = 3;
    (file.inode.uid, file.inode.gid) = options.root_owner;
    Ok(file)
}

/// `lost+found`: room for names without allocation.
fn empty_directory(
    sb: &Superblock,
    space: &mut SpaceMap,
    options: &Options,
    nr: InodeNr,
) -> Result<File, MkfsError> {
    let count = (LOST_AND_FOUND / sb.block_size()).clamp(2, 12);
    let mut content = Vec::new();
    for index in 0..count {
        let mut block = vec![0; sb.block_size() as usize];
        if index == 0 {
            let kind = directory_kind(sb);
            dir::init_first_block(&mut block, sb.has_metadata_csum(), nr, ROOT_INODE, kind)?;
        } else {
            dir::init_block(&mut block, sb.has_metadata_csum())?;
        }
        content.push(block);
    }
    directory(sb, space, options, nr, 0o700, content)
}

/// The resize inode: its double-indirect block points at the reserved descriptor blocks of group 0, each
/// of which points at its copies in the backup groups.
fn resize_inode(sb: &Superblock, space: &mut SpaceMap, options: &Options) -> Result<File, MkfsError> {
    let block_size = sb.block_size() as usize;
    let pointers = block_size / 4;
    let reserved = u32::from(sb.raw().s_reserved_gdt_blocks.get());
    let double = space.take_run(0..sb.blocks_count(), 1).ok_or(MkfsError::NoRoom("the resize inode"))?;
    let first = sb.descriptor_block(0).0 + u64::from(sb.descriptor_blocks());
    let backups: Vec<u64> = (1..sb.groups())
        .map(GroupNr)
        .filter(|&group| sb.has_super_backup(group))
        .map(|group| u64::from(group.0) * u64::from(sb.blocks_per_group()))
        .collect();
    let mut blocks = Vec::new();
    let mut root = vec![0; block_size];
    for index in 0..reserved {
        let primary = first + u64::from(index);
        let slot = (sb.descriptor_blocks() + index) as usize % pointers * 4;
        root[slot..slot + 4].copy_from_slice(&(primary as u32).to_le_bytes());
        let mut copies = vec![0; block_size];
        for (bytes, distance) in copies.chunks_exact_mut(4).zip(&backups) {
            bytes.copy_from_slice(&((primary + distance) as u32).to_le_bytes());
        }
        blocks.push((primary, copies));
    }
    blocks.push((double, root));
    let size = ((pointers * pointers + pointers + 12) * block_size) as u64;
    let count = 1 + u64::from(reserved) * (1 + backups.len() as u64);
    let mut inode = new_inode(sb, options, FileType::Regular.mode_bits() | 0o600, size, count);
    inode.i_block[13 * 4..14 * 4].copy_from_slice(&(double as u32).to_le_bytes());
    Ok(File { nr: RESIZE_INODE, inode, blocks, zero: Vec::new() })
}

/// A journal in the middle of the volume, empty and zeroed.
fn journal(sb: &Superblock, space: &mut SpaceMap, options: &Options, count: u32) -> Result<File, MkfsError> {
    let free = space.free();
    if options.journal != JournalSize::Default && u64::from(count) > free / 2 {
        return Err(MkfsError::JournalSize { blocks: u64::from(count), free });
    }
    let middle = sb.groups() / 2;
    let goal = sb.first_block_of_group(GroupNr(middle - middle % sb.groups_per_flex())).0;
    let runs = space.take(goal, u64::from(count)).ok_or(MkfsError::NoRoom("the journal"))?;
    let mapping = mapping::map(sb, space, JOURNAL_INODE, &runs)?;
    let inode = mapped_inode(sb, options, FileType::Regular.mode_bits() | 0o600, &runs, &mapping);
    let superblock =
        JournalSuperblock::new(sb.block_size(), count, jbd2::Incompat::default(), sb.uuid())?.encode();
    let mut first = vec![0; sb.block_size() as usize];
    first[..superblock.len()].copy_from_slice(&superblock);
    let mut blocks = mapping.nodes;
    blocks.push((runs[0].start, first));
    Ok(File { nr: JOURNAL_INODE, inode, blocks, zero: runs })
}

/// `s_jnl_blocks`: the journal inode's map, then its size, high word first.
fn journal_backup(inode: &Inode) -> [u32; 17] {
    let mut words = [0; 17];
    for (word, bytes) in words.iter_mut().zip(inode.i_block.chunks_exact(4)) {
        *word = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    words[15] = (inode.size >> 32) as u32;
    words[16] = inode.size as u32;
    words
}

fn orphan_file(
    sb: &Superblock,
    space: &mut SpaceMap,
    options: &Options,
    nr: InodeNr,
    count: u32,
) -> Result<File, MkfsError> {
    let runs = space.take(0, u64::from(count)).ok_or(MkfsError::NoRoom("the orphan file"))?;
    let mapping = mapping::map(sb, space, nr, &runs)?;
    let inode = mapped_inode(sb, options, FileType::Regular.mode_bits() | 0o600, &runs, &mapping);
    let seed = inode_seed(sb.csum_seed(), nr, 0);
    let mut blocks = mapping.nodes;
    for place in runs.iter().cloned().flatten() {
        let mut block = vec![0; sb.block_size() as usize];
        orphan::seal(&mut block, sb.has_metadata_csum().then_some((seed, DiskBlock(place))))?;
        blocks.push((place, block));
    }
    Ok(File { nr, inode, blocks, zero: Vec::new() })
}

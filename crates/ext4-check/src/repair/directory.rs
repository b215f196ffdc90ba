//! Changes of directories.

use onggi_disk_format::ext4::htree::{self, Shape};
use onggi_disk_format::ext4::{FileType, Incompat, Inode, InodeFlags, dir, inode_seed, superblock};
use onggi_disk_format::{DiskBlock, InodeNr};

use super::apply::{blocks_of, edit, edit_block, read_inode};
use crate::CheckError;
use crate::analysis::Outcome;
use crate::fix::Fix;
use crate::volume::Volume;

pub(super) fn apply(volume: &Volume<'_>, look: &Outcome, fix: &Fix) -> Result<bool, CheckError> {
    let kind = stored_kind(volume, FileType::Directory);
    match *fix {
        Fix::DirectoryChecksum { place, seed } => {
            edit_block(volume, place, |block| dir::set_checksum(block, seed).is_ok())
        }
        Fix::CutDirectory { place, seed, keep } => {
            edit_block(volume, place, |block| cut(block, seed, keep).is_some())
        }
        Fix::FirstBlock { place, seed, dir, parent } => edit_block(volume, place, |block| {
            let made = dir::init_first_block(block, seed.is_some(), dir, parent, kind);
            made.is_ok() && seal(block, seed)
        }),
        Fix::RemoveEntry { place, seed, offset } => edit_block(volume, place, |block| {
            dir::remove(block, has_tail(block, seed), offset) == Ok(true) && seal(block, seed)
        }),
        Fix::SetEntry { place, seed, offset, nr, kind } => edit_block(volume, place, |block| {
            let tail = has_tail(block, seed);
            let done = dir::replace(block, tail, offset, nr, kind) == Ok(true);
            if done {
                let len = usize::from(block[offset + 6]);
                block[offset + dir::ENTRY_HEADER + len..offset + dir::entry_size(len)].fill(0);
            }
            done && seal(block, seed)
        }),
        Fix::Unindex(nr) => unindex(volume, look, nr),
        Fix::Reconnect(nr) => reconnect(volume, look, nr),
        _ => Ok(false),
    }
}

fn stored_kind(volume: &Volume<'_>, kind: FileType) -> u8 {
    if volume.sb.incompat().contains(Incompat::FILETYPE) { kind as u8 } else { 0 }
}

/// An index block has no checksum entry at its end.
fn has_tail(block: &[u8], seed: Option<u32>) -> bool {
    seed.is_some() && htree::shape(block) == Shape::Leaf
}

/// Recomputes the checksum of an entry or index block.
fn seal(block: &mut [u8], seed: Option<u32>) -> bool {
    match seed {
        None => true,
        Some(seed) => dir::set_checksum(block, seed).is_ok() || htree::set_checksum(block, seed),
    }
}

/// Rebuilds a block from its entries before byte `keep`.
fn cut(block: &mut [u8], seed: Option<u32>, keep: usize) -> Option<()> {
    let tail = seed.is_some();
    let old = block.to_vec();
    let entries: Vec<_> = dir::entries(&old, u32::MAX, false)
        .map_while(Result::ok)
        .take_while(|entry| entry.offset < keep && entry.offset + dir::entry_size(entry.name.len()) <= keep)
        .collect();
    dir::init_block(block, tail).ok()?;
    for entry in entries.into_iter().filter(|entry| entry.inode.0 != 0) {
        // What no longer fits beside a checksum entry is lost.
        dir::insert(block, tail, entry.name, entry.inode, entry.kind).ok()?;
    }
    seal(block, seed).then_some(())
}

/// Makes every index block an ordinary one.
fn unindex(volume: &Volume<'_>, look: &Outcome, nr: InodeNr) -> Result<bool, CheckError> {
    let Some(inode) = read_inode(volume, look, nr)? else { return Ok(false) };
    if !inode.flags.contains(InodeFlags::INDEX) {
        return Ok(false);
    }
    let clear = |inode: &mut Inode| inode.flags.remove(InodeFlags::INDEX);
    if inode.kind() != FileType::Directory {
        return edit(volume, look, nr, clear);
    }
    let seed = seed_of(volume, nr, &inode);
    let kind = stored_kind(volume, FileType::Directory);
    for run in blocks_of(volume, nr, &inode)?.runs {
        for ahead in 0..run.len {
            let place = DiskBlock(run.start.0 + u64::from(ahead));
            edit_block(volume, place, |block| {
                let made = match htree::shape(block) {
                    Shape::Root if run.block + ahead == 0 => {
                        let word = |at: usize| {
                            u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
                        };
                        let parent = InodeNr(word(12));
                        dir::init_first_block(block, seed.is_some(), nr, parent, kind)
                    }
                    // Without checksums an empty leaf looks the same, and becomes the same.
                    Shape::Node => dir::init_block(block, seed.is_some()),
                    _ => return false,
                };
                made.is_ok() && seal(block, seed)
            })?;
        }
    }
    edit(volume, look, nr, clear)
}

fn seed_of(volume: &Volume<'_>, nr: InodeNr, inode: &Inode) -> Option<u32> {
    let seed = inode_seed(volume.sb.csum_seed(), nr, inode.generation);
    volume.sb.has_metadata_csum().then_some(seed)
}

/// Gives an inode the name `#number` in lost+found, where that has room. `..` and link counts follow.
fn reconnect(volume: &Volume<'_>, look: &Outcome, nr: InodeNr) -> Result<bool, CheckError> {
    let Some(home) = lost_and_found(volume, look)? else { return Ok(false) };
    let Some(inode) = read_inode(volume, look, home)? else { return Ok(false) };
    if home == nr || inode.kind() != FileType::Directory {
        return Ok(false);
    }
    unindex(volume, look, home)?;
    let Some(lost) = read_inode(volume, look, nr)? else { return Ok(false) };
    let seed = seed_of(volume, home, &inode);
    let name = format!("#{nr}");
    let kind = stored_kind(volume, lost.kind());
    for run in blocks_of(volume, home, &inode)?.runs {
        for ahead in 0..u64::from(run.len) {
            let done = edit_block(volume, DiskBlock(run.start.0 + ahead), |block| {
                let added = dir::insert(block, seed.is_some(), name.as_bytes(), nr, kind);
                matches!(added, Ok(Some(_))) && seal(block, seed)
            })?;
            if done {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn lost_and_found(volume: &Volume<'_>, look: &Outcome) -> Result<Option<InodeNr>, CheckError> {
    let root = superblock::ROOT_INODE;
    let Some(inode) = read_inode(volume, look, root)? else { return Ok(None) };
    for run in blocks_of(volume, root, &inode)?.runs {
        for ahead in 0..u64::from(run.len) {
            let block = volume.read(DiskBlock(run.start.0 + ahead), 1)?;
            let found = dir::entries(&block, volume.sb.inodes_count(), false)
                .map_while(Result::ok)
                .find(|entry| entry.name == b"lost+found" && entry.inode.0 != 0);
            if let Some(entry) = found {
                return Ok(Some(entry.inode));
            }
        }
    }
    Ok(None)
}

//! One block of a directory: finding it, checking it, looking through it, changing it.

use std::sync::Arc;

use onggi_disk_format::ext4::dir::{self as format, DirError};
use onggi_disk_format::ext4::htree::{self as htree_format, DxNode};
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};
use onggi_jbd2::Buffer;

use super::{Found, NewEntry};
use crate::extents::{self, Mapping};
use crate::{Handle, Volume, VolumeError};

/// A directory and the seed of its blocks' checksums, where they have any.
#[derive(Clone, Copy)]
pub(super) struct Dir<'a> {
    pub(super) volume: &'a Volume,
    pub(super) nr: InodeNr,
    pub(super) seed: Option<u32>,
}

/// What a block is to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Holds names.
    Leaf,
    /// Block 0 of an indexed directory.
    Root,
    /// An index block below the root.
    Node,
    /// One or the other: as it looks.
    Any,
}

/// A block that was read and checked.
#[derive(Clone)]
pub(super) struct Block {
    pub(super) nr: FileBlock,
    pub(super) buffer: Arc<Buffer>,
    /// It ends with a checksum entry (index blocks keep theirs elsewhere).
    pub(super) tail: bool,
}

/// A name in its block.
pub(super) struct Slot {
    pub(super) block: Block,
    pub(super) offset: usize,
    pub(super) found: Found,
}

/// Where a new entry can go in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// There is a gap.
    Gap,
    /// There is, once all gaps are put together.
    Scattered,
    /// There is none.
    None,
}

impl<'a> Dir<'a> {
    /// Where a block of the directory lies on the volume.
    pub(super) fn locate(&self, inode: &Inode, nr: FileBlock) -> Result<DiskBlock, VolumeError> {
        if nr.0 >= self.blocks(inode) {
            return Err(self.corrupt(nr, "the block lies past the directory's end"));
        }
        match extents::lookup(self.volume, self.nr, inode, nr)? {
            Mapping::Mapped { start, unwritten: false, .. } => Ok(start),
            _ => Err(self.corrupt(nr, "there is a hole")),
        }
    }

    /// Reads a block; the first time it comes into memory it is checked from end to end.
    pub(super) fn load(&self, inode: &Inode, nr: FileBlock, role: Role) -> Result<Block, VolumeError> {
        let place = self.locate(inode, nr)?;
        let buffer = self.volume.buffers.read(place)?;
        let role = match (role, self.seed) {
            // Without checksums nothing tells an index block from an empty leaf, nor needs to.
            (Role::Any, None) => Role::Leaf,
            (Role::Any, Some(_)) => htree_format::shape(&buffer.snapshot()).into(),
            _ => role,
        };
        buffer.verify_once(|bytes| self.check(nr, role, bytes))?;
        Ok(Block { nr, buffer, tail: self.seed.is_some() && role == Role::Leaf })
    }

    fn check(&self, nr: FileBlock, role: Role, bytes: &[u8]) -> Result<(), VolumeError> {
        match role {
            Role::Root => {
                DxNode::parse_root(bytes, self.seed).map(|_| ()).map_err(|rule| self.corrupt(nr, rule))
            }
            Role::Node => {
                DxNode::parse_node(bytes, self.seed).map(|_| ()).map_err(|rule| self.corrupt(nr, rule))
            }
            Role::Leaf | Role::Any => self.check_leaf(bytes).map_err(|rule| self.corrupt(nr, rule)),
        }
    }

    fn check_leaf(&self, bytes: &[u8]) -> Result<(), DirError> {
        if let Some(seed) = self.seed {
            format::verify_checksum(bytes, seed)?;
        }
        let inodes = self.volume.sb.inodes_count();
        format::entries(bytes, inodes, self.seed.is_some()).try_for_each(|entry| entry.map(|_| ()))
    }

    /// The entries of `bytes`, a copy of `block`, those in use.
    pub(super) fn live<'b>(
        &self,
        block: &Block,
        bytes: &'b [u8],
    ) -> impl Iterator<Item = Result<format::DirEntryRef<'b>, VolumeError>> + use<'a, 'b> {
        let (dir, nr) = (*self, block.nr);
        format::entries(bytes, self.volume.sb.inodes_count(), block.tail)
            .filter(|entry| !matches!(entry, Ok(entry) if entry.inode.0 == 0))
            .map(move |entry| entry.map_err(|rule| dir.corrupt(nr, rule)))
    }

    /// Looks for a name in a block.
    pub(super) fn scan(&self, block: Block, name: &[u8]) -> Result<Option<Slot>, VolumeError> {
        let bytes = block.buffer.snapshot();
        for entry in self.live(&block, &bytes) {
            let entry = entry?;
            if entry.name == name {
                let found = Found { inode: entry.inode, kind: self.stored_kind(entry.kind) };
                let offset = entry.offset;
                return Ok(Some(Slot { block, offset, found }));
            }
        }
        Ok(None)
    }

    /// Says whether a name fits a block.
    ///
    /// # Errors
    /// [`VolumeError::Exists`] where it is there already.
    pub(super) fn survey(&self, block: &Block, name: &[u8]) -> Result<Room, VolumeError> {
        let bytes = block.buffer.snapshot();
        let needed = format::entry_size(name.len());
        let (mut gap, mut free) = (false, 0);
        for entry in format::entries(&bytes, self.volume.sb.inodes_count(), block.tail) {
            let entry = entry.map_err(|rule| self.corrupt(block.nr, rule))?;
            let used = match entry.inode.0 {
                0 => 0,
                _ if entry.name == name => return Err(VolumeError::Exists),
                _ => format::entry_size(entry.name.len()),
            };
            gap |= entry.rec_len - used >= needed;
            free += entry.rec_len - used;
        }
        Ok(match (gap, free >= needed) {
            (true, _) => Room::Gap,
            (false, true) => Room::Scattered,
            (false, false) => Room::None,
        })
    }

    /// Bytes for entries in a leaf.
    pub(super) fn leaf_room(&self) -> usize {
        self.volume.block_size() as usize - if self.seed.is_some() { format::TAIL_SIZE } else { 0 }
    }

    /// Changes a block that holds names and renews its checksum. `change` gets the bytes and whether a
    /// checksum entry ends them, and says whether it found what it was to change.
    pub(super) fn change(
        &self,
        h: &mut Handle<'_>,
        block: &Block,
        change: impl FnOnce(&mut [u8], bool) -> Result<bool, DirError>,
    ) -> Result<(), VolumeError> {
        let done: Result<bool, DirError> = h.modify(&block.buffer, |bytes| {
            let done = change(bytes, block.tail)?;
            match self.seed {
                Some(seed) if block.tail => format::set_checksum(bytes, seed)?,
                Some(seed) if !htree_format::set_checksum(bytes, seed) => return Ok(false),
                _ => {}
            }
            Ok(done)
        })?;
        match done {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.corrupt(block.nr, "an entry moved under the directory's lock")),
            Err(rule) => Err(self.corrupt(block.nr, rule)),
        }
    }

    /// Puts an entry into a gap that [`Dir::survey`] has seen.
    pub(super) fn put(
        &self,
        h: &mut Handle<'_>,
        block: &Block,
        new: &NewEntry<'_>,
    ) -> Result<(), VolumeError> {
        self.change(h, block, |bytes, tail| {
            format::insert(bytes, tail, new.name, new.target, new.kind).map(|at| at.is_some())
        })
    }

    /// Makes a block hold exactly these entries, in this order and without gaps.
    pub(super) fn fill<'b>(
        &self,
        h: &mut Handle<'_>,
        block: &Block,
        entries: impl Iterator<Item = &'b Entry<'b>>,
    ) -> Result<(), VolumeError> {
        self.change(h, block, |bytes, tail| {
            format::init_block(bytes, tail)?;
            for entry in entries {
                if format::insert(bytes, tail, entry.name, entry.inode, entry.kind)?.is_none() {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Puts a block's gaps together and adds an entry behind the others.
    pub(super) fn compact(
        &self,
        h: &mut Handle<'_>,
        block: &Block,
        new: &NewEntry<'_>,
    ) -> Result<(), VolumeError> {
        let bytes = block.buffer.snapshot();
        let mut all = Vec::new();
        for entry in self.live(block, &bytes) {
            let entry = entry?;
            all.push(Entry { hash: 0, inode: entry.inode, kind: entry.kind, name: entry.name });
        }
        all.push(Entry { hash: 0, inode: new.target, kind: new.kind, name: new.name });
        self.fill(h, block, all.iter())
    }
}

/// An entry on its way to another place.
pub(super) struct Entry<'a> {
    pub(super) hash: u32,
    pub(super) inode: InodeNr,
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
}

impl Entry<'_> {
    /// Bytes it takes.
    pub(super) fn size(&self) -> usize {
        format::entry_size(self.name.len())
    }
}

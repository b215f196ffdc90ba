//! Directories: names to inode numbers.
//!
//! The caller holds the directory's lock: shared for [`lookup`], [`read`], [`parent`], [`is_empty`],
//! exclusive for the rest. Functions that take `&mut Inode` change its size, space and flags in memory;
//! the caller writes it in the same handle. Times and link counts are the caller's.
//!
//! Format: `Documentation/filesystems/ext4/directory.rst`.

mod append;
mod block;
mod htree;
mod index;
mod linear;
mod read;
mod split;

use onggi_disk_format::ext4::inode::{Inode, InodeFlags};
use onggi_disk_format::ext4::{Compat, FileType, Incompat, dir as format, htree as htree_format};
use onggi_disk_format::{FileBlock, InodeNr};

pub use read::{RawEntry, read};

use crate::{Handle, Place, Volume, VolumeError, alloc, extents};
use block::{Dir, Role};

/// Blocks that [`remove`], [`replace`] and [`set_parent`] change each.
pub const CREDITS_CHANGE: u32 = 1;

/// Most blocks that one [`insert`] adds to a directory: a leaf and an index node on each of three levels.
const MOST_NEW_BLOCKS: u32 = 4;

/// Most blocks that one [`insert`] or [`init`] into this directory changes, its own inode left out.
#[must_use]
pub fn credits_for_insert(inode: &Inode) -> u32 {
    // The leaf, three index blocks and what is new; the allocator's and the extent tree's for the new.
    let touched = 4 + MOST_NEW_BLOCKS;
    touched + MOST_NEW_BLOCKS * alloc::CREDITS_MARK_USED + extents::credits_for_insert(inode, MOST_NEW_BLOCKS)
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The inode.
    pub inode: InodeNr,
    /// The stored file type ([`FileType::from_stored`]); 0 on volumes without `filetype`.
    pub kind: u8,
}

/// Finds a name, `.` and `..` included.
///
/// # Errors
/// A broken or unsupported directory; the device's.
pub fn lookup(
    volume: &Volume,
    nr: InodeNr,
    inode: &Inode,
    name: &[u8],
) -> Result<Option<Found>, VolumeError> {
    let dir = Dir::open(volume, nr, inode)?;
    Ok(dir.find(inode, name)?.map(|slot| slot.found))
}

/// Adds a name. The directory is unchanged when it fails for lack of space.
///
/// # Errors
/// [`VolumeError::NoSpace`], also where the index can grow no deeper; [`VolumeError::Exists`] where the
/// block that takes the name has it already (the caller looks first); a broken directory.
pub fn insert(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    name: &[u8],
    target: InodeNr,
    kind: u8,
) -> Result<(), VolumeError> {
    if name.is_empty() || name.len() > format::MAX_NAME {
        return Err(VolumeError::Limit("names have 1 to 255 bytes"));
    }
    let dir = Dir::open(volume, nr, inode)?;
    let new = NewEntry { name, target, kind: dir.stored_kind(kind) };
    if dir.is_indexed(inode) {
        return dir.insert_indexed(h, inode, &new);
    }
    if inode.flags.contains(InodeFlags::INDEX) {
        // Without the feature the index is dead weight, which checksums would not survive.
        if dir.seed.is_some() {
            return Err(VolumeError::Unsupported { feature: "dir_index" });
        }
        inode.flags.remove(InodeFlags::INDEX);
    }
    dir.insert_linear(h, inode, &new)
}

/// Removes a name and says what it stood for.
///
/// # Errors
/// [`VolumeError::Missing`]; a broken directory; the device's, the journal's.
pub fn remove(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    name: &[u8],
) -> Result<Found, VolumeError> {
    let dir = Dir::open(volume, nr, inode)?;
    let slot = dir.find(inode, name)?.ok_or(VolumeError::Missing)?;
    dir.change(h, &slot.block, |bytes, tail| format::remove(bytes, tail, slot.offset))?;
    Ok(slot.found)
}

/// Points an existing name at another inode and says what it stood for.
///
/// # Errors
/// As [`remove`].
pub fn replace(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    name: &[u8],
    target: InodeNr,
    kind: u8,
) -> Result<Found, VolumeError> {
    let dir = Dir::open(volume, nr, inode)?;
    let slot = dir.find(inode, name)?.ok_or(VolumeError::Missing)?;
    let kind = dir.stored_kind(kind);
    dir.change(h, &slot.block, |bytes, tail| format::replace(bytes, tail, slot.offset, target, kind))?;
    Ok(slot.found)
}

/// Gives a new, empty directory its first block, with `.` and `..`.
///
/// # Errors
/// [`VolumeError::NoSpace`]; the device's, the journal's.
pub fn init(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    parent: InodeNr,
) -> Result<(), VolumeError> {
    let dir = Dir::new(volume, nr, inode)?;
    let kind = dir.stored_kind(FileType::Directory as u8);
    let block = dir.append(h, inode, 1)?.remove(0);
    dir.change(h, &block, |bytes, tail| {
        format::init_first_block(bytes, tail, nr, parent, kind).map(|()| true)
    })
}

/// The directory that `..` names.
///
/// # Errors
/// A directory without `..` in its first block; the device's.
pub fn parent(volume: &Volume, nr: InodeNr, inode: &Inode) -> Result<InodeNr, VolumeError> {
    let dir = Dir::open(volume, nr, inode)?;
    let slot = dir.find(inode, b"..")?.ok_or_else(|| dir.corrupt(FileBlock(0), "there is no '..'"))?;
    Ok(slot.found.inode)
}

/// Makes `..` name another directory.
///
/// # Errors
/// As [`parent`]; the journal's.
pub fn set_parent(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    parent: InodeNr,
) -> Result<(), VolumeError> {
    replace(volume, h, nr, inode, b"..", parent, FileType::Directory as u8).map(|_| ()).map_err(|error| {
        match error {
            VolumeError::Missing => {
                VolumeError::corrupt("directory", Place::FileBlock(nr, 0), "there is no '..'")
            }
            other => other,
        }
    })
}

/// Whether nothing but `.` and `..` is left.
///
/// # Errors
/// A broken directory; the device's.
pub fn is_empty(volume: &Volume, nr: InodeNr, inode: &Inode) -> Result<bool, VolumeError> {
    Dir::open(volume, nr, inode)?.is_empty(inode)
}

/// An entry to be made; `kind` as stored.
struct NewEntry<'a> {
    name: &'a [u8],
    target: InodeNr,
    kind: u8,
}

impl<'a> Dir<'a> {
    /// What there is of a directory before its first block.
    fn new(volume: &'a Volume, nr: InodeNr, inode: &Inode) -> Result<Self, VolumeError> {
        for (flag, feature) in [
            (InodeFlags::CASEFOLD, "casefold"),
            (InodeFlags::ENCRYPT, "encrypt"),
            (InodeFlags::INLINE_DATA, "inline_data"),
        ] {
            if inode.flags.contains(flag) {
                return Err(VolumeError::Unsupported { feature });
            }
        }
        let sb = &volume.sb;
        let seed = sb
            .has_metadata_csum()
            .then(|| onggi_disk_format::ext4::inode_seed(sb.csum_seed(), nr, inode.generation));
        Ok(Self { volume, nr, seed })
    }

    /// A directory that has blocks.
    fn open(volume: &'a Volume, nr: InodeNr, inode: &Inode) -> Result<Self, VolumeError> {
        let dir = Self::new(volume, nr, inode)?;
        let block_size = u64::from(volume.block_size());
        let place = Place::Inode(nr);
        if inode.size == 0 || !inode.size.is_multiple_of(block_size) {
            return Err(VolumeError::corrupt(
                "directory",
                place,
                "its size is not whole blocks, at least one",
            ));
        }
        if inode.size / block_size > u64::from(u32::MAX) {
            return Err(VolumeError::corrupt("directory", place, "its size is past 2^32 blocks"));
        }
        Ok(dir)
    }

    /// Blocks the directory has.
    fn blocks(&self, inode: &Inode) -> u32 {
        // `open` checked that it fits.
        (inode.size / u64::from(self.volume.block_size())) as u32
    }

    fn has_dir_index(&self) -> bool {
        self.volume.sb.compat().contains(Compat::DIR_INDEX)
    }

    /// Whether names are found through an index.
    fn is_indexed(&self, inode: &Inode) -> bool {
        self.has_dir_index() && inode.flags.contains(InodeFlags::INDEX)
    }

    /// Whether names are listed by hash, so that entries may move between and within blocks.
    fn is_hash_ordered(&self, inode: &Inode) -> bool {
        self.has_dir_index() && (self.blocks(inode) == 1 || inode.flags.contains(InodeFlags::INDEX))
    }

    fn stored_kind(&self, kind: u8) -> u8 {
        if self.volume.sb.incompat().contains(Incompat::FILETYPE) { kind } else { 0 }
    }

    fn find(&self, inode: &Inode, name: &[u8]) -> Result<Option<block::Slot>, VolumeError> {
        if !self.is_indexed(inode) {
            return self.find_linear(inode, name);
        }
        if name == b"." || name == b".." {
            let root = self.load(inode, FileBlock(0), Role::Root)?;
            return self.scan(root, name);
        }
        self.find_indexed(inode, name)
    }

    fn corrupt(&self, block: FileBlock, rule: impl std::fmt::Display) -> VolumeError {
        VolumeError::corrupt("directory", Place::FileBlock(self.nr, block.0), rule)
    }
}

impl From<htree_format::Shape> for Role {
    fn from(shape: htree_format::Shape) -> Self {
        match shape {
            htree_format::Shape::Root => Self::Root,
            htree_format::Shape::Node => Self::Node,
            htree_format::Shape::Leaf => Self::Leaf,
        }
    }
}

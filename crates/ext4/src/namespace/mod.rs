//! Names: making, removing and moving them.
//!
//! Locks: a directory's `ops` exclusively for the time of the change, parent before child; two directories
//! of a rename in the order that `rename` tells. Inodes' `state` only inside, one at a time, with the
//! handle open.

mod create;
mod link;
mod remove;
mod rename;

use std::sync::Arc;

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::FileType;
use onggi_ext4_volume::dir::{self, Found};
use onggi_ext4_volume::{Handle, Place, VolumeError};
use onggi_vfs::{Context, Errno, FileKind, Ino};

use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::error::through_the_door;
use crate::inode::Inode;

/// Most names a file may have.
pub(crate) const MOST_LINKS: u16 = 65_000;

impl Ext4 {
    pub(crate) fn directory(&self, ino: Ino) -> onggi_vfs::Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        if inode.is_dir() { Ok(inode) } else { Err(Errno::NOTDIR.into()) }
    }

    /// The directory that a name is looked for in.
    pub(crate) fn place(&self, ino: Ino, name: &[u8]) -> onggi_vfs::Result<Arc<Inode>> {
        if name.is_empty() { Err(Errno::NOENT.into()) } else { self.directory(ino) }
    }

    /// Looks up a name other than `.` and `..`. The caller holds the directory's `ops`.
    pub(crate) fn find(&self, dir: &Inode, name: &[u8]) -> onggi_vfs::Result<Option<Found>> {
        let state = dir.state.read();
        if state.disk.links_count == 0 {
            return Err(Errno::NOENT.into());
        }
        if name.len() > 255 {
            return Err(Errno::NAMETOOLONG.into());
        }
        dir::lookup(&self.volume, dir.nr, &state.disk, name).map_err(through_the_door)
    }

    /// What `..` names, in a removed directory too.
    pub(crate) fn parent(&self, dir: &Inode) -> onggi_vfs::Result<InodeNr> {
        let state = dir.state.read();
        if state.disk.links_count != 0 {
            return dir::parent(&self.volume, dir.nr, &state.disk).map_err(through_the_door);
        }
        let mut disk = state.disk.clone();
        disk.size = self.block_size();
        dir::parent(&self.volume, dir.nr, &disk).map_err(through_the_door)
    }

    /// Passes where `name` can be made. The caller holds the directory's `ops`.
    fn check_free(&self, dir: &Inode, name: &[u8]) -> onggi_vfs::Result<()> {
        if is_dots(name) || self.find(dir, name)?.is_some() { Err(Errno::EXIST.into()) } else { Ok(()) }
    }

    /// The inode that a name found stands for.
    pub(crate) fn found(&self, found: Found) -> onggi_vfs::Result<Arc<Inode>> {
        self.load(found.inode)
    }

    /// Passes where the directory `child`, found in `dir`, says that it lies there: on a broken volume a
    /// name may lead to `dir` itself or to one above, whose `ops` must not be taken after `dir`'s.
    fn check_child(&self, dir: &Inode, child: &Inode) -> onggi_vfs::Result<()> {
        let parent = self.parent(child)?;
        if child.nr != dir.nr && parent == dir.nr {
            return Ok(());
        }
        let rule = format!("a name in directory {} leads to it, its '..' says {parent}", dir.nr);
        Err(through_the_door(VolumeError::corrupt("directory", Place::Inode(child.nr), rule)))
    }

    /// Stamps a directory whose names changed, and saves it.
    fn touch_dir(&self, h: &mut Handle<'_>, cx: &Context, dir: &Inode) -> Result<()> {
        let mut state = dir.state.write();
        state.disk.mtime = disk_time(cx.now);
        state.disk.ctime = disk_time(cx.now);
        state.size = state.disk.size;
        self.save_contents(h, dir.nr, &mut state)
    }

    /// Adds a name and remembers what the directory needs for that. Nothing changes for lack of space.
    fn add_name(
        &self,
        h: &mut Handle<'_>,
        dir: &Inode,
        name: &[u8],
        target: InodeNr,
        kind: FileType,
    ) -> Result<()> {
        let mut state = dir.state.write();
        dir::insert(&self.volume, h, dir.nr, &mut state.disk, name, target, kind as u8)
    }

    fn remove_name(&self, h: &mut Handle<'_>, dir: &Inode, name: &[u8]) -> Result<Found> {
        let mut state = dir.state.write();
        dir::remove(&self.volume, h, dir.nr, &mut state.disk, name)
    }

    /// Credits for adding one name to `dir` and saving it.
    fn add_credits(&self, dir: &Inode) -> u32 {
        dir::credits_for_insert(&dir.state.read().disk) + 1
    }
}

pub(crate) fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Link counts of directories stop at 65000 and then read 1.
pub(crate) fn one_more_child(links: u16) -> u16 {
    if links == 1 || links >= MOST_LINKS { 1 } else { links + 1 }
}

pub(crate) fn one_child_less(links: u16) -> u16 {
    if links <= 2 { links } else { links - 1 }
}

pub(crate) fn door_kind(kind: FileType) -> FileKind {
    match kind {
        FileType::Regular | FileType::Unknown => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::CharDevice => FileKind::CharDevice,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
    }
}

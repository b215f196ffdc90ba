//! The volume through the door.

use std::sync::Arc;

use onggi_disk_format::ext4::superblock::ROOT_INODE;
use onggi_disk_format::ext4::xattr::{full_name, split_name};
use onggi_disk_format::ext4::{FileType, InodeFlags};
use onggi_disk_format::{FileBlock, InodeNr};
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_ext4_volume::xattr::SetMode;
use onggi_ext4_volume::{Place, VolumeError, dir, xattr};
use onggi_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileKind, FileSystem, Ino, Node, RenameMode, Result,
    SetAttr, StatFs, Whence, WriteErrors, XattrMode,
};

use crate::core::disk_time;
use crate::error::through_the_door;
use crate::inode::Inode;
use crate::namespace::door_kind;
use crate::{Ext4, acl};

impl Ext4 {
    /// A regular file, for an operation on contents.
    fn file(&self, ino: Ino) -> Result<Arc<Inode>> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileType::Regular => Ok(inode),
            FileType::Directory => Err(Errno::ISDIR.into()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn target(&self, inode: &Inode) -> Result<Vec<u8>> {
        let state = inode.state.read();
        let disk = &state.disk;
        let corrupt = |rule: &str| {
            through_the_door(VolumeError::corrupt("symbolic link", Place::Inode(inode.nr), rule))
        };
        let size = usize::try_from(disk.size).unwrap_or(usize::MAX);
        if size == 0 || size > 4096.min(self.block_size() as usize) {
            return Err(corrupt("its target is empty or longer than a block"));
        }
        if !disk.flags.contains(InodeFlags::EXTENTS) {
            return match disk.i_block.get(..size) {
                Some(target) => Ok(target.to_vec()),
                None => Err(corrupt("its target is longer than the inode and it has no extents")),
            };
        }
        let mapping =
            extents::lookup(&self.volume, inode.nr, disk, FileBlock(0)).map_err(through_the_door)?;
        let Mapping::Mapped { start, unwritten: false, .. } = mapping else {
            return Err(corrupt("its target has no block"));
        };
        let buffer =
            self.volume.buffers.read(start).map_err(|error| through_the_door(VolumeError::Device(error)))?;
        Ok(buffer.snapshot()[..size].to_vec())
    }

    fn kind_of_entry(&self, entry: &dir::RawEntry) -> FileKind {
        match FileType::from_stored(entry.kind) {
            Some(FileType::Unknown) | None => {
                self.load(entry.inode).map_or(FileKind::Regular, |inode| door_kind(inode.kind))
            }
            Some(kind) => door_kind(kind),
        }
    }
}

impl FileSystem for Ext4 {
    fn root(&self) -> Ino {
        Ino(u64::from(ROOT_INODE.0))
    }

    fn statfs(&self) -> Result<StatFs> {
        Ok(self.space())
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let dir = self.place(dir, name)?;
        let _ops = dir.ops.read();
        match name {
            b"." => self.attr(&dir),
            b".." => self.attr(&*self.load(self.parent(&dir)?)?),
            _ => {
                let found = self.find(&dir, name)?.ok_or(Errno::NOENT)?;
                self.attr(&*self.found(found)?)
            }
        }
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let inode = self.inode(ino)?;
        self.attr(&inode)
    }

    fn setattr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.change_attr(cx, ino, changes)
    }

    fn create(&self, cx: &Context, dir: Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Attr> {
        self.make(cx, dir, name, node, perm)
    }

    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Attr> {
        self.make_nameless(cx, dir, perm)
    }

    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.add_link(cx, ino, dir, name)
    }

    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove_file(cx, dir, name)
    }

    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.remove_dir(cx, dir, name)
    }

    fn rename(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        self.move_name(cx, dir, name, new_dir, new_name, mode)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind == FileType::Symlink { self.target(&inode) } else { Err(Errno::INVAL.into()) }
    }

    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let dir = self.directory(dir)?;
        let _ops = dir.ops.read();
        let entries = {
            let state = dir.state.read();
            if state.disk.links_count == 0 {
                return Err(Errno::NOENT.into());
            }
            dir::read(&self.volume, dir.nr, &state.disk, cookie, max).map_err(through_the_door)?
        };
        Ok(entries
            .into_iter()
            .map(|entry| DirEntry {
                ino: Ino(u64::from(entry.inode.0)),
                kind: self.kind_of_entry(&entry),
                name: entry.name,
                next: entry.next,
            })
            .collect())
    }

    fn read(&self, cx: &Context, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.file(ino)?;
        let read = {
            let _ops = inode.ops.read();
            self.read_locked(&inode, offset, buf).map_err(through_the_door)?
        };
        self.touch_atime(cx, &inode);
        Ok(read)
    }

    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.writable()?;
        self.see_time(cx.now);
        let inode = self.file(ino)?;
        let written = {
            let _ops = inode.ops.write();
            inode.still_used()?;
            self.write_locked(cx, &inode, offset, data)?
        };
        self.balance(&inode).map_err(through_the_door)?;
        Ok(written)
    }

    fn append(&self, cx: &Context, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.writable()?;
        self.see_time(cx.now);
        let inode = self.file(ino)?;
        let written = {
            let _ops = inode.ops.write();
            inode.still_used()?;
            let end = inode.state.read().size;
            (end, self.write_locked(cx, &inode, end, data)?)
        };
        self.balance(&inode).map_err(through_the_door)?;
        Ok(written)
    }

    fn fallocate(&self, cx: &Context, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.writable()?;
        self.see_time(cx.now);
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let inode = self.inode(ino)?;
        match inode.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(Errno::ISDIR.into()),
            _ => return Err(Errno::NODEV.into()),
        }
        let end = offset.checked_add(len).filter(|&end| end <= self.max_file_size()).ok_or(Errno::FBIG)?;
        let _ops = inode.ops.write();
        inode.still_used()?;
        self.fallocate_locked(cx, &inode, offset..end, mode)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64> {
        let inode = self.file(ino)?;
        let _ops = inode.ops.read();
        self.seek_locked(&inode, offset, whence)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let inode = self.inode(ino)?;
        if self.read_only.load(std::sync::atomic::Ordering::Acquire) {
            return Ok(());
        }
        self.sync_inode(&inode, datasync).map_err(|error| match error {
            // What cannot be written any more is an error to whoever asks whether it was.
            VolumeError::Journal(error) => onggi_vfs::Error::with_detail(Errno::IO, error),
            other => through_the_door(other),
        })
    }

    fn write_errors(&self, ino: Ino) -> WriteErrors {
        u32::try_from(ino.0)
            .ok()
            .and_then(|nr| self.inodes.cached(InodeNr(nr)))
            .map_or_else(WriteErrors::default, |inode| inode.write_errors())
    }

    fn sync(&self) -> Result<()> {
        if self.read_only.load(std::sync::atomic::Ordering::Acquire) {
            return Ok(());
        }
        let result = self
            .write_all_dirty()
            .and_then(|()| self.commit_all())
            // A commit that was under way may have flushed before the last data was written.
            .and_then(|()| Ok(self.volume.device().flush()?));
        result.map_err(|error| match error {
            VolumeError::Journal(error) => onggi_vfs::Error::with_detail(Errno::IO, error),
            other => through_the_door(other),
        })
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let (index, rest) = attribute(&inode, name, Errno::NODATA)?;
        let state = inode.state.read();
        let value = xattr::get(&self.volume, inode.nr, &state.disk, index, rest).map_err(through_the_door)?;
        value.ok_or(Errno::NODATA.into())
    }

    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let mode = match mode {
            XattrMode::Set => SetMode::Set,
            XattrMode::Create => SetMode::Create,
            XattrMode::Replace => SetMode::Replace,
        };
        self.set_attribute(cx, ino, name, Some(value), mode)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let inode = self.inode(ino)?;
        let state = inode.state.read();
        let names = xattr::list(&self.volume, inode.nr, &state.disk).map_err(through_the_door)?;
        Ok(names.into_iter().filter_map(|(index, rest)| full_name(index, &rest)).collect())
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.set_attribute(cx, ino, name, None, SetMode::Replace)
    }

    fn retain(&self, ino: Ino, generation: u32) -> Result<()> {
        let inode = self.inode(ino).map_err(|_| Errno::STALE)?;
        // Whether the inode is being freed is decided under the same lock.
        let state = inode.state.read();
        if state.freed || inode.generation != generation {
            return Err(Errno::STALE.into());
        }
        inode.retain();
        Ok(())
    }

    fn release(&self, ino: Ino, count: u64) {
        let Some(inode) = u32::try_from(ino.0).ok().and_then(|nr| self.inodes.cached(InodeNr(nr))) else {
            return;
        };
        if !inode.release(count) || inode.state.read().disk.links_count != 0 {
            return;
        }
        if self.writable().is_ok() {
            let now = crate::core::door_time(inode.state.read().disk.ctime);
            if let Err(error) = self.delete(&inode, now) {
                tracing::error!(%error, inode = %inode.nr, "freeing an inode without a name");
            }
        }
    }

    fn unmount(&self) -> Result<()> {
        self.leave_clean().map_err(|error| match error {
            VolumeError::Journal(error) => onggi_vfs::Error::with_detail(Errno::IO, error),
            other => through_the_door(other),
        })
    }
}

impl Ext4 {
    fn set_attribute(
        &self,
        cx: &Context,
        ino: Ino,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
    ) -> Result<()> {
        self.writable()?;
        self.see_time(cx.now);
        let inode = self.inode(ino)?;
        let (index, rest) = attribute(&inode, name, Errno::PERM)?;
        let _ops = inode.ops.write();
        let result = self.with_space(|| {
            self.change(xattr::CREDITS + 2, |h| {
                let mut state = inode.state.write();
                if state.freed {
                    return Err(VolumeError::Missing);
                }
                if mode != SetMode::Create
                    && value.is_some()
                    && xattr::get(&self.volume, inode.nr, &state.disk, index, rest)?.as_deref() == value
                {
                    return Ok(());
                }
                xattr::set(&self.volume, h, inode.nr, &mut state.disk, index, rest, value, mode)?;
                if name == acl::ACCESS
                    && let Some(perm) = value.and_then(acl::permissions)
                {
                    state.disk.mode = state.disk.mode & !0o777 | perm;
                }
                state.disk.ctime = disk_time(cx.now);
                self.save(h, inode.nr, &mut state)
            })
        });
        result.map_err(|error| match error {
            VolumeError::Missing if inode.state.read().freed => Errno::NOENT.into(),
            VolumeError::Missing => Errno::NODATA.into(),
            other => through_the_door(other),
        })
    }
}

/// Splits an attribute's name. `refusal` is the answer for `user.*` where an inode's kind has none.
fn attribute<'a>(inode: &Inode, name: &'a [u8], refusal: Errno) -> Result<(u8, &'a [u8])> {
    if name.is_empty() || name.len() > 255 {
        return Err(Errno::RANGE.into());
    }
    if name.starts_with(b"user.") && !matches!(inode.kind, FileType::Regular | FileType::Directory) {
        return Err(refusal.into());
    }
    if matches!(name, b"user." | b"trusted." | b"security.") {
        return Err(Errno::INVAL.into());
    }
    // Of `system.*` only the ACLs are attributes that callers set.
    let is_acl = name.starts_with(b"system.posix_acl_");
    split_name(name).filter(|_| is_acl || !name.starts_with(b"system.")).ok_or(Errno::OPNOTSUPP.into())
}

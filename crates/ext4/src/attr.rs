//! Attributes: what an inode says of itself, and changing that.

use std::sync::Arc;

use onggi_disk_format::ext4::xattr::split_name;
use onggi_disk_format::ext4::{FileType, Inode as DiskInode, Time};
use onggi_ext4_volume::xattr::{self, SetMode};
use onggi_ext4_volume::{Handle, VolumeError};
use onggi_vfs::{Attr, Context, Errno, Ino, SetAttr, StatFs, Timestamp};

use crate::core::{disk_time, door_time};
use crate::error::through_the_door;
use crate::inode::Inode;
use crate::namespace::door_kind;
use crate::{Atime, Ext4, acl};

/// Relative access times are never older than this while a file is read.
const DAY: i64 = 24 * 60 * 60;

impl Ext4 {
    pub(crate) fn attr(&self, inode: &Inode) -> onggi_vfs::Result<Attr> {
        let state = inode.state.read();
        if state.freed {
            return Err(Errno::NOENT.into());
        }
        let disk = &state.disk;
        let is_device = matches!(inode.kind, FileType::BlockDevice | FileType::CharDevice);
        Ok(Attr {
            ino: Ino(u64::from(inode.nr.0)),
            generation: inode.generation,
            kind: door_kind(inode.kind),
            perm: disk.mode & 0o7777,
            nlink: u32::from(disk.links_count),
            uid: disk.uid,
            gid: disk.gid,
            rdev: if is_device { disk.device() } else { (0, 0) },
            size: if inode.is_dir() { disk.size } else { state.size },
            blocks: disk.blocks + state.delayed.count() * (self.block_size() / 512),
            atime: kept(disk, disk.atime),
            mtime: kept(disk, disk.mtime),
            ctime: kept(disk, disk.ctime),
            crtime: if keeps_all_times(disk) { door_time(disk.crtime) } else { Timestamp::default() },
            block_size: self.volume.block_size(),
        })
    }

    pub(crate) fn change_attr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> onggi_vfs::Result<Attr> {
        self.writable()?;
        self.see_time(cx.now);
        let inode = self.inode(ino)?;
        // A symbolic link's permissions never change.
        let perm = changes.perm.filter(|_| inode.kind != FileType::Symlink);
        if let Some(size) = changes.size {
            match inode.kind {
                FileType::Regular => {}
                FileType::Directory => return Err(Errno::ISDIR.into()),
                _ => return Err(Errno::INVAL.into()),
            }
            if size > self.max_file_size() {
                return Err(Errno::FBIG.into());
            }
            let _ops = inode.ops.write();
            inode.still_used()?;
            self.with_space(|| self.set_size(cx, &inode, size)).map_err(through_the_door)?;
        }
        let SetAttr { perm: asked, uid, gid, size: _, atime, mtime, crtime } = *changes;
        let changes = &SetAttr { perm, ..*changes };
        if perm.is_some() || uid.is_some() || gid.is_some() {
            // Who may use a file is not left in memory.
            let _ops = inode.ops.write();
            inode.still_used()?;
            let change = || {
                self.change(xattr::CREDITS + 2, |h| {
                    let mut state = inode.state.write();
                    if let Some(perm) = changes.perm {
                        self.set_list_permissions(h, &inode, &mut state.disk, perm)?;
                    }
                    set_fields(&mut state.disk, cx, changes);
                    self.save(h, inode.nr, &mut state)
                })
            };
            self.with_space(change).map_err(through_the_door)?;
        } else if asked.is_some() || atime.is_some() || mtime.is_some() || crtime.is_some() {
            let mut state = inode.state.write();
            set_fields(&mut state.disk, cx, changes);
            state.unsaved = true;
            drop(state);
            self.queue(&inode);
        }
        self.attr(&inode)
    }

    /// Gives the access list of an inode, if it has one, these permission bits.
    fn set_list_permissions(
        &self,
        h: &mut Handle<'_>,
        inode: &Inode,
        disk: &mut DiskInode,
        perm: u16,
    ) -> Result<(), VolumeError> {
        let Some((index, rest)) = split_name(acl::ACCESS) else { return Ok(()) };
        let Some(list) = xattr::get(&self.volume, inode.nr, disk, index, rest)? else { return Ok(()) };
        let changed = acl::with_permissions(&list, perm);
        if changed == list {
            return Ok(());
        }
        xattr::set(&self.volume, h, inode.nr, disk, index, rest, Some(&changed), SetMode::Replace)
    }

    /// Stamps an access, in memory.
    pub(crate) fn touch_atime(&self, cx: &Context, inode: &Arc<Inode>) {
        if self.options.atime == Atime::Noatime || self.writable().is_err() {
            return;
        }
        {
            let disk = &inode.state.read().disk;
            let now = disk_time(cx.now);
            let stale =
                disk.atime <= disk.mtime || disk.atime <= disk.ctime || now.sec - disk.atime.sec >= DAY;
            if now == disk.atime || self.options.atime == Atime::Relatime && !stale {
                return;
            }
        }
        let mut state = inode.state.write();
        state.disk.atime = disk_time(cx.now);
        state.unsaved = true;
        drop(state);
        self.queue(inode);
    }

    pub(crate) fn space(&self) -> StatFs {
        let sb = &self.volume.sb;
        let alloc = &self.volume.alloc;
        StatFs {
            block_size: sb.block_size(),
            blocks: sb.blocks_count().saturating_sub(self.overhead),
            free_blocks: alloc.free_blocks(),
            available_blocks: alloc.available_blocks(),
            inodes: u64::from(sb.inodes_count()),
            free_inodes: u64::from(alloc.free_inodes()),
            name_max: 255,
        }
    }
}

/// Whether the inode has room for nanoseconds, late years and its creation time.
fn keeps_all_times(disk: &DiskInode) -> bool {
    disk.extra_isize >= 24
}

/// A time as the inode will still have it after a mount.
fn kept(disk: &DiskInode, time: Time) -> Timestamp {
    if keeps_all_times(disk) {
        door_time(time)
    } else {
        Timestamp { sec: time.sec.min(i64::from(i32::MAX)), nsec: 0 }
    }
}

fn set_fields(disk: &mut DiskInode, cx: &Context, changes: &SetAttr) {
    if let Some(perm) = changes.perm {
        disk.mode = disk.mode & !0o7777 | perm & 0o7777;
    }
    disk.uid = changes.uid.unwrap_or(disk.uid);
    disk.gid = changes.gid.unwrap_or(disk.gid);
    disk.atime = changes.atime.map_or(disk.atime, disk_time);
    disk.mtime = changes.mtime.map_or(disk.mtime, disk_time);
    disk.crtime = changes.crtime.map_or(disk.crtime, disk_time);
    disk.ctime = disk_time(cx.now);
}

//! Taking names away.

use std::sync::Arc;

use onggi_ext4_volume::{Handle, dir};
use onggi_vfs::{Context, Errno, Ino};

use super::{is_dots, one_child_less};
use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::error::through_the_door;
use crate::inode::Inode;
use crate::orphan;

impl Ext4 {
    pub(crate) fn remove_file(&self, cx: &Context, dir: Ino, name: &[u8]) -> onggi_vfs::Result<()> {
        self.writable()?;
        self.see_time(cx.now);
        let dir = self.place(dir, name)?;
        let child = {
            let _ops = dir.ops.write();
            if is_dots(name) {
                return Err(Errno::ISDIR.into());
            }
            let found = self.find(&dir, name)?.ok_or(Errno::NOENT)?;
            let child = self.found(found)?;
            if child.is_dir() {
                return Err(Errno::ISDIR.into());
            }
            self.change(dir::CREDITS_CHANGE + 3 + orphan::CREDITS, |h| {
                self.remove_name(h, &dir, name)?;
                self.touch_dir(h, cx, &dir)?;
                self.drop_link(h, cx, &child)
            })
            .map_err(through_the_door)?;
            child
        };
        self.reap(cx, &child)
    }

    /// One name less; without any the inode becomes an orphan.
    pub(crate) fn drop_link(&self, h: &mut Handle<'_>, cx: &Context, child: &Inode) -> Result<()> {
        let mut state = child.state.write();
        state.disk.links_count = state.disk.links_count.saturating_sub(1);
        if child.is_dir() {
            state.disk.links_count = 0;
            state.size = 0;
            state.disk.size = 0;
        }
        state.disk.ctime = disk_time(cx.now);
        if state.disk.links_count == 0 && !state.is_orphan {
            self.orphans.add(&self.volume, h, child.nr)?;
            state.is_orphan = true;
        }
        self.save_contents(h, child.nr, &mut state)
    }

    /// Frees an inode that lost its last name, unless somebody holds it.
    pub(crate) fn reap(&self, cx: &Context, inode: &Arc<Inode>) -> onggi_vfs::Result<()> {
        let nameless = inode.state.read().disk.links_count == 0;
        if nameless && !inode.is_retained() {
            self.delete(inode, cx.now).map_err(through_the_door)?;
        }
        Ok(())
    }

    pub(crate) fn remove_dir(&self, cx: &Context, dir: Ino, name: &[u8]) -> onggi_vfs::Result<()> {
        self.writable()?;
        self.see_time(cx.now);
        let dir = self.place(dir, name)?;
        match name {
            b"." => return Err(Errno::INVAL.into()),
            b".." => return Err(Errno::NOTEMPTY.into()),
            _ => {}
        }
        let child = {
            let _ops = dir.ops.write();
            let found = self.find(&dir, name)?.ok_or(Errno::NOENT)?;
            let child = self.found(found)?;
            if !child.is_dir() {
                return Err(Errno::NOTDIR.into());
            }
            self.check_child(&dir, &child)?;
            let _child_ops = child.ops.write();
            if !self.is_empty_dir(&child)? {
                return Err(Errno::NOTEMPTY.into());
            }
            self.change(dir::CREDITS_CHANGE + 3 + orphan::CREDITS, |h| {
                self.remove_name(h, &dir, name)?;
                {
                    let mut state = dir.state.write();
                    state.disk.links_count = one_child_less(state.disk.links_count);
                }
                self.touch_dir(h, cx, &dir)?;
                self.drop_link(h, cx, &child)
            })
            .map_err(through_the_door)?;
            Arc::clone(&child)
        };
        self.reap(cx, &child)
    }

    pub(crate) fn is_empty_dir(&self, dir: &Inode) -> onggi_vfs::Result<bool> {
        let state = dir.state.read();
        dir::is_empty(&self.volume, dir.nr, &state.disk).map_err(through_the_door)
    }
}

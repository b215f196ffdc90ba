//! One more name for an inode.

use onggi_vfs::{Attr, Context, Errno, Ino};

use super::{MOST_LINKS, check_name, is_dots, name_error};
use crate::Ext4;
use crate::core::disk_time;
use crate::orphan;

impl Ext4 {
    pub(crate) fn add_link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> onggi_vfs::Result<Attr> {
        self.writable()?;
        self.see_time(cx.now);
        let inode = self.inode(ino)?;
        let dir = self.directory(dir)?;
        check_name(name)?;
        let _ops = dir.ops.write();
        if is_dots(name) {
            return Err(Errno::EXIST.into());
        }
        self.check_alive(&dir)?;
        if self.find(&dir, name)?.is_some() {
            return Err(Errno::EXIST.into());
        }
        if inode.is_dir() {
            return Err(Errno::PERM.into());
        }
        {
            let state = inode.state.read();
            if state.disk.links_count >= MOST_LINKS {
                return Err(Errno::MLINK.into());
            }
            // A file whose last name is gone stays nameless; one made without a name may get its first.
            if state.freed || state.disk.links_count == 0 && !state.is_orphan {
                return Err(Errno::NOENT.into());
            }
        }
        let credits = self.add_credits(&dir) + 2 + orphan::CREDITS;
        self.with_space(|| {
            self.change(credits, |h| {
                self.add_name(h, &dir, name, inode.nr, inode.kind)?;
                {
                    let mut state = inode.state.write();
                    if state.is_orphan && state.disk.links_count == 0 {
                        self.orphans.remove(&self.volume, h, inode.nr)?;
                        state.is_orphan = false;
                        state.disk.dtime = 0;
                    }
                    state.disk.links_count += 1;
                    state.disk.ctime = disk_time(cx.now);
                    self.save(h, inode.nr, &mut state)?;
                }
                self.touch_dir(h, cx, &dir)
            })
        })
        .map_err(name_error)?;
        self.attr(&inode)
    }
}

//! One more name for an inode.

use onggi_vfs::{Attr, Context, Errno, Ino};

use super::MOST_LINKS;
use crate::Ext4;
use crate::core::disk_time;
use crate::error::through_the_door;
use crate::orphan;

impl Ext4 {
    pub(crate) fn add_link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> onggi_vfs::Result<Attr> {
        self.writable()?;
        self.see_time(cx.now);
        let inode = self.inode(ino)?;
        let dir = self.place(dir, name)?;
        let _ops = dir.ops.write();
        self.check_free(&dir, name)?;
        if inode.is_dir() {
            return Err(Errno::PERM.into());
        }
        {
            let state = inode.state.read();
            // A file whose last name is gone stays nameless.
            if state.freed || state.disk.links_count == 0 && !state.linkable {
                return Err(Errno::NOENT.into());
            }
            if state.disk.links_count >= MOST_LINKS {
                return Err(Errno::MLINK.into());
            }
        }
        let credits = self.add_credits(&dir) + 2 + orphan::CREDITS;
        self.with_space(|| {
            self.change(credits, |h| {
                self.add_name(h, &dir, name, inode.nr, inode.kind)?;
                {
                    let mut state = inode.state.write();
                    if state.is_orphan && state.linkable {
                        self.orphans.remove(&self.volume, h, inode.nr)?;
                        state.is_orphan = false;
                        state.disk.dtime = 0;
                        state.linkable = false;
                    }
                    state.disk.links_count += 1;
                    state.disk.ctime = disk_time(cx.now);
                    self.save(h, inode.nr, &mut state)?;
                }
                self.touch_dir(h, cx, &dir)
            })
        })
        .map_err(through_the_door)?;
        self.attr(&inode)
    }
}

//! Names: which may be made, removed and moved, and what that does to links and times.
//!
//! Where several rules are broken at once, the error is the one that Linux finds first: an empty name,
//! then a parent that is no directory, then `.` and `..`, then a parent that was removed, then a name
//! that is too long, then what is or is not there.

use onggi_vfs::{Context, Errno, Ino, Node, RenameMode};

use crate::state::{Answer, Body, NAME_MAX, State};

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

impl State {
    fn writable(&self) -> Answer<()> {
        if self.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    /// A directory and a name to look for in it.
    fn check_place(&self, dir: Ino, name: &[u8]) -> Answer<()> {
        if name.is_empty() {
            return Err(Errno::NOENT);
        }
        self.directory(dir).map(drop)
    }

    /// What a name that is not `.` or `..` names; `None` where it is free.
    fn find(&self, dir: Ino, name: &[u8]) -> Answer<Option<Ino>> {
        let directory = self.directory(dir)?;
        if self.inode(dir)?.nlink == 0 {
            return Err(Errno::NOENT);
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        Ok(directory.entries.get(name).map(|entry| entry.ino))
    }

    pub(crate) fn lookup(&self, dir: Ino, name: &[u8]) -> Answer<Ino> {
        self.check_place(dir, name)?;
        match name {
            b"." => Ok(dir),
            b".." => Ok(self.directory(dir)?.parent),
            _ => self.find(dir, name)?.ok_or(Errno::NOENT),
        }
    }

    /// Passes where `name` can be made.
    fn check_free(&self, dir: Ino, name: &[u8]) -> Answer<()> {
        self.check_place(dir, name)?;
        if is_dot(name) {
            return Err(Errno::EXIST);
        }
        match self.find(dir, name)? {
            Some(_) => Err(Errno::EXIST),
            None => Ok(()),
        }
    }

    pub(crate) fn create(
        &mut self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        node: Node<'_>,
        perm: u16,
    ) -> Answer<Ino> {
        self.writable()?;
        if let Node::Symlink(target) = node {
            if target.is_empty() {
                return Err(Errno::NOENT);
            }
            if target.len() > 4095 {
                return Err(Errno::NAMETOOLONG);
            }
        }
        self.check_free(dir, name)?;
        if matches!(node, Node::Symlink(target) if target.len() > self.limits.symlink_max) {
            return Err(Errno::NAMETOOLONG);
        }
        let ino = self.make(cx, dir, node, perm)?;
        self.point(cx.now, dir, name, ino)?;
        if node == Node::Directory {
            self.edit(ino)?.nlink = 2;
            self.add_subdirectory(dir)?;
        } else {
            self.edit(ino)?.nlink = 1;
        }
        Ok(ino)
    }

    pub(crate) fn tmpfile(&mut self, cx: &Context, dir: Ino, perm: u16) -> Answer<Ino> {
        self.writable()?;
        self.directory(dir)?;
        if self.inode(dir)?.nlink == 0 {
            return Err(Errno::PERM);
        }
        let ino = self.make(cx, dir, Node::Regular, perm)?;
        let inode = self.edit(ino)?;
        inode.linkable = true;
        inode.retained = 1;
        Ok(ino)
    }

    pub(crate) fn link(&mut self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Answer<()> {
        self.writable()?;
        let (nlink, is_dir, linkable) = {
            let inode = self.inode(ino)?;
            (inode.nlink, inode.is_dir(), inode.linkable)
        };
        self.check_free(dir, name)?;
        if is_dir {
            return Err(Errno::PERM);
        }
        if nlink == 0 && !linkable {
            return Err(Errno::NOENT);
        }
        if nlink >= self.limits.link_max {
            return Err(Errno::MLINK);
        }
        self.point(cx.now, dir, name, ino)?;
        let inode = self.edit(ino)?;
        inode.nlink += 1;
        inode.ctime = cx.now;
        inode.linkable = false;
        Ok(())
    }

    pub(crate) fn unlink(&mut self, cx: &Context, dir: Ino, name: &[u8]) -> Answer<()> {
        self.writable()?;
        self.check_place(dir, name)?;
        if is_dot(name) {
            return Err(Errno::ISDIR);
        }
        let ino = self.find(dir, name)?.ok_or(Errno::NOENT)?;
        if self.inode(ino)?.is_dir() {
            return Err(Errno::ISDIR);
        }
        self.unpoint(cx.now, dir, name)?;
        self.drop_name(cx.now, ino)
    }

    pub(crate) fn rmdir(&mut self, cx: &Context, dir: Ino, name: &[u8]) -> Answer<()> {
        self.writable()?;
        self.check_place(dir, name)?;
        match name {
            b"." => return Err(Errno::INVAL),
            b".." => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        let ino = self.find(dir, name)?.ok_or(Errno::NOENT)?;
        self.check_empty_directory(ino)?;
        self.unpoint(cx.now, dir, name)?;
        self.drop_subdirectory(dir)?;
        self.drop_name(cx.now, ino)
    }

    fn check_empty_directory(&self, ino: Ino) -> Answer<()> {
        if self.directory(ino)?.entries.is_empty() { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    /// Whether `above` is `ino` or a directory above it.
    fn is_at_or_above(&self, above: Ino, mut ino: Ino) -> Answer<bool> {
        loop {
            if ino == above {
                return Ok(true);
            }
            let parent = self.directory(ino)?.parent;
            if parent == ino {
                return Ok(false);
            }
            ino = parent;
        }
    }

    pub(crate) fn rename(
        &mut self,
        cx: &Context,
        (dir, name): (Ino, &[u8]),
        (new_dir, new_name): (Ino, &[u8]),
        mode: RenameMode,
    ) -> Answer<()> {
        self.writable()?;
        self.check_place(dir, name)?;
        self.check_place(new_dir, new_name)?;
        if is_dot(name) {
            return Err(Errno::BUSY);
        }
        if is_dot(new_name) {
            return Err(if mode == RenameMode::NoReplace { Errno::EXIST } else { Errno::BUSY });
        }
        let moved = self.find(dir, name)?.ok_or(Errno::NOENT)?;
        let there = self.find(new_dir, new_name)?;
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            _ => {}
        }
        let moved_is_dir = self.inode(moved)?.is_dir();
        if moved_is_dir && self.is_at_or_above(moved, new_dir)? {
            return Err(Errno::INVAL);
        }
        let Some(there) = there else {
            return self.move_entry(cx, (dir, name), (new_dir, new_name), moved);
        };
        let there_is_dir = self.inode(there)?.is_dir();
        if there_is_dir && self.is_at_or_above(there, dir)? {
            return Err(if mode == RenameMode::Exchange { Errno::INVAL } else { Errno::NOTEMPTY });
        }
        if moved == there {
            return Ok(());
        }
        if mode == RenameMode::Exchange {
            return self.exchange(cx, (dir, name, moved), (new_dir, new_name, there));
        }
        match (moved_is_dir, there_is_dir) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) => self.check_empty_directory(there)?,
            (false, false) => {}
        }
        if there_is_dir {
            self.drop_subdirectory(new_dir)?;
        }
        self.drop_name(cx.now, there)?;
        self.move_entry(cx, (dir, name), (new_dir, new_name), moved)
    }

    fn move_entry(&mut self, cx: &Context, from: (Ino, &[u8]), to: (Ino, &[u8]), moved: Ino) -> Answer<()> {
        self.unpoint(cx.now, from.0, from.1)?;
        self.point(cx.now, to.0, to.1, moved)?;
        let inode = self.edit(moved)?;
        inode.ctime = cx.now;
        if matches!(inode.body, Body::Directory(_)) {
            self.drop_subdirectory(from.0)?;
            self.add_subdirectory(to.0)?;
        }
        Ok(())
    }

    fn exchange(&mut self, cx: &Context, one: (Ino, &[u8], Ino), two: (Ino, &[u8], Ino)) -> Answer<()> {
        for (from, to) in [(one, two), (two, one)] {
            self.point(cx.now, to.0, to.1, from.2)?;
            let inode = self.edit(from.2)?;
            inode.ctime = cx.now;
            if inode.is_dir() {
                self.drop_subdirectory(from.0)?;
                self.add_subdirectory(to.0)?;
            }
        }
        Ok(())
    }
}

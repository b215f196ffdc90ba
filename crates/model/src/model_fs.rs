//! The door to the model.

use onggi_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileKind, FileSystem, Ino, Node, RenameMode, Result,
    SetAttr, StatFs, Whence, WriteErrors, XattrMode,
};
use parking_lot::Mutex;

use crate::Limits;
use crate::state::{Body, NAME_MAX, ROOT, State};

/// A volume in memory without limits of space: obviously right rather than fast.
///
/// Access times change only when set. A directory's size, and blocks, mean nothing here.
pub struct ModelFs {
    state: Mutex<State>,
}

impl ModelFs {
    /// An empty volume with ext4's limits at this block size.
    #[must_use]
    pub fn new(block_size: u32) -> Self {
        Self::with_limits(Limits::ext4(block_size))
    }

    /// An empty volume with these limits.
    #[must_use]
    pub fn with_limits(limits: Limits) -> Self {
        Self { state: Mutex::new(State::new(limits)) }
    }

    /// The volume as it is now; the two live on apart. Contents are shared until they change.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self { state: Mutex::new(self.state.lock().clone()) }
    }

    /// The limits it keeps to.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.state.lock().limits
    }
}

impl FileSystem for ModelFs {
    fn root(&self) -> Ino {
        ROOT
    }

    fn statfs(&self) -> Result<StatFs> {
        let state = self.state.lock();
        let total = 1 << 40;
        let free_blocks = total - state.block_count();
        Ok(StatFs {
            block_size: state.limits.block_size,
            blocks: total,
            free_blocks,
            available_blocks: free_blocks,
            inodes: total,
            free_inodes: total - state.inode_count(),
            name_max: NAME_MAX as u32,
        })
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        let state = self.state.lock();
        Ok(state.attr(state.lookup(dir, name)?)?)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        Ok(self.state.lock().attr(ino)?)
    }

    fn setattr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let mut state = self.state.lock();
        state.setattr(cx, ino, changes)?;
        Ok(state.attr(ino)?)
    }

    fn create(&self, cx: &Context, dir: Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Attr> {
        let mut state = self.state.lock();
        let ino = state.create(cx, dir, name, node, perm)?;
        Ok(state.attr(ino)?)
    }

    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Attr> {
        let mut state = self.state.lock();
        let ino = state.tmpfile(cx, dir, perm)?;
        Ok(state.attr(ino)?)
    }

    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        let mut state = self.state.lock();
        state.link(cx, ino, dir, name)?;
        Ok(state.attr(ino)?)
    }

    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        Ok(self.state.lock().unlink(cx, dir, name)?)
    }

    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        Ok(self.state.lock().rmdir(cx, dir, name)?)
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
        Ok(self.state.lock().rename(cx, (dir, name), (new_dir, new_name), mode)?)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        match &self.state.lock().inode(ino)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL.into()),
        }
    }

    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let state = self.state.lock();
        let directory = state.directory(dir)?;
        if state.inode(dir)?.nlink == 0 {
            return Err(Errno::NOENT.into());
        }
        let entry = |ino, kind, name: &[u8], place| DirEntry { ino, kind, name: name.to_vec(), next: place };
        let mut all = vec![
            entry(dir, FileKind::Directory, b".", 1),
            entry(directory.parent, FileKind::Directory, b"..", 2),
        ];
        for (name, found) in &directory.entries {
            all.push(entry(found.ino, state.inode(found.ino)?.kind(), name, found.place));
        }
        all.sort_by_key(|entry| entry.next);
        all.retain(|entry| entry.next > cookie);
        all.truncate(max);
        Ok(all)
    }

    fn read(&self, _cx: &Context, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        Ok(self.state.lock().read(ino, offset, buf)?)
    }

    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        Ok(self.state.lock().write(cx, ino, Some(offset), data)?.1)
    }

    fn append(&self, cx: &Context, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        Ok(self.state.lock().write(cx, ino, None, data)?)
    }

    fn fallocate(&self, cx: &Context, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        Ok(self.state.lock().fallocate(cx, ino, offset, len, mode)?)
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64> {
        Ok(self.state.lock().seek(ino, offset, whence)?)
    }

    fn fsync(&self, ino: Ino, _datasync: bool) -> Result<()> {
        self.state.lock().inode(ino)?;
        Ok(())
    }

    fn write_errors(&self, _ino: Ino) -> WriteErrors {
        WriteErrors::default()
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.state.lock().getxattr(ino, name)?)
    }

    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        Ok(self.state.lock().setxattr(cx, ino, name, value, mode)?)
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(self.state.lock().inode(ino)?.xattrs.keys().cloned().collect())
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        Ok(self.state.lock().removexattr(cx, ino, name)?)
    }

    fn retain(&self, ino: Ino, generation: u32) -> Result<()> {
        if generation != 1 {
            return Err(Errno::STALE.into());
        }
        Ok(self.state.lock().retain(ino)?)
    }

    fn release(&self, ino: Ino, count: u64) {
        self.state.lock().release(ino, count);
    }

    fn unmount(&self) -> Result<()> {
        self.state.lock().read_only = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onggi_vfs::Timestamp;

    const CX: Context = Context { uid: 0, gid: 0, now: Timestamp { sec: 5, nsec: 0 } };

    #[test]
    fn links_end_at_the_limit_and_directories_stop_counting() {
        let fs = ModelFs::with_limits(Limits { link_max: 4, ..Limits::ext4(4096) });
        let root = fs.root();
        let file = fs.create(&CX, root, b"f0", Node::Regular, 0o644).unwrap().ino;
        for name in [b"f1", b"f2", b"f3"] {
            fs.link(&CX, file, root, name).unwrap();
        }
        assert_eq!(fs.link(&CX, file, root, b"f4").unwrap_err().errno(), Errno::MLINK);
        let nlink = || fs.getattr(root).unwrap().nlink;
        for (name, expected) in [(b"d0", 3), (b"d1", 4), (b"d2", 1), (b"d3", 1)] {
            fs.create(&CX, root, name, Node::Directory, 0o755).unwrap();
            assert_eq!(nlink(), expected);
        }
        fs.rmdir(&CX, root, b"d0").unwrap();
        assert_eq!(nlink(), 1);
    }

    #[test]
    fn a_snapshot_lives_on_its_own() {
        let fs = ModelFs::new(4096);
        let file = fs.create(&CX, fs.root(), b"f", Node::Regular, 0o644).unwrap().ino;
        fs.write(&CX, file, 0, b"before").unwrap();
        let snapshot = fs.snapshot();
        fs.write(&CX, file, 0, b"after!").unwrap();
        fs.unlink(&CX, fs.root(), b"f").unwrap();
        let mut buf = [0; 6];
        assert_eq!(snapshot.read(&CX, file, 0, &mut buf).unwrap(), 6);
        assert_eq!(&buf, b"before");
    }

    #[test]
    fn nothing_changes_after_unmount() {
        let fs = ModelFs::new(4096);
        fs.unmount().unwrap();
        let made = fs.create(&CX, fs.root(), b"f", Node::Regular, 0o644);
        assert_eq!(made.unwrap_err().errno(), Errno::ROFS);
    }
}

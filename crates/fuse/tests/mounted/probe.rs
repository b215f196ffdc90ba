//! The model with a counter and a few faults around it.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use onggi_model::ModelFs;
use onggi_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileSystem, Ino, Node, RenameMode, Result, SetAttr,
    StatFs, Whence, WriteErrors, XattrMode,
};

/// Looking up this name panics.
pub(crate) const PANIC: &str = "panic";

/// The model; counts what is retained, and durability requests.
pub(crate) struct Probe {
    model: ModelFs,
    pub(crate) retained: AtomicI64,
    pub(crate) fsyncs: AtomicU64,
    pub(crate) writes: AtomicU64,
    pub(crate) write_errors: AtomicU64,
}

impl Probe {
    pub(crate) fn new() -> Self {
        Self {
            model: ModelFs::new(4096),
            retained: AtomicI64::new(0),
            fsyncs: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            write_errors: AtomicU64::new(0),
        }
    }
}

impl FileSystem for Probe {
    fn root(&self) -> Ino {
        self.model.root()
    }
    fn statfs(&self) -> Result<StatFs> {
        self.model.statfs()
    }
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        assert_ne!(name, PANIC.as_bytes(), "a bug");
        self.model.lookup(dir, name)
    }
    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.model.getattr(ino)
    }
    fn setattr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.model.setattr(cx, ino, changes)
    }
    fn create(&self, cx: &Context, dir: Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Attr> {
        self.model.create(cx, dir, name, node, perm)
    }
    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Attr> {
        let attr = self.model.tmpfile(cx, dir, perm)?;
        self.retained.fetch_add(1, Ordering::SeqCst);
        Ok(attr)
    }
    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.model.link(cx, ino, dir, name)
    }
    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.model.unlink(cx, dir, name)
    }
    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.model.rmdir(cx, dir, name)
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
        self.model.rename(cx, dir, name, new_dir, new_name, mode)
    }
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.model.readlink(ino)
    }
    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.model.readdir(dir, cookie, max)
    }
    fn read(&self, cx: &Context, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.model.read(cx, ino, offset, buf)
    }
    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.writes.fetch_add(1, Ordering::SeqCst);
        self.model.write(cx, ino, offset, data)
    }
    fn append(&self, cx: &Context, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.model.append(cx, ino, data)
    }
    fn fallocate(&self, cx: &Context, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.model.fallocate(cx, ino, offset, len, mode)
    }
    fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64> {
        self.model.seek(ino, offset, whence)
    }
    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        self.fsyncs.fetch_add(1, Ordering::SeqCst);
        self.model.fsync(ino, datasync)
    }
    fn write_errors(&self, _ino: Ino) -> WriteErrors {
        let count = self.write_errors.load(Ordering::SeqCst);
        WriteErrors { count, errno: if count > 0 { Errno::NOSPC.raw_os_error() } else { 0 } }
    }
    fn sync(&self) -> Result<()> {
        self.model.sync()
    }
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.model.getxattr(ino, name)
    }
    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.model.setxattr(cx, ino, name, value, mode)
    }
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.model.listxattr(ino)
    }
    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.model.removexattr(cx, ino, name)
    }
    fn retain(&self, ino: Ino, generation: u32) -> Result<()> {
        self.model.retain(ino, generation)?;
        self.retained.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn release(&self, ino: Ino, count: u64) {
        self.model.release(ino, count);
        self.retained.fetch_sub(i64::try_from(count).unwrap(), Ordering::SeqCst);
    }
    fn unmount(&self) -> Result<()> {
        self.model.unmount()
    }
}

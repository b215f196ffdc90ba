//! What every engine offers.

use crate::{
    Attr, Context, DirEntry, FallocateMode, Ino, Node, RenameMode, Result, SetAttr, StatFs, Whence,
    WriteErrors, XattrMode,
};

/// A mounted volume. All calls may come from many threads at once.
///
/// Names are 1 to 255 bytes without `/` or NUL; longer ones get `ENAMETOOLONG`, empty ones `ENOENT`.
/// `.` and `..` are looked up like other names and refused where a name is made or removed
/// (`EEXIST`, `EINVAL` for rmdir of `.`, `ENOTEMPTY` for rmdir of `..`, `EBUSY` in a rename).
///
/// **Lives of inodes.** A number stays valid while it has a name or is retained. Whoever keeps a number
/// across calls (an open file, a kernel's dentry) retains it and releases it when done; the inode of a
/// file without a name is freed at the last release.
///
/// **Durability.** [`FileSystem::fsync`] and [`FileSystem::sync`] return when what they cover survives a
/// power cut. Nothing else promises that.
#[allow(clippy::missing_errors_doc)]
pub trait FileSystem: Send + Sync {
    /// The root directory.
    fn root(&self) -> Ino;

    /// How full the volume is.
    fn statfs(&self) -> Result<StatFs>;

    /// Finds a name. `ENOENT`, `ENOTDIR`.
    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// An inode's attributes. `ENOENT` for a number that names nothing.
    fn getattr(&self, ino: Ino) -> Result<Attr>;

    /// Changes attributes; stamps ctime (and mtime where the size changes and none is given).
    /// Size: `EISDIR` on a directory, `EINVAL` on anything else that is no regular file, `EFBIG`.
    fn setattr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> Result<Attr>;

    /// Makes `name`. A directory with the set-group-id bit hands its group down, and the bit itself to
    /// directories. `EEXIST`, `ENOTDIR`, `ENOSPC`, `EMLINK`, `ENOENT` in a removed directory.
    /// A symlink's permissions are `0o777` whatever `perm` says; an empty target is `ENOENT`, one of
    /// 4096 bytes or more `ENAMETOOLONG`.
    fn create(&self, cx: &Context, dir: Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Attr>;

    /// Makes a regular file without a name, retained once; [`FileSystem::link`] can name it.
    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Attr>;

    /// Gives `ino` one more name. `EPERM` for a directory, `EEXIST`, `EMLINK`, `ENOTDIR`.
    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr>;

    /// Takes a name away from anything but a directory (`EISDIR`). `ENOENT`, `ENOTDIR`.
    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()>;

    /// Removes an empty directory. `ENOTEMPTY`, `ENOTDIR`, `ENOENT`.
    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()>;

    /// Moves `name` in `dir` to `new_name` in `new_dir`. Two names of one inode: nothing happens.
    /// `EINVAL` when a directory would move below itself, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EEXIST`.
    fn rename(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()>;

    /// A symbolic link's target. `EINVAL` for anything else.
    fn readlink(&self, ino: Ino) -> Result<Vec<u8>>;

    /// Up to `max` entries from `cookie` on (0: the beginning; else some entry's `next`), `.` and `..`
    /// first. An empty answer means the end. Entries that exist throughout come exactly once.
    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>>;

    /// Reads from `offset`; fewer bytes than asked only at the end of the file. `EISDIR`, `EINVAL`.
    fn read(&self, cx: &Context, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize>;

    /// Writes all of `data` at `offset`, or a part of it when space runs out after some.
    /// `ENOSPC`, `EFBIG`, `EISDIR`, `EINVAL`.
    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8]) -> Result<usize>;

    /// Writes at the end of the file, wherever that is when the write happens; returns where that was
    /// and how many bytes were written.
    fn append(&self, cx: &Context, ino: Ino, data: &[u8]) -> Result<(u64, usize)>;

    /// Changes what a range is made of. `ENODEV` for anything but a regular file (`EISDIR` for a
    /// directory), `EINVAL` for an empty range, `EFBIG`, `ENOSPC`.
    fn fallocate(&self, cx: &Context, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()>;

    /// The next data or hole at or after `offset`. `ENXIO` at or past the end, or where no data follows.
    fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64>;

    /// Makes the inode durable: contents, attributes, and the names it was given. With `datasync` only
    /// what reading the contents back needs. For a directory: its entries.
    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()>;

    /// Failures of writing this file's data back so far, for [`crate::OpenFile`].
    fn write_errors(&self, ino: Ino) -> WriteErrors;

    /// Makes everything durable that was acknowledged before the call.
    fn sync(&self) -> Result<()>;

    /// Reads an extended attribute by its full name (`user.x`). `ENODATA`, `EOPNOTSUPP` for an unknown
    /// namespace.
    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>>;

    /// Sets an extended attribute. `ENOSPC` where it does not fit, `ERANGE` for a name of no or more than
    /// 255 bytes, `EOPNOTSUPP`, `EEXIST`, `ENODATA`. `user.*` only on regular files and directories
    /// (`EPERM`).
    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()>;

    /// Full names of all extended attributes, in no particular order.
    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>>;

    /// Removes an extended attribute. `ENODATA`.
    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()>;

    /// Keeps the inode alive until released. `ESTALE` when this life of the number has ended.
    fn retain(&self, ino: Ino, generation: u32) -> Result<()>;

    /// Takes back `count` retains.
    fn release(&self, ino: Ino, count: u64);

    /// Writes everything home and leaves a clean volume. Every later change fails with `EROFS`.
    fn unmount(&self) -> Result<()>;
}

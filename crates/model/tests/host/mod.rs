//! A directory of the running kernel behind the door, so that Linux itself judges the model.
//!
//! Every inode that was ever seen is held open by its number with `O_PATH`; those without a name are
//! let go when nobody retains them. [`HostFs::by_name`] holds directories only.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use onggi_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileKind, FileSystem, Ino, Node, RenameMode, Result,
    SetAttr, StatFs, Timestamp, Whence, WriteErrors, XattrMode,
};
use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use rustix::time::{ClockId, clock_gettime};

struct Held {
    fd: OwnedFd,
    retained: u64,
}

#[derive(Default)]
struct Inner {
    held: BTreeMap<Ino, Held>,
    /// Where the inodes that are not held open were last found.
    names: BTreeMap<Ino, (Ino, Vec<u8>)>,
    /// Real time from which on, and the time it stands for.
    times: Vec<(Timestamp, Timestamp)>,
}

/// A directory tree of the running kernel. Needs root.
pub(crate) struct HostFs {
    root: Ino,
    keep_times: bool,
    /// Inodes other than directories are found again by name.
    by_name: bool,
    inner: Mutex<Inner>,
}

fn real(clock: ClockId) -> Timestamp {
    let now = clock_gettime(clock);
    Timestamp { sec: now.tv_sec, nsec: now.tv_nsec as u32 }
}

fn kind_of(mode: u32) -> FileKind {
    match fs::FileType::from_raw_mode(mode) {
        fs::FileType::Directory => FileKind::Directory,
        fs::FileType::Symlink => FileKind::Symlink,
        fs::FileType::BlockDevice => FileKind::BlockDevice,
        fs::FileType::CharacterDevice => FileKind::CharDevice,
        fs::FileType::Fifo => FileKind::Fifo,
        fs::FileType::Socket => FileKind::Socket,
        _ => FileKind::Regular,
    }
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Errno::INVAL.into())
}

impl HostFs {
    /// The tree below `path`. With `keep_times` every change waits for the kernel's clock to tick, so
    /// that its stamps can be told apart.
    pub(crate) fn new(path: &Path, keep_times: bool) -> Self {
        rustix::process::umask(Mode::empty());
        let fd = fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let root = Ino(fs::fstat(&fd).unwrap().st_ino);
        let held = BTreeMap::from([(root, Held { fd, retained: 1 })]);
        let inner = Inner { held, ..Inner::default() };
        Self { root, keep_times, by_name: false, inner: Mutex::new(inner) }
    }

    /// The tree below `path`, for more inodes than a process may hold open: names that were seen must stay.
    #[allow(dead_code, reason = "for the tests of engines")]
    pub(crate) fn by_name(path: &Path) -> Self {
        Self { by_name: true, ..Self::new(path, false) }
    }

    /// The descriptor of an inode.
    fn fd(&self, ino: Ino) -> Result<OwnedFd> {
        let inner = self.inner.lock().unwrap();
        if let Some(held) = inner.held.get(&ino) {
            return Ok(rustix::io::fcntl_dupfd_cloexec(&held.fd, 0)?);
        }
        let (dir, name) = inner.names.get(&ino).ok_or(Errno::NOENT)?.clone();
        drop(inner);
        self.find(dir, &name)
    }

    fn path(fd: &OwnedFd) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }

    /// Opens the contents of a regular file or a directory.
    fn open(&self, ino: Ino, flags: OFlags) -> Result<OwnedFd> {
        let fd = self.fd(ino)?;
        Ok(fs::open(Self::path(&fd), flags | OFlags::LARGEFILE | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Opens a regular file; `EISDIR` for a directory, `other` for anything else.
    fn open_regular(&self, ino: Ino, flags: OFlags, other: Errno) -> Result<OwnedFd> {
        match self.getattr(ino)?.kind {
            FileKind::Regular => self.open(ino, flags),
            FileKind::Directory => Err(Errno::ISDIR.into()),
            _ => Err(other.into()),
        }
    }

    fn hold(&self, fd: OwnedFd) -> Result<Attr> {
        let ino = Ino(fs::fstat(&fd)?.st_ino);
        self.inner.lock().unwrap().held.entry(ino).or_insert(Held { fd, retained: 0 });
        self.getattr(ino)
    }

    /// As [`HostFs::hold`] of what `name` leads to.
    fn hold_name(&self, dir: Ino, name: &[u8], fd: OwnedFd) -> Result<Attr> {
        let stat = fs::fstat(&fd)?;
        if !self.by_name || kind_of(stat.st_mode) == FileKind::Directory {
            return self.hold(fd);
        }
        drop(fd);
        self.inner.lock().unwrap().names.insert(Ino(stat.st_ino), (dir, name.to_vec()));
        self.getattr(Ino(stat.st_ino))
    }

    /// Lets go of an inode without a name and without a retain.
    fn settle(&self, ino: Ino) {
        let mut inner = self.inner.lock().unwrap();
        let dead = inner
            .held
            .get(&ino)
            .is_some_and(|held| held.retained == 0 && fs::fstat(&held.fd).unwrap().st_nlink == 0);
        if dead {
            inner.held.remove(&ino);
        }
    }

    fn find(&self, dir: Ino, name: &[u8]) -> Result<OwnedFd> {
        let dir = self.fd(dir)?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(fs::openat(&dir, OsStr::from_bytes(name), flags, Mode::empty())?)
    }

    /// The inode that a name may be about to lose.
    fn victim(&self, dir: Ino, name: &[u8]) -> Option<Ino> {
        if name == b"." || name == b".." {
            return None;
        }
        let attr = self.find(dir, name).ok().and_then(|fd| self.hold(fd).ok());
        attr.map(|attr| attr.ino)
    }

    /// Runs a change as its context says, and notes when it ran.
    fn change<T>(&self, cx: &Context, body: impl FnOnce() -> Result<T>) -> Result<T> {
        if self.keep_times {
            let now = real(ClockId::RealtimeCoarse);
            self.inner.lock().unwrap().times.push((now, cx.now));
        }
        let result = body();
        if self.keep_times {
            let end = real(ClockId::Realtime);
            while real(ClockId::RealtimeCoarse) <= end {
                std::thread::sleep(std::time::Duration::from_micros(500));
            }
        }
        result
    }

    /// As the group of the context, so that the kernel itself decides on a new inode's group.
    fn as_group<T>(cx: &Context, body: impl FnOnce() -> rustix::io::Result<T>) -> Result<T> {
        let gid = |raw| rustix::fs::Gid::from_raw(raw);
        rustix::thread::set_thread_res_gid(gid(0), gid(cx.gid), gid(0))?;
        let result = body();
        rustix::thread::set_thread_res_gid(gid(0), gid(0), gid(0))?;
        Ok(result?)
    }

    /// The owner, and the bits that some calls mask out, without asking what the kernel inherited.
    fn finish_new(&self, cx: &Context, fd: &OwnedFd, perm: u16) -> Result<()> {
        let uid = rustix::fs::Uid::from_raw(cx.uid);
        fs::chownat(fd, "", Some(uid), None, AtFlags::EMPTY_PATH)?;
        let stat = fs::fstat(fd)?;
        if kind_of(stat.st_mode) != FileKind::Symlink {
            let mode = stat.st_mode & 0o2000 | u32::from(perm);
            fs::chmod(Self::path(fd), Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }

    fn time(&self, sec: i64, nsec: u32) -> Timestamp {
        let at = Timestamp { sec, nsec };
        let inner = self.inner.lock().unwrap();
        let index = inner.times.partition_point(|(start, _)| *start <= at);
        match index.checked_sub(1).and_then(|index| inner.times.get(index)) {
            Some((_, stands_for)) if at <= real(ClockId::Realtime) => *stands_for,
            _ => at,
        }
    }
}

fn system_time(time: Timestamp) -> fs::Timespec {
    fs::Timespec { tv_sec: time.sec, tv_nsec: i64::from(time.nsec) }
}

const OMIT: fs::Timespec = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };

impl FileSystem for HostFs {
    fn root(&self) -> Ino {
        self.root
    }

    fn statfs(&self) -> Result<StatFs> {
        let root = self.fd(self.root)?;
        let stat = fs::statvfs(Self::path(&root))?;
        Ok(StatFs {
            block_size: stat.f_frsize as u32,
            blocks: stat.f_blocks,
            free_blocks: stat.f_bfree,
            available_blocks: stat.f_bavail,
            inodes: stat.f_files,
            free_inodes: stat.f_ffree,
            name_max: stat.f_namemax as u32,
        })
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.hold_name(dir, name, self.find(dir, name)?)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        let fd = self.fd(ino)?;
        let stat = fs::statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let time = |time: fs::StatxTimestamp| self.time(time.tv_sec, time.tv_nsec);
        let mode = u32::from(stat.stx_mode);
        Ok(Attr {
            ino,
            generation: 1,
            kind: kind_of(mode),
            perm: (mode & 0o7777) as u16,
            nlink: stat.stx_nlink,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            rdev: (stat.stx_rdev_major, stat.stx_rdev_minor),
            size: stat.stx_size,
            blocks: stat.stx_blocks,
            atime: time(stat.stx_atime),
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
            crtime: time(stat.stx_btime),
            block_size: stat.stx_blksize,
        })
    }

    fn setattr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        let old = self.getattr(ino)?;
        self.change(cx, || {
            let fd = self.fd(ino)?;
            if let Some(size) = changes.size {
                if size > i64::MAX as u64 && old.kind == FileKind::Regular {
                    return Err(Errno::FBIG.into());
                }
                match old.kind {
                    // ftruncate(2) to the same size stamps mtime, truncate(2) does not.
                    FileKind::Regular if size == old.size => {}
                    FileKind::Regular => {
                        fs::ftruncate(self.open(ino, OFlags::WRONLY)?, size)?;
                    }
                    FileKind::Directory => return Err(Errno::ISDIR.into()),
                    _ => return Err(Errno::INVAL.into()),
                }
            }
            if *changes == SetAttr::default() {
                return Ok(());
            }
            let uid = changes.uid.map(rustix::fs::Uid::from_raw);
            let gid = changes.gid.map(rustix::fs::Gid::from_raw);
            fs::chownat(&fd, "", uid, gid, AtFlags::EMPTY_PATH)?;
            if changes.atime.is_some() || changes.mtime.is_some() {
                let times = fs::Timestamps {
                    last_access: changes.atime.map_or(OMIT, system_time),
                    last_modification: changes.mtime.map_or(OMIT, system_time),
                };
                fs::utimensat(&fd, "", &times, AtFlags::EMPTY_PATH)?;
            }
            if old.kind != FileKind::Symlink {
                // Also brings back what a change of owner takes away, and stamps ctime.
                let perm = changes.perm.unwrap_or(old.perm);
                fs::chmod(Self::path(&fd), Mode::from_raw_mode(u32::from(perm)))?;
            }
            Ok(())
        })?;
        self.getattr(ino)
    }

    fn create(&self, cx: &Context, dir: Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Attr> {
        self.change(cx, || {
            let at = self.fd(dir)?;
            let path = OsStr::from_bytes(name);
            let mode = Mode::from_raw_mode(u32::from(perm));
            let node_of =
                |kind, (major, minor)| fs::mknodat(&at, path, kind, mode, fs::makedev(major, minor));
            Self::as_group(cx, || match node {
                Node::Regular => node_of(fs::FileType::RegularFile, (0, 0)),
                Node::Directory => fs::mkdirat(&at, path, mode),
                Node::Symlink(target) => fs::symlinkat(OsStr::from_bytes(target), &at, path),
                Node::BlockDevice(major, minor) => node_of(fs::FileType::BlockDevice, (major, minor)),
                Node::CharDevice(major, minor) => node_of(fs::FileType::CharacterDevice, (major, minor)),
                Node::Fifo => node_of(fs::FileType::Fifo, (0, 0)),
                Node::Socket => node_of(fs::FileType::Socket, (0, 0)),
            })?;
            let fd = self.find(dir, name)?;
            self.finish_new(cx, &fd, perm)?;
            self.hold_name(dir, name, fd).map(drop)
        })?;
        self.lookup(dir, name)
    }

    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Attr> {
        let dir = self.fd(dir)?;
        let attr = self.change(cx, || {
            let mode = Mode::from_raw_mode(u32::from(perm));
            let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
            let file = Self::as_group(cx, || fs::openat(&dir, ".", flags, mode))?;
            let fd = fs::open(Self::path(&file), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
            self.finish_new(cx, &fd, perm)?;
            self.hold(fd)
        })?;
        self.retain(attr.ino, 1)?;
        self.getattr(attr.ino)
    }

    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.change(cx, || {
            let (from, to) = (self.fd(ino)?, self.fd(dir)?);
            Ok(fs::linkat(&from, "", &to, OsStr::from_bytes(name), AtFlags::EMPTY_PATH)?)
        })?;
        self.getattr(ino)
    }

    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        let victim = self.victim(dir, name);
        let result =
            self.change(cx, || Ok(fs::unlinkat(self.fd(dir)?, OsStr::from_bytes(name), AtFlags::empty())?));
        victim.inspect(|&ino| self.settle(ino));
        result
    }

    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        let victim = self.victim(dir, name);
        let result =
            self.change(cx, || Ok(fs::unlinkat(self.fd(dir)?, OsStr::from_bytes(name), AtFlags::REMOVEDIR)?));
        victim.inspect(|&ino| self.settle(ino));
        result
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
        let victim = self.victim(new_dir, new_name);
        let flags = match mode {
            RenameMode::Replace => fs::RenameFlags::empty(),
            RenameMode::NoReplace => fs::RenameFlags::NOREPLACE,
            RenameMode::Exchange => fs::RenameFlags::EXCHANGE,
        };
        let result = self.change(cx, || {
            let (from, to) = (self.fd(dir)?, self.fd(new_dir)?);
            let names = (OsStr::from_bytes(name), OsStr::from_bytes(new_name));
            Ok(fs::renameat_with(&from, names.0, &to, names.1, flags)?)
        });
        victim.inspect(|&ino| self.settle(ino));
        result
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        if self.getattr(ino)?.kind != FileKind::Symlink {
            return Err(Errno::INVAL.into());
        }
        Ok(fs::readlinkat(self.fd(ino)?, "", Vec::new())?.into_bytes())
    }

    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        let fd = self.open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut all = Vec::new();
        for (index, entry) in fs::Dir::new(fd)?.enumerate() {
            let entry = entry?;
            let kind = kind_of(entry.file_type().as_raw_mode());
            let name = entry.file_name().to_bytes().to_vec();
            all.push(DirEntry { ino: Ino(entry.ino()), kind, name, next: index as u64 + 1 });
        }
        all.retain(|entry| entry.next > cookie);
        all.truncate(max);
        Ok(all)
    }

    fn read(&self, _cx: &Context, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.open_regular(ino, OFlags::RDONLY | OFlags::NOATIME, Errno::INVAL)?;
        if offset > i64::MAX as u64 - buf.len() as u64 {
            return Ok(0);
        }
        Ok(rustix::io::pread(&file, buf, offset)?)
    }

    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        let file = self.open_regular(ino, OFlags::WRONLY, Errno::INVAL)?;
        if offset > i64::MAX as u64 - data.len() as u64 {
            return if data.is_empty() { Ok(0) } else { Err(Errno::FBIG.into()) };
        }
        self.change(cx, || Ok(rustix::io::pwrite(&file, data, offset)?))
    }

    fn append(&self, cx: &Context, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        let file = self.open_regular(ino, OFlags::WRONLY | OFlags::APPEND, Errno::INVAL)?;
        let offset = self.getattr(ino)?.size;
        self.change(cx, || Ok((offset, rustix::io::write(&file, data)?)))
    }

    fn fallocate(&self, cx: &Context, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        if len == 0 {
            return Err(Errno::INVAL.into());
        }
        let file = self.open_regular(ino, OFlags::WRONLY, Errno::NODEV)?;
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG.into());
        }
        let keep = |keep| if keep { fs::FallocateFlags::KEEP_SIZE } else { fs::FallocateFlags::empty() };
        let flags = match mode {
            FallocateMode::Allocate { keep_size } => keep(keep_size),
            FallocateMode::PunchHole => fs::FallocateFlags::PUNCH_HOLE | keep(true),
            FallocateMode::ZeroRange { keep_size } => fs::FallocateFlags::ZERO_RANGE | keep(keep_size),
        };
        self.change(cx, || Ok(fs::fallocate(&file, flags, offset, len)?))
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64> {
        let file = self.open_regular(ino, OFlags::RDONLY, Errno::INVAL)?;
        if offset > i64::MAX as u64 {
            return Err(Errno::NXIO.into());
        }
        let from = match whence {
            Whence::Data => fs::SeekFrom::Data(offset),
            Whence::Hole => fs::SeekFrom::Hole(offset),
        };
        Ok(fs::seek(&file, from)?)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        let file = match self.getattr(ino)?.kind {
            FileKind::Regular | FileKind::Directory => self.open(ino, OFlags::RDONLY)?,
            _ => return Ok(()),
        };
        let result = if datasync { fs::fdatasync(&file) } else { fs::fsync(&file) };
        Ok(result?)
    }

    fn write_errors(&self, _ino: Ino) -> WriteErrors {
        WriteErrors::default()
    }

    fn sync(&self) -> Result<()> {
        let root = self.open(self.root, OFlags::RDONLY)?;
        Ok(fs::syncfs(&root)?)
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let mut value = vec![0; 1 << 16];
        let len = fs::getxattr(Self::path(&self.fd(ino)?), c_string(name)?, &mut value[..])?;
        value.truncate(len);
        Ok(value)
    }

    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let flags = match mode {
            XattrMode::Set => fs::XattrFlags::empty(),
            XattrMode::Create => fs::XattrFlags::CREATE,
            XattrMode::Replace => fs::XattrFlags::REPLACE,
        };
        self.change(cx, || Ok(fs::setxattr(Self::path(&self.fd(ino)?), c_string(name)?, value, flags)?))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        let mut names = vec![0; 1 << 16];
        let len = fs::listxattr(Self::path(&self.fd(ino)?), &mut names[..])?;
        let names = names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty());
        Ok(names.map(<[u8]>::to_vec).collect())
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.change(cx, || Ok(fs::removexattr(Self::path(&self.fd(ino)?), c_string(name)?)?))
    }

    fn retain(&self, ino: Ino, _generation: u32) -> Result<()> {
        let mut inner = self.inner.lock().unwrap();
        inner.held.get_mut(&ino).ok_or(Errno::STALE)?.retained += 1;
        Ok(())
    }

    fn release(&self, ino: Ino, count: u64) {
        if let Some(held) = self.inner.lock().unwrap().held.get_mut(&ino) {
            held.retained = held.retained.saturating_sub(count);
        }
        self.settle(ino);
    }

    fn unmount(&self) -> Result<()> {
        self.sync()
    }
}

/// An ext4 image on a loop device, unmounted at the end.
pub(crate) struct LoopMount {
    directory: Arc<tempfile::TempDir>,
}

impl LoopMount {
    /// Makes and mounts an image; a reason where this machine cannot.
    pub(crate) fn new(block_size: u32) -> std::result::Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("needs root to mount".into());
        }
        let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
        let image = directory.path().join("image");
        let file = std::fs::File::create(&image).map_err(|error| error.to_string())?;
        file.set_len(512 << 20).map_err(|error| error.to_string())?;
        let mount = directory.path().join("mount");
        std::fs::create_dir(&mount).map_err(|error| error.to_string())?;
        let block = block_size.to_string();
        run("mke2fs", &["-q", "-F", "-t", "ext4", "-b", &block, image.to_str().unwrap_or_default()])?;
        let (image, mount) = (image.to_str().unwrap_or_default(), mount.to_str().unwrap_or_default());
        run("mount", &["-t", "ext4", "-o", "loop", image, mount])?;
        Ok(Self { directory: Arc::new(directory) })
    }

    /// Where it is mounted.
    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("mount")
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let mount = self.path();
        if let Err(error) = run("umount", &[mount.to_str().unwrap_or_default()]) {
            println!("{error}");
            let _ = run("umount", &["-l", mount.to_str().unwrap_or_default()]);
        }
    }
}

fn run(program: &str, arguments: &[&str]) -> std::result::Result<(), String> {
    let output = std::process::Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()))
    }
}

//! The host's files as a side of copying.

use std::ffi::{CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use onggi_vfs::{Attr, Errno, FileKind, Ino, Node, Result, SetAttr, Timestamp};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, SeekFrom, Timespec, Timestamps, XattrFlags};

use super::side::{Meta, Side, Writer};

/// Bytes moved at once.
const CHUNK: usize = 1 << 20;

/// The host.
pub(crate) struct Host;

fn errno(error: &std::io::Error) -> onggi_vfs::Error {
    Errno::from_io_error(error).unwrap_or(Errno::IO).into()
}

fn failed<T>(result: std::io::Result<T>) -> Result<T> {
    result.map_err(|error| errno(&error))
}

/// A name in a directory. What an image calls a name must not lead anywhere else.
fn below(dir: &Path, name: &[u8]) -> Result<PathBuf> {
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        return Err(Errno::INVAL.into());
    }
    Ok(dir.join(OsStr::from_bytes(name)))
}

fn kind_of(kind: fs::FileType) -> FileKind {
    if kind.is_dir() {
        FileKind::Directory
    } else if kind.is_symlink() {
        FileKind::Symlink
    } else if kind.is_block_device() {
        FileKind::BlockDevice
    } else if kind.is_char_device() {
        FileKind::CharDevice
    } else if kind.is_fifo() {
        FileKind::Fifo
    } else if kind.is_socket() {
        FileKind::Socket
    } else {
        FileKind::Regular
    }
}

fn attr_of(meta: &fs::Metadata) -> Attr {
    let time = |sec, nsec| Timestamp { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
    Attr {
        ino: Ino(meta.ino()),
        generation: 0,
        kind: kind_of(meta.file_type()),
        perm: (meta.mode() & 0o7777) as u16,
        nlink: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        uid: meta.uid(),
        gid: meta.gid(),
        rdev: (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev())),
        size: meta.len(),
        blocks: meta.blocks(),
        atime: time(meta.atime(), meta.atime_nsec()),
        mtime: time(meta.mtime(), meta.mtime_nsec()),
        ctime: time(meta.ctime(), meta.ctime_nsec()),
        crtime: Timestamp::default(),
        block_size: 4096,
    }
}

impl Side for Host {
    type At = PathBuf;

    fn meta(&self, at: &PathBuf) -> Result<Meta> {
        let meta = failed(at.symlink_metadata())?;
        Ok(Meta { attr: attr_of(&meta), dev: meta.dev() })
    }

    fn follow(&self, at: &PathBuf) -> Result<PathBuf> {
        failed(at.canonicalize())
    }

    fn child(&self, dir: &PathBuf, name: &[u8]) -> Result<Option<PathBuf>> {
        let path = below(dir, name)?;
        match path.symlink_metadata() {
            Ok(_) => Ok(Some(path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(errno(&error)),
        }
    }

    fn list(&self, dir: &PathBuf) -> Result<Vec<(Vec<u8>, PathBuf)>> {
        let mut names = Vec::new();
        for entry in failed(fs::read_dir(dir))? {
            let entry = failed(entry)?;
            names.push((entry.file_name().as_bytes().to_vec(), entry.path()));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn readlink(&self, at: &PathBuf) -> Result<Vec<u8>> {
        Ok(failed(fs::read_link(at))?.into_os_string().as_bytes().to_vec())
    }

    fn xattrs(&self, at: &PathBuf) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut list = vec![0; 64 << 10];
        let len = match rustix::fs::llistxattr(at, &mut list) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => 0,
            Err(errno) => return Err(errno.into()),
        };
        let mut xattrs = Vec::new();
        let mut value = vec![0; 64 << 10];
        for name in list[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
            match rustix::fs::lgetxattr(at, name, &mut value) {
                Ok(len) => xattrs.push((name.to_vec(), value[..len].to_vec())),
                // Gone since, or not for us to see.
                Err(Errno::NODATA | Errno::PERM | Errno::ACCESS | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        xattrs.sort_unstable();
        Ok(xattrs)
    }

    fn read(&self, at: &PathBuf, take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        // What was a file a moment ago may be a pipe by now, and must not be waited for.
        let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
        let file = failed(OpenOptions::new().read(true).custom_flags(flags).open(at))?;
        let meta = failed(file.metadata())?;
        if !meta.is_file() {
            return Err(Errno::INVAL.into());
        }
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        loop {
            let Some((start, end)) = data_after(&file, offset)? else { return Ok(()) };
            offset = start;
            while offset < end {
                let want = usize::try_from(end - offset).unwrap_or(CHUNK).min(CHUNK);
                let len = failed(file.read_at(&mut buffer[..want], offset))?;
                if len == 0 {
                    return Ok(());
                }
                take(offset, &buffer[..len])?;
                offset += len as u64;
            }
        }
    }

    fn make(&self, dir: &PathBuf, name: &[u8], node: Node<'_>, perm: u16) -> Result<PathBuf> {
        let path = below(dir, name)?;
        let mode = Mode::from_raw_mode(u32::from(perm));
        let mknod = |kind, dev| rustix::fs::mknodat(CWD, &path, kind, mode, dev);
        match node {
            Node::Regular => {
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
                rustix::fs::open(&path, flags, mode).map(drop)?;
            }
            Node::Directory => rustix::fs::mkdir(&path, mode)?,
            Node::Symlink(target) => rustix::fs::symlink(target, &path)?,
            Node::BlockDevice(major, minor) => {
                mknod(FileType::BlockDevice, rustix::fs::makedev(major, minor))?;
            }
            Node::CharDevice(major, minor) => {
                mknod(FileType::CharacterDevice, rustix::fs::makedev(major, minor))?;
            }
            Node::Fifo => mknod(FileType::Fifo, 0)?,
            Node::Socket => mknod(FileType::Socket, 0)?,
        }
        Ok(path)
    }

    fn link(&self, at: &PathBuf, dir: &PathBuf, name: &[u8]) -> Result<()> {
        failed(fs::hard_link(at, below(dir, name)?))
    }

    fn unlink(&self, dir: &PathBuf, name: &[u8]) -> Result<()> {
        failed(fs::remove_file(below(dir, name)?))
    }

    fn writer<'s>(&'s self, at: &PathBuf) -> Result<Box<dyn Writer + 's>> {
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        Ok(Box::new(HostWriter(failed(OpenOptions::new().write(true).custom_flags(flags).open(at))?)))
    }

    fn set_meta(&self, at: &PathBuf, changes: &SetAttr) -> Result<()> {
        if changes.uid.is_some() || changes.gid.is_some() {
            match std::os::unix::fs::lchown(at, changes.uid, changes.gid) {
                // Who may not give files away keeps them, as cp does.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {}
                done => failed(done)?,
            }
        }
        let kind = failed(at.symlink_metadata())?.file_type();
        if let Some(perm) = changes.perm
            && !kind.is_symlink()
        {
            rustix::fs::chmodat(CWD, at, Mode::from_raw_mode(u32::from(perm)), AtFlags::empty())?;
        }
        if changes.atime.is_some() || changes.mtime.is_some() {
            let time = |time: Option<Timestamp>| match time {
                Some(time) => Timespec { tv_sec: time.sec, tv_nsec: time.nsec.into() },
                None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
            };
            let times =
                Timestamps { last_access: time(changes.atime), last_modification: time(changes.mtime) };
            rustix::fs::utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn set_xattr(&self, at: &PathBuf, name: &[u8], value: &[u8]) -> Result<()> {
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        Ok(rustix::fs::lsetxattr(at, name, value, XattrFlags::empty())?)
    }

    fn mask(&self, perm: u16) -> u16 {
        // The host applies the umask itself.
        perm
    }
}

/// The next run of data at or after `offset`; `None` where only a hole, or nothing, follows.
fn data_after(file: &File, offset: u64) -> Result<Option<(u64, u64)>> {
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        Err(Errno::NXIO) => return Ok(None),
        // No holes here: all is data, and reading finds the end.
        Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(Some((offset, u64::MAX))),
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?)))
}

struct HostWriter(File);

impl Writer for HostWriter {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        failed(self.0.write_all_at(data, offset))
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        failed(self.0.set_len(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_in_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("below");
        fs::create_dir(&at).unwrap();
        for name in [&b""[..], b".", b"..", b"../out", b"/out", b"a/b", b"nul\0"] {
            assert_eq!(Host.make(&at, name, Node::Regular, 0o600).unwrap_err().errno(), Errno::INVAL);
            assert!(Host.child(&at, name).is_err() && Host.unlink(&at, name).is_err());
        }
        Host.make(&at, b"..fine", Node::Regular, 0o600).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn nothing_is_written_through_a_symbolic_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().to_path_buf();
        fs::write(at.join("victim"), b"safe").unwrap();
        let link = Host.make(&at, b"link", Node::Symlink(b"victim"), 0o777).unwrap();
        assert!(Host.writer(&link).is_err());
        assert_eq!(fs::read(at.join("victim")).unwrap(), b"safe");
    }
}

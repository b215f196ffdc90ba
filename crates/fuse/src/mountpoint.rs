//! Getting a FUSE connection onto a directory and off again: mount(2) where that is allowed, else
//! fusermount3(1).

use std::ffi::{CString, OsString};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use crate::{MountError, MountOptions};

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const SUBTYPE: &str = "onggi";
/// Read-ahead and share of dirty memory that root's mounts get.
const READ_AHEAD_KIB: &str = "1024";
const MAX_RATIO_PERCENT: &str = "20";

/// Where a connection is mounted.
#[derive(Clone, Debug)]
pub(crate) struct Mountpoint {
    dir: PathBuf,
    /// `major:minor` of the mounted file system, its identity in `/proc/self/mountinfo`.
    device: String,
}

/// Mounts, and gives the connection.
pub(crate) fn mount(dir: &Path, options: &MountOptions) -> Result<(OwnedFd, Mountpoint), MountError> {
    let dir = dir.canonicalize().map_err(|error| MountError::Directory(dir.to_owned(), error))?;
    if !dir.is_dir() {
        return Err(MountError::Directory(dir, std::io::ErrorKind::NotADirectory.into()));
    }
    let connection = match mount_directly(&dir, options)? {
        Some(connection) => connection,
        None => mount_by_helper(&dir, options)?,
    };
    let device = MountEntry::at(&dir).ok_or_else(|| MountError::Vanished(dir.clone()))?.device;
    // Only root may, and nothing but speed hangs on it.
    for (file, value) in [("read_ahead_kb", READ_AHEAD_KIB), ("max_ratio", MAX_RATIO_PERCENT)] {
        let _ = std::fs::write(format!("/sys/class/bdi/{device}/{file}"), value);
    }
    Ok((connection, Mountpoint { dir, device }))
}

/// mount(2); `None` where it is not allowed.
fn mount_directly(dir: &Path, options: &MountOptions) -> Result<Option<OwnedFd>, MountError> {
    let connection = match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(connection) => connection,
        Err(Errno::ACCESS) => return Ok(None),
        Err(errno) => return Err(MountError::Device(errno.into())),
    };
    let mut data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
        connection.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
    );
    if options.allow_other.unwrap_or_else(|| rustix::process::geteuid().is_root()) {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (!options.dev, MountFlags::NODEV),
        (!options.suid, MountFlags::NOSUID),
        (options.noexec, MountFlags::NOEXEC),
        (options.sync, MountFlags::SYNCHRONOUS),
    ] {
        if wanted {
            flags |= flag;
        }
    }
    let data = CString::new(data).expect("made of digits and words");
    match rustix::mount::mount(&*options.fsname, dir, format!("fuse.{SUBTYPE}"), flags, &*data) {
        Ok(()) => Ok(Some(connection)),
        Err(Errno::PERM) => Ok(None),
        Err(errno) => Err(MountError::Mount(dir.to_owned(), errno.into())),
    }
}

/// Asks fusermount3, which sends the connection over a socket.
fn mount_by_helper(dir: &Path, options: &MountOptions) -> Result<OwnedFd, MountError> {
    let helper = |error| MountError::Helper(HELPER, error);
    let escaped = options.fsname.replace('\\', r"\\").replace(',', r"\,");
    let mut words =
        vec![format!("fsname={escaped}"), format!("subtype={SUBTYPE}"), "default_permissions".into()];
    for (wanted, word) in [
        (options.allow_other == Some(true), "allow_other"),
        (options.read_only, "ro"),
        (options.noexec, "noexec"),
        (options.sync, "sync"),
        (options.dev, "dev"),
        (options.suid, "suid"),
    ] {
        if wanted {
            words.push(word.to_owned());
        }
    }
    // The helper inherits `theirs`: it alone is made without close-on-exec.
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::empty(), None)
        .map_err(|errno| helper(errno.into()))?;
    rustix::io::fcntl_setfd(&ours, rustix::io::FdFlags::CLOEXEC).map_err(|errno| helper(errno.into()))?;
    let child = Command::new(HELPER)
        .arg("-o")
        .arg(words.join(","))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(helper)?;
    drop(theirs);
    let connection = receive_descriptor(&ours);
    let output = child.wait_with_output().map_err(helper)?;
    connection.ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        MountError::Helper(HELPER, std::io::Error::other(said))
    })
}

/// The descriptor that comes over the socket; `None` where the other side goes away without sending one.
fn receive_descriptor(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        let mut into = [IoSliceMut::new(&mut byte)];
        match recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(_) => return None,
        }
    }
    control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    })
}

/// What the mount table says of a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// `major:minor` of the mounted file system.
    pub device: String,
    /// The mount point.
    pub dir: PathBuf,
    /// The type, with its subtype: `fuse.onggi` for the mounts made here.
    pub fs_type: String,
    /// The source: for the mounts made here [`MountOptions::fsname`].
    pub source: PathBuf,
}

impl MountEntry {
    /// What is mounted on top at `dir`, a path as the mount table has it; `None` where nothing is.
    #[must_use]
    pub fn at(dir: &Path) -> Option<Self> {
        let table = std::fs::read("/proc/self/mountinfo").ok()?;
        table.split(|&byte| byte == b'\n').filter_map(Self::parse).rfind(|entry| entry.dir == dir)
    }

    /// One line of mountinfo.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let text = |field: &[u8]| std::str::from_utf8(field).map(str::to_owned).ok();
        let device = text(fields.nth(2)?)?;
        let dir = unescape(fields.nth(1)?);
        fields.by_ref().find(|&field| field == b"-")?;
        let fs_type = text(fields.next()?)?;
        Some(Self { device, dir, fs_type, source: unescape(fields.next()?) })
    }

    /// Whether it was mounted by this crate.
    #[must_use]
    pub fn is_onggi(&self) -> bool {
        self.fs_type.strip_prefix("fuse.") == Some(SUBTYPE)
    }

    /// Unmounts it; `lazy` takes it out of the tree though files are open.
    ///
    /// # Errors
    /// The system's; `EBUSY` where files are open.
    pub fn unmount(&self, lazy: bool) -> std::io::Result<()> {
        let flags = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        match rustix::mount::unmount(&self.dir, UnmountFlags::NOFOLLOW | flags) {
            Err(Errno::PERM) => by_helper(if lazy { &["-u", "-z"] } else { &["-u"] }, &self.dir),
            done => Ok(done?),
        }
    }
}

/// The mount table writes odd bytes as `\ooo`.
fn unescape(escaped: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(escaped.len());
    let mut at = 0;
    while let Some(&byte) = escaped.get(at) {
        let octal = escaped.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let code = octal.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        path.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(path))
}

fn by_helper(words: &[&str], dir: &Path) -> std::io::Result<()> {
    let output = Command::new(HELPER).args(words).arg("--").arg(dir).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

impl Mountpoint {
    /// Whether it is still what one sees at the directory.
    pub(crate) fn is_mounted(&self) -> bool {
        self.entry().is_some()
    }

    fn entry(&self) -> Option<MountEntry> {
        MountEntry::at(&self.dir).filter(|entry| entry.device == self.device)
    }

    /// Unmounts. Where files are open what the kernel has cached is written first and the mount only
    /// leaves the tree: the session goes on until the last file is closed.
    pub(crate) fn unmount(&self) -> std::io::Result<()> {
        let Some(entry) = self.entry() else { return Ok(()) };
        if entry.unmount(false).is_ok() {
            return Ok(());
        }
        if let Ok(root) = rustix::fs::open(&self.dir, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            let _ = rustix::fs::syncfs(root);
        }
        entry.unmount(true)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn a_mount_table_line_comes_apart() {
        let line = br"36 35 98:0 /mnt1 /a\040b\134c rw,noatime master:1 - fuse.onggi /x\040y rw";
        let entry = MountEntry::parse(line).unwrap();
        assert_eq!((entry.device.as_str(), entry.source.to_str().unwrap()), ("98:0", "/x y"));
        assert_eq!(entry.dir.as_os_str().as_bytes(), br"/a b\c");
        assert!(entry.is_onggi());
        assert!(MountEntry::parse(b"").is_none());
    }

    #[test]
    fn the_root_directory_is_mounted_somewhere() {
        assert!(MountEntry::at(Path::new("/")).is_some());
        assert!(MountEntry::at(Path::new("/no/such/place")).is_none());
    }
}

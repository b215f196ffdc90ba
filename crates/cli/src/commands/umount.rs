//! `onggi umount`.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use onggi_fuse::MountEntry;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::args::Umount;
use crate::commands::mount::FAILED;
use crate::report::{At, sentence};

/// Unmounts all; gives the exit code of umount(8).
pub(crate) fn run(args: &Umount) -> u8 {
    let mut code = 0;
    for dir in &args.dirs {
        if let Err(error) = unmount(dir, args.lazy) {
            eprintln!("onggi: umount: {}", sentence(&error));
            code = FAILED;
        }
    }
    code
}

fn unmount(dir: &Path, lazy: bool) -> anyhow::Result<()> {
    // The mount itself need not answer any more: only what is above it is asked.
    let path = std::path::absolute(dir).at(dir.display())?;
    let path = match (path.parent().map(Path::canonicalize), path.file_name()) {
        (Some(Ok(parent)), Some(name)) if !path.is_symlink() => parent.join(name),
        _ => path.canonicalize().at(dir.display())?,
    };
    let Some(entry) = MountEntry::at(&path).filter(MountEntry::is_onggi) else {
        bail!("{}: not mounted by onggi", dir.display());
    };
    let server = find_server(&entry.source);
    entry.unmount(lazy).at(dir.display())?;
    if !lazy {
        wait(&entry.source, server);
    }
    Ok(())
}

/// The process that holds the image's lock.
fn find_server(image: &Path) -> Option<OwnedFd> {
    let inode = image.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = locks.lines().find_map(|line| {
        // 1: FLOCK ADVISORY WRITE pid major:minor:inode start end
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, _, pid, file, ..] = fields[..] else { return None };
        let ours = file.rsplit(':').next() == Some(inode.as_str()) && is_onggi(pid);
        ours.then(|| pid.parse().ok()).flatten()
    })?;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn is_onggi(pid: &str) -> bool {
    let exe = |pid: &str| std::fs::read_link(PathBuf::from("/proc").join(pid).join("exe")).ok();
    // Another user's process does not tell what it runs; its lock says enough.
    exe(pid).is_none_or(|theirs| exe("self") == Some(theirs))
}

/// Waits until the serving process has written everything and let go of the image.
fn wait(image: &Path, server: Option<OwnedFd>) {
    if let Some(server) = server {
        let mut ended = [PollFd::new(&server, PollFlags::IN)];
        while poll(&mut ended, None) == Err(Errno::INTR) {}
        return;
    }
    // A server out of sight: its lock is seen all the same.
    let Ok(file) = File::open(image) else { return };
    while rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

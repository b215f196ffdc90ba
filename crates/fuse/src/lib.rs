//! Mounts any engine through FUSE.
//!
//! **Does:** puts a [`FileSystem`] on a directory of this machine and answers the kernel until it is
//! unmounted. The kernel caches names, attributes and data, dirty data included, and checks permissions.
//! **Never does:** touch a device or a format. It makes the time of each request from the system's clock.
//! **Called by:** the command line.
//! **Locks:** `nodes` shards are held across [`FileSystem::retain`], so above the engine's; `handles` is
//! a leaf.
//!
//! What the kernel does not tell a FUSE server: sync(2) and syncfs(2) write the kernel's dirty data here
//! but send no request after it, so that only fsync(2) and the end of the mount promise durability.

mod answer;
mod attributes;
mod directories;
mod files;
mod handles;
mod mountpoint;
mod names;
mod nodes;
mod request;
mod server;
mod session;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use onggi_vfs::FileSystem;

pub use mountpoint::MountEntry;

use mountpoint::Mountpoint;
use server::Server;
use session::Session;

/// How to mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What the mount table shows as the source.
    pub fsname: String,
    /// The kernel refuses changes.
    pub read_only: bool,
    /// Everybody may look in, not only who mounted. `None`: yes for root, no for others.
    pub allow_other: Option<bool>,
    /// Device files work.
    pub dev: bool,
    /// Set-id bits work.
    pub suid: bool,
    /// Programs cannot be started.
    pub noexec: bool,
    /// Every write is durable before it returns.
    pub sync: bool,
    /// Requests served at once; at least 1.
    pub threads: usize,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            fsname: "onggi".into(),
            read_only: false,
            allow_other: None,
            dev: false,
            suid: false,
            noexec: false,
            sync: false,
            threads: 16,
        }
    }
}

/// Why a volume could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The mount point is not a directory that one can reach.
    #[error("{}: {}", .0.display(), .1)]
    Directory(PathBuf, std::io::Error),
    /// The kernel's FUSE device does not open.
    #[error("/dev/fuse: {0}")]
    Device(std::io::Error),
    /// mount(2) failed.
    #[error("mounting on {}: {}", .0.display(), .1)]
    Mount(PathBuf, std::io::Error),
    /// The program that mounts for those who may not failed.
    #[error("{0}: {1}")]
    Helper(&'static str, std::io::Error),
    /// Mounted, but the mount table does not know.
    #[error("{} was mounted but is not in the mount table", .0.display())]
    Vanished(PathBuf),
    /// The kernel and this program could not agree.
    #[error("talking to the kernel's FUSE: {0}")]
    Handshake(std::io::Error),
    /// The kernel is too old.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.2) or newer is needed")]
    OldKernel {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
}

/// A volume on a directory.
pub struct Mount {
    /// `None` once it is over.
    session: Option<Session>,
    mountpoint: Mountpoint,
    threads: usize,
}

impl Mount {
    /// Mounts. The directory is usable from now on; requests wait for [`Mount::run`].
    ///
    /// # Errors
    /// [`MountError`], with nothing left mounted.
    pub fn new(fs: Arc<dyn FileSystem>, options: &MountOptions, dir: &Path) -> Result<Self, MountError> {
        let (connection, mountpoint) = mountpoint::mount(dir, options)?;
        let session = Session { connection, server: Server::new(fs) };
        let mut mount = Self { session: None, mountpoint, threads: options.threads.max(1) };
        if let Err(error) = session.handshake() {
            drop(session);
            return Err(error);
        }
        mount.session = Some(session);
        Ok(mount)
    }

    /// What unmounts it from another thread.
    #[must_use]
    pub fn unmounter(&self) -> Unmounter {
        Unmounter(self.mountpoint.clone())
    }

    /// Serves until it is unmounted, here or with umount(8). The engine's own unmount is the caller's.
    ///
    /// # Errors
    /// When the connection to the kernel broke.
    pub fn run(mut self) -> std::io::Result<()> {
        match self.session.take() {
            Some(session) => session.run(self.threads),
            None => Ok(()),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Nobody serves any more: with the connection open, unmounting would wait for answers.
        self.session = None;
        if let Err(error) = self.mountpoint.unmount() {
            tracing::warn!(%error, "unmounting");
        }
    }
}

/// Unmounts a [`Mount`] from any thread.
#[derive(Clone, Debug)]
pub struct Unmounter(Mountpoint);

impl Unmounter {
    /// Unmounts. Where files are open what is cached of them is written and the mount leaves the tree at
    /// once, but [`Mount::run`] returns only when the last one is closed.
    ///
    /// # Errors
    /// The system's.
    pub fn unmount(&self) -> std::io::Result<()> {
        self.0.unmount()
    }

    /// Whether it is still mounted where it was.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.0.is_mounted()
    }
}

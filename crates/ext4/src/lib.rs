//! The ext4 engine.
//!
//! **Does:** mounts an ext4 volume ([`Ext4::mount`]) and offers it through [`onggi_vfs::FileSystem`]: inodes
//! in memory, file data with delayed allocation, names, orphans, writeback, fsync.
//! **Never does:** lay out bytes, edit trees and bitmaps (the volume's structures do), order log writes (the
//! journal does), ask for the time.
//! **Called by:** fuse, the command line, the crash explorer, through the door.
//! **Locks**, outermost first: renames → a directory's `ops`, parent before child → a file's `ops` → its
//! `writeback` → an open journal handle → an inode's `state` → orphans → allocator groups → buffers. See
//! `docs/LOCKS.md`.

mod acl;
mod attr;
mod blocks;
mod core;
mod error;
mod file;
mod filesystem;
mod flusher;
mod inode;
mod mount;
mod namespace;
mod options;
mod orphan;

pub use crate::core::Ext4;
pub use error::MountError;
pub use options::{Atime, DataMode, MountOptions};

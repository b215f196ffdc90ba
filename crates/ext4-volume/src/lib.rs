//! ext4's structures as they change inside a transaction.
//!
//! **Does:** allocates blocks and inodes, grows and shrinks extent trees, edits directories and extended
//! attributes, reads and writes inodes; every change goes through a journal handle that the caller passes.
//! **Never does:** file data, caching of inodes, locking of inodes (the caller holds the inode's lock),
//! clocks.
//! **Called by:** the ext4 engine.
//! **Locks:** a group's bitmap lock, below every inode lock and above the buffers' own.

pub mod alloc;
pub mod dir;
mod error;
pub mod extents;
mod volume;
pub mod xattr;

pub use error::{Place, VolumeError};
pub use volume::{BlockRun, Effects, Handle, Volume};

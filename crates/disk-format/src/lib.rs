//! On-disk structures: bytes to checked types and back.
//!
//! **Does:** lays out every ext4 and jbd2 structure, checks it field by field, verifies and writes its
//! checksum, and hands up types with readable names. Raw structures keep the field names of the
//! kernel's format documents (`Documentation/filesystems/ext4`).
//! **Never does:** I/O, caching, clocks. No input makes it panic.
//! **Called by:** the journal, the ext4 engine, mkfs, check.
//! **Locks:** none.

pub mod address;
pub mod checksum;
pub mod ext4;
mod flag_set;
pub mod jbd2;

pub use address::{DiskBlock, FileBlock, GroupNr, InodeNr, Tid};

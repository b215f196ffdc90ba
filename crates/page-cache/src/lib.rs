//! File contents in memory.
//!
//! **Does:** keeps pages of files ([`FilePages`]), knows which of their blocks are dirty, hands out stable
//! snapshots for writeback, and evicts clean pages so that all files together stay within a budget
//! ([`PageCache`]).
//! **Never does:** I/O, mapping, deciding when to write: the engine fills pages and takes dirty ones.
//! **Called by:** engines.
//! **Locks:** a file's page lock, then the cache's own (queue, spare pages); both leaves.

mod cache;
mod file;

pub use cache::PageCache;
pub use file::{DirtyPage, FilePages, PAGE_SIZE};

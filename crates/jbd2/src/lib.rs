//! The ext4 journal (jbd2) and the metadata buffers it protects.
//!
//! **Does:** caches metadata blocks as immutable snapshots, groups their changes into transactions,
//! commits them with write-ahead logging in jbd2's own format, checkpoints them home, and replays a
//! dirty log.
//! **Never does:** calls upwards (results come back as values), file data, clocks, retries of a failed
//! write or flush.
//! **Called by:** the ext4 engine, mkfs, check.
//! **Locks**, outermost first: checkpointer (one at a time) → journal superblock → journal state → one
//! transaction's contents → one buffer's contents → one shard of the buffer map. The first two are held
//! across device calls, the others only for short sections. An open [`Handle`] counts as a shared lock
//! outside all of them: its holder must not open another one or call [`Journal::lock`].

mod buffer;
mod buffers;
mod checkpoint;
mod commit;
mod error;
mod handle;
mod home;
mod journal;
mod log;
mod log_reader;
mod map;
mod recovery;
mod scan;
mod superblock;
mod transaction;

pub use buffer::Buffer;
pub use buffers::Buffers;
pub use checkpoint::Goal;
pub use commit::{CommitTime, Committed, Locked};
pub use error::{JournalError, StartError};
pub use handle::Handle;
pub use journal::{Counters, Journal, Pressure, Settings};
pub use map::JournalMap;
pub use recovery::{Recovery, RecoveryError, recover};

//! How a volume is mounted.

use std::time::Duration;

/// What a commit does with file data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// A block's data is on the device before the transaction that makes it readable.
    #[default]
    Ordered,
    /// Data goes through the journal.
    Journal,
    /// No order between data and metadata: after a power cut a file may show what its blocks held before.
    Writeback,
}

/// When reading a file stamps its access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// When it is older than the last change, or older than a day.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strict,
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Nothing is written.
    pub read_only: bool,
    /// What a commit does with file data.
    pub data: DataMode,
    /// Bytes for cached file pages and metadata blocks together.
    pub cache_bytes: u64,
    /// Longest time a change stays in memory only.
    pub commit_interval: Duration,
    /// When access times change.
    pub atime: Atime,
    /// Run the flusher thread. Without it changes reach the device at fsync, sync, unmount and under
    /// memory pressure only, so that a single-threaded run is the same every time.
    pub background: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            data: DataMode::Ordered,
            cache_bytes: 256 << 20,
            commit_interval: Duration::from_secs(5),
            atime: Atime::Relatime,
            background: true,
        }
    }
}

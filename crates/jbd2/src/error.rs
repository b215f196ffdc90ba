//! What can go wrong in the journal.

use onggi_block_device::DeviceError;
use onggi_disk_format::jbd2;
use onggi_disk_format::{DiskBlock, Tid};

/// Why a journal operation failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// The device failed; the journal has stopped.
    #[error("journal: {during}: {source}")]
    Device {
        /// What the journal was doing.
        during: &'static str,
        /// The device's error.
        source: DeviceError,
    },
    /// The engine stopped the journal.
    #[error("journal stopped: {0}")]
    Stopped(String),
    /// A locked transaction was dropped unwritten; the journal has stopped.
    #[error("journal stopped: transaction {0} was locked and never written")]
    Abandoned(Tid),
    /// A handle changed more blocks than it asked for, and the transaction has no room for more.
    #[error("block {nr}: the handle's credits in transaction {tid} are used up")]
    NoCredits {
        /// The block that found no room.
        nr: DiskBlock,
        /// The handle's transaction.
        tid: Tid,
    },
    /// A handle changed a buffer whose block has been freed.
    #[error("block {0}: changed through a buffer of its earlier, freed life")]
    FreedBuffer(DiskBlock),
    /// A block to be journaled does not lie on the volume.
    #[error("block {nr} lies past the volume's {volume_blocks} blocks")]
    OutsideVolume {
        /// The block.
        nr: DiskBlock,
        /// Blocks on the volume.
        volume_blocks: u64,
    },
    /// A block to be journaled belongs to the journal.
    #[error("block {0} belongs to the journal itself")]
    InsideJournal(DiskBlock),
    /// No such transaction has begun yet.
    #[error("transaction {tid} has not begun: the running one is {running}")]
    NotBegun {
        /// The transaction asked for.
        tid: Tid,
        /// The newest there is.
        running: Tid,
    },
    /// The journal cannot close while changes are not committed or handles are open.
    #[error("the journal is closed while transaction {0} has changes or open handles")]
    Uncommitted(Tid),
    /// A transaction's revoke records outgrew the whole log.
    #[error("transaction {tid} needs {blocks} log blocks of {ring}")]
    Overgrown {
        /// The transaction.
        tid: Tid,
        /// Log blocks it needs.
        blocks: u64,
        /// Log blocks there are.
        ring: u32,
    },
    /// A journal structure on the device breaks a rule.
    #[error(transparent)]
    Format(jbd2::JournalError),
    /// The journal counts in other blocks than the volume.
    #[error("journal superblock: s_blocksize is {journal}, the volume's blocks have {volume} bytes")]
    BlockSize {
        /// Bytes in a journal block.
        journal: u32,
        /// Bytes in a block of the volume.
        volume: u32,
    },
    /// The journal file is shorter than its superblock says.
    #[error("journal superblock: s_maxlen is {maxlen}, the journal file has {blocks} blocks")]
    ShortMap {
        /// Blocks of the journal file.
        blocks: u32,
        /// Blocks it should have.
        maxlen: u32,
    },
    /// The log is too short for any transaction.
    #[error("a log of {ring} blocks holds no transaction")]
    TooSmall {
        /// Log blocks there are.
        ring: u32,
    },
    /// The journal needs something that Onggi does not do.
    #[error("journal: {feature} is not supported")]
    Unsupported {
        /// The feature's name.
        feature: String,
    },
    /// The log holds transactions that must be replayed first.
    #[error("the journal starts at block {start}: it must be recovered first")]
    NotRecovered {
        /// `s_start`.
        start: u32,
    },
}

impl JournalError {
    /// The system error number nearest to this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Device { source, .. } => source.errno(),
            Self::Unsupported { .. } => 95,
            Self::Format(_) | Self::BlockSize { .. } | Self::ShortMap { .. } | Self::TooSmall { .. } => 117,
            _ => 5,
        }
    }
}

/// Why no handle was given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The running transaction has no room: commit it ([`crate::Journal::lock`]), then try again.
    #[error("transaction {0} is full")]
    Full(Tid),
    /// No transaction could ever hold this many blocks.
    #[error("{credits} blocks in one handle, where a transaction holds at most {most}")]
    TooBig {
        /// Blocks asked for.
        credits: u32,
        /// [`crate::Journal::max_credits`].
        most: u32,
    },
    /// The journal has stopped.
    #[error(transparent)]
    Aborted(#[from] JournalError),
}

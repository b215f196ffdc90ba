//! The structures of a jbd2 journal. All integers are big-endian.

mod commit;
mod descriptor;
mod revoke;
mod superblock;

pub use commit::{Commit, TransactionChecksum, encode_commit, parse_commit};
pub use descriptor::{DescriptorBuilder, Tag, TagChecksum, escape, parse_descriptor, tag_checksum, unescape};
pub use revoke::{RevokeBuilder, parse_revoke};
pub use superblock::{
    CHECKSUM_CRC32C, DEFAULT_FAST_COMMIT_BLOCKS, JournalSuperblock, RawJournalSuperblock, SUPERBLOCK_SIZE,
};

use crate::address::{DiskBlock, Tid};
use crate::checksum::crc32c;
use crate::flag_set::flag_set;

/// `h_magic`.
pub const MAGIC: u32 = 0xc03b_3998;
/// Bytes of the header that starts every journal block.
pub const HEADER_SIZE: usize = 12;

flag_set! {
    /// Journal features that may be ignored.
    Compat(u32) {
        /// Commit blocks carry a checksum of the whole transaction.
        CHECKSUM = 1, "journal_checksum";
    }
}

flag_set! {
    /// Journal features that must be known to replay.
    Incompat(u32) {
        /// There may be revoke blocks.
        REVOKE = 1, "journal_incompat_revoke";
        /// Block numbers have 64 bits.
        BIT64 = 2, "journal_64bit";
        /// A commit block may be written before what it commits is durable.
        ASYNC_COMMIT = 4, "journal_async_commit";
        /// CRC-32C with 16 bits per tag.
        CSUM_V2 = 8, "journal_checksum_v2";
        /// CRC-32C with 32 bits per tag.
        CSUM_V3 = 0x10, "journal_checksum_v3";
        /// There may be fast commits.
        FAST_COMMIT = 0x20, "fast_commit";
    }
}

/// The features that decide how blocks of the log are laid out, and the checksum seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Features that may be ignored.
    pub compat: Compat,
    /// Features that must be known.
    pub incompat: Incompat,
    /// Seed of all journal checksums.
    pub seed: u32,
}

impl Layout {
    /// Whether descriptor, revoke and commit blocks carry CRC-32C.
    #[must_use]
    pub fn has_checksums(&self) -> bool {
        self.incompat.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3)
    }

    /// Whether block numbers have 64 bits.
    #[must_use]
    pub fn is_64bit(&self) -> bool {
        self.incompat.contains(Incompat::BIT64)
    }

    /// Bytes of a tag, without the UUID that may follow.
    #[must_use]
    pub fn tag_size(&self) -> usize {
        if self.incompat.contains(Incompat::CSUM_V3) {
            return 16;
        }
        let high = if self.is_64bit() { 4 } else { 0 };
        let padding = if self.incompat.contains(Incompat::CSUM_V2) { 2 } else { 0 };
        8 + high + padding
    }

    /// Bytes at the end of a descriptor or revoke block that hold its checksum.
    #[must_use]
    pub fn tail_size(&self) -> usize {
        if self.has_checksums() { 4 } else { 0 }
    }

    /// Bytes of an entry of a revoke block.
    #[must_use]
    pub fn revoke_size(&self) -> usize {
        if self.is_64bit() { 8 } else { 4 }
    }
}

/// The rule that a journal structure breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum JournalError {
    #[error("journal: {len} bytes, {structure} has {needed}")]
    TooShort { structure: &'static str, len: usize, needed: usize },
    #[error("journal {structure}: h_magic is {magic:#010x}, not 0xc03b3998")]
    Magic { structure: &'static str, magic: u32 },
    #[error("journal {structure}: h_blocktype is {stored}")]
    BlockType { structure: &'static str, stored: u32 },
    #[error("journal {structure}: h_sequence is {stored}, not {expected}")]
    Sequence { structure: &'static str, stored: Tid, expected: Tid },
    #[error("journal {structure}: checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { structure: &'static str, stored: u32, computed: u32 },
    #[error("journal superblock: s_blocksize {0} is not a power of two from 1024 to 65536")]
    BlockSize(u32),
    #[error("journal superblock: s_maxlen {0} is too short for a log")]
    MaxLen(u32),
    #[error("journal superblock: {field} {value} does not lie in the log of {maxlen} blocks")]
    Place { field: &'static str, value: u32, maxlen: u32 },
    #[error("journal superblock: s_checksum_type {0} is not 4 (crc32c)")]
    ChecksumType(u8),
    #[error("journal superblock: checksum features contradict each other ({0:#x}, {1:#x})")]
    ChecksumFeatures(u32, u32),
    #[error("journal descriptor: its tags run to the end of the block without a last one")]
    NoLastTag,
    #[error("journal revoke block: r_count {count} is no whole number of entries that fits {limit} bytes")]
    RevokeCount { count: u32, limit: usize },
}

/// What a block of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockType {
    /// Tags of the data blocks that follow.
    Descriptor,
    /// End of a transaction.
    Commit,
    /// A superblock of the first form.
    SuperblockV1,
    /// A superblock of the second form.
    SuperblockV2,
    /// Blocks that earlier transactions must not replay.
    Revoke,
    /// Anything else.
    Other(u32),
}

impl BlockType {
    fn from_stored(stored: u32) -> Self {
        match stored {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            other => Self::Other(other),
        }
    }

    fn stored(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
            Self::Other(other) => other,
        }
    }
}

/// The header that starts every block of the log but the data blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the block is.
    pub block_type: BlockType,
    /// The transaction it belongs to.
    pub sequence: Tid,
}

impl Header {
    /// The header of `block`, `None` when it does not start with the magic number.
    #[must_use]
    pub fn parse(block: &[u8]) -> Option<Self> {
        if be32(block, 0)? != MAGIC {
            return None;
        }
        Some(Self { block_type: BlockType::from_stored(be32(block, 4)?), sequence: Tid(be32(block, 8)?) })
    }

    /// Writes the header at the start of `block`, which has room for it.
    pub(crate) fn write(self, block: &mut [u8]) {
        block[..4].copy_from_slice(&MAGIC.to_be_bytes());
        block[4..8].copy_from_slice(&self.block_type.stored().to_be_bytes());
        block[8..12].copy_from_slice(&self.sequence.0.to_be_bytes());
    }

    pub(crate) fn expect(
        block: &[u8],
        structure: &'static str,
        block_type: BlockType,
        needed: usize,
    ) -> Result<Self, JournalError> {
        if block.len() < needed {
            return Err(JournalError::TooShort { structure, len: block.len(), needed });
        }
        let magic = be32(block, 0).unwrap_or(0);
        let header = Self::parse(block).ok_or(JournalError::Magic { structure, magic })?;
        if header.block_type == block_type {
            Ok(header)
        } else {
            Err(JournalError::BlockType { structure, stored: header.block_type.stored() })
        }
    }
}

/// Checksum of `block` with the four bytes at `at` taken as zero.
pub(crate) fn checksum_without(seed: u32, block: &[u8], at: usize) -> u32 {
    let sum = crc32c(crc32c(seed, &block[..at]), &[0; 4]);
    crc32c(sum, &block[at + 4..])
}

/// Checks the checksum in the tail of a descriptor or revoke block; passes where there is none.
pub(crate) fn verify_tail(
    layout: &Layout,
    structure: &'static str,
    block: &[u8],
) -> Result<(), JournalError> {
    if !layout.has_checksums() {
        return Ok(());
    }
    let at = block.len() - 4;
    let computed = checksum_without(layout.seed, block, at);
    let stored = be32(block, at).unwrap_or(0);
    if stored == computed { Ok(()) } else { Err(JournalError::Checksum { structure, stored, computed }) }
}

/// Writes the checksum into the tail of a descriptor or revoke block, where there is one.
pub(crate) fn set_tail(layout: &Layout, block: &mut [u8]) {
    if layout.has_checksums() {
        let at = block.len() - 4;
        let sum = checksum_without(layout.seed, block, at);
        block[at..].copy_from_slice(&sum.to_be_bytes());
    }
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    crate::ext4::array(bytes, at).map(u32::from_be_bytes)
}

/// A block number from its halves.
pub(crate) fn disk_block(low: u32, high: u32) -> DiskBlock {
    DiskBlock(u64::from(high) << 32 | u64::from(low))
}

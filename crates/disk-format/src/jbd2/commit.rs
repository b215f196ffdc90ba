//! Commit blocks.

use super::{BlockType, Compat, Header, JournalError, Layout, be32, checksum_without};
use crate::address::Tid;

const SIZE: usize = 60;
const SUM: usize = 16;
const STRUCTURE: &str = "commit block";

/// Checksum over a whole transaction, of journals with the first checksum format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionChecksum {
    /// `h_chksum_type`; 1 is CRC-32 (see [`crate::checksum::crc32_be`]).
    pub kind: u8,
    /// `h_chksum_size` in bytes.
    pub size: u8,
    /// The checksum over descriptor and data blocks in log order.
    pub value: u32,
}

/// The end of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The transaction.
    pub sequence: Tid,
    /// When it committed, in seconds since 1970.
    pub sec: u64,
    /// Nanoseconds of that moment.
    pub nsec: u32,
    /// Present in journals with the first checksum format.
    pub transaction_checksum: Option<TransactionChecksum>,
}

/// Checks a commit block, its own checksum included; a transaction checksum is the caller's to verify.
///
/// # Errors
/// The first rule broken.
pub fn parse_commit(layout: &Layout, block: &[u8]) -> Result<Commit, JournalError> {
    let header = Header::expect(block, STRUCTURE, BlockType::Commit, SIZE)?;
    let stored = be32(block, SUM).unwrap_or(0);
    if layout.has_checksums() {
        let computed = checksum_without(layout.seed, block, SUM);
        if stored != computed {
            return Err(JournalError::Checksum { structure: STRUCTURE, stored, computed });
        }
    }
    let word = |at| be32(block, at).unwrap_or(0);
    Ok(Commit {
        sequence: header.sequence,
        sec: u64::from(word(48)) << 32 | u64::from(word(52)),
        nsec: word(56),
        transaction_checksum: layout.compat.contains(Compat::CHECKSUM).then(|| TransactionChecksum {
            kind: block[12],
            size: block[13],
            value: stored,
        }),
    })
}

/// Writes a commit block over `block`, a whole block.
///
/// # Errors
/// A block too short.
pub fn encode_commit(layout: &Layout, commit: &Commit, block: &mut [u8]) -> Result<(), JournalError> {
    if block.len() < SIZE {
        return Err(JournalError::TooShort { structure: STRUCTURE, len: block.len(), needed: SIZE });
    }
    block.fill(0);
    Header { block_type: BlockType::Commit, sequence: commit.sequence }.write(block);
    block[48..56].copy_from_slice(&commit.sec.to_be_bytes());
    block[56..60].copy_from_slice(&commit.nsec.to_be_bytes());
    if let Some(sum) = commit.transaction_checksum {
        block[12] = sum.kind;
        block[13] = sum.size;
        block[SUM..SUM + 4].copy_from_slice(&sum.value.to_be_bytes());
    }
    if layout.has_checksums() {
        let sum = checksum_without(layout.seed, block, SUM);
        block[SUM..SUM + 4].copy_from_slice(&sum.to_be_bytes());
    }
    Ok(())
}

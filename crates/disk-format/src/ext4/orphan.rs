//! Blocks of the orphan file: inode numbers that are unlinked or half truncated.

use crate::address::{DiskBlock, InodeNr};
use crate::checksum::crc32c;

/// `ob_magic`.
pub const MAGIC: u32 = 0x0b10_ca04;
const TAIL: usize = 8;

/// The rule that an orphan block breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum OrphanError {
    #[error("orphan file: block of {0} bytes has no room for entries")]
    TooShort(usize),
    #[error("orphan file: ob_magic is {0:#010x}, not 0x0b10ca04")]
    Magic(u32),
    #[error("orphan file: ob_checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("orphan file: slot {slot} names inode {nr}, past the last inode")]
    InodeNumber { slot: usize, nr: InodeNr },
}

/// Slots of a block.
#[must_use]
pub fn slots(block_size: usize) -> usize {
    block_size.saturating_sub(TAIL) / 4
}

/// The used slots of `block` with their inodes. `checksum` is the orphan inode's seed
/// ([`super::inode_seed`]) and the block's place, where metadata has checksums.
///
/// # Errors
/// The first rule broken.
pub fn parse(
    block: &[u8],
    inodes_count: u32,
    checksum: Option<(u32, DiskBlock)>,
) -> Result<Vec<(usize, InodeNr)>, OrphanError> {
    let at = tail(block)?;
    let magic = super::le32(block, at).unwrap_or(0);
    if magic != MAGIC {
        return Err(OrphanError::Magic(magic));
    }
    if let Some((seed, place)) = checksum {
        let computed = block_checksum(&block[..at], seed, place);
        let stored = super::le32(block, at + 4).unwrap_or(0);
        if stored != computed {
            return Err(OrphanError::Checksum { stored, computed });
        }
    }
    let mut used = Vec::new();
    for (slot, bytes) in block[..at].chunks_exact(4).enumerate() {
        let nr = InodeNr(super::le32(bytes, 0).unwrap_or(0));
        if nr.0 > inodes_count {
            return Err(OrphanError::InodeNumber { slot, nr });
        }
        if nr.0 != 0 {
            used.push((slot, nr));
        }
    }
    Ok(used)
}

/// Puts `nr` into `slot` (0 empties it). Returns whether the slot exists. Then [`seal`] the block.
pub fn set_slot(block: &mut [u8], slot: usize, nr: InodeNr) -> bool {
    if slot >= slots(block.len()) {
        return false;
    }
    block[slot * 4..slot * 4 + 4].copy_from_slice(&nr.0.to_le_bytes());
    true
}

/// Writes the tail: the magic number and, given the seed and place of [`parse`], the checksum.
///
/// # Errors
/// A block too short for a tail.
pub fn seal(block: &mut [u8], checksum: Option<(u32, DiskBlock)>) -> Result<(), OrphanError> {
    let at = tail(block)?;
    block[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
    if let Some((seed, place)) = checksum {
        let sum = block_checksum(&block[..at], seed, place);
        block[at + 4..at + 8].copy_from_slice(&sum.to_le_bytes());
    }
    Ok(())
}

fn tail(block: &[u8]) -> Result<usize, OrphanError> {
    block
        .len()
        .checked_sub(TAIL)
        .filter(|&at| at >= 4 && at % 4 == 0)
        .ok_or(OrphanError::TooShort(block.len()))
}

fn block_checksum(entries: &[u8], seed: u32, place: DiskBlock) -> u32 {
    crc32c(crc32c(seed, &place.0.to_le_bytes()), entries)
}

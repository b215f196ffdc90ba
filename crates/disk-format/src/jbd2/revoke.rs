//! Revoke blocks: places that earlier transactions must not be replayed to.

use super::{BlockType, Header, JournalError, Layout, be32, disk_block, set_tail, verify_tail};
use crate::address::{DiskBlock, Tid};

const REVOKE_HEADER: usize = 16;
const STRUCTURE: &str = "revoke block";

/// Checks a revoke block and returns its sequence number and the blocks it revokes.
///
/// # Errors
/// The first rule broken.
pub fn parse_revoke(layout: &Layout, block: &[u8]) -> Result<(Tid, Vec<DiskBlock>), JournalError> {
    let header = Header::expect(block, STRUCTURE, BlockType::Revoke, REVOKE_HEADER + layout.tail_size())?;
    verify_tail(layout, STRUCTURE, block)?;
    let limit = block.len() - layout.tail_size();
    let count = be32(block, 12).unwrap_or(0);
    let size = layout.revoke_size();
    let body = (count as usize)
        .checked_sub(REVOKE_HEADER)
        .filter(|body| body % size == 0 && count as usize <= limit)
        .ok_or(JournalError::RevokeCount { count, limit })?;
    let entries = block[REVOKE_HEADER..REVOKE_HEADER + body].chunks_exact(size);
    let blocks = entries.map(|entry| {
        let word = |at| be32(entry, at).unwrap_or(0);
        if size == 8 { disk_block(word(4), word(0)) } else { disk_block(word(0), 0) }
    });
    Ok((header.sequence, blocks.collect()))
}

/// Fills a revoke block entry by entry.
#[derive(Debug)]
pub struct RevokeBuilder<'a> {
    layout: Layout,
    block: &'a mut [u8],
    at: usize,
}

impl<'a> RevokeBuilder<'a> {
    /// Starts a revoke block of transaction `sequence` over `block`, a whole block.
    ///
    /// # Errors
    /// A block that cannot hold one entry.
    pub fn new(layout: Layout, sequence: Tid, block: &'a mut [u8]) -> Result<Self, JournalError> {
        let needed = REVOKE_HEADER + layout.revoke_size() + layout.tail_size();
        if block.len() < needed {
            return Err(JournalError::TooShort { structure: STRUCTURE, len: block.len(), needed });
        }
        block.fill(0);
        Header { block_type: BlockType::Revoke, sequence }.write(block);
        Ok(Self { layout, block, at: REVOKE_HEADER })
    }

    /// Entries that a revoke block of `block_size` holds.
    #[must_use]
    pub fn capacity(layout: &Layout, block_size: usize) -> usize {
        block_size.saturating_sub(REVOKE_HEADER + layout.tail_size()) / layout.revoke_size()
    }

    /// Whether there is no entry yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.at == REVOKE_HEADER
    }

    /// Revokes `block`; `false` when the revoke block is full or the number needs 64 bits it lacks.
    #[must_use]
    pub fn push(&mut self, block: DiskBlock) -> bool {
        let size = self.layout.revoke_size();
        let fits = size == 8 || block.0 >> 32 == 0;
        if !fits || self.at + size > self.block.len() - self.layout.tail_size() {
            return false;
        }
        let slot = &mut self.block[self.at..self.at + size];
        if size == 8 {
            slot.copy_from_slice(&block.0.to_be_bytes());
        } else {
            slot.copy_from_slice(&(block.0 as u32).to_be_bytes());
        }
        self.at += size;
        true
    }

    /// Writes the count and the checksum.
    pub fn finish(self) {
        self.block[12..16].copy_from_slice(&(self.at as u32).to_be_bytes());
        set_tail(&self.layout, self.block);
    }
}

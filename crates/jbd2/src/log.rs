//! The log: a ring of journal blocks, how much of it a transaction takes, and the bytes of one.

use std::sync::Arc;

use onggi_block_device::{AlignedBuf, BlockDevice, DeviceError, Write};
use onggi_disk_format::jbd2::{
    self, Commit, DescriptorBuilder, Layout, MAGIC, RevokeBuilder, encode_commit, tag_checksum,
};
use onggi_disk_format::{DiskBlock, Tid};
use parking_lot::Mutex;

use crate::commit::CommitTime;
use crate::error::JournalError;
use crate::home::write_blocks;
use crate::map::JournalMap;
use crate::superblock::SuperblockHome;
use crate::transaction::Image;

/// A block on its way into the log.
pub(crate) enum LogBlock {
    /// A descriptor, a revoke block, or an escaped copy.
    Made(AlignedBuf),
    /// An image as the transaction froze it.
    Frozen(Arc<AlignedBuf>),
}

impl LogBlock {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Made(bytes) => bytes,
            Self::Frozen(bytes) => bytes,
        }
    }
}

/// The log of an open journal.
pub(crate) struct Log {
    map: JournalMap,
    first: u32,
    /// Blocks in the ring.
    ring: u32,
    block_size: u32,
    layout: Layout,
    uuid: [u8; 16],
    pub(crate) volume_blocks: u64,
    superblock: Mutex<SuperblockHome>,
}

impl Log {
    /// The log that `superblock` describes; its blocks are all in `map`.
    pub(crate) fn new(map: JournalMap, home: SuperblockHome, block_size: u32, volume_blocks: u64) -> Self {
        let superblock = home.superblock();
        let end = superblock.log_end().unwrap_or_default();
        Self {
            map,
            first: superblock.first(),
            ring: end.saturating_sub(superblock.first()),
            block_size,
            layout: superblock.layout(),
            uuid: superblock.uuid(),
            volume_blocks,
            superblock: Mutex::new(home),
        }
    }

    pub(crate) fn ring(&self) -> u32 {
        self.ring
    }

    /// Most log blocks of one transaction.
    pub(crate) fn limit(&self) -> u64 {
        u64::from(self.ring / 4)
    }

    /// Log blocks of a transaction of this many images and revoke records, its commit block included.
    pub(crate) fn size(&self, images: u64, revokes: u64) -> u64 {
        let tags = DescriptorBuilder::capacity(&self.layout, self.block_size as usize).max(1) as u64;
        let records = RevokeBuilder::capacity(&self.layout, self.block_size as usize).max(1) as u64;
        images + images.div_ceil(tags) + revokes.div_ceil(records) + 1
    }

    /// Most images of one transaction, with a block of revoke records to spare.
    pub(crate) fn most_images(&self) -> u32 {
        let limit = self.limit();
        let fits = |images: &u64| self.size(*images, 1) <= limit;
        // Descriptors take at most every second block, so the search is short of half the limit.
        let most = (0..limit).rev().find(fits).unwrap_or(0);
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    pub(crate) fn contains(&self, nr: DiskBlock) -> bool {
        self.map.contains(nr)
    }

    fn journal_block(&self, position: u64) -> u32 {
        let within = position % u64::from(self.ring);
        self.first + u32::try_from(within).unwrap_or(0)
    }

    fn place(&self, position: u64) -> Result<DiskBlock, JournalError> {
        let block = self.journal_block(position);
        self.map.locate(block).ok_or(JournalError::ShortMap { blocks: self.map.len(), maxlen: block })
    }

    /// The log blocks of a transaction, but for its commit block.
    pub(crate) fn encode(
        &self,
        tid: Tid,
        images: &[Image],
        revoked: &[DiskBlock],
    ) -> Result<Vec<LogBlock>, JournalError> {
        let mut blocks = Vec::new();
        let mut records = revoked.iter().copied().peekable();
        while records.peek().is_some() {
            let mut block = AlignedBuf::zeroed(self.block_size as usize);
            let mut builder = RevokeBuilder::new(self.layout, tid, &mut block)?;
            while let Some(&nr) = records.peek() {
                if !builder.push(nr) {
                    break;
                }
                records.next();
            }
            if builder.is_empty() {
                return Err(self.unaddressable(revoked));
            }
            builder.finish();
            blocks.push(LogBlock::Made(block));
        }
        let mut rest = images;
        while !rest.is_empty() {
            let (descriptor, behind) = self.describe(tid, rest)?;
            rest = &rest[behind.len()..];
            blocks.push(LogBlock::Made(descriptor));
            blocks.extend(behind);
        }
        Ok(blocks)
    }

    /// One descriptor and the blocks it describes: as many of `images` as it holds.
    fn describe(&self, tid: Tid, images: &[Image]) -> Result<(AlignedBuf, Vec<LogBlock>), JournalError> {
        let mut descriptor = AlignedBuf::zeroed(self.block_size as usize);
        let mut builder = DescriptorBuilder::new(self.layout, tid, self.uuid, &mut descriptor)?;
        let mut behind = Vec::new();
        for image in images {
            let escaped = image.bytes.starts_with(&MAGIC.to_be_bytes());
            let block = if escaped {
                let mut copy = AlignedBuf::copy_of(&image.bytes);
                jbd2::escape(&mut copy);
                LogBlock::Made(copy)
            } else {
                LogBlock::Frozen(Arc::clone(&image.bytes))
            };
            let sum = if self.layout.has_checksums() {
                tag_checksum(self.layout.seed, tid, block.bytes())
            } else {
                0
            };
            if !builder.push(image.nr, escaped, sum) {
                break;
            }
            behind.push(block);
        }
        builder.finish();
        if behind.is_empty() {
            let blocks: Vec<DiskBlock> = images.iter().map(|image| image.nr).collect();
            return Err(self.unaddressable(&blocks));
        }
        Ok((descriptor, behind))
    }

    /// A journal of 32-bit block numbers met a longer one.
    fn unaddressable(&self, blocks: &[DiskBlock]) -> JournalError {
        let nr = blocks.iter().copied().max().unwrap_or_default();
        JournalError::OutsideVolume { nr, volume_blocks: self.volume_blocks.min(1 << 32) }
    }

    /// Writes blocks from a log position on, as one batch.
    pub(crate) fn write(
        &self,
        device: &dyn BlockDevice,
        position: u64,
        blocks: &[LogBlock],
    ) -> Result<(), JournalError> {
        let mut placed = Vec::with_capacity(blocks.len());
        for (position, block) in (position..).zip(blocks) {
            placed.push((self.place(position)?, block.bytes()));
        }
        write_blocks(device, self.block_size, &placed)
            .map_err(|source| JournalError::Device { during: "writing the log", source })
    }

    /// Writes the commit block; durable when this returns.
    pub(crate) fn write_commit(
        &self,
        device: &dyn BlockDevice,
        position: u64,
        tid: Tid,
        now: CommitTime,
    ) -> Result<(), JournalError> {
        let mut block = AlignedBuf::zeroed(self.block_size as usize);
        let commit = Commit { sequence: tid, sec: now.sec, nsec: now.nsec, transaction_checksum: None };
        encode_commit(&self.layout, &commit, &mut block)?;
        let offset = self.place(position)?.0.saturating_mul(u64::from(self.block_size));
        write_fua(device, offset, &block)
            .map_err(|source| JournalError::Device { during: "writing a commit block", source })
    }

    /// Makes the superblock on the device point at a log that starts at `position` with `tid`, unless it
    /// points at a log already.
    pub(crate) fn begin(
        &self,
        device: &dyn BlockDevice,
        position: u64,
        tid: Tid,
    ) -> Result<(), JournalError> {
        let mut home = self.superblock.lock();
        if home.superblock().start() != 0 {
            return Ok(());
        }
        home.store(device, self.journal_block(position), tid)
    }

    /// Moves the tail on the device; what lies before it may be written over afterwards.
    pub(crate) fn move_tail(
        &self,
        device: &dyn BlockDevice,
        position: u64,
        tid: Tid,
    ) -> Result<(), JournalError> {
        self.superblock.lock().store(device, self.journal_block(position), tid)
    }

    /// Marks the log empty; `next` is the next transaction.
    pub(crate) fn mark_empty(&self, device: &dyn BlockDevice, next: Tid) -> Result<(), JournalError> {
        self.superblock.lock().store(device, 0, next)
    }

    /// Records an error number. Gives up where the superblock is being written.
    pub(crate) fn record_errno(&self, device: &dyn BlockDevice, errno: i32) -> Result<(), JournalError> {
        self.superblock.try_lock().map_or(Ok(()), |mut home| home.store_errno(device, errno))
    }

    pub(crate) fn clear_errno(&self, device: &dyn BlockDevice) -> Result<(), JournalError> {
        self.superblock.lock().store_errno(device, 0)
    }

    pub(crate) fn errno(&self) -> i32 {
        self.superblock.lock().superblock().errno()
    }
}

/// Writes one buffer durably.
pub(crate) fn write_fua(device: &dyn BlockDevice, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
    device.write(&[Write { offset, bufs: &[std::io::IoSlice::new(bytes)], fua: true }])
}

impl From<jbd2::JournalError> for JournalError {
    fn from(rule: jbd2::JournalError) -> Self {
        Self::Format(rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transaction_at_the_limit_fits_a_quarter_of_the_ring() {
        let superblock =
            jbd2::JournalSuperblock::new(1024, 400, jbd2::Incompat::CSUM_V3 | jbd2::Incompat::BIT64, [7; 16])
                .unwrap();
        let home = SuperblockHome::for_tests(superblock);
        let log = Log::new(JournalMap::new(vec![(DiskBlock(10), 400)]), home, 1024, 10_000);
        let most = u64::from(log.most_images());
        assert_eq!(log.ring(), 399);
        assert!(log.size(most, 1) <= 99 && log.size(most + 1, 1) > 99, "{most}");
    }
}

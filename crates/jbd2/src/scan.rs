//! Finding the transactions in a dirty log. Nothing is written here.

use onggi_disk_format::checksum::crc32_be;
use onggi_disk_format::jbd2::{
    BlockType, Commit, Compat, Header, JournalSuperblock, Layout, Tag, parse_commit, parse_descriptor,
    parse_revoke, tag_checksum,
};
use onggi_disk_format::{DiskBlock, Tid};

use crate::error::JournalError;
use crate::log_reader::LogReader;

/// A logged image.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logged {
    /// Where it belongs.
    pub(crate) home: DiskBlock,
    /// Where it lies in the journal.
    pub(crate) at: u32,
    pub(crate) escaped: bool,
    /// Index of its transaction in the log.
    pub(crate) transaction: u32,
}

/// A revoke block of the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RevokeBlock {
    pub(crate) at: u32,
    pub(crate) transaction: u32,
}

/// The whole transactions of a log. Their number, like that of their blocks, is bounded by the ring.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) images: Vec<Logged>,
    pub(crate) revoke_blocks: Vec<RevokeBlock>,
    pub(crate) transactions: u32,
    /// The log ended at a transaction whose blocks break a checksum or a rule.
    pub(crate) damaged: bool,
}

/// How looking for one more transaction ended.
enum Found {
    /// A whole, verified transaction.
    Whole,
    /// The log ends: what follows belongs to no transaction or to one without a commit block.
    End,
    /// Blocks of the transaction break a checksum or a rule.
    Damaged,
}

/// Walks the ring.
struct Walk<'a, 'b> {
    reader: &'a mut LogReader<'b>,
    layout: Layout,
    first: u32,
    end: u32,
    at: u32,
    /// Blocks that the walk may still visit.
    left: u32,
    /// The running checksum over a whole transaction, of the first checksum format.
    sum: u32,
}

/// Collects the whole transactions from the superblock's start on. A transaction counts only once every
/// block of it, data included, has passed its checksum.
pub(crate) fn scan(superblock: &JournalSuperblock, reader: &mut LogReader<'_>) -> Result<Scan, JournalError> {
    let (first, end) = (superblock.first(), superblock.log_end().unwrap_or_default());
    let mut walk = Walk {
        reader,
        layout: superblock.layout(),
        first,
        end,
        at: superblock.start(),
        left: end.saturating_sub(first),
        sum: !0,
    };
    let mut scan = Scan::default();
    let mut tid = superblock.sequence();
    loop {
        let (images, revoke_blocks) = (scan.images.len(), scan.revoke_blocks.len());
        let found = walk.transaction(tid, &mut scan)?;
        if matches!(found, Found::Whole) {
            scan.transactions += 1;
            tid = tid.next();
            continue;
        }
        scan.images.truncate(images);
        scan.revoke_blocks.truncate(revoke_blocks);
        scan.damaged = matches!(found, Found::Damaged);
        return Ok(scan);
    }
}

impl Walk<'_, '_> {
    /// Steps over a block; `None` when the ring has been walked once around.
    fn step(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        let at = self.at;
        self.at = if at + 1 >= self.end { self.first } else { at + 1 };
        Some(at)
    }

    fn transaction(&mut self, tid: Tid, scan: &mut Scan) -> Result<Found, JournalError> {
        self.sum = !0;
        loop {
            let Some(at) = self.step() else { return Ok(Found::End) };
            let block = self.reader.block(at)?;
            let Some(header) = Header::parse(block).filter(|header| header.sequence == tid) else {
                return Ok(Found::End);
            };
            match header.block_type {
                BlockType::Descriptor => {
                    let Ok((_, tags)) = parse_descriptor(&self.layout, block) else {
                        return Ok(Found::Damaged);
                    };
                    if self.layout.compat.contains(Compat::CHECKSUM) {
                        self.sum = crc32_be(self.sum, block);
                    }
                    let found = self.data_blocks(tid, &tags, scan)?;
                    if !matches!(found, Found::Whole) {
                        return Ok(found);
                    }
                }
                BlockType::Revoke => {
                    if parse_revoke(&self.layout, block).is_err() {
                        return Ok(Found::Damaged);
                    }
                    scan.revoke_blocks.push(RevokeBlock { at, transaction: scan.transactions });
                }
                BlockType::Commit => {
                    let commit = parse_commit(&self.layout, block);
                    let whole = commit.is_ok_and(|commit| sum_agrees(&commit, self.sum));
                    return Ok(if whole { Found::Whole } else { Found::Damaged });
                }
                _ => return Ok(Found::End),
            }
        }
    }

    /// Steps over the data blocks of one descriptor.
    fn data_blocks(&mut self, tid: Tid, tags: &[Tag], scan: &mut Scan) -> Result<Found, JournalError> {
        let whole_sum = self.layout.compat.contains(Compat::CHECKSUM);
        for tag in tags {
            let Some(at) = self.step() else { return Ok(Found::End) };
            if self.layout.has_checksums() || whole_sum {
                let block = self.reader.block(at)?;
                if whole_sum {
                    self.sum = crc32_be(self.sum, block);
                } else if !tag.checksum.matches(tag_checksum(self.layout.seed, tid, block)) {
                    return Ok(Found::Damaged);
                }
            }
            let transaction = scan.transactions;
            scan.images.push(Logged { home: tag.block, at, escaped: tag.escaped, transaction });
        }
        Ok(Found::Whole)
    }
}

/// Whether a commit block's checksum over the whole transaction agrees. All zeroes means none was made.
fn sum_agrees(commit: &Commit, computed: u32) -> bool {
    commit.transaction_checksum.is_none_or(|sum| {
        let made = sum.kind == 1 && sum.size == 4 && sum.value == computed;
        made || (sum.kind == 0 && sum.size == 0 && sum.value == 0)
    })
}

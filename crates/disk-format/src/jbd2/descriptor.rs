//! Descriptor blocks: the tags that say where the data blocks behind them belong.

use super::{
    BlockType, HEADER_SIZE, Header, Incompat, JournalError, Layout, MAGIC, be32, disk_block, set_tail,
    verify_tail,
};
use crate::address::{DiskBlock, Tid};
use crate::checksum::crc32c;

const ESCAPE: u32 = 1;
const SAME_UUID: u32 = 2;
const DELETED: u32 = 4;
const LAST: u32 = 8;
const UUID_SIZE: usize = 16;
const STRUCTURE: &str = "descriptor";

/// Checksum of a data block as its tag stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TagChecksum {
    /// The journal has none.
    None,
    /// The low 16 bits (version 2).
    Low16(u16),
    /// All 32 bits (version 3).
    Full(u32),
}

impl TagChecksum {
    /// Whether a block whose [`tag_checksum`] is `computed` is the block meant.
    #[must_use]
    pub fn matches(self, computed: u32) -> bool {
        match self {
            Self::None => true,
            Self::Low16(stored) => u32::from(stored) == computed & 0xffff,
            Self::Full(stored) => stored == computed,
        }
    }
}

/// Says where one data block of the log belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    /// Its place on the volume.
    pub block: DiskBlock,
    /// The block started with the journal's magic number, which the log replaced by zero.
    pub escaped: bool,
    /// The block was deleted by the same transaction.
    pub deleted: bool,
    /// Checksum of the block as it lies in the log.
    pub checksum: TagChecksum,
}

/// Checksum of a data block as it lies in the log (escaped); the tag of a version 2 journal stores its low
/// half.
#[must_use]
pub fn tag_checksum(seed: u32, sequence: Tid, data: &[u8]) -> u32 {
    crc32c(crc32c(seed, &sequence.0.to_be_bytes()), data)
}

/// Replaces the journal's magic number at the start of a data block by zero; `false` when it is not there.
pub fn escape(data: &mut [u8]) -> bool {
    let found = be32(data, 0) == Some(MAGIC);
    if found {
        data[..4].fill(0);
    }
    found
}

/// Undoes [`escape`].
pub fn unescape(data: &mut [u8]) {
    if let Some(start) = data.get_mut(..4) {
        start.copy_from_slice(&MAGIC.to_be_bytes());
    }
}

/// Checks a descriptor block of the log and returns its sequence number and tags.
///
/// # Errors
/// The first rule broken.
pub fn parse_descriptor(layout: &Layout, block: &[u8]) -> Result<(Tid, Vec<Tag>), JournalError> {
    let tail = layout.tail_size();
    let size = layout.tag_size();
    let header = Header::expect(block, STRUCTURE, BlockType::Descriptor, HEADER_SIZE + size + tail)?;
    verify_tail(layout, STRUCTURE, block)?;
    let end = block.len() - tail;
    let mut tags = Vec::new();
    let mut at = HEADER_SIZE;
    while at + size <= end {
        let (tag, flags) = parse_tag(layout, &block[at..at + size]);
        tags.push(tag);
        at += size;
        if flags & SAME_UUID == 0 {
            at += UUID_SIZE;
        }
        if flags & LAST != 0 {
            return Ok((header.sequence, tags));
        }
    }
    // A block filled to the brim ends its list without a flag.
    if at > end || tags.is_empty() { Err(JournalError::NoLastTag) } else { Ok((header.sequence, tags)) }
}

fn parse_tag(layout: &Layout, bytes: &[u8]) -> (Tag, u32) {
    let word = |at| be32(bytes, at).unwrap_or(0);
    let version3 = layout.incompat.contains(Incompat::CSUM_V3);
    // Version 3 has 32 bits of flags where the others have 16 of checksum and 16 of flags.
    let (flags, checksum) = if version3 {
        (word(4), TagChecksum::Full(word(12)))
    } else if layout.incompat.contains(Incompat::CSUM_V2) {
        (word(4) & 0xffff, TagChecksum::Low16((word(4) >> 16) as u16))
    } else {
        (word(4) & 0xffff, TagChecksum::None)
    };
    let high = if layout.is_64bit() { word(8) } else { 0 };
    let tag = Tag {
        block: disk_block(word(0), high),
        escaped: flags & ESCAPE != 0,
        deleted: flags & DELETED != 0,
        checksum,
    };
    (tag, flags)
}

/// Fills a descriptor block tag by tag.
#[derive(Debug)]
pub struct DescriptorBuilder<'a> {
    layout: Layout,
    block: &'a mut [u8],
    uuid: [u8; 16],
    at: usize,
    last: Option<usize>,
    count: usize,
}

impl<'a> DescriptorBuilder<'a> {
    /// Starts a descriptor of transaction `sequence` over `block`, a whole block. `uuid` follows the
    /// first tag; Linux writes zeroes there and reads none.
    ///
    /// # Errors
    /// A block that cannot hold one tag.
    pub fn new(
        layout: Layout,
        sequence: Tid,
        uuid: [u8; 16],
        block: &'a mut [u8],
    ) -> Result<Self, JournalError> {
        let needed = HEADER_SIZE + layout.tag_size() + UUID_SIZE + layout.tail_size();
        if block.len() < needed {
            return Err(JournalError::TooShort { structure: STRUCTURE, len: block.len(), needed });
        }
        block.fill(0);
        Header { block_type: BlockType::Descriptor, sequence }.write(block);
        Ok(Self { layout, block, uuid, at: HEADER_SIZE, last: None, count: 0 })
    }

    /// Tags that a descriptor of a block of `block_size` holds.
    #[must_use]
    pub fn capacity(layout: &Layout, block_size: usize) -> usize {
        block_size.saturating_sub(HEADER_SIZE + UUID_SIZE + layout.tail_size()) / layout.tag_size()
    }

    /// Tags so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there is no tag yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a tag for a block that belongs at `block`; `checksum` is its [`tag_checksum`], unused where
    /// the journal has none. `false` when the descriptor is full or the number needs 64 bits it lacks.
    #[must_use]
    pub fn push(&mut self, block: DiskBlock, escaped: bool, checksum: u32) -> bool {
        let size = self.layout.tag_size();
        let with_uuid = if self.count == 0 { UUID_SIZE } else { 0 };
        let end = self.block.len() - self.layout.tail_size();
        let high = (block.0 >> 32) as u32;
        if self.at + size + with_uuid > end || (high != 0 && !self.layout.is_64bit()) {
            return false;
        }
        let flags = if escaped { ESCAPE } else { 0 } | if self.count > 0 { SAME_UUID } else { 0 };
        let tag = &mut self.block[self.at..self.at + size];
        tag[..4].copy_from_slice(&(block.0 as u32).to_be_bytes());
        let word = if self.layout.incompat.contains(Incompat::CSUM_V3) {
            tag[12..16].copy_from_slice(&checksum.to_be_bytes());
            flags
        } else if self.layout.incompat.contains(Incompat::CSUM_V2) {
            flags | checksum << 16
        } else {
            flags
        };
        tag[4..8].copy_from_slice(&word.to_be_bytes());
        if self.layout.is_64bit() {
            tag[8..12].copy_from_slice(&high.to_be_bytes());
        }
        self.last = Some(self.at);
        self.at += size;
        if with_uuid != 0 {
            self.block[self.at..self.at + UUID_SIZE].copy_from_slice(&self.uuid);
            self.at += UUID_SIZE;
        }
        self.count += 1;
        true
    }

    /// Marks the last tag and writes the checksum. Returns the number of tags.
    pub fn finish(self) -> usize {
        if let Some(at) = self.last {
            self.block[at + 7] |= LAST as u8;
        }
        set_tail(&self.layout, self.block);
        self.count
    }
}

//! Extent trees: the map from a file's blocks to the disk's.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::superblock::Superblock;
use crate::address::{DiskBlock, FileBlock};
use crate::checksum::crc32c;

/// `eh_magic`.
pub const MAGIC: u16 = 0xf30a;
/// Bytes of the header and of every entry.
pub const ENTRY_SIZE: usize = 12;
/// Deepest tree there is.
pub const MAX_DEPTH: u16 = 5;
/// Longest initialised extent, in blocks; longer stored lengths mean unwritten.
pub const MAX_LEN: u16 = 32768;
/// Longest unwritten extent, in blocks.
pub const MAX_UNWRITTEN_LEN: u16 = 32767;

/// Starts every node.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawExtentHeader {
    pub eh_magic: U16,
    pub eh_entries: U16,
    pub eh_max: U16,
    pub eh_depth: U16,
    pub eh_generation: U32,
}

/// An entry of a leaf.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawExtent {
    pub ee_block: U32,
    pub ee_len: U16,
    pub ee_start_hi: U16,
    pub ee_start_lo: U32,
}

/// An entry of an index node.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawExtentIndex {
    pub ei_block: U32,
    pub ei_leaf_lo: U32,
    pub ei_leaf_hi: U16,
    pub ei_unused: U16,
}

const _: () = {
    assert!(size_of::<RawExtentHeader>() == ENTRY_SIZE);
    assert!(size_of::<RawExtent>() == ENTRY_SIZE);
    assert!(size_of::<RawExtentIndex>() == ENTRY_SIZE);
};

/// The rule that an extent node breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ExtentError {
    #[error("extent node: {0} bytes cannot hold a header")]
    TooShort(usize),
    #[error("extent node: eh_magic is {0:#06x}, not 0xf30a")]
    Magic(u16),
    #[error("extent node: eh_max {max} does not fit, there is room for {room}")]
    Max { max: u16, room: usize },
    #[error("extent node: eh_entries {entries} is past eh_max {max}")]
    Entries { entries: u16, max: u16 },
    #[error("extent node: eh_depth {0} is past 5")]
    TooDeep(u16),
    #[error("extent node: eh_depth is {depth}, its parent says {expected}")]
    Depth { depth: u16, expected: u16 },
    #[error("extent node: an index node without entries")]
    EmptyIndex,
    #[error("extent node: entry {0} has no length")]
    ZeroLength(usize),
    #[error("extent node: entry {0} starts before the end of the one before it")]
    Order(usize),
    #[error("extent node: entry {0} runs past the last logical block")]
    LogicalEnd(usize),
    #[error("extent node: entry {entry} points at block {block}, which does not lie on the volume")]
    Place { entry: usize, block: DiskBlock },
    #[error("extent node: checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("extent node: {count} entries do not fit, there is room for {room}")]
    Full { count: usize, room: usize },
    #[error("extent node: entry {0} has a length that cannot be stored")]
    LengthNotStorable(usize),
}

/// A run of blocks of a file that lie side by side on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Extent {
    /// First logical block.
    pub block: FileBlock,
    /// Number of blocks, 1..=32768 (32767 when unwritten).
    pub len: u16,
    /// First block on the disk.
    pub start: DiskBlock,
    /// Allocated but reads as zeroes.
    pub unwritten: bool,
}

impl Extent {
    /// The logical block after the last, in 64 bits.
    #[must_use]
    pub fn end(&self) -> u64 {
        u64::from(self.block.0) + u64::from(self.len)
    }

    /// The disk block that holds logical block `at`, `None` outside the extent.
    #[must_use]
    pub fn disk_block(&self, at: FileBlock) -> Option<DiskBlock> {
        let from_start = at.0.checked_sub(self.block.0)?;
        (from_start < u32::from(self.len)).then(|| DiskBlock(self.start.0 + u64::from(from_start)))
    }

    fn decode(raw: &RawExtent) -> Option<Self> {
        let stored = raw.ee_len.get();
        let (len, unwritten) = if stored > MAX_LEN { (stored - MAX_LEN, true) } else { (stored, false) };
        (len != 0).then(|| Self {
            block: FileBlock(raw.ee_block.get()),
            len,
            start: DiskBlock(u64::from(raw.ee_start_hi.get()) << 32 | u64::from(raw.ee_start_lo.get())),
            unwritten,
        })
    }

    fn encode(&self) -> Option<RawExtent> {
        let limit = if self.unwritten { MAX_UNWRITTEN_LEN } else { MAX_LEN };
        if self.len == 0 || self.len > limit || self.start.0 >> 48 != 0 {
            return None;
        }
        Some(RawExtent {
            ee_block: self.block.0.into(),
            ee_len: (if self.unwritten { self.len + MAX_LEN } else { self.len }).into(),
            ee_start_hi: ((self.start.0 >> 32) as u16).into(),
            ee_start_lo: (self.start.0 as u32).into(),
        })
    }
}

/// A pointer to the node that covers logical blocks from `block` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExtentIndex {
    /// First logical block covered.
    pub block: FileBlock,
    /// The node's block.
    pub child: DiskBlock,
}

/// What a node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entries {
    /// Depth 0: extents in logical order, none overlapping.
    Leaf(Vec<Extent>),
    /// Depth 1 and up: children in logical order, at least one.
    Index(Vec<ExtentIndex>),
}

/// An extent node that passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtentNode {
    /// Levels below this node; 0 for a leaf.
    pub depth: u16,
    /// Entries the node can hold.
    pub max: u16,
    /// `eh_generation`.
    pub generation: u32,
    /// The entries.
    pub entries: Entries,
}

impl ExtentNode {
    /// Checks a node: the 60 bytes of `i_block` for a root, a whole block below. `expected_depth` is the
    /// parent's less one. The checksum of a block node is [`verify_checksum`]'s matter.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse(sb: &Superblock, bytes: &[u8], expected_depth: Option<u16>) -> Result<Self, ExtentError> {
        let (header, rest) =
            RawExtentHeader::read_from_prefix(bytes).map_err(|_| ExtentError::TooShort(bytes.len()))?;
        if header.eh_magic != MAGIC {
            return Err(ExtentError::Magic(header.eh_magic.get()));
        }
        let (entries, max, depth) = (header.eh_entries.get(), header.eh_max.get(), header.eh_depth.get());
        let room = rest.len() / ENTRY_SIZE;
        if max == 0 || usize::from(max) > room {
            return Err(ExtentError::Max { max, room });
        }
        if entries > max {
            return Err(ExtentError::Entries { entries, max });
        }
        if depth > MAX_DEPTH {
            return Err(ExtentError::TooDeep(depth));
        }
        if let Some(expected) = expected_depth
            && depth != expected
        {
            return Err(ExtentError::Depth { depth, expected });
        }
        let body = &rest[..usize::from(entries) * ENTRY_SIZE];
        let entries = if depth == 0 {
            Entries::Leaf(parse_leaf(sb, body)?)
        } else {
            Entries::Index(parse_index(sb, body)?)
        };
        Ok(Self { depth, max, generation: header.eh_generation.get(), entries })
    }

    /// The extents of a leaf, none of an index node.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        match &self.entries {
            Entries::Leaf(extents) => extents,
            Entries::Index(_) => &[],
        }
    }

    /// The children of an index node, none of a leaf.
    #[must_use]
    pub fn children(&self) -> &[ExtentIndex] {
        match &self.entries {
            Entries::Leaf(_) => &[],
            Entries::Index(children) => children,
        }
    }
}

fn parse_leaf(sb: &Superblock, body: &[u8]) -> Result<Vec<Extent>, ExtentError> {
    let mut extents = Vec::with_capacity(body.len() / ENTRY_SIZE);
    let mut end = 0;
    for (entry, bytes) in body.chunks_exact(ENTRY_SIZE).enumerate() {
        let Ok(raw) = RawExtent::ref_from_bytes(bytes) else { break };
        let extent = Extent::decode(raw).ok_or(ExtentError::ZeroLength(entry))?;
        if u64::from(extent.block.0) < end {
            return Err(ExtentError::Order(entry));
        }
        end = extent.end();
        if end > u64::from(u32::MAX) {
            return Err(ExtentError::LogicalEnd(entry));
        }
        if !sb.contains_blocks(extent.start, u64::from(extent.len)) {
            return Err(ExtentError::Place { entry, block: extent.start });
        }
        extents.push(extent);
    }
    Ok(extents)
}

fn parse_index(sb: &Superblock, body: &[u8]) -> Result<Vec<ExtentIndex>, ExtentError> {
    let mut children: Vec<ExtentIndex> = Vec::with_capacity(body.len() / ENTRY_SIZE);
    for (entry, bytes) in body.chunks_exact(ENTRY_SIZE).enumerate() {
        let Ok(raw) = RawExtentIndex::ref_from_bytes(bytes) else { break };
        let child = DiskBlock(u64::from(raw.ei_leaf_hi.get()) << 32 | u64::from(raw.ei_leaf_lo.get()));
        let block = FileBlock(raw.ei_block.get());
        if children.last().is_some_and(|last| last.block >= block) {
            return Err(ExtentError::Order(entry));
        }
        if !sb.contains_blocks(child, 1) {
            return Err(ExtentError::Place { entry, block: child });
        }
        children.push(ExtentIndex { block, child });
    }
    if children.is_empty() { Err(ExtentError::EmptyIndex) } else { Ok(children) }
}

/// Entries that fit a node of `len` bytes: 4 in `i_block`, 340 in a 4 KiB block.
#[must_use]
pub fn capacity(len: usize) -> usize {
    len.saturating_sub(ENTRY_SIZE) / ENTRY_SIZE
}

/// Writes a leaf over `bytes`, the 60 bytes of `i_block` or a whole block; unused room becomes zero.
/// The checksum of a block is [`set_checksum`]'s matter.
///
/// # Errors
/// Too many extents, or one that cannot be stored.
pub fn encode_leaf(bytes: &mut [u8], extents: &[Extent]) -> Result<(), ExtentError> {
    write_header(bytes, 0, extents.len())?;
    for (entry, (slot, extent)) in bytes[ENTRY_SIZE..].chunks_exact_mut(ENTRY_SIZE).zip(extents).enumerate() {
        let raw = extent.encode().ok_or(ExtentError::LengthNotStorable(entry))?;
        slot.copy_from_slice(raw.as_bytes());
    }
    Ok(())
}

/// Writes an index node of `depth` over `bytes`, as [`encode_leaf`].
///
/// # Errors
/// Too many children, none, or a depth outside 1..=5.
pub fn encode_index(bytes: &mut [u8], depth: u16, children: &[ExtentIndex]) -> Result<(), ExtentError> {
    if children.is_empty() {
        return Err(ExtentError::EmptyIndex);
    }
    if depth == 0 || depth > MAX_DEPTH {
        return Err(ExtentError::TooDeep(depth));
    }
    write_header(bytes, depth, children.len())?;
    for (slot, index) in bytes[ENTRY_SIZE..].chunks_exact_mut(ENTRY_SIZE).zip(children) {
        let raw = RawExtentIndex {
            ei_block: index.block.0.into(),
            ei_leaf_lo: (index.child.0 as u32).into(),
            ei_leaf_hi: ((index.child.0 >> 32) as u16).into(),
            ei_unused: 0.into(),
        };
        slot.copy_from_slice(raw.as_bytes());
    }
    Ok(())
}

fn write_header(bytes: &mut [u8], depth: u16, count: usize) -> Result<(), ExtentError> {
    if bytes.len() < ENTRY_SIZE {
        return Err(ExtentError::TooShort(bytes.len()));
    }
    let room = capacity(bytes.len());
    if count > room {
        return Err(ExtentError::Full { count, room });
    }
    bytes.fill(0);
    let header = RawExtentHeader {
        eh_magic: MAGIC.into(),
        eh_entries: (count as u16).into(),
        eh_max: (room as u16).into(),
        eh_depth: depth.into(),
        eh_generation: 0.into(),
    };
    bytes[..ENTRY_SIZE].copy_from_slice(header.as_bytes());
    Ok(())
}

/// Checks the checksum in the tail of a block node. `inode_seed` is [`super::inode_seed`]'s.
///
/// # Errors
/// Checksum, or a header too broken to find it.
pub fn verify_checksum(block: &[u8], inode_seed: u32) -> Result<(), ExtentError> {
    let at = tail(block)?;
    let computed = crc32c(inode_seed, &block[..at]);
    let stored = super::le32(block, at).unwrap_or(0);
    if stored == computed { Ok(()) } else { Err(ExtentError::Checksum { stored, computed }) }
}

/// Writes the checksum into the tail of a block node.
///
/// # Errors
/// A header too broken to find the tail.
pub fn set_checksum(block: &mut [u8], inode_seed: u32) -> Result<(), ExtentError> {
    let at = tail(block)?;
    let sum = crc32c(inode_seed, &block[..at]);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

fn tail(block: &[u8]) -> Result<usize, ExtentError> {
    let (header, _) =
        RawExtentHeader::read_from_prefix(block).map_err(|_| ExtentError::TooShort(block.len()))?;
    let max = header.eh_max.get();
    let at = ENTRY_SIZE * (usize::from(max) + 1);
    if at + 4 > block.len() {
        return Err(ExtentError::Max { max, room: capacity(block.len().saturating_sub(4)) });
    }
    Ok(at)
}

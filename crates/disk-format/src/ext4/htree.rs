//! Index blocks of hashed directories. They look like directory blocks whose entries hide the index.

use super::dir;
use crate::address::{FileBlock, InodeNr};
use crate::checksum::crc32c;

/// Byte of the first index entry in the root.
pub const ROOT_ENTRIES: usize = 32;
/// Byte of the first index entry in a lower node.
pub const NODE_ENTRIES: usize = 8;
const ROOT_INFO: usize = 24;
const INFO_LENGTH: u8 = 8;
const ENTRY: usize = 8;
const TAIL: usize = 8;
/// Levels below the root: 1, or 2 with `large_dir`.
const MAX_LEVELS: u8 = 2;

/// The rule that an index block breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum HtreeError {
    #[error("htree: {0} bytes are no block size")]
    BlockSize(usize),
    #[error("htree: the root does not start with '.' and '..' that span the block")]
    RootEntries,
    #[error("htree: reserved_zero is not zero")]
    Reserved,
    #[error("htree: info_length {0} is not 8")]
    InfoLength(u8),
    #[error("htree: hash_version {0} is unknown")]
    HashVersion(u8),
    #[error("htree: unused_flags {0:#04x} has bits set")]
    Flags(u8),
    #[error("htree: {0} indirect_levels are too many")]
    Levels(u8),
    #[error("htree: a lower node does not start with one empty entry that spans the block")]
    NodeEntry,
    #[error("htree: limit {limit}, the block has room for {room}")]
    Limit { limit: u16, room: u16 },
    #[error("htree: count {count} is 0 or past limit {limit}")]
    Count { count: u16, limit: u16 },
    #[error("htree: the hash of entry {0} is below the one before it")]
    Order(usize),
    #[error("htree: checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("htree: {count} entries do not fit, there is room for {room}")]
    Full { count: usize, room: u16 },
}

/// What a block of a hashed directory looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// The root of an index.
    Root,
    /// A lower index node.
    Node,
    /// Directory entries.
    Leaf,
}

/// The first hash a block of the directory covers. A set low bit says that the hash without it starts
/// in the block before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DxEntry {
    /// First hash; 0 in the first entry of every node.
    pub hash: u32,
    /// Block of the directory.
    pub block: FileBlock,
}

/// What only the root holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootInfo {
    /// The directory itself, as its `.` says.
    pub dot: InodeNr,
    /// Its parent, as its `..` says.
    pub dotdot: InodeNr,
    /// Stored hash version; see [`super::dirhash::HashVersion::from_stored`].
    pub hash_version: u8,
    /// Levels of index nodes below the root.
    pub levels: u8,
}

/// An index block that passed every check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DxNode {
    /// Present in the root only.
    pub root: Option<RootInfo>,
    /// Entries the block can hold.
    pub limit: u16,
    /// Entries by ascending hash, at least one.
    pub entries: Vec<DxEntry>,
}

impl DxNode {
    /// Checks the root, block 0 of a hashed directory. `checksum` is the directory's seed
    /// ([`super::inode_seed`]) where metadata has checksums.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse_root(block: &[u8], checksum: Option<u32>) -> Result<Self, HtreeError> {
        check_block_size(block)?;
        if shape(block) != Shape::Root {
            return Err(HtreeError::RootEntries);
        }
        let info = &block[ROOT_INFO..ROOT_ENTRIES];
        if info[..4] != [0; 4] {
            return Err(HtreeError::Reserved);
        }
        let [hash_version, info_length, levels, flags] = [info[4], info[5], info[6], info[7]];
        if info_length != INFO_LENGTH {
            return Err(HtreeError::InfoLength(info_length));
        }
        if hash_version > 6 {
            return Err(HtreeError::HashVersion(hash_version));
        }
        if flags & 1 != 0 {
            return Err(HtreeError::Flags(flags));
        }
        if levels > MAX_LEVELS {
            return Err(HtreeError::Levels(levels));
        }
        let (limit, entries) = parse_entries(block, ROOT_ENTRIES, checksum)?;
        let inode = |at| InodeNr(super::le32(block, at).unwrap_or(0));
        let root = RootInfo { dot: inode(0), dotdot: inode(12), hash_version, levels };
        Ok(Self { root: Some(root), limit, entries })
    }

    /// Checks an index node below the root.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse_node(block: &[u8], checksum: Option<u32>) -> Result<Self, HtreeError> {
        check_block_size(block)?;
        if shape(block) != Shape::Node {
            return Err(HtreeError::NodeEntry);
        }
        let (limit, entries) = parse_entries(block, NODE_ENTRIES, checksum)?;
        Ok(Self { root: None, limit, entries })
    }

    /// Index of the entry whose range holds `hash`.
    #[must_use]
    pub fn position(&self, hash: u32) -> usize {
        self.entries.partition_point(|entry| entry.hash <= hash).max(1) - 1
    }
}

fn parse_entries(
    block: &[u8],
    start: usize,
    checksum: Option<u32>,
) -> Result<(u16, Vec<DxEntry>), HtreeError> {
    let room = room(block.len(), start, checksum.is_some());
    let limit = super::le16(block, start).unwrap_or(0);
    let count = super::le16(block, start + 2).unwrap_or(0);
    if limit != room {
        return Err(HtreeError::Limit { limit, room });
    }
    if count == 0 || count > limit {
        return Err(HtreeError::Count { count, limit });
    }
    if let Some(seed) = checksum {
        let (computed, at) = node_checksum(block, start, count, limit, seed);
        let stored = super::le32(block, at).unwrap_or(0);
        if stored != computed {
            return Err(HtreeError::Checksum { stored, computed });
        }
    }
    let mut entries: Vec<DxEntry> = Vec::with_capacity(usize::from(count));
    for (index, bytes) in block[start..].chunks_exact(ENTRY).take(usize::from(count)).enumerate() {
        let word = |at| super::le32(bytes, at).unwrap_or(0);
        // The first entry's hash field holds limit and count.
        let hash = if index == 0 { 0 } else { word(0) };
        if entries.last().is_some_and(|last| last.hash > hash) {
            return Err(HtreeError::Order(index));
        }
        entries.push(DxEntry { hash, block: FileBlock(word(4) & 0x0fff_ffff) });
    }
    Ok((limit, entries))
}

/// Entries that fit the root of a directory with blocks of `block_size`.
#[must_use]
pub fn root_limit(block_size: usize, has_checksum: bool) -> u16 {
    room(block_size, ROOT_ENTRIES, has_checksum)
}

/// Entries that fit an index node below the root.
#[must_use]
pub fn node_limit(block_size: usize, has_checksum: bool) -> u16 {
    room(block_size, NODE_ENTRIES, has_checksum)
}

fn room(block_size: usize, start: usize, has_checksum: bool) -> u16 {
    let tail = if has_checksum { TAIL } else { 0 };
    (block_size.saturating_sub(start + tail) / ENTRY) as u16
}

/// Writes a root over `block`, checksum included. `kind` is the stored file type of `.` and `..`.
///
/// # Errors
/// A length that is no block size, no entries or too many.
pub fn encode_root(
    block: &mut [u8],
    root: &RootInfo,
    kind: u8,
    entries: &[DxEntry],
    checksum: Option<u32>,
) -> Result<(), HtreeError> {
    check_block_size(block)?;
    dir::init_first_block(block, false, root.dot, root.dotdot, kind)
        .map_err(|_| HtreeError::BlockSize(block.len()))?;
    block[ROOT_INFO..ROOT_ENTRIES].copy_from_slice(&[
        0,
        0,
        0,
        0,
        root.hash_version,
        INFO_LENGTH,
        root.levels,
        0,
    ]);
    encode_entries(block, ROOT_ENTRIES, entries, checksum)
}

/// Writes an index node below the root over `block`, checksum included.
///
/// # Errors
/// A length that is no block size, no entries or too many.
pub fn encode_node(block: &mut [u8], entries: &[DxEntry], checksum: Option<u32>) -> Result<(), HtreeError> {
    check_block_size(block)?;
    dir::init_block(block, false).map_err(|_| HtreeError::BlockSize(block.len()))?;
    encode_entries(block, NODE_ENTRIES, entries, checksum)
}

fn encode_entries(
    block: &mut [u8],
    start: usize,
    entries: &[DxEntry],
    checksum: Option<u32>,
) -> Result<(), HtreeError> {
    let room = room(block.len(), start, checksum.is_some());
    if entries.is_empty() {
        return Err(HtreeError::Count { count: 0, limit: room });
    }
    if entries.len() > usize::from(room) {
        return Err(HtreeError::Full { count: entries.len(), room });
    }
    for (slot, entry) in block[start..].chunks_exact_mut(ENTRY).zip(entries) {
        slot[..4].copy_from_slice(&entry.hash.to_le_bytes());
        slot[4..].copy_from_slice(&entry.block.0.to_le_bytes());
    }
    let count = entries.len() as u16;
    block[start..start + 2].copy_from_slice(&room.to_le_bytes());
    block[start + 2..start + 4].copy_from_slice(&count.to_le_bytes());
    if let Some(seed) = checksum {
        let (sum, at) = node_checksum(block, start, count, room, seed);
        block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
    Ok(())
}

/// Writes the checksum of an index block whose bytes were changed in place (its `..`, say). `false`
/// when `block` does not look like an index block.
pub fn set_checksum(block: &mut [u8], seed: u32) -> bool {
    let start = match shape(block) {
        Shape::Root => ROOT_ENTRIES,
        Shape::Node => NODE_ENTRIES,
        Shape::Leaf => return false,
    };
    let limit = super::le16(block, start).unwrap_or(0);
    let count = super::le16(block, start + 2).unwrap_or(0);
    if limit != room(block.len(), start, true) || count > limit {
        return false;
    }
    let (sum, at) = node_checksum(block, start, count, limit, seed);
    block[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    true
}

/// The checksum over the used entries and the tail's first word, and the byte where it is stored.
/// `limit` leaves room for the tail.
fn node_checksum(block: &[u8], start: usize, count: u16, limit: u16, seed: u32) -> (u32, usize) {
    let used = start + usize::from(count) * ENTRY;
    let tail = start + usize::from(limit) * ENTRY;
    let sum = crc32c(crc32c(seed, &block[..used]), &block[tail..tail + 4]);
    (crc32c(sum, &[0; 4]), tail + 4)
}

/// What `block` of a hashed directory looks like, going by the entries at its start. A hint: without
/// checksums an empty leaf looks like a node, and only the way from the root tells them apart.
#[must_use]
pub fn shape(block: &[u8]) -> Shape {
    let mut all = dir::entries(block, u32::MAX, false);
    let Some(Ok(first)) = all.next() else { return Shape::Leaf };
    if first.rec_len == block.len() && first.inode.0 == 0 {
        return Shape::Node;
    }
    match all.next() {
        Some(Ok(second))
            if first.name == b"."
                && second.name == b".."
                && second.rec_len + 12 == block.len()
                && first.rec_len == 12
                && block[ROOT_INFO + 5] == INFO_LENGTH =>
        {
            Shape::Root
        }
        _ => Shape::Leaf,
    }
}

fn check_block_size(block: &[u8]) -> Result<(), HtreeError> {
    let len = block.len();
    if len.is_power_of_two() && (1024..=65536).contains(&len) {
        Ok(())
    } else {
        Err(HtreeError::BlockSize(len))
    }
}

//! Looking through an index block where it lies, without copying it.
//!
//! The whole block is checked when it comes into memory ([`super::block::Dir::load`]); what stands here
//! keeps every access in bounds whatever the block says.

use onggi_disk_format::FileBlock;
use onggi_disk_format::ext4::htree::{DxEntry, NODE_ENTRIES, ROOT_ENTRIES, node_limit, root_limit};

const ENTRY: usize = 8;

/// The entries of an index block.
#[derive(Clone, Copy)]
pub(super) struct Index<'a> {
    entries: &'a [u8],
}

impl<'a> Index<'a> {
    /// The entries of the root; `None` where their number breaks the block's bounds.
    pub(super) fn of_root(block: &'a [u8], has_checksum: bool) -> Option<Self> {
        Self::at(block, ROOT_ENTRIES, root_limit(block.len(), has_checksum))
    }

    /// The entries of a lower node.
    pub(super) fn of_node(block: &'a [u8], has_checksum: bool) -> Option<Self> {
        Self::at(block, NODE_ENTRIES, node_limit(block.len(), has_checksum))
    }

    fn at(block: &'a [u8], start: usize, limit: u16) -> Option<Self> {
        let count = u16::from_le_bytes(block.get(start + 2..start + 4)?.try_into().ok()?);
        if count == 0 || count > limit {
            return None;
        }
        Some(Self { entries: block.get(start..start + usize::from(count) * ENTRY)? })
    }

    /// Number of entries, at least one.
    pub(super) fn len(&self) -> usize {
        self.entries.len() / ENTRY
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes([
            self.entries[at],
            self.entries[at + 1],
            self.entries[at + 2],
            self.entries[at + 3],
        ])
    }

    /// The first hash of an entry; the first entry's place holds the counts instead.
    pub(super) fn hash(&self, index: usize) -> u32 {
        if index == 0 { 0 } else { self.word(index * ENTRY) }
    }

    /// An entry.
    pub(super) fn entry(&self, index: usize) -> DxEntry {
        DxEntry { hash: self.hash(index), block: FileBlock(self.word(index * ENTRY + 4) & 0x0fff_ffff) }
    }

    /// The entry whose range holds `hash`.
    pub(super) fn position(&self, hash: u32) -> usize {
        let (mut low, mut high) = (1, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.hash(middle) <= hash {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low - 1
    }
}

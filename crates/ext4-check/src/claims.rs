//! Who owns which block.

use onggi_disk_format::ext4::Superblock;
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

/// An owner of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Superblock, descriptors and reserved descriptor blocks of a group.
    Head(GroupNr),
    BlockBitmap(GroupNr),
    InodeBitmap(GroupNr),
    InodeTable(GroupNr),
    MultipleMount,
    /// Data, extent and indirect blocks.
    Inode(InodeNr),
    /// An attribute block; the inode is the first that uses it.
    Attributes(InodeNr),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Head(group) => write!(f, "the superblock and descriptors of group {group}"),
            Self::BlockBitmap(group) => write!(f, "the block bitmap of group {group}"),
            Self::InodeBitmap(group) => write!(f, "the inode bitmap of group {group}"),
            Self::InodeTable(group) => write!(f, "the inode table of group {group}"),
            Self::MultipleMount => f.write_str("multiple-mount protection"),
            Self::Inode(nr) => write!(f, "inode {nr}"),
            Self::Attributes(nr) => write!(f, "the attributes of inode {nr}"),
        }
    }
}

/// A run of blocks that was claimed before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conflict {
    /// First block claimed twice.
    pub(crate) block: DiskBlock,
    /// Blocks of the claim that have another owner.
    pub(crate) count: u64,
    /// Who has the first of them.
    pub(crate) owner: Option<Owner>,
}

/// The blocks in use, as bits per group (only where a group has any), and their owners as runs.
pub(crate) struct Claims {
    first: u64,
    per_group: u64,
    bits: Vec<Option<Box<[u64]>>>,
    /// Groups in which something other than the groups' own metadata has blocks.
    with_data: Vec<bool>,
    runs: Vec<(u64, u64, Owner)>,
    /// Owners that may still be looked up: each look walks all runs.
    lookups: u32,
}

impl Claims {
    pub(crate) fn new(sb: &Superblock) -> Self {
        Self {
            first: sb.first_data_block().0,
            per_group: u64::from(sb.blocks_per_group()),
            bits: vec![None; sb.groups() as usize],
            with_data: vec![false; sb.groups() as usize],
            runs: Vec::new(),
            lookups: 1000,
        }
    }

    /// Claims `[start, start + len)`, which lies on the volume. Blocks claimed before stay with their owner.
    pub(crate) fn claim(&mut self, start: DiskBlock, len: u64, owner: Owner) -> Option<Conflict> {
        let mut conflict: Option<Conflict> = None;
        let mut block = start.0.max(self.first);
        let end = start.0 + len;
        while block < end {
            let bit = block - self.first;
            let (group, within) = ((bit / self.per_group) as usize, bit % self.per_group);
            let words = (self.per_group as usize).div_ceil(64);
            let Some(slot) = self.bits.get_mut(group) else { break };
            let bits = slot.get_or_insert_with(|| vec![0; words].into_boxed_slice());
            self.with_data[group] |= matches!(owner, Owner::Inode(_) | Owner::Attributes(_));
            let word = &mut bits[(within / 64) as usize];
            let low = within % 64;
            let take = (64 - low).min(end - block).min(self.per_group - within);
            let mask = if take == 64 { u64::MAX } else { ((1 << take) - 1) << low };
            let taken = *word & mask;
            if taken != 0 {
                let at = DiskBlock(block + u64::from(taken.trailing_zeros()) - low);
                conflict.get_or_insert(Conflict { block: at, count: 0, owner: None }).count +=
                    u64::from(taken.count_ones());
            }
            *word |= mask;
            block += take;
        }
        if let Some(conflict) = &mut conflict
            && self.lookups > 0
        {
            self.lookups -= 1;
            conflict.owner = self.owner(conflict.block);
        }
        self.runs.push((start.0, end, owner));
        conflict
    }

    /// The first that claimed `block`.
    fn owner(&self, block: DiskBlock) -> Option<Owner> {
        let covers = |run: &&(u64, u64, Owner)| run.0 <= block.0 && block.0 < run.1;
        self.runs.iter().find(covers).map(|run| run.2)
    }

    /// Whether files or attributes have blocks in `group`.
    pub(crate) fn has_data(&self, group: GroupNr) -> bool {
        self.with_data[group.0 as usize]
    }

    /// Blocks of `group` in use.
    pub(crate) fn used(&self, group: GroupNr) -> u32 {
        let bits = self.bits[group.0 as usize].as_ref();
        bits.map_or(0, |bits| bits.iter().map(|word| word.count_ones()).sum())
    }

    /// The block bitmap that `group` must have: a whole block, with every bit past the group's end set.
    pub(crate) fn bitmap(&self, sb: &Superblock, group: GroupNr) -> Vec<u8> {
        let mut bitmap = vec![0; sb.block_size() as usize];
        if let Some(bits) = &self.bits[group.0 as usize] {
            for (bytes, word) in bitmap.chunks_mut(8).zip(bits.iter()) {
                bytes.copy_from_slice(&word.to_le_bytes()[..bytes.len()]);
            }
        }
        set_from(&mut bitmap, sb.blocks_in_group(group));
        bitmap
    }
}

/// Sets every bit from `from` to the end.
pub(crate) fn set_from(bitmap: &mut [u8], from: u32) {
    let byte = from as usize / 8;
    if let Some(first) = bitmap.get_mut(byte) {
        *first |= 0xff << (from % 8);
        bitmap[byte + 1..].fill(0xff);
    }
}

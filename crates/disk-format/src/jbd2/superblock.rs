//! The journal's superblock.

use std::mem::offset_of;

use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BlockType, Compat, Header, Incompat, JournalError, Layout, MAGIC, checksum_without};
use crate::address::Tid;
use crate::checksum::crc32c;

/// Bytes of the superblock; the rest of its block is unused.
pub const SUPERBLOCK_SIZE: usize = 1024;
/// `s_checksum_type` of CRC-32C.
pub const CHECKSUM_CRC32C: u8 = 4;
/// Blocks of the fast-commit area where `s_num_fc_blks` is 0.
pub const DEFAULT_FAST_COMMIT_BLOCKS: u32 = 256;

/// The 1024 bytes that start the journal.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawJournalSuperblock {
    pub h_magic: U32,
    pub h_blocktype: U32,
    pub h_sequence: U32,
    pub s_blocksize: U32,
    pub s_maxlen: U32,
    pub s_first: U32,
    pub s_sequence: U32,
    pub s_start: U32,
    pub s_errno: U32,
    pub s_feature_compat: U32,
    pub s_feature_incompat: U32,
    pub s_feature_ro_compat: U32,
    pub s_uuid: [u8; 16],
    pub s_nr_users: U32,
    pub s_dynsuper: U32,
    pub s_max_transaction: U32,
    pub s_max_trans_data: U32,
    pub s_checksum_type: u8,
    pub s_padding2: [u8; 3],
    pub s_num_fc_blks: U32,
    pub s_head: U32,
    pub s_padding: [U32; 40],
    pub s_checksum: U32,
    pub s_users: [[u8; 16]; 48],
}

const SUM: usize = offset_of!(RawJournalSuperblock, s_checksum);

const _: () = {
    assert!(size_of::<RawJournalSuperblock>() == SUPERBLOCK_SIZE);
    assert!(offset_of!(RawJournalSuperblock, s_feature_compat) == 0x24);
    assert!(offset_of!(RawJournalSuperblock, s_uuid) == 0x30);
    assert!(offset_of!(RawJournalSuperblock, s_checksum_type) == 0x50);
    assert!(offset_of!(RawJournalSuperblock, s_num_fc_blks) == 0x54);
    assert!(offset_of!(RawJournalSuperblock, s_head) == 0x58);
    assert!(SUM == 0xfc);
};

/// A journal superblock that passed every check.
#[derive(Clone)]
pub struct JournalSuperblock {
    raw: RawJournalSuperblock,
}

impl JournalSuperblock {
    /// Checks the superblock in the first 1024 of `bytes`, checksum included. Unknown features are no
    /// error here.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse(bytes: &[u8]) -> Result<Self, JournalError> {
        let structure = "superblock";
        let (raw, _) = RawJournalSuperblock::read_from_prefix(bytes).map_err(|_| JournalError::TooShort {
            structure,
            len: bytes.len(),
            needed: SUPERBLOCK_SIZE,
        })?;
        let superblock = Self { raw };
        superblock.check()?;
        if superblock.layout().has_checksums() {
            let (stored, computed) = (raw.s_checksum.get(), superblock.checksum());
            if stored != computed {
                return Err(JournalError::Checksum { structure, stored, computed });
            }
        }
        Ok(superblock)
    }

    /// A fresh, empty journal of `maxlen` blocks whose log starts at block 1.
    ///
    /// # Errors
    /// Sizes that no journal has.
    pub fn new(
        block_size: u32,
        maxlen: u32,
        incompat: Incompat,
        uuid: [u8; 16],
    ) -> Result<Self, JournalError> {
        let mut raw = RawJournalSuperblock::new_zeroed();
        raw.h_magic.set(MAGIC);
        raw.h_blocktype.set(BlockType::SuperblockV2.stored());
        raw.s_blocksize.set(block_size);
        raw.s_maxlen.set(maxlen);
        raw.s_first.set(1);
        raw.s_sequence.set(1);
        raw.s_feature_incompat.set(incompat.bits());
        raw.s_uuid = uuid;
        raw.s_nr_users.set(1);
        if incompat.intersects(Incompat::CSUM_V2 | Incompat::CSUM_V3) {
            raw.s_checksum_type = CHECKSUM_CRC32C;
        }
        let superblock = Self { raw };
        superblock.check()?;
        Ok(superblock)
    }

    /// A changed copy, checked.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn with(&self, change: impl FnOnce(&mut RawJournalSuperblock)) -> Result<Self, JournalError> {
        let mut copy = self.clone();
        change(&mut copy.raw);
        copy.check()?;
        Ok(copy)
    }

    fn check(&self) -> Result<(), JournalError> {
        let (raw, structure) = (&self.raw, "superblock");
        if raw.h_magic != MAGIC {
            return Err(JournalError::Magic { structure, magic: raw.h_magic.get() });
        }
        let stored = raw.h_blocktype.get();
        if !matches!(BlockType::from_stored(stored), BlockType::SuperblockV1 | BlockType::SuperblockV2) {
            return Err(JournalError::BlockType { structure, stored });
        }
        let block_size = self.block_size();
        if !block_size.is_power_of_two() || !(1024..=65536).contains(&block_size) {
            return Err(JournalError::BlockSize(block_size));
        }
        let (maxlen, first, start, head) = (self.maxlen(), self.first(), self.start(), self.raw.s_head.get());
        let place = |field, value| Err(JournalError::Place { field, value, maxlen });
        if maxlen < 4 {
            return Err(JournalError::MaxLen(maxlen));
        }
        if first == 0 || first >= maxlen - 1 {
            return place("s_first", first);
        }
        let end = self.log_end().ok_or(JournalError::MaxLen(maxlen))?;
        if start != 0 && (start < first || start >= end) {
            return place("s_start", start);
        }
        if self.is_v2() && head != 0 && (head < first || head >= end) {
            return place("s_head", head);
        }
        let (compat, incompat) = (self.compat(), self.incompat());
        let both = incompat.contains(Incompat::CSUM_V2 | Incompat::CSUM_V3);
        if both || (compat.contains(Compat::CHECKSUM) && self.layout().has_checksums()) {
            return Err(JournalError::ChecksumFeatures(compat.bits(), incompat.bits()));
        }
        if self.layout().has_checksums() && raw.s_checksum_type != CHECKSUM_CRC32C {
            return Err(JournalError::ChecksumType(raw.s_checksum_type));
        }
        Ok(())
    }

    /// The superblock's bytes with a fresh checksum.
    #[must_use]
    pub fn encode(&self) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = self.raw;
        if self.layout().has_checksums() {
            raw.s_checksum.set(self.checksum());
        }
        zerocopy::transmute!(raw)
    }

    fn checksum(&self) -> u32 {
        checksum_without(!0, self.raw.as_bytes(), SUM)
    }

    /// The stored fields.
    #[must_use]
    pub fn raw(&self) -> &RawJournalSuperblock {
        &self.raw
    }

    /// Whether this is the second form; the first has no features and no UUID.
    #[must_use]
    pub fn is_v2(&self) -> bool {
        self.raw.h_blocktype == BlockType::SuperblockV2.stored()
    }

    /// Bytes in a block of the journal.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.raw.s_blocksize.get()
    }

    /// Blocks of the journal, superblock and fast-commit area included.
    #[must_use]
    pub fn maxlen(&self) -> u32 {
        self.raw.s_maxlen.get()
    }

    /// First block of the log.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.raw.s_first.get()
    }

    /// The block after the log's last, `None` when the fast-commit area leaves no log.
    #[must_use]
    pub fn log_end(&self) -> Option<u32> {
        let end = self.maxlen().checked_sub(self.fast_commit_blocks())?;
        (end > self.first().checked_add(1)?).then_some(end)
    }

    /// Blocks of the fast-commit area behind the log.
    #[must_use]
    pub fn fast_commit_blocks(&self) -> u32 {
        if !self.incompat().contains(Incompat::FAST_COMMIT) {
            return 0;
        }
        match self.raw.s_num_fc_blks.get() {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            count => count,
        }
    }

    /// The first transaction expected in the log.
    #[must_use]
    pub fn sequence(&self) -> Tid {
        Tid(self.raw.s_sequence.get())
    }

    /// Block where the log's first transaction starts; 0 for an empty log.
    #[must_use]
    pub fn start(&self) -> u32 {
        self.raw.s_start.get()
    }

    /// Where the log of a clean journal may go on, as a hint; 0 where unknown.
    #[must_use]
    pub fn head(&self) -> u32 {
        if self.is_v2() { self.raw.s_head.get() } else { 0 }
    }

    /// The error that the journal was aborted with; 0 for none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.raw.s_errno.get() as i32
    }

    /// Features that may be ignored.
    #[must_use]
    pub fn compat(&self) -> Compat {
        Compat::from_bits(if self.is_v2() { self.raw.s_feature_compat.get() } else { 0 })
    }

    /// Features that must be known.
    #[must_use]
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits(if self.is_v2() { self.raw.s_feature_incompat.get() } else { 0 })
    }

    /// Read-only features; none is defined.
    #[must_use]
    pub fn ro_compat(&self) -> u32 {
        if self.is_v2() { self.raw.s_feature_ro_compat.get() } else { 0 }
    }

    /// The journal's UUID.
    #[must_use]
    pub fn uuid(&self) -> [u8; 16] {
        self.raw.s_uuid
    }

    /// How the blocks of the log are laid out.
    #[must_use]
    pub fn layout(&self) -> Layout {
        Layout { compat: self.compat(), incompat: self.incompat(), seed: crc32c(!0, &self.raw.s_uuid) }
    }

    /// Points the superblock at a log that starts at block `start` with `sequence`; 0 empties the log.
    ///
    /// # Errors
    /// A start outside the log.
    pub fn set_tail(&mut self, start: u32, sequence: Tid) -> Result<(), JournalError> {
        *self = self.with(|raw| {
            raw.s_start.set(start);
            raw.s_sequence.set(sequence.0);
        })?;
        Ok(())
    }

    /// The header fields, as of any other block of the journal.
    #[must_use]
    pub fn header(&self) -> Header {
        Header {
            block_type: BlockType::from_stored(self.raw.h_blocktype.get()),
            sequence: Tid(self.raw.h_sequence.get()),
        }
    }
}

impl std::fmt::Debug for JournalSuperblock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JournalSuperblock")
            .field("block_size", &self.block_size())
            .field("maxlen", &self.maxlen())
            .field("first", &self.first())
            .field("sequence", &self.sequence())
            .field("start", &self.start())
            .field("incompat", &self.incompat().names())
            .finish_non_exhaustive()
    }
}

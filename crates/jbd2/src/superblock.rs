//! The journal superblock: reading it with suspicion, writing it durably.

use onggi_block_device::{AlignedBuf, BlockDevice};
use onggi_disk_format::jbd2::{
    BlockType, CHECKSUM_CRC32C, Compat, Incompat, JournalSuperblock, SUPERBLOCK_SIZE,
};
use onggi_disk_format::{DiskBlock, Tid};

use crate::error::JournalError;
use crate::log::write_fua;
use crate::map::JournalMap;

/// The superblock and where it lives.
pub(crate) struct SuperblockHome {
    superblock: JournalSuperblock,
    offset: u64,
    /// The whole block; what lies behind the superblock stays as it is.
    block: AlignedBuf,
}

impl SuperblockHome {
    /// Reads the superblock of an internal journal and checks it against the map. No feature is unknown.
    pub(crate) fn load(
        device: &dyn BlockDevice,
        block_size: u32,
        map: &JournalMap,
    ) -> Result<Self, JournalError> {
        let home = map.locate(0).unwrap_or(DiskBlock(0));
        let short = JournalError::ShortMap { blocks: map.len(), maxlen: 1 };
        let offset = home.byte_offset(block_size).filter(|_| map.len() > 0).ok_or(short)?;
        let mut block = AlignedBuf::zeroed(block_size as usize);
        device
            .read_at(offset, &mut block)
            .map_err(|source| JournalError::Device { during: "reading the journal superblock", source })?;
        let superblock = JournalSuperblock::parse(&block)?;
        check(&superblock, block_size, map)?;
        Ok(Self { superblock, offset, block })
    }

    pub(crate) fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Chooses the features of an empty log. They reach the device with the next store.
    pub(crate) fn choose_features(
        &mut self,
        checksum_v3: bool,
        sixty_four_bit: bool,
    ) -> Result<(), JournalError> {
        let was_v2 = self.superblock.is_v2();
        let mut incompat = self.superblock.incompat();
        incompat.insert(Incompat::REVOKE);
        // Without fast commits of its own this log must not replay those of another's.
        incompat.remove(Incompat::CSUM_V2 | Incompat::FAST_COMMIT | Incompat::ASYNC_COMMIT);
        incompat.set(Incompat::CSUM_V3, checksum_v3);
        incompat.set(Incompat::BIT64, sixty_four_bit || incompat.contains(Incompat::BIT64));
        let compat = self.superblock.compat().without(Compat::CHECKSUM);
        self.superblock = self.superblock.with(|raw| {
            if !was_v2 {
                // The first form has nothing behind its error number that means anything.
                raw.h_blocktype.set(4);
                raw.s_feature_ro_compat.set(0);
                raw.s_uuid = [0; 16];
                raw.s_nr_users.set(1);
                raw.s_head.set(0);
                raw.s_num_fc_blks.set(0);
            }
            raw.s_feature_compat.set(compat.bits());
            raw.s_feature_incompat.set(incompat.bits());
            raw.s_checksum_type = if checksum_v3 { CHECKSUM_CRC32C } else { 0 };
        })?;
        debug_assert_eq!(self.superblock.header().block_type, BlockType::SuperblockV2);
        Ok(())
    }

    /// Durably points the superblock at a log that starts at `start` with `sequence`; 0 is an empty log.
    pub(crate) fn store(
        &mut self,
        device: &dyn BlockDevice,
        start: u32,
        sequence: Tid,
    ) -> Result<(), JournalError> {
        self.superblock.set_tail(start, sequence)?;
        self.write(device)
    }

    /// Durably records an error number.
    pub(crate) fn store_errno(&mut self, device: &dyn BlockDevice, errno: i32) -> Result<(), JournalError> {
        self.superblock = self.superblock.with(|raw| raw.s_errno.set(errno.cast_unsigned()))?;
        self.write(device)
    }

    /// All fields that change lie in the first 512 bytes, so that the write cannot tear.
    fn write(&mut self, device: &dyn BlockDevice) -> Result<(), JournalError> {
        self.block[..SUPERBLOCK_SIZE].copy_from_slice(&self.superblock.encode());
        write_fua(device, self.offset, &self.block)
            .map_err(|source| JournalError::Device { during: "writing the journal superblock", source })
    }

    #[cfg(test)]
    pub(crate) fn for_tests(superblock: JournalSuperblock) -> Self {
        Self { superblock, offset: 0, block: AlignedBuf::zeroed(1024) }
    }
}

fn check(superblock: &JournalSuperblock, block_size: u32, map: &JournalMap) -> Result<(), JournalError> {
    if superblock.block_size() != block_size {
        return Err(JournalError::BlockSize { journal: superblock.block_size(), volume: block_size });
    }
    if superblock.maxlen() > map.len() {
        return Err(JournalError::ShortMap { blocks: map.len(), maxlen: superblock.maxlen() });
    }
    let unknown = superblock.incompat().without(Incompat::KNOWN);
    if !unknown.is_empty() {
        return Err(JournalError::Unsupported { feature: unknown.names().join(", ") });
    }
    if superblock.ro_compat() != 0 {
        return Err(JournalError::Unsupported {
            feature: format!("ro_compat {:#x}", superblock.ro_compat()),
        });
    }
    let users = superblock.raw().s_nr_users.get();
    if superblock.is_v2() && users > 1 {
        return Err(JournalError::Unsupported { feature: format!("external journal of {users} users") });
    }
    Ok(())
}

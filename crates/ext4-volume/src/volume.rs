//! The volume as its structures see it: geometry, buffers, journal, allocator.

use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_disk_format::ext4::superblock::{SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use onggi_disk_format::ext4::{Inode, RawSuperblock, Superblock};
use onggi_disk_format::{DiskBlock, InodeNr};
use onggi_jbd2::{Buffer, Buffers, Journal};

use crate::alloc::Allocator;
use crate::{Place, VolumeError};

/// Blocks of an inode table that are read together.
const TABLE_STRETCH: u32 = 16;

/// A run of blocks on the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// First block.
    pub start: DiskBlock,
    /// Number of blocks.
    pub len: u32,
}

impl BlockRun {
    /// The block after the last.
    #[must_use]
    pub fn end(self) -> DiskBlock {
        DiskBlock(self.start.0 + u64::from(self.len))
    }
}

/// What a transaction brings about when it is durable.
#[derive(Debug, Default)]
pub struct Effects {
    /// Blocks that it freed: allocatable only from then on.
    pub freed: Vec<BlockRun>,
}

/// The right to change metadata within one transaction.
pub type Handle<'j> = onggi_jbd2::Handle<'j, Effects>;

/// A volume whose journal is recovered and running.
pub struct Volume {
    /// Geometry and features as they were at mount; counts and the orphan list's head live on the device.
    pub sb: Superblock,
    /// Metadata blocks.
    pub buffers: Arc<Buffers>,
    /// How changes become durable.
    pub journal: Journal<Effects>,
    /// Free blocks and inodes.
    pub alloc: Allocator,
}

impl Volume {
    /// The device below.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        self.buffers.device()
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.sb.block_size()
    }

    /// The block of an inode's table that holds the inode, and its first byte there.
    ///
    /// # Errors
    /// An inode number outside the volume; the device's.
    pub fn inode_buffer(&self, nr: InodeNr) -> Result<(Arc<Buffer>, usize), VolumeError> {
        let (block, byte) = self.inode_place(nr)?;
        if self.buffers.peek(block).is_none() {
            self.read_ahead_table(nr, block)?;
        }
        Ok((self.buffers.read(block)?, byte))
    }

    /// Reads the stretch of the inode table around `block` in one request: inodes of one directory lie
    /// side by side, and whoever reads one soon reads the others.
    fn read_ahead_table(&self, nr: InodeNr, block: DiskBlock) -> Result<(), VolumeError> {
        let Some(location) = self.sb.inode_location(nr) else { return Ok(()) };
        let first = location.table_block - location.table_block % TABLE_STRETCH;
        let end = (first + TABLE_STRETCH).min(self.sb.inode_table_blocks());
        let start = block.0 - u64::from(location.table_block);
        let stretch: Vec<DiskBlock> = (first..end).map(|index| DiskBlock(start + u64::from(index))).collect();
        Ok(self.buffers.read_ahead(&stretch)?)
    }

    fn inode_place(&self, nr: InodeNr) -> Result<(DiskBlock, usize), VolumeError> {
        let location = self
            .sb
            .inode_location(nr)
            .ok_or_else(|| VolumeError::corrupt("inode number", Place::Inode(nr), "outside the volume"))?;
        let table = self.alloc.inode_table(location.group);
        Ok((DiskBlock(table.0 + u64::from(location.table_block)), location.byte))
    }

    /// Reads ahead the blocks of the inode table that hold these inodes.
    ///
    /// # Errors
    /// As [`Volume::inode_buffer`].
    pub fn read_ahead_inodes(&self, numbers: impl Iterator<Item = InodeNr>) -> Result<(), VolumeError> {
        let mut blocks =
            numbers.map(|nr| Ok(self.inode_place(nr)?.0)).collect::<Result<Vec<_>, VolumeError>>()?;
        blocks.sort_unstable();
        blocks.dedup();
        Ok(self.buffers.read_ahead(&blocks)?)
    }

    /// Reads and checks an inode.
    ///
    /// # Errors
    /// The rule it breaks; the device's.
    pub fn read_inode(&self, nr: InodeNr) -> Result<Inode, VolumeError> {
        let (buffer, byte) = self.inode_buffer(nr)?;
        let block = buffer.snapshot();
        Inode::parse(&self.sb, nr, &block[byte..byte + usize::from(self.sb.inode_size())])
            .map_err(|error| VolumeError::corrupt("inode", Place::Inode(nr), error))
    }

    /// Writes an inode's fields to its table. What lies behind them (attributes in the inode) stays; the
    /// checksum covers both.
    ///
    /// # Errors
    /// The device's, the journal's.
    pub fn write_inode(&self, h: &mut Handle<'_>, nr: InodeNr, inode: &Inode) -> Result<(), VolumeError> {
        let (buffer, byte) = self.inode_buffer(nr)?;
        let size = usize::from(self.sb.inode_size());
        h.modify(&buffer, |block| inode.encode(&self.sb, nr, &mut block[byte..byte + size]))?
            .map_err(|error| VolumeError::corrupt("inode", Place::Inode(nr), error))
    }

    /// Writes a new inode, clearing whatever its slot held before.
    ///
    /// # Errors
    /// The device's, the journal's.
    pub fn write_new_inode(&self, h: &mut Handle<'_>, nr: InodeNr, inode: &Inode) -> Result<(), VolumeError> {
        let (buffer, byte) = self.inode_buffer(nr)?;
        let size = usize::from(self.sb.inode_size());
        h.modify(&buffer, |block| {
            let slot = &mut block[byte..byte + size];
            slot.fill(0);
            inode.encode(&self.sb, nr, slot)
        })?
        .map_err(|error| VolumeError::corrupt("inode", Place::Inode(nr), error))
    }

    /// Changes fields of the superblock on the device within a transaction.
    ///
    /// # Errors
    /// The device's, the journal's; a field that breaks a rule.
    pub fn update_superblock(
        &self,
        h: &mut Handle<'_>,
        change: impl FnOnce(&mut RawSuperblock),
    ) -> Result<(), VolumeError> {
        let (block, byte) = self.superblock_place();
        let buffer = self.buffers.read(block)?;
        h.modify(&buffer, |bytes| {
            let slot = &mut bytes[byte..byte + SUPERBLOCK_SIZE];
            let mut superblock = Superblock::parse(slot)?;
            superblock.update(change)?;
            let encoded = superblock.encode_over(slot);
            slot.copy_from_slice(&encoded);
            Ok::<_, onggi_disk_format::ext4::superblock::SuperblockError>(())
        })?
        .map_err(|error| VolumeError::corrupt("superblock", Place::Superblock, error))
    }

    /// The superblock as it stands in memory, changes of running transactions included.
    ///
    /// # Errors
    /// The rule it breaks; the device's.
    pub fn current_superblock(&self) -> Result<Superblock, VolumeError> {
        let (block, byte) = self.superblock_place();
        let buffer = self.buffers.read(block)?;
        Superblock::parse(&buffer.snapshot()[byte..byte + SUPERBLOCK_SIZE])
            .map_err(|error| VolumeError::corrupt("superblock", Place::Superblock, error))
    }

    /// Block that holds the superblock, and the superblock's first byte in it.
    #[must_use]
    pub fn superblock_place(&self) -> (DiskBlock, usize) {
        let size = u64::from(self.block_size());
        (DiskBlock(SUPERBLOCK_OFFSET / size), (SUPERBLOCK_OFFSET % size) as usize)
    }
}

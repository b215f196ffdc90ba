//! Reading and writing a volume's blocks.

use onggi_block_device::{AlignedBuf, BlockDevice};
use onggi_disk_format::ext4::{Compat, GroupDescriptor, Incompat, RoCompat, Superblock, superblock};
use onggi_disk_format::{DiskBlock, InodeNr};

use crate::CheckError;

/// What this check knows. A volume with anything else is refused.
const COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::RECOVER)
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::MMP)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR);
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::QUOTA)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::READONLY)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY)
    .union(RoCompat::ORPHAN_PRESENT);

/// A volume on its device.
pub(crate) struct Volume<'d> {
    pub(crate) device: &'d dyn BlockDevice,
    pub(crate) sb: Superblock,
    /// The superblock's stored checksum is not the computed one.
    pub(crate) bad_checksum: bool,
}

impl<'d> Volume<'d> {
    /// Reads the superblock and refuses what this check does not know.
    pub(crate) fn open(device: &'d dyn BlockDevice) -> Result<Self, CheckError> {
        if device.attributes().size < superblock::SUPERBLOCK_OFFSET + superblock::SUPERBLOCK_SIZE as u64 {
            return Err(CheckError::TooSmall { device: device.attributes().size, volume: 2048 });
        }
        let bytes = read_bytes(device, superblock::SUPERBLOCK_OFFSET, superblock::SUPERBLOCK_SIZE)?;
        let (sb, bad_checksum) = match Superblock::parse(&bytes) {
            Ok(sb) => (sb, false),
            Err(superblock::SuperblockError::Checksum { .. }) => (without_checksum(&bytes)?, true),
            Err(error) => return Err(error.into()),
        };
        let mut unknown = sb.compat().without(COMPAT).names();
        unknown.extend(sb.incompat().without(INCOMPAT).names());
        unknown.extend(sb.ro_compat().without(RO_COMPAT).names());
        if !unknown.is_empty() {
            return Err(CheckError::Unsupported(unknown.join(", ")));
        }
        let volume = sb.blocks_count().saturating_mul(u64::from(sb.block_size()));
        if device.attributes().size < volume {
            return Err(CheckError::TooSmall { device: device.attributes().size, volume });
        }
        Ok(Self { device, sb, bad_checksum })
    }

    pub(crate) fn block_size(&self) -> usize {
        self.sb.block_size() as usize
    }

    /// Reads `count` blocks from `start`; the caller has checked that they lie on the volume.
    pub(crate) fn read(&self, start: DiskBlock, count: u32) -> Result<Vec<u8>, CheckError> {
        let offset = start.0 * u64::from(self.sb.block_size());
        read_bytes(self.device, offset, count as usize * self.block_size())
    }

    /// Writes whole blocks.
    pub(crate) fn write(&self, start: DiskBlock, bytes: &[u8]) -> Result<(), CheckError> {
        write_bytes(self.device, start.0 * u64::from(self.sb.block_size()), bytes)
    }

    /// Writes the superblock as it stands in memory.
    pub(crate) fn write_superblock(&self) -> Result<(), CheckError> {
        write_bytes(self.device, superblock::SUPERBLOCK_OFFSET, &self.sb.encode())
    }

    /// Block and byte of an inode, given the descriptors.
    pub(crate) fn inode_place(
        &self,
        groups: &[Option<GroupDescriptor>],
        nr: InodeNr,
    ) -> Option<(DiskBlock, usize)> {
        let location = self.sb.inode_location(nr)?;
        let descriptor = groups.get(location.group.0 as usize)?.as_ref()?;
        Some((DiskBlock(descriptor.inode_table.0 + u64::from(location.table_block)), location.byte))
    }
}

fn without_checksum(bytes: &[u8]) -> Result<Superblock, CheckError> {
    use zerocopy::FromBytes;
    let (raw, _) = onggi_disk_format::ext4::RawSuperblock::read_from_prefix(bytes)
        .map_err(|_| superblock::SuperblockError::TooShort(bytes.len()))?;
    Ok(Superblock::from_raw(raw)?)
}

/// Reads any bytes, widened to whole sectors.
fn read_bytes(device: &dyn BlockDevice, offset: u64, len: usize) -> Result<Vec<u8>, CheckError> {
    let sector = u64::from(device.attributes().logical_sector);
    if offset.is_multiple_of(sector) && (len as u64).is_multiple_of(sector) {
        let mut bytes = vec![0; len];
        device.read_at(offset, &mut bytes)?;
        return Ok(bytes);
    }
    let (start, wide) = widen(device, offset, len);
    let mut buf = AlignedBuf::zeroed(wide);
    device.read_at(start, &mut buf)?;
    let from = (offset - start) as usize;
    Ok(buf[from..from + len].to_vec())
}

/// Writes any bytes; the rest of their sectors stays.
fn write_bytes(device: &dyn BlockDevice, offset: u64, bytes: &[u8]) -> Result<(), CheckError> {
    let (start, wide) = widen(device, offset, bytes.len());
    let mut buf = AlignedBuf::zeroed(wide);
    if wide != bytes.len() {
        device.read_at(start, &mut buf)?;
    }
    let from = (offset - start) as usize;
    buf[from..from + bytes.len()].copy_from_slice(bytes);
    Ok(device.write_at(start, &buf)?)
}

fn widen(device: &dyn BlockDevice, offset: u64, len: usize) -> (u64, usize) {
    let sector = u64::from(device.attributes().logical_sector.max(512));
    let start = offset / sector * sector;
    let end = (offset + len as u64).next_multiple_of(sector);
    (start, (end - start) as usize)
}

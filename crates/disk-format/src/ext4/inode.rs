//! Inodes.

use std::mem::offset_of;
use std::ops::Range;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::dir::FileType;
use super::features::Incompat;
use super::features::RoCompat;
use super::superblock::{ROOT_INODE, Superblock};
use crate::address::{DiskBlock, InodeNr};
use crate::checksum::crc32c;
use crate::flag_set::flag_set;

/// The 128 bytes every inode has and the 32 that larger inodes add.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawInode {
    pub i_mode: U16,
    pub i_uid: U16,
    pub i_size_lo: U32,
    pub i_atime: U32,
    pub i_ctime: U32,
    pub i_mtime: U32,
    pub i_dtime: U32,
    pub i_gid: U16,
    pub i_links_count: U16,
    pub i_blocks_lo: U32,
    pub i_flags: U32,
    pub l_i_version: U32,
    pub i_block: [u8; 60],
    pub i_generation: U32,
    pub i_file_acl_lo: U32,
    pub i_size_high: U32,
    pub i_obso_faddr: U32,
    pub l_i_blocks_high: U16,
    pub l_i_file_acl_high: U16,
    pub l_i_uid_high: U16,
    pub l_i_gid_high: U16,
    pub l_i_checksum_lo: U16,
    pub l_i_reserved: U16,
    pub i_extra_isize: U16,
    pub i_checksum_hi: U16,
    pub i_ctime_extra: U32,
    pub i_mtime_extra: U32,
    pub i_atime_extra: U32,
    pub i_crtime: U32,
    pub i_crtime_extra: U32,
    pub i_version_hi: U32,
    pub i_projid: U32,
}

/// Bytes of the inode that every volume has.
pub const BASE_SIZE: usize = 128;
const FULL: usize = size_of::<RawInode>();
const SUM_LO: usize = offset_of!(RawInode, l_i_checksum_lo);
const SUM_HI: usize = offset_of!(RawInode, i_checksum_hi);

const _: () = {
    assert!(FULL == 160);
    assert!(offset_of!(RawInode, i_block) == 0x28);
    assert!(offset_of!(RawInode, i_generation) == 0x64);
    assert!(offset_of!(RawInode, l_i_blocks_high) == 0x74);
    assert!(SUM_LO == 0x7c);
    assert!(offset_of!(RawInode, i_extra_isize) == BASE_SIZE);
    assert!(SUM_HI == 0x82);
    assert!(offset_of!(RawInode, i_projid) == 0x9c);
};

flag_set! {
    /// `i_flags`.
    InodeFlags(u32) {
        /// Erase blocks on deletion.
        SECURE_DELETE = 0x1, "secure_delete";
        /// Keep for undeletion.
        UNDELETE = 0x2, "undelete";
        /// Compressed.
        COMPRESSED = 0x4, "compressed";
        /// Every write is synchronous.
        SYNC = 0x8, "sync";
        /// Cannot change.
        IMMUTABLE = 0x10, "immutable";
        /// Only grows.
        APPEND = 0x20, "append";
        /// Left out by dump.
        NODUMP = 0x40, "nodump";
        /// Access times stay.
        NOATIME = 0x80, "noatime";
        /// Encrypted.
        ENCRYPT = 0x800, "encrypt";
        /// A hashed directory.
        INDEX = 0x1000, "index";
        /// AFS magic directory.
        IMAGIC = 0x2000, "imagic";
        /// Data goes through the journal.
        JOURNAL_DATA = 0x4000, "journal_data";
        /// The tail is not merged.
        NOTAIL = 0x8000, "notail";
        /// Directory changes are synchronous.
        DIRSYNC = 0x10000, "dirsync";
        /// Top of a directory hierarchy.
        TOPDIR = 0x20000, "topdir";
        /// `i_blocks` counts file-system blocks.
        HUGE_FILE = 0x40000, "huge_file";
        /// `i_block` holds an extent tree.
        EXTENTS = 0x80000, "extents";
        /// Merkle tree behind the data.
        VERITY = 0x10_0000, "verity";
        /// Holds a large attribute value.
        EA_INODE = 0x20_0000, "ea_inode";
        /// Blocks past the end of the file.
        EOFBLOCKS = 0x40_0000, "eofblocks";
        /// Direct access.
        DAX = 0x200_0000, "dax";
        /// Data lives in the inode.
        INLINE_DATA = 0x1000_0000, "inline_data";
        /// New children take the project.
        PROJINHERIT = 0x2000_0000, "projinherit";
        /// Case-insensitive directory.
        CASEFOLD = 0x4000_0000, "casefold";
        /// Reserved.
        RESERVED = 0x8000_0000, "reserved";
    }
}

/// A moment: seconds since 1970 and nanoseconds below 10^9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time {
    /// Seconds, from -2^31 up to 2^34 - 2^31 - 1 on disk (to 2^31 - 1 in 128-byte inodes).
    pub sec: i64,
    /// Nanoseconds.
    pub nsec: u32,
}

impl Time {
    /// Earliest moment an inode can hold.
    pub const MIN_SEC: i64 = i32::MIN as i64;
    /// Latest moment an inode with extra fields can hold.
    pub const MAX_SEC: i64 = (3 << 32) + i32::MAX as i64;

    fn decode(base: U32, extra: Option<U32>) -> Self {
        let sec = i64::from(base.get() as i32);
        let extra = extra.map_or(0, U32::get);
        Self { sec: sec + (i64::from(extra & 3) << 32), nsec: (extra >> 2).min(999_999_999) }
    }

    /// Base and extra words, cut to what they can hold.
    fn encode(self, has_extra: bool) -> (U32, U32) {
        let latest = if has_extra { Self::MAX_SEC } else { i64::from(i32::MAX) };
        let sec = self.sec.clamp(Self::MIN_SEC, latest);
        let base = sec as i32;
        let epoch = ((sec - i64::from(base)) >> 32) as u32 & 3;
        ((base as u32).into(), (epoch | self.nsec.min(999_999_999) << 2).into())
    }
}

/// The rule that an inode breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum InodeError {
    #[error("inode {nr}: {len} bytes, an inode has {needed}")]
    TooShort { nr: InodeNr, len: usize, needed: usize },
    #[error("inode {nr}: checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { nr: InodeNr, stored: u32, computed: u32 },
    #[error("inode {nr}: i_extra_isize {extra} is not a multiple of 4 that fits the inode")]
    ExtraSize { nr: InodeNr, extra: u16 },
    #[error("inode {nr}: i_mode {mode:#o} names no file type")]
    Mode { nr: InodeNr, mode: u16 },
    #[error("inode {nr}: i_size {size} is past 2^63")]
    Size { nr: InodeNr, size: u64 },
    #[error("inode {nr}: i_file_acl {block} does not lie on the volume")]
    FileAcl { nr: InodeNr, block: DiskBlock },
    #[error("inode {nr}: i_blocks overflows")]
    Blocks { nr: InodeNr },
    #[error("inode {nr}: the root is not a directory")]
    Root { nr: InodeNr },
}

/// An inode's fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// File type and permissions.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of the file.
    pub size: u64,
    /// Hard links; 1 for a directory with too many subdirectories to count.
    pub links_count: u16,
    /// Allocated space, extent and attribute blocks included, in 512-byte units.
    pub blocks: u64,
    /// Flags.
    pub flags: InodeFlags,
    /// Last access.
    pub atime: Time,
    /// Last change of the data.
    pub mtime: Time,
    /// Last change of the inode.
    pub ctime: Time,
    /// Creation; the epoch where the inode has no room for it.
    pub crtime: Time,
    /// Deletion time in seconds, or the next inode of the orphan list.
    pub dtime: u32,
    /// Distinguishes the uses of one inode number.
    pub generation: u32,
    /// Block of extended attributes; 0 for none.
    pub file_acl: DiskBlock,
    /// Extent tree root, block map, device number, symlink target or inline data.
    pub i_block: [u8; 60],
    /// Change counter (high half only where the inode has room).
    pub version: u64,
    /// Bytes in use past the first 128.
    pub extra_isize: u16,
    /// Project.
    pub projid: u32,
}

impl Inode {
    /// Checks an inode in use, checksum included.
    ///
    /// # Errors
    /// The first rule broken.
    pub fn parse(sb: &Superblock, nr: InodeNr, bytes: &[u8]) -> Result<Self, InodeError> {
        let bytes = inode_bytes(sb, nr, bytes)?;
        verify_checksum(sb, nr, bytes)?;
        let inode = Self::read(sb, nr, bytes)?;
        inode.check(sb, nr)?;
        Ok(inode)
    }

    /// The fields of an inode that may be free, zero or broken: only its length, `i_extra_isize` and
    /// `i_blocks` are checked. [`verify_checksum`] is separate.
    ///
    /// # Errors
    /// Too few bytes; fields that cannot be placed or computed.
    pub fn read(sb: &Superblock, nr: InodeNr, bytes: &[u8]) -> Result<Self, InodeError> {
        let bytes = inode_bytes(sb, nr, bytes)?;
        let raw = copy_raw(bytes);
        let extra_isize = if bytes.len() > BASE_SIZE { raw.i_extra_isize.get() } else { 0 };
        if !extra_isize.is_multiple_of(4) || BASE_SIZE + usize::from(extra_isize) > bytes.len() {
            return Err(InodeError::ExtraSize { nr, extra: extra_isize });
        }
        let has = |end: usize| BASE_SIZE + usize::from(extra_isize) >= end;
        let extra = |field: U32, end: usize| has(end).then_some(field);
        let wide = |lo: U16, hi: U16| u32::from(hi.get()) << 16 | u32::from(lo.get());
        let mode = raw.i_mode.get();
        let flags = InodeFlags::from_bits(raw.i_flags.get());
        let size_high = match FileType::from_mode(mode) {
            FileType::Regular => raw.i_size_high.get(),
            FileType::Directory if sb.incompat().contains(Incompat::LARGEDIR) => raw.i_size_high.get(),
            _ => 0,
        };
        let acl_high = if sb.incompat().contains(Incompat::BIT64) { raw.l_i_file_acl_high.get() } else { 0 };
        Ok(Self {
            mode,
            uid: wide(raw.i_uid, raw.l_i_uid_high),
            gid: wide(raw.i_gid, raw.l_i_gid_high),
            size: u64::from(size_high) << 32 | u64::from(raw.i_size_lo.get()),
            links_count: raw.i_links_count.get(),
            blocks: decode_blocks(sb, &raw, flags).ok_or(InodeError::Blocks { nr })?,
            flags,
            atime: Time::decode(raw.i_atime, extra(raw.i_atime_extra, 0x90)),
            mtime: Time::decode(raw.i_mtime, extra(raw.i_mtime_extra, 0x8c)),
            ctime: Time::decode(raw.i_ctime, extra(raw.i_ctime_extra, 0x88)),
            crtime: match extra(raw.i_crtime, 0x94) {
                Some(base) => Time::decode(base, extra(raw.i_crtime_extra, 0x98)),
                None => Time::default(),
            },
            dtime: raw.i_dtime.get(),
            generation: raw.i_generation.get(),
            file_acl: DiskBlock(u64::from(acl_high) << 32 | u64::from(raw.i_file_acl_lo.get())),
            i_block: raw.i_block,
            version: u64::from(extra(raw.i_version_hi, 0x9c).map_or(0, U32::get)) << 32
                | u64::from(raw.l_i_version.get()),
            extra_isize,
            projid: extra(raw.i_projid, 0xa0).map_or(0, U32::get),
        })
    }

    fn check(&self, sb: &Superblock, nr: InodeNr) -> Result<(), InodeError> {
        if nr == ROOT_INODE && self.kind() != FileType::Directory {
            return Err(InodeError::Root { nr });
        }
        // Reserved inodes hold blocks or nothing without being files.
        if self.kind() == FileType::Unknown && nr >= sb.first_inode() {
            return Err(InodeError::Mode { nr, mode: self.mode });
        }
        if self.size >> 63 != 0 {
            return Err(InodeError::Size { nr, size: self.size });
        }
        if self.file_acl.0 != 0 && !sb.contains_blocks(self.file_acl, 1) {
            return Err(InodeError::FileAcl { nr, block: self.file_acl });
        }
        Ok(())
    }

    /// Writes the fields and the checksum into `bytes`; the attribute area and fields not held here stay.
    ///
    /// # Errors
    /// Too few bytes, an `extra_isize` or a block count that the inode cannot hold.
    pub fn encode(&self, sb: &Superblock, nr: InodeNr, bytes: &mut [u8]) -> Result<(), InodeError> {
        let len = inode_bytes(sb, nr, bytes)?.len();
        let bytes = &mut bytes[..len];
        let end = BASE_SIZE + usize::from(self.extra_isize);
        if !self.extra_isize.is_multiple_of(4) || end > len {
            return Err(InodeError::ExtraSize { nr, extra: self.extra_isize });
        }
        let mut raw = copy_raw(bytes);
        let flags = self.encode_blocks(sb, &mut raw).ok_or(InodeError::Blocks { nr })?;
        raw.i_mode.set(self.mode);
        raw.i_uid.set(self.uid as u16);
        raw.l_i_uid_high.set((self.uid >> 16) as u16);
        raw.i_gid.set(self.gid as u16);
        raw.l_i_gid_high.set((self.gid >> 16) as u16);
        raw.i_size_lo.set(self.size as u32);
        raw.i_size_high.set((self.size >> 32) as u32);
        raw.i_links_count.set(self.links_count);
        raw.i_flags.set(flags.bits());
        raw.i_dtime.set(self.dtime);
        raw.i_generation.set(self.generation);
        raw.i_file_acl_lo.set(self.file_acl.0 as u32);
        raw.l_i_file_acl_high.set((self.file_acl.0 >> 32) as u16);
        raw.i_block = self.i_block;
        raw.l_i_version.set(self.version as u32);
        (raw.i_atime, raw.i_atime_extra) = self.atime.encode(end >= 0x90);
        (raw.i_mtime, raw.i_mtime_extra) = self.mtime.encode(end >= 0x8c);
        (raw.i_ctime, raw.i_ctime_extra) = self.ctime.encode(end >= 0x88);
        (raw.i_crtime, raw.i_crtime_extra) = self.crtime.encode(end >= 0x98);
        raw.i_version_hi.set((self.version >> 32) as u32);
        raw.i_projid.set(self.projid);
        raw.i_extra_isize.set(self.extra_isize);
        // Past its extra fields the inode holds attributes.
        let write = if len > BASE_SIZE { end.clamp(BASE_SIZE + 4, FULL).min(len) } else { BASE_SIZE };
        let tail = if end >= BASE_SIZE + 4 { write } else { write.min(BASE_SIZE + 2) };
        bytes[..tail].copy_from_slice(&raw.as_bytes()[..tail]);
        set_checksum(sb, nr, bytes);
        Ok(())
    }

    fn encode_blocks(&self, sb: &Superblock, raw: &mut RawInode) -> Option<InodeFlags> {
        let huge = sb.ro_compat().contains(RoCompat::HUGE_FILE);
        let per_block = u64::from(sb.block_size() / 512);
        let (count, in_blocks) = match (self.blocks >> 32, self.blocks >> 48) {
            (0, _) => (self.blocks, false),
            (_, 0) if huge => (self.blocks, false),
            _ if huge && (self.blocks / per_block) >> 48 == 0 => (self.blocks / per_block, true),
            _ => return None,
        };
        raw.i_blocks_lo.set(count as u32);
        raw.l_i_blocks_high.set((count >> 32) as u16);
        let mut flags = self.flags;
        if huge {
            flags.set(InodeFlags::HUGE_FILE, in_blocks);
        }
        Some(flags)
    }

    /// The file type in [`Inode::mode`]; `Unknown` never comes from [`Inode::parse`] of a file's inode.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_mode(self.mode)
    }

    /// The device number in `i_block` as (major, minor), in the old or the new form.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        let old = super::le32(&self.i_block, 0).unwrap_or(0);
        if old != 0 {
            return (old >> 8 & 0xff, old & 0xff);
        }
        let new = super::le32(&self.i_block, 4).unwrap_or(0);
        (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00)
    }

    /// Stores a device number: the old form where both parts are below 256, else the new
    /// (major below 4096, minor below 2^20; higher bits are lost).
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.i_block.fill(0);
        if major < 256 && minor < 256 {
            let old = major << 8 | minor;
            self.i_block[..4].copy_from_slice(&old.to_le_bytes());
        } else {
            let new = minor & 0xff | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12;
            self.i_block[4..8].copy_from_slice(&new.to_le_bytes());
        }
    }
}

/// The bytes of an inode that may hold extended attributes, `None` where there are none to spare.
/// `extra_isize` is the inode's, already checked.
#[must_use]
pub fn xattr_area(sb: &Superblock, extra_isize: u16) -> Option<Range<usize>> {
    let size = usize::from(sb.inode_size());
    let start = BASE_SIZE + usize::from(extra_isize);
    (size > BASE_SIZE && extra_isize != 0 && start + 4 < size).then_some(start..size)
}

/// Checks the checksum of an inode's bytes; passes without `metadata_csum`.
///
/// # Errors
/// Too few bytes, or the checksum.
pub fn verify_checksum(sb: &Superblock, nr: InodeNr, bytes: &[u8]) -> Result<(), InodeError> {
    let bytes = inode_bytes(sb, nr, bytes)?;
    if !sb.has_metadata_csum() {
        return Ok(());
    }
    let computed = checksum(sb, nr, bytes);
    let raw = copy_raw(bytes);
    let low = u32::from(raw.l_i_checksum_lo.get());
    let (stored, computed) = if has_high_sum(bytes) {
        (u32::from(raw.i_checksum_hi.get()) << 16 | low, computed)
    } else {
        (low, computed & 0xffff)
    };
    if stored == computed { Ok(()) } else { Err(InodeError::Checksum { nr, stored, computed }) }
}

/// Writes the checksum of an inode after a change of its bytes (of its attribute area, say); nothing
/// without `metadata_csum` or with too few bytes.
pub fn set_checksum(sb: &Superblock, nr: InodeNr, bytes: &mut [u8]) {
    let size = usize::from(sb.inode_size());
    if !sb.has_metadata_csum() || bytes.len() < size {
        return;
    }
    let bytes = &mut bytes[..size];
    let sum = checksum(sb, nr, bytes);
    bytes[SUM_LO..SUM_LO + 2].copy_from_slice(&(sum as u16).to_le_bytes());
    if has_high_sum(bytes) {
        bytes[SUM_HI..SUM_HI + 2].copy_from_slice(&((sum >> 16) as u16).to_le_bytes());
    }
}

fn inode_bytes<'a>(sb: &Superblock, nr: InodeNr, bytes: &'a [u8]) -> Result<&'a [u8], InodeError> {
    let needed = usize::from(sb.inode_size());
    bytes.get(..needed).ok_or(InodeError::TooShort { nr, len: bytes.len(), needed })
}

fn copy_raw(bytes: &[u8]) -> RawInode {
    let mut raw = RawInode::new_zeroed();
    let len = bytes.len().min(FULL);
    raw.as_mut_bytes()[..len].copy_from_slice(&bytes[..len]);
    raw
}

fn has_high_sum(bytes: &[u8]) -> bool {
    bytes.len() > BASE_SIZE && super::le16(bytes, BASE_SIZE).is_some_and(|extra| extra >= 4)
}

fn checksum(sb: &Superblock, nr: InodeNr, bytes: &[u8]) -> u32 {
    let generation = super::le32(bytes, offset_of!(RawInode, i_generation)).unwrap_or(0);
    let seed = super::inode_seed(sb.csum_seed(), nr, generation);
    let sum = crc32c(crc32c(seed, &bytes[..SUM_LO]), &[0, 0]);
    if has_high_sum(bytes) {
        let sum = crc32c(crc32c(sum, &bytes[SUM_LO + 2..SUM_HI]), &[0, 0]);
        crc32c(sum, &bytes[SUM_HI + 2..])
    } else {
        crc32c(sum, &bytes[SUM_LO + 2..])
    }
}

fn decode_blocks(sb: &Superblock, raw: &RawInode, flags: InodeFlags) -> Option<u64> {
    let low = u64::from(raw.i_blocks_lo.get());
    if !sb.ro_compat().contains(RoCompat::HUGE_FILE) {
        return Some(low);
    }
    let count = u64::from(raw.l_i_blocks_high.get()) << 32 | low;
    let unit = if flags.contains(InodeFlags::HUGE_FILE) { u64::from(sb.block_size() / 512) } else { 1 };
    count.checked_mul(unit)
}

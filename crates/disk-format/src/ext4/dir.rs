//! Directory blocks: a chain of entries, each with room for its name and for what was removed behind it.

use crate::address::InodeNr;
use crate::checksum::crc32c;

/// Bytes of an entry before its name.
pub const ENTRY_HEADER: usize = 8;
/// Bytes of the checksum entry that ends a block.
pub const TAIL_SIZE: usize = 12;
/// Longest name in bytes.
pub const MAX_NAME: usize = 255;
/// File type of the checksum entry.
const TAIL_TYPE: u8 = 0xde;

/// What an inode is; as stored in a directory entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileType {
    /// Not said.
    #[default]
    Unknown = 0,
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A character device.
    CharDevice = 3,
    /// A block device.
    BlockDevice = 4,
    /// A named pipe.
    Fifo = 5,
    /// A socket.
    Socket = 6,
    /// A symbolic link.
    Symlink = 7,
}

impl FileType {
    /// The type in the high bits of a mode.
    #[must_use]
    pub fn from_mode(mode: u16) -> Self {
        match mode >> 12 {
            0o10 => Self::Regular,
            0o04 => Self::Directory,
            0o02 => Self::CharDevice,
            0o06 => Self::BlockDevice,
            0o01 => Self::Fifo,
            0o14 => Self::Socket,
            0o12 => Self::Symlink,
            _ => Self::Unknown,
        }
    }

    /// The high bits of a mode; 0 for unknown.
    #[must_use]
    pub fn mode_bits(self) -> u16 {
        (match self {
            Self::Unknown => 0,
            Self::Regular => 0o10,
            Self::Directory => 0o04,
            Self::CharDevice => 0o02,
            Self::BlockDevice => 0o06,
            Self::Fifo => 0o01,
            Self::Socket => 0o14,
            Self::Symlink => 0o12,
        }) << 12
    }

    /// The type a directory entry stores; `None` for a byte that means nothing.
    #[must_use]
    pub fn from_stored(byte: u8) -> Option<Self> {
        Some(match byte {
            0 => Self::Unknown,
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

/// The rule that a directory block breaks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum DirError {
    #[error("directory entry at byte {0}: no room for an entry")]
    Truncated(usize),
    #[error(
        "directory entry at byte {offset}: rec_len {rec_len} is not a multiple of 4 that holds the entry"
    )]
    RecLen { offset: usize, rec_len: usize },
    #[error("directory entry at byte {offset}: rec_len {rec_len} runs past the block")]
    PastBlock { offset: usize, rec_len: usize },
    #[error("directory entry at byte {offset}: inode {nr} is past the last inode")]
    InodeNumber { offset: usize, nr: InodeNr },
    #[error("directory entry at byte {0}: its name is empty or has a slash or a NUL")]
    Name(usize),
    #[error("directory block: no checksum entry at its end")]
    NoTail,
    #[error("directory block: checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("directory block: {0} bytes are no block size")]
    BlockSize(usize),
    #[error("directory name of {0} bytes; names have 1 to 255")]
    NameLength(usize),
}

/// An entry in its block. `inode` 0 means unused: then only `offset` and `rec_len` mean something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntryRef<'a> {
    /// Byte of the entry in the block.
    pub offset: usize,
    /// Bytes up to the next entry.
    pub rec_len: usize,
    /// The inode it names.
    pub inode: InodeNr,
    /// The stored file type; see [`FileType::from_stored`].
    pub kind: u8,
    /// The name.
    pub name: &'a [u8],
}

/// Walks the entries of a block; ends after the first error.
#[derive(Clone, Debug)]
pub struct DirEntries<'a> {
    block: &'a [u8],
    end: usize,
    next: usize,
    inodes_count: u32,
}

/// The entries of `block`, the checksum entry (`has_tail`) left out. Inode numbers are checked against
/// `inodes_count`. Unused entries come too.
#[must_use]
pub fn entries(block: &[u8], inodes_count: u32, has_tail: bool) -> DirEntries<'_> {
    let end = block.len() - if has_tail { TAIL_SIZE.min(block.len()) } else { 0 };
    DirEntries { block, end, next: 0, inodes_count }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntryRef<'a>, DirError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        let item = entry_at(self.block, self.end, self.next, self.inodes_count);
        self.next = match &item {
            Ok(entry) => entry.offset + entry.rec_len,
            Err(_) => self.end,
        };
        Some(item)
    }
}

/// Bytes an entry with a name of `name_len` bytes takes.
#[must_use]
pub fn entry_size(name_len: usize) -> usize {
    (ENTRY_HEADER + name_len).next_multiple_of(4)
}

fn entry_at(block: &[u8], end: usize, offset: usize, inodes_count: u32) -> Result<DirEntryRef<'_>, DirError> {
    if offset + ENTRY_HEADER + 4 > end {
        return Err(DirError::Truncated(offset));
    }
    let header = &block[offset..offset + ENTRY_HEADER];
    let nr = InodeNr(super::le32(header, 0).unwrap_or(0));
    let rec_len = decode_rec_len(super::le16(header, 4).unwrap_or(0), block.len());
    let name_len = usize::from(header[6]);
    if !rec_len.is_multiple_of(4) || rec_len < entry_size(name_len.max(1)) {
        return Err(DirError::RecLen { offset, rec_len });
    }
    if rec_len > end - offset || (rec_len < end - offset && end - offset - rec_len < ENTRY_HEADER + 4) {
        return Err(DirError::PastBlock { offset, rec_len });
    }
    if nr.0 > inodes_count {
        return Err(DirError::InodeNumber { offset, nr });
    }
    let name = &block[offset + ENTRY_HEADER..offset + ENTRY_HEADER + name_len];
    if nr.0 != 0 && (name.is_empty() || name.iter().any(|&byte| byte == b'/' || byte == 0)) {
        return Err(DirError::Name(offset));
    }
    Ok(DirEntryRef { offset, rec_len, inode: nr, kind: header[7], name })
}

/// A stored `rec_len` in bytes; blocks of 64 KiB need 17 bits of it.
fn decode_rec_len(stored: u16, block_size: usize) -> usize {
    let stored = usize::from(stored);
    if block_size < 65536 {
        stored
    } else if stored == 0 || stored == 65535 {
        65536
    } else {
        stored & 0xfffc | (stored & 3) << 16
    }
}

fn encode_rec_len(rec_len: usize) -> u16 {
    if rec_len >= 65536 { 65535 } else { rec_len as u16 }
}

/// Writes an entry's header and name at `offset`. The caller has checked that `rec_len` bytes are there.
fn write_entry(block: &mut [u8], offset: usize, rec_len: usize, nr: InodeNr, name: &[u8], kind: u8) {
    block[offset..offset + 4].copy_from_slice(&nr.0.to_le_bytes());
    set_rec_len(block, offset, rec_len);
    block[offset + 6] = name.len() as u8;
    block[offset + 7] = kind;
    let start = offset + ENTRY_HEADER;
    block[start..start + name.len()].copy_from_slice(name);
    block[start + name.len()..offset + entry_size(name.len())].fill(0);
}

fn set_rec_len(block: &mut [u8], offset: usize, rec_len: usize) {
    block[offset + 4..offset + 6].copy_from_slice(&encode_rec_len(rec_len).to_le_bytes());
}

fn check_block_size(block: &[u8]) -> Result<(), DirError> {
    let len = block.len();
    if len.is_power_of_two() && (1024..=65536).contains(&len) {
        Ok(())
    } else {
        Err(DirError::BlockSize(len))
    }
}

/// Makes `block` an empty directory block, with a checksum entry at its end if `has_tail`.
///
/// # Errors
/// A length that is no block size.
pub fn init_block(block: &mut [u8], has_tail: bool) -> Result<(), DirError> {
    check_block_size(block)?;
    block.fill(0);
    let room = block.len() - if has_tail { TAIL_SIZE } else { 0 };
    set_rec_len(block, 0, room);
    if has_tail {
        write_tail(block);
    }
    Ok(())
}

/// Makes `block` the first block of a new directory: `.` and `..`, then free room.
///
/// # Errors
/// A length that is no block size.
pub fn init_first_block(
    block: &mut [u8],
    has_tail: bool,
    itself: InodeNr,
    parent: InodeNr,
    kind: u8,
) -> Result<(), DirError> {
    init_block(block, has_tail)?;
    let room = block.len() - if has_tail { TAIL_SIZE } else { 0 };
    write_entry(block, 0, 12, itself, b".", kind);
    write_entry(block, 12, room - 12, parent, b"..", kind);
    Ok(())
}

/// Adds an entry where `block` has room for it and says at which byte; `None` when it has none. `kind` is
/// what is stored as file type (0 on volumes without `filetype`).
///
/// # Errors
/// A bad name, or a block that is broken.
pub fn insert(
    block: &mut [u8],
    has_tail: bool,
    name: &[u8],
    nr: InodeNr,
    kind: u8,
) -> Result<Option<usize>, DirError> {
    check_block_size(block)?;
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(DirError::NameLength(name.len()));
    }
    let needed = entry_size(name.len());
    let mut found = None;
    for entry in entries(block, u32::MAX, has_tail) {
        let entry = entry?;
        let used = if entry.inode.0 == 0 { 0 } else { entry_size(entry.name.len()) };
        if entry.rec_len - used >= needed {
            found = Some((entry.offset, used, entry.rec_len));
            break;
        }
    }
    let Some((offset, used, rec_len)) = found else { return Ok(None) };
    if used != 0 {
        set_rec_len(block, offset, used);
    }
    write_entry(block, offset + used, rec_len - used, nr, name, kind);
    Ok(Some(offset + used))
}

/// Removes the entry at `offset`; the room goes to the entry before it. `false` when no entry starts there.
///
/// # Errors
/// A block that is broken.
pub fn remove(block: &mut [u8], has_tail: bool, offset: usize) -> Result<bool, DirError> {
    check_block_size(block)?;
    let mut before = None;
    let mut found = None;
    for entry in entries(block, u32::MAX, has_tail) {
        let entry = entry?;
        if entry.offset == offset {
            found = Some(entry.rec_len);
            break;
        }
        before = Some((entry.offset, entry.rec_len));
    }
    let Some(rec_len) = found else { return Ok(false) };
    if let Some((at, len)) = before {
        set_rec_len(block, at, len + rec_len);
        block[offset..offset + rec_len].fill(0);
    } else {
        block[offset..offset + rec_len].fill(0);
        set_rec_len(block, offset, rec_len);
    }
    Ok(true)
}

/// Points the entry at `offset` at another inode. `false` when no entry in use starts there.
///
/// # Errors
/// A block that is broken.
pub fn replace(
    block: &mut [u8],
    has_tail: bool,
    offset: usize,
    nr: InodeNr,
    kind: u8,
) -> Result<bool, DirError> {
    for entry in entries(block, u32::MAX, has_tail) {
        let entry = entry?;
        if entry.offset == offset && entry.inode.0 != 0 {
            block[offset..offset + 4].copy_from_slice(&nr.0.to_le_bytes());
            block[offset + 7] = kind;
            return Ok(true);
        }
    }
    Ok(false)
}

fn write_tail(block: &mut [u8]) {
    let at = block.len() - TAIL_SIZE;
    block[at..].fill(0);
    block[at + 4] = TAIL_SIZE as u8;
    block[at + 7] = TAIL_TYPE;
}

/// Checks the checksum entry at the block's end. `inode_seed` is [`super::inode_seed`]'s.
///
/// # Errors
/// No such entry, or the checksum.
pub fn verify_checksum(block: &[u8], inode_seed: u32) -> Result<(), DirError> {
    let at = tail(block)?;
    let computed = crc32c(inode_seed, &block[..at]);
    let stored = super::le32(block, at + 8).unwrap_or(0);
    if stored == computed { Ok(()) } else { Err(DirError::Checksum { stored, computed }) }
}

/// Writes the checksum into the entry at the block's end.
///
/// # Errors
/// No such entry.
pub fn set_checksum(block: &mut [u8], inode_seed: u32) -> Result<(), DirError> {
    let at = tail(block)?;
    let sum = crc32c(inode_seed, &block[..at]);
    block[at + 8..].copy_from_slice(&sum.to_le_bytes());
    Ok(())
}

fn tail(block: &[u8]) -> Result<usize, DirError> {
    let at = block.len().checked_sub(TAIL_SIZE).ok_or(DirError::NoTail)?;
    if block[at..at + 8] == [0, 0, 0, 0, TAIL_SIZE as u8, 0, 0, TAIL_TYPE] {
        Ok(at)
    } else {
        Err(DirError::NoTail)
    }
}

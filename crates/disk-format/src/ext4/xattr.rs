//! Extended attributes, in the inode's spare bytes and in a block of their own.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::superblock::Superblock;
use crate::address::{DiskBlock, InodeNr};
use crate::checksum::crc32c;

/// Starts the attributes of an inode and of a block.
pub const MAGIC: u32 = 0xea02_0000;
/// Bytes of the block's header.
pub const BLOCK_HEADER: usize = 32;
/// Bytes of the header in an inode.
pub const INODE_HEADER: usize = 4;
/// Most inodes that share one attribute block.
pub const MAX_REFCOUNT: u32 = 1024;
/// Longest value outside a value inode is bounded by the block; in one, by this.
pub const MAX_VALUE: u32 = 1 << 16;
const ENTRY: usize = 16;
const PAD: usize = 4;

/// Starts an attribute block.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawXattrHeader {
    pub h_magic: U32,
    pub h_refcount: U32,
    pub h_blocks: U32,
    pub h_hash: U32,
    pub h_checksum: U32,
    pub h_reserved: [U32; 3],
}

/// An entry, followed by its name.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[allow(missing_docs)]
pub struct RawXattrEntry {
    pub e_name_len: u8,
    pub e_name_index: u8,
    pub e_value_offs: U16,
    pub e_value_inum: U32,
    pub e_value_size: U32,
    pub e_hash: U32,
}

const _: () = {
    assert!(size_of::<RawXattrHeader>() == BLOCK_HEADER);
    assert!(size_of::<RawXattrEntry>() == ENTRY);
};

/// Name prefixes with their `e_name_index`. The two ACL names and `system.richacl` are whole names.
pub const PREFIXES: [(u8, &str); 7] = [
    (1, "user."),
    (2, "system.posix_acl_access"),
    (3, "system.posix_acl_default"),
    (4, "trusted."),
    (6, "security."),
    (7, "system."),
    (8, "system.richacl"),
];

/// Splits a full name into index and rest; `None` for a prefix that has no index.
#[must_use]
pub fn split_name(full: &[u8]) -> Option<(u8, &[u8])> {
    let whole = |index| matches!(index, 2 | 3 | 8);
    if let Some((index, _)) = PREFIXES.iter().find(|(index, text)| whole(*index) && text.as_bytes() == full) {
        return Some((*index, b""));
    }
    let prefixed = PREFIXES.iter().filter(|(index, _)| !whole(*index));
    prefixed.into_iter().find_map(|(index, text)| {
        full.strip_prefix(text.as_bytes()).filter(|rest| !rest.is_empty()).map(|rest| (*index, rest))
    })
}

/// The full name of an attribute; `None` for an unknown index.
#[must_use]
pub fn full_name(index: u8, name: &[u8]) -> Option<Vec<u8>> {
    let (_, prefix) = PREFIXES.iter().find(|(known, _)| *known == index)?;
    Some([prefix.as_bytes(), name].concat())
}

/// The rule that attributes break.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum XattrError {
    #[error("attributes: {0} bytes have no room for them")]
    TooShort(usize),
    #[error("attribute block: h_magic is {0:#010x}, not 0xea020000")]
    Magic(u32),
    #[error("attribute block: h_blocks is {0}, not 1")]
    Blocks(u32),
    #[error("attribute block: h_refcount {0} is 0 or past 1024")]
    RefCount(u32),
    #[error("attribute block: h_checksum is {stored:#010x}, computed {computed:#010x}")]
    Checksum { stored: u32, computed: u32 },
    #[error("attribute at byte {0}: the entries run past their area")]
    PastArea(usize),
    #[error(
        "attribute at byte {entry}: its value of {size} bytes at {offset} does not lie behind the entries"
    )]
    Value { entry: usize, offset: usize, size: usize },
    #[error("attribute at byte {0}: its value overlaps another")]
    Overlap(usize),
    #[error(
        "attribute at byte {entry}: its value of {size} bytes in inode {nr} is too long or names no inode"
    )]
    ValueInode { entry: usize, nr: InodeNr, size: u32 },
    #[error("attribute at byte {entry}: e_hash is {stored:#010x}, computed {computed:#010x}")]
    EntryHash { entry: usize, stored: u32, computed: u32 },
    #[error("attribute name of {0} bytes; names have up to 255")]
    NameLength(usize),
    #[error("attributes: {needed} bytes do not fit {room}")]
    Full { needed: usize, room: usize },
}

/// An attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Xattr {
    /// `e_name_index`: stands for the prefix of the name; see [`PREFIXES`].
    pub index: u8,
    /// The name without its prefix.
    pub name: Vec<u8>,
    /// The value; empty when it lies in an inode.
    pub value: Vec<u8>,
    /// The inode that holds the value (feature `ea_inode`) and the value's length, and the stored hash.
    pub value_inode: Option<ValueInode>,
}

/// Where a large value lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueInode {
    /// The inode.
    pub nr: InodeNr,
    /// Bytes of the value.
    pub size: u32,
    /// The entry's `e_hash`, which only the value could recompute.
    pub hash: u32,
}

/// The attributes of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XattrBlock {
    /// Inodes that share the block.
    pub refcount: u32,
    /// `h_hash`, by which equal blocks are found.
    pub hash: u32,
    /// The attributes in stored order.
    pub xattrs: Vec<Xattr>,
}

/// Checks the attributes in an inode's spare bytes ([`super::inode::xattr_area`]); none without the magic.
///
/// # Errors
/// The first rule broken.
pub fn parse_area(sb: &Superblock, area: &[u8]) -> Result<Vec<Xattr>, XattrError> {
    if super::le32(area, 0) != Some(MAGIC) {
        return Ok(Vec::new());
    }
    parse_entries(sb, &area[INODE_HEADER..], 0)
}

/// Checks an attribute block at `place`, checksum included.
///
/// # Errors
/// The first rule broken.
pub fn parse_block(sb: &Superblock, block: &[u8], place: DiskBlock) -> Result<XattrBlock, XattrError> {
    let (header, _) =
        RawXattrHeader::read_from_prefix(block).map_err(|_| XattrError::TooShort(block.len()))?;
    if header.h_magic != MAGIC {
        return Err(XattrError::Magic(header.h_magic.get()));
    }
    if header.h_blocks != 1 {
        return Err(XattrError::Blocks(header.h_blocks.get()));
    }
    if sb.has_metadata_csum() {
        let (stored, computed) = (header.h_checksum.get(), block_checksum(sb, block, place));
        if stored != computed {
            return Err(XattrError::Checksum { stored, computed });
        }
    }
    let refcount = header.h_refcount.get();
    if refcount == 0 || refcount > MAX_REFCOUNT {
        return Err(XattrError::RefCount(refcount));
    }
    let xattrs = parse_entries(sb, block, BLOCK_HEADER)?;
    Ok(XattrBlock { refcount, hash: header.h_hash.get(), xattrs })
}

/// Entries from `start` on; value offsets count from the start of `area`.
fn parse_entries(sb: &Superblock, area: &[u8], start: usize) -> Result<Vec<Xattr>, XattrError> {
    let mut xattrs = Vec::new();
    let mut values = Vec::new();
    let mut at = start;
    loop {
        match super::le32(area, at) {
            None => return Err(XattrError::PastArea(at)),
            Some(0) => break,
            Some(_) => {}
        }
        let (raw, rest) =
            RawXattrEntry::read_from_prefix(&area[at..]).map_err(|_| XattrError::PastArea(at))?;
        let name_len = usize::from(raw.e_name_len);
        let name = rest.get(..name_len).ok_or(XattrError::PastArea(at))?;
        let size = raw.e_value_size.get();
        let nr = InodeNr(raw.e_value_inum.get());
        let (value, value_inode) = if nr.0 != 0 {
            if nr.0 > sb.inodes_count() || size > MAX_VALUE {
                return Err(XattrError::ValueInode { entry: at, nr, size });
            }
            (&[][..], Some(ValueInode { nr, size, hash: raw.e_hash.get() }))
        } else {
            let (offset, size) = (usize::from(raw.e_value_offs.get()), size as usize);
            let bad = XattrError::Value { entry: at, offset, size };
            let end = offset.checked_add(size).ok_or(bad.clone())?;
            let value = area.get(offset..end).ok_or(bad)?;
            if size != 0 {
                values.push((offset, end.next_multiple_of(PAD), at));
            }
            check_hash(area, at, &raw, name, value)?;
            (value, None)
        };
        xattrs.push(Xattr {
            index: raw.e_name_index,
            name: name.to_vec(),
            value: value.to_vec(),
            value_inode,
        });
        at += entry_size(name_len);
    }
    // The terminating word ends the entries; values lie behind it and apart from each other.
    let entries_end = at + 4;
    values.sort_unstable();
    for (index, &(offset, end, entry)) in values.iter().enumerate() {
        if offset < entries_end || end > area.len() || offset % PAD != 0 {
            return Err(XattrError::Value { entry, offset, size: end - offset });
        }
        if values.get(index + 1).is_some_and(|next| next.0 < end) {
            return Err(XattrError::Overlap(entry));
        }
    }
    Ok(xattrs)
}

/// A stored hash of 0 means that none was computed; kernels that took name bytes as signed wrote another.
fn check_hash(
    area: &[u8],
    entry: usize,
    raw: &RawXattrEntry,
    name: &[u8],
    value: &[u8],
) -> Result<(), XattrError> {
    let stored = raw.e_hash.get();
    if stored == 0 {
        return Ok(());
    }
    // The stored padding counts as part of the value.
    let offset = usize::from(raw.e_value_offs.get());
    let padded = area.get(offset..offset + value.len().next_multiple_of(PAD)).unwrap_or(value);
    let computed = hash_words(hash_name(name, true), padded);
    if stored == computed || stored == hash_words(hash_name(name, false), padded) {
        Ok(())
    } else {
        Err(XattrError::EntryHash { entry, stored, computed })
    }
}

fn hash_name(name: &[u8], unsigned: bool) -> u32 {
    name.iter().fold(0, |hash: u32, &byte| {
        let byte = if unsigned { u32::from(byte) } else { i32::from(byte as i8) as u32 };
        hash.rotate_left(5) ^ byte
    })
}

fn hash_words(hash: u32, value: &[u8]) -> u32 {
    value.chunks(4).fold(hash, |hash, chunk| {
        let mut word = [0; 4];
        word[..chunk.len()].copy_from_slice(chunk);
        hash.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

/// `e_hash` of an attribute in a block.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    hash_words(hash_name(name, true), value)
}

/// `e_hash` of an attribute whose value lies in an inode; `value_hash` is [`value_inode_hash`].
#[must_use]
pub fn entry_hash_of_value_inode(name: &[u8], value_hash: u32) -> u32 {
    hash_words(hash_name(name, true), &value_hash.to_le_bytes())
}

/// The hash of a value, which its inode keeps in `i_atime`.
#[must_use]
pub fn value_inode_hash(sb: &Superblock, value: &[u8]) -> u32 {
    crc32c(sb.csum_seed(), value)
}

/// `h_hash` of a block: 0 as soon as one entry has none.
fn block_hash(hashes: &[u32]) -> u32 {
    if hashes.contains(&0) {
        return 0;
    }
    hashes.iter().fold(0, |hash: u32, entry| hash.rotate_left(16) ^ entry)
}

/// Bytes of an entry with a name of `name_len` bytes.
#[must_use]
pub fn entry_size(name_len: usize) -> usize {
    (ENTRY + name_len).next_multiple_of(PAD)
}

/// Bytes that `xattrs` take in an area or a block, header left out.
#[must_use]
pub fn encoded_size(xattrs: &[Xattr]) -> usize {
    let one = |xattr: &Xattr| entry_size(xattr.name.len()) + xattr.value.len().next_multiple_of(PAD);
    xattrs.iter().map(one).sum::<usize>() + 4
}

/// Writes `xattrs` over an inode's spare bytes; zeroes when there are none. Then the inode needs
/// [`super::inode::set_checksum`].
///
/// # Errors
/// They do not fit, or a name is too long.
pub fn encode_area(area: &mut [u8], xattrs: &[Xattr]) -> Result<(), XattrError> {
    if xattrs.is_empty() {
        area.fill(0);
        return Ok(());
    }
    check_fits(xattrs, area.len().saturating_sub(INODE_HEADER))?;
    area.fill(0);
    area[..INODE_HEADER].copy_from_slice(&MAGIC.to_le_bytes());
    let all: Vec<&Xattr> = xattrs.iter().collect();
    // Attributes in the inode carry no hash, save for values in inodes.
    write_entries(&mut area[INODE_HEADER..], 0, &all, |xattr| xattr.value_inode.map_or(0, |v| v.hash));
    Ok(())
}

/// Writes `xattrs` over a block at `place`, sorted, with hashes and checksum. Returns the block's hash.
///
/// # Errors
/// They do not fit, or a name is too long.
pub fn encode_block(
    sb: &Superblock,
    block: &mut [u8],
    place: DiskBlock,
    refcount: u32,
    xattrs: &[Xattr],
) -> Result<u32, XattrError> {
    check_fits(xattrs, block.len().saturating_sub(BLOCK_HEADER))?;
    block.fill(0);
    let mut sorted: Vec<&Xattr> = xattrs.iter().collect();
    sorted.sort_by_key(|xattr| (xattr.index, xattr.name.len(), &xattr.name));
    let hash_of = |xattr: &Xattr| match xattr.value_inode {
        Some(value) => value.hash,
        None => entry_hash(&xattr.name, &xattr.value),
    };
    write_entries(block, BLOCK_HEADER, &sorted, hash_of);
    let hashes: Vec<u32> = sorted.iter().map(|xattr| hash_of(xattr)).collect();
    let hash = block_hash(&hashes);
    let header = RawXattrHeader {
        h_magic: MAGIC.into(),
        h_refcount: refcount.into(),
        h_blocks: 1.into(),
        h_hash: hash.into(),
        h_checksum: 0.into(),
        h_reserved: [0.into(); 3],
    };
    block[..BLOCK_HEADER].copy_from_slice(header.as_bytes());
    set_block_checksum(sb, block, place);
    Ok(hash)
}

/// Changes the number of inodes that share a block, and its checksum.
pub fn set_refcount(sb: &Superblock, block: &mut [u8], place: DiskBlock, refcount: u32) {
    if block.len() >= BLOCK_HEADER {
        block[4..8].copy_from_slice(&refcount.to_le_bytes());
        set_block_checksum(sb, block, place);
    }
}

fn check_fits(xattrs: &[Xattr], room: usize) -> Result<(), XattrError> {
    if let Some(long) = xattrs.iter().find(|xattr| xattr.name.len() > 255) {
        return Err(XattrError::NameLength(long.name.len()));
    }
    let needed = encoded_size(xattrs);
    if needed > room || room > 1 << 16 { Err(XattrError::Full { needed, room }) } else { Ok(()) }
}

/// Writes entries from `start` and values from the end of `area` down. The caller has checked that they fit.
fn write_entries(area: &mut [u8], start: usize, xattrs: &[&Xattr], hash_of: impl Fn(&Xattr) -> u32) {
    let mut at = start;
    let mut end = area.len() / PAD * PAD;
    for xattr in xattrs {
        let stored = if xattr.value_inode.is_some() { &[][..] } else { &xattr.value[..] };
        end -= stored.len().next_multiple_of(PAD);
        area[end..end + stored.len()].copy_from_slice(stored);
        let raw = RawXattrEntry {
            e_name_len: xattr.name.len() as u8,
            e_name_index: xattr.index,
            e_value_offs: (if stored.is_empty() { 0 } else { end as u16 }).into(),
            e_value_inum: xattr.value_inode.map_or(0, |value| value.nr.0).into(),
            e_value_size: xattr.value_inode.map_or(stored.len() as u32, |value| value.size).into(),
            e_hash: hash_of(xattr).into(),
        };
        area[at..at + ENTRY].copy_from_slice(raw.as_bytes());
        area[at + ENTRY..at + ENTRY + xattr.name.len()].copy_from_slice(&xattr.name);
        at += entry_size(xattr.name.len());
    }
}

fn set_block_checksum(sb: &Superblock, block: &mut [u8], place: DiskBlock) {
    if sb.has_metadata_csum() {
        let sum = block_checksum(sb, block, place);
        block[16..20].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The checksum with its own field taken as zero. `block` has a whole header.
fn block_checksum(sb: &Superblock, block: &[u8], place: DiskBlock) -> u32 {
    let sum = crc32c(crc32c(sb.csum_seed(), &place.0.to_le_bytes()), &block[..16]);
    crc32c(crc32c(sum, &[0; 4]), &block[20..])
}

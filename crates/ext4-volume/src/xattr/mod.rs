//! Extended attributes: in the inode's spare bytes first, then in one block, which inodes may share.
//!
//! Names come as the stored index of their prefix and the rest
//! ([`onggi_disk_format::ext4::xattr::split_name`]). The two ACL attributes (index 2 and 3) go in and come
//! out in the form that system calls use; on the volume they have the shorter form of their own.
//!
//! The caller holds the inode's lock. [`set`] writes the attributes beside the inode in its table: a new
//! inode must have been written there before ([`Volume::write_new_inode`]), and the caller writes the
//! changed inode ([`Volume::write_inode`]) afterwards, in the same handle. A block shared with inodes
//! under other locks is never changed but in its count, within one change of its buffer.
//!
//! Values in inodes of their own (feature `ea_inode`) are neither read nor written.
//!
//! Format: `Documentation/filesystems/ext4/attributes.rst`.

mod acl;

use std::sync::Arc;

use onggi_disk_format::ext4::Incompat;
use onggi_disk_format::ext4::inode::{self as inode_format, Inode};
use onggi_disk_format::ext4::xattr::{self as format, Xattr, XattrBlock, XattrError};
use onggi_disk_format::{DiskBlock, InodeNr};
use onggi_jbd2::Buffer;

use crate::{BlockRun, Handle, Place, Volume, VolumeError, alloc};

/// `e_name_index` of the ACL that a file obeys and of the one that a directory hands down.
const ACLS: [u8; 2] = [2, 3];

/// Most blocks that one [`set`] or [`release_block`] changes: the inode's table block, the block left, the
/// block taken, and the allocator's for both.
pub const CREDITS: u32 = 3 + 2 * alloc::CREDITS_MARK_USED;

/// Whether an attribute may, must or must not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetMode {
    /// Create or replace.
    Set,
    /// [`VolumeError::Exists`] where it exists.
    Create,
    /// [`VolumeError::Missing`] where it does not.
    Replace,
}

/// Reads an attribute.
///
/// # Errors
/// Broken attributes; a value in an inode of its own; the device's.
pub fn get(
    volume: &Volume,
    nr: InodeNr,
    inode: &Inode,
    index: u8,
    name: &[u8],
) -> Result<Option<Vec<u8>>, VolumeError> {
    let is_it = |xattr: &Xattr| xattr.index == index && xattr.name == name;
    let mut found = read_area(volume, nr, inode)?.into_iter().find(is_it);
    if found.is_none() {
        found = read_block(volume, nr, inode)?.and_then(|(_, block)| block.xattrs.into_iter().find(is_it));
    }
    let Some(xattr) = found else { return Ok(None) };
    if xattr.value_inode.is_some() {
        return Err(VolumeError::Unsupported { feature: "ea_inode" });
    }
    if ACLS.contains(&index) {
        let value = acl::from_disk(&xattr.value)
            .map_err(|rule| VolumeError::corrupt("access control list", Place::Inode(nr), rule))?;
        return Ok(Some(value));
    }
    Ok(Some(xattr.value))
}

/// Index and name of every attribute.
///
/// # Errors
/// Broken attributes; the device's.
pub fn list(volume: &Volume, nr: InodeNr, inode: &Inode) -> Result<Vec<(u8, Vec<u8>)>, VolumeError> {
    let mut all = read_area(volume, nr, inode)?;
    if let Some((_, block)) = read_block(volume, nr, inode)? {
        all.extend(block.xattrs);
    }
    Ok(all.into_iter().map(|xattr| (xattr.index, xattr.name)).collect())
}

/// Creates, replaces or (without a value) removes an attribute. Nothing changes when it fails, save for
/// the device's and the journal's errors.
///
/// # Errors
/// [`VolumeError::Exists`], [`VolumeError::Missing`], [`VolumeError::NoSpace`] where it fits neither place,
/// [`VolumeError::Invalid`] for an ACL that is none; broken attributes.
#[allow(clippy::too_many_arguments)]
pub fn set(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    index: u8,
    name: &[u8],
    value: Option<&[u8]>,
    mode: SetMode,
) -> Result<(), VolumeError> {
    let mut area = read_area(volume, nr, inode)?;
    let old = read_block(volume, nr, inode)?;
    let mut outside = old.as_ref().map(|(_, block)| block.xattrs.clone()).unwrap_or_default();

    let is_it = |xattr: &Xattr| xattr.index == index && xattr.name == name;
    let existing = area.iter().chain(&outside).find(|&xattr| is_it(xattr));
    match (existing, mode) {
        (Some(_), SetMode::Create) => return Err(VolumeError::Exists),
        (None, SetMode::Replace) => return Err(VolumeError::Missing),
        (None, _) if value.is_none() => return Err(VolumeError::Missing),
        (Some(xattr), _) if xattr.value_inode.is_some() => {
            return Err(VolumeError::Unsupported { feature: "ea_inode" });
        }
        _ => {}
    }
    let in_area = area.iter().position(is_it);
    let in_block = outside.iter().position(is_it);
    if let Some(at) = in_area {
        area.remove(at);
    }
    if let Some(at) = in_block {
        outside.remove(at);
    }
    let (mut area_changed, mut block_changed) = (in_area.is_some(), in_block.is_some());
    if let Some(value) = value {
        let xattr = new_xattr(index, name, value)?;
        if fits(&area, &xattr, area_room(volume, inode)) {
            area.push(xattr);
            area_changed = true;
        } else if fits(&outside, &xattr, block_room(volume)) {
            outside.push(xattr);
            block_changed = true;
        } else if volume.sb.incompat().contains(Incompat::EA_INODE) {
            return Err(VolumeError::Unsupported { feature: "ea_inode" });
        } else {
            return Err(VolumeError::NoSpace);
        }
    }
    if block_changed {
        write_block(volume, h, nr, inode, old.as_ref(), &outside)?;
    }
    if area_changed {
        write_area(volume, h, nr, inode, &area)?;
    }
    Ok(())
}

/// Gives up the block of attributes when the inode is deleted.
///
/// # Errors
/// A broken block; values in inodes of their own; the device's, the journal's.
pub fn release_block(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
) -> Result<(), VolumeError> {
    match read_block(volume, nr, inode)? {
        Some((_, block)) if block.xattrs.iter().any(|xattr| xattr.value_inode.is_some()) => {
            Err(VolumeError::Unsupported { feature: "ea_inode" })
        }
        Some((buffer, _)) => drop_block(volume, h, inode, &buffer),
        None => Ok(()),
    }
}

fn new_xattr(index: u8, name: &[u8], value: &[u8]) -> Result<Xattr, VolumeError> {
    if name.len() > 255 {
        return Err(VolumeError::Invalid("attribute names have at most 255 bytes"));
    }
    let value = if ACLS.contains(&index) {
        acl::to_disk(value).map_err(|_| VolumeError::Invalid("that is no access control list"))?
    } else {
        value.to_vec()
    };
    Ok(Xattr { index, name: name.to_vec(), value, value_inode: None })
}

/// Bytes for entries and values in the inode.
fn area_room(volume: &Volume, inode: &Inode) -> usize {
    let area = inode_format::xattr_area(&volume.sb, inode.extra_isize);
    area.map_or(0, |area| area.len().saturating_sub(format::INODE_HEADER))
}

/// Bytes for entries and values in a block.
fn block_room(volume: &Volume) -> usize {
    volume.block_size() as usize - format::BLOCK_HEADER
}

fn fits(others: &[Xattr], new: &Xattr, room: usize) -> bool {
    let new_size = format::entry_size(new.name.len()) + new.value.len().next_multiple_of(4);
    format::encoded_size(others) + new_size <= room
}

fn read_area(volume: &Volume, nr: InodeNr, inode: &Inode) -> Result<Vec<Xattr>, VolumeError> {
    let Some(area) = inode_format::xattr_area(&volume.sb, inode.extra_isize) else { return Ok(Vec::new()) };
    let (buffer, byte) = volume.inode_buffer(nr)?;
    let bytes = buffer.snapshot();
    format::parse_area(&volume.sb, &bytes[byte + area.start..byte + area.end])
        .map_err(|rule| VolumeError::corrupt("attributes in the inode", Place::Inode(nr), rule))
}

/// Writes the attributes in the inode and renews the stored inode's checksum.
fn write_area(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &Inode,
    xattrs: &[Xattr],
) -> Result<(), VolumeError> {
    let Some(area) = inode_format::xattr_area(&volume.sb, inode.extra_isize) else { return Ok(()) };
    let (buffer, byte) = volume.inode_buffer(nr)?;
    let done: Result<(), XattrError> = h.modify(&buffer, |bytes| {
        let stored = &mut bytes[byte..byte + usize::from(volume.sb.inode_size())];
        format::encode_area(&mut stored[area], xattrs)?;
        inode_format::set_checksum(&volume.sb, nr, stored);
        Ok(())
    })?;
    done.map_err(|rule| VolumeError::corrupt("attributes in the inode", Place::Inode(nr), rule))
}

fn read_block(
    volume: &Volume,
    nr: InodeNr,
    inode: &Inode,
) -> Result<Option<(Arc<Buffer>, XattrBlock)>, VolumeError> {
    let place = inode.file_acl;
    if place.0 == 0 {
        return Ok(None);
    }
    if !volume.sb.contains_blocks(place, 1) {
        let rule = format_args!("its attribute block {place} does not lie on the volume").to_string();
        return Err(VolumeError::corrupt("inode", Place::Inode(nr), rule));
    }
    let buffer = volume.buffers.read(place)?;
    let block = format::parse_block(&volume.sb, &buffer.snapshot(), place)
        .map_err(|rule| VolumeError::corrupt("attribute block", Place::Block(place), rule))?;
    Ok(Some((buffer, block)))
}

/// Makes the inode's block hold `xattrs`: in place when it is the inode's alone, else in a new one.
fn write_block(
    volume: &Volume,
    h: &mut Handle<'_>,
    nr: InodeNr,
    inode: &mut Inode,
    old: Option<&(Arc<Buffer>, XattrBlock)>,
    xattrs: &[Xattr],
) -> Result<(), VolumeError> {
    let shared = old.filter(|(_, block)| block.refcount > 1 || xattrs.is_empty());
    if shared.is_some_and(|(_, block)| block.xattrs.iter().any(|xattr| xattr.value_inode.is_some())) {
        return Err(VolumeError::Unsupported { feature: "ea_inode" });
    }
    match old {
        Some((buffer, _)) if xattrs.is_empty() => return drop_block(volume, h, inode, buffer),
        Some((buffer, block)) if block.refcount == 1 => return encode_block(volume, h, buffer, xattrs),
        None if xattrs.is_empty() => return Ok(()),
        _ => {}
    }
    let goal = volume.alloc.inode_goal(nr);
    let run = volume.alloc.take(volume, goal, 1)?;
    if let Some((buffer, _)) = old {
        drop_block(volume, h, inode, buffer)?;
    }
    volume.alloc.mark_used(volume, h, run)?;
    encode_block(volume, h, &volume.buffers.fresh(run.start), xattrs)?;
    inode.file_acl = run.start;
    inode.blocks += u64::from(volume.block_size() / 512);
    Ok(())
}

fn encode_block(
    volume: &Volume,
    h: &mut Handle<'_>,
    buffer: &Arc<Buffer>,
    xattrs: &[Xattr],
) -> Result<(), VolumeError> {
    let place = buffer.nr();
    h.modify(buffer, |bytes| format::encode_block(&volume.sb, bytes, place, 1, xattrs))?
        .map(|_| ())
        .map_err(|rule| VolumeError::corrupt("attribute block", Place::Block(place), rule))
}

/// Takes the inode off its block; the last inode frees it.
fn drop_block(
    volume: &Volume,
    h: &mut Handle<'_>,
    inode: &mut Inode,
    buffer: &Arc<Buffer>,
) -> Result<(), VolumeError> {
    let place = buffer.nr();
    // Others may give the block up at the same time, each under its own inode's lock: who finds the count
    // at one frees it. Nobody raises the count.
    let last = h.modify(buffer, |bytes| {
        let count = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
        if count > 1 {
            format::set_refcount(&volume.sb, bytes, place, count - 1);
        }
        count <= 1
    })?;
    if last {
        h.revoke(place);
        volume.alloc.mark_free(volume, h, BlockRun { start: place, len: 1 })?;
    }
    inode.file_acl = DiskBlock(0);
    inode.blocks = inode.blocks.saturating_sub(u64::from(volume.block_size() / 512));
    Ok(())
}

//! Inodes.

use onggi_disk_format::ext4::inode::RawInode;
use onggi_disk_format::ext4::{InodeFlags, superblock};

use crate::field::{Field, Order, fields};
use crate::survey::{Survey, Used};
use crate::{Random, seal, value};

/// An inode in use; a special one now and then.
fn choose<'a>(survey: &'a Survey, random: &mut Random) -> Option<&'a Used> {
    let special = [
        Some(superblock::ROOT_INODE),
        Some(superblock::RESIZE_INODE),
        survey.sb.journal_inode(),
        survey.sb.orphan_file(),
    ];
    if random.chance(1, 4)
        && let Some(Some(nr)) = random.pick(&special)
        && let Some(used) = survey.inodes.iter().find(|used| used.nr == *nr)
    {
        return Some(used);
    }
    survey.inode(random)
}

/// Any field of an inode.
pub(super) fn field(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let nr = choose(survey, random)?.nr;
    let mut fields = fields!(RawInode: i_mode i_size_lo i_size_high i_dtime i_links_count i_blocks_lo
        i_flags i_generation i_file_acl_lo l_i_blocks_high l_i_file_acl_high i_uid i_gid l_i_version
        i_atime i_ctime i_mtime i_block);
    if survey.sb.inode_size() > 128 {
        fields.extend(fields!(RawInode: i_extra_isize i_ctime_extra i_crtime i_crtime_extra i_version_hi));
    }
    // Those that decide most come twice as often.
    fields.extend(fields!(RawInode: i_mode i_size_lo i_size_high i_links_count i_flags i_file_acl_lo));
    if random.chance(1, 3) {
        fields = (0..15).map(|word| Field::new("a word of i_block", 40 + 4 * word, 4)).collect();
    }
    let bytes = survey.inode_bytes(image, nr)?;
    let text = value::spoil(bytes, &fields, Order::Little, Some(survey), random)?;
    seal::inode(image, survey, nr);
    Some(format!("inode {nr}: {text}"))
}

/// Another file type, or a flag that changes what `i_block` means.
pub(super) fn retype(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let nr = choose(survey, random)?.nr;
    let bytes = survey.inode_bytes(image, nr)?;
    let text = if random.chance(1, 2) {
        let mode = u16::from_le_bytes([bytes[0], bytes[1]]);
        let kind = random.below(16) as u16;
        let new = mode & 0xfff | kind << 12;
        bytes[..2].copy_from_slice(&new.to_le_bytes());
        format!("i_mode becomes {new:#o}, was {mode:#o}")
    } else {
        let flag = *random.pick(&[
            InodeFlags::EXTENTS,
            InodeFlags::INDEX,
            InodeFlags::INLINE_DATA,
            InodeFlags::ENCRYPT,
            InodeFlags::CASEFOLD,
            InodeFlags::VERITY,
            InodeFlags::EA_INODE,
            InodeFlags::HUGE_FILE,
            InodeFlags::JOURNAL_DATA,
            InodeFlags::IMMUTABLE,
            InodeFlags::DAX,
        ])?;
        let old = u32::from_le_bytes([bytes[32], bytes[33], bytes[34], bytes[35]]);
        bytes[32..36].copy_from_slice(&(old ^ flag.bits()).to_le_bytes());
        format!("flag {} toggled", flag.names().concat())
    };
    seal::inode(image, survey, nr);
    Some(format!("inode {nr}: {text}"))
}

/// An inode becomes a copy of another: both own the same blocks.
pub(super) fn copy(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let (from, to) = (choose(survey, random)?.nr, choose(survey, random)?.nr);
    if from == to {
        return None;
    }
    let source = survey.inode_bytes(image, from)?.to_vec();
    survey.inode_bytes(image, to)?.copy_from_slice(&source);
    seal::inode(image, survey, to);
    Some(format!("inode {to}: becomes a copy of inode {from}"))
}

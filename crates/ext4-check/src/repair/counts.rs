//! Writing bitmaps and counts anew.

use onggi_disk_format::ext4::{FileType, GroupDescriptor, GroupFlags, group, superblock};
use onggi_disk_format::{GroupNr, InodeNr};

use crate::CheckError;
use crate::analysis::Outcome;
use crate::claims::set_from;
use crate::volume::Volume;

/// Writes every group's bitmaps and counts, and the superblock's totals, as `look` counted them.
pub(super) fn rewrite(volume: &mut Volume<'_>, look: &Outcome) -> Result<bool, CheckError> {
    let mut changed = false;
    let (mut free_blocks, mut free_inodes) = (0, 0);
    for (index, descriptor) in look.groups.iter().enumerate() {
        let Some(old) = descriptor else { continue };
        let group = GroupNr(index as u32);
        let new = rewrite_group(volume, look, group, old)?;
        free_blocks += u64::from(new.free_blocks);
        free_inodes += new.free_inodes;
        changed |= new != *old;
    }
    if volume.sb.free_blocks() != free_blocks || volume.sb.free_inodes() != free_inodes {
        volume.sb.set_free_blocks(free_blocks);
        volume.sb.set_free_inodes(free_inodes);
        volume.write_superblock()?;
    }
    // Bitmaps may have changed where checksums and counts did not.
    Ok(changed || look.fixes.iter().any(|(_, fix)| *fix == crate::fix::Fix::Counts))
}

fn rewrite_group(
    volume: &Volume<'_>,
    look: &Outcome,
    group: GroupNr,
    old: &GroupDescriptor,
) -> Result<GroupDescriptor, CheckError> {
    let sb = &volume.sb;
    let lazy = sb.has_group_checksums();
    let mut new = *old;
    new.free_blocks = sb.blocks_in_group(group).saturating_sub(look.claims.used(group));
    let untouched = new.free_blocks == old.free_blocks && !look.claims.has_data(group);
    if !(lazy && old.flags.contains(GroupFlags::BLOCK_UNINIT) && untouched) {
        let bitmap = look.claims.bitmap(sb, group);
        new.flags.remove(GroupFlags::BLOCK_UNINIT);
        new.block_bitmap_csum = group::block_bitmap_checksum(sb, &bitmap).unwrap_or(old.block_bitmap_csum);
        if volume.read(old.block_bitmap, 1)? != bitmap {
            volume.write(old.block_bitmap, &bitmap)?;
        }
    }
    let per_group = sb.inodes_per_group();
    if lazy && old.flags.contains(GroupFlags::INODE_UNINIT) {
        (new.free_inodes, new.used_dirs, new.itable_unused) = (per_group, 0, per_group);
    } else {
        let bitmap = inode_bitmap(volume, look, group, &mut new);
        new.inode_bitmap_csum = group::inode_bitmap_checksum(sb, &bitmap).unwrap_or(old.inode_bitmap_csum);
        if volume.read(old.inode_bitmap, 1)? != bitmap {
            volume.write(old.inode_bitmap, &bitmap)?;
        }
    }
    if new != *old {
        let (place, at) = sb.descriptor_location(group);
        super::apply::edit_block(volume, place, |block| {
            block.get_mut(at..).is_some_and(|bytes| new.encode(sb, group, bytes).is_ok())
        })?;
    }
    Ok(new)
}

/// The inode bitmap that `group` must have; its counts go into `descriptor`.
fn inode_bitmap(
    volume: &Volume<'_>,
    look: &Outcome,
    group: GroupNr,
    descriptor: &mut GroupDescriptor,
) -> Vec<u8> {
    let sb = &volume.sb;
    let per_group = sb.inodes_per_group();
    let first = InodeNr(group.0 * per_group + 1);
    let mut bitmap = vec![0; volume.block_size()];
    let mut highest = 0;
    let mut mark = |index: u32| {
        bitmap[index as usize / 8] |= 1 << (index % 8);
        highest = highest.max(index + 1);
    };
    if group.0 == 0 {
        (0..sb.first_inode().0 - 1).for_each(&mut mark);
    }
    let from = look.records.partition_point(|record| record.nr < first);
    let mine = look.records[from..].iter().take_while(|record| record.nr.0 - first.0 < per_group);
    let mut directories = 0;
    for record in mine {
        mark(record.nr.0 - first.0);
        directories += u32::from(record.kind == FileType::Directory);
    }
    let used: u32 = bitmap.iter().map(|byte: &u8| byte.count_ones()).sum();
    set_from(&mut bitmap, per_group);
    descriptor.free_inodes = per_group - used;
    descriptor.used_dirs = directories;
    descriptor.itable_unused = descriptor.itable_unused.min(per_group - highest);
    debug_assert!(superblock::ROOT_INODE.0 < sb.first_inode().0);
    bitmap
}

//! Superblock, group descriptors, bitmaps.

use onggi_disk_format::ext4::group::RawGroupDescriptor;
use onggi_disk_format::ext4::{GroupDescriptor, GroupFlags, RawSuperblock};
use onggi_disk_format::{DiskBlock, GroupNr};

use crate::field::{Field, Order, fields};
use crate::survey::{Survey, block_mut};
use crate::{Random, seal, value};

/// Any field of the superblock.
pub(super) fn superblock(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let geometry = fields!(RawSuperblock: s_inodes_count s_blocks_count_lo s_blocks_count_hi
        s_first_data_block s_log_block_size s_log_cluster_size s_blocks_per_group s_clusters_per_group
        s_inodes_per_group s_first_ino s_inode_size s_desc_size s_reserved_gdt_blocks s_first_meta_bg
        s_log_groups_per_flex s_feature_compat s_feature_incompat s_feature_ro_compat s_rev_level);
    let rest = fields!(RawSuperblock: s_r_blocks_count_lo s_r_blocks_count_hi s_free_blocks_count_lo
        s_free_blocks_count_hi s_free_inodes_count s_magic s_state s_errors s_creator_os s_uuid
        s_journal_uuid s_journal_inum s_journal_dev s_last_orphan s_hash_seed s_def_hash_version
        s_jnl_backup_type s_default_mount_opts s_jnl_blocks s_min_extra_isize s_want_extra_isize s_flags
        s_raid_stride s_raid_stripe_width s_mmp_interval s_mmp_block s_checksum_type s_kbytes_written
        s_snapshot_inum s_error_count s_usr_quota_inum s_grp_quota_inum s_prj_quota_inum s_overhead_blocks
        s_backup_bgs s_lpf_ino s_checksum_seed s_encoding s_encoding_flags s_orphan_file_inum
        s_volume_name s_last_mounted s_mount_opts s_wtime s_mnt_count s_max_mnt_count);
    let fields = if random.chance(1, 2) { geometry } else { rest };
    let text = value::spoil(&mut image[1024..2048], &fields, Order::Little, Some(survey), random)?;
    seal::superblock(image, survey);
    Some(format!("superblock: {text}"))
}

/// Any field of a group descriptor.
pub(super) fn descriptor(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let (group, _) = *random.pick(&survey.groups)?;
    let fields = fields!(RawGroupDescriptor: bg_block_bitmap_lo bg_inode_bitmap_lo bg_inode_table_lo
        bg_free_blocks_count_lo bg_free_inodes_count_lo bg_used_dirs_count_lo bg_flags bg_exclude_bitmap_lo
        bg_block_bitmap_csum_lo bg_inode_bitmap_csum_lo bg_itable_unused_lo bg_block_bitmap_hi
        bg_inode_bitmap_hi bg_inode_table_hi bg_free_blocks_count_hi bg_free_inodes_count_hi
        bg_used_dirs_count_hi bg_itable_unused_hi);
    let size = usize::from(survey.sb.descriptor_size());
    let fields: Vec<Field> = fields.into_iter().filter(|field| field.offset + field.size <= size).collect();
    let bytes = seal::descriptor(image, survey, group)?;
    let text = value::spoil(bytes, &fields, Order::Little, Some(survey), random)?;
    seal::group(image, survey, group);
    Some(format!("descriptor of group {group}: {text}"))
}

/// A bitmap or table laid over other metadata, or flags that contradict what is there.
pub(super) fn placement(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let (group, descriptor) = *random.pick(&survey.groups)?;
    let mut changed = descriptor;
    let target = DiskBlock(survey.metadata_block(random));
    let text = match random.below(6) {
        0 => {
            changed.block_bitmap = target;
            format!("block bitmap laid over block {target}")
        }
        1 => {
            changed.inode_bitmap = target;
            format!("inode bitmap laid over block {target}")
        }
        2 => {
            changed.inode_table = target;
            format!("inode table laid over block {target}")
        }
        3 => {
            (changed.block_bitmap, changed.inode_bitmap) = (descriptor.inode_bitmap, descriptor.block_bitmap);
            "its bitmaps swapped".into()
        }
        4 => {
            let flag = *random.pick(&[
                GroupFlags::INODE_UNINIT,
                GroupFlags::BLOCK_UNINIT,
                GroupFlags::INODE_ZEROED,
                GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT,
            ])?;
            changed.flags = GroupFlags::from_bits(descriptor.flags.bits() ^ flag.bits());
            format!("flags {:?} toggled", flag.names())
        }
        _ => {
            (_, changed) = *random.pick(&survey.groups)?;
            "becomes a copy of another group's".into()
        }
    };
    changed.encode(&survey.sb, group, seal::descriptor(image, survey, group)?).ok()?;
    Some(format!("descriptor of group {group}: {text}"))
}

/// Bits of a block bitmap.
pub(super) fn block_bitmap(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let bits = u64::from(survey.sb.clusters_per_group());
    bitmap(image, survey, random, "block bitmap", bits, |descriptor| descriptor.block_bitmap)
}

/// Bits of an inode bitmap.
pub(super) fn inode_bitmap(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let bits = u64::from(survey.sb.inodes_per_group());
    bitmap(image, survey, random, "inode bitmap", bits, |descriptor| descriptor.inode_bitmap)
}

fn bitmap(
    image: &mut [u8],
    survey: &Survey,
    random: &mut Random,
    name: &str,
    bits: u64,
    place: fn(&GroupDescriptor) -> DiskBlock,
) -> Option<String> {
    let (group, descriptor) = random.pick(&survey.groups)?;
    let bytes = block_mut(image, survey, place(descriptor))?;
    let text = match random.below(4) {
        0 => {
            bytes.fill(0);
            "all clear".into()
        }
        1 => {
            bytes.fill(0xff);
            "all set".into()
        }
        2 => {
            let start = random.index(bytes.len());
            bytes[start..].iter_mut().for_each(|byte| *byte = !*byte);
            format!("inverted from byte {start} on")
        }
        _ => {
            let bit = if random.chance(1, 2) { random.below(64.min(bits)) } else { random.below(bits) };
            bytes[bit as usize / 8] ^= 1 << (bit % 8);
            format!("bit {bit} flipped")
        }
    };
    let group = GroupNr(group.0);
    seal::bitmaps(image, survey, group);
    Some(format!("{name} of group {group}: {text}"))
}

//! The orphan list and the orphan file.

use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::inode::RawInode;
use onggi_disk_format::ext4::{RawSuperblock, RoCompat, orphan};

use crate::field::{Field, Order, fields};
use crate::survey::{Survey, block_mut};
use crate::{Random, seal, value};

/// A list that bites its tail, or slots with numbers that are no orphans.
pub(super) fn any(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    if !survey.orphan_blocks.is_empty() && random.chance(2, 3) {
        return file(image, survey, random);
    }
    list(image, survey, random)
}

fn set_superblock(image: &mut [u8], survey: &Survey, field: &Field, value: u64) {
    field.set(&mut image[1024..2048], Order::Little, value);
    seal::superblock(image, survey);
}

fn list(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let head = survey.inode(random)?.nr;
    let next = match random.below(3) {
        0 => head,
        1 => survey.inode(random)?.nr,
        _ => InodeNr(value::hostile(0, 4, Some(survey), random) as u32),
    };
    let last_orphan = fields!(RawSuperblock: s_last_orphan)[0];
    set_superblock(image, survey, &last_orphan, u64::from(head.0));
    let unlink = random.chance(1, 2);
    for (nr, next) in [(next, head), (head, next)] {
        let Some(bytes) = survey.inode_bytes(image, nr) else { continue };
        fields!(RawInode: i_dtime)[0].set(bytes, Order::Little, u64::from(next.0));
        if unlink {
            fields!(RawInode: i_links_count)[0].set(bytes, Order::Little, 0);
        }
        seal::inode(image, survey, nr);
    }
    Some(format!("orphan list: starts at inode {head}, goes on to {next} and back, links gone: {unlink}"))
}

fn file(image: &mut [u8], survey: &Survey, random: &mut Random) -> Option<String> {
    let owned = *random.pick(&survey.orphan_blocks)?;
    let slots = orphan::slots(survey.sb.block_size() as usize);
    let mut named = Vec::new();
    for _ in 0..=random.below(4) {
        let nr = match random.below(4) {
            0 => survey.inode(random)?.nr.0,
            1 => survey.sb.orphan_file()?.0,
            2 => survey.sb.journal_inode().map_or(2, |nr| nr.0),
            _ => value::hostile(0, 4, Some(survey), random) as u32,
        };
        let slot = random.index(slots);
        orphan::set_slot(block_mut(image, survey, owned.place)?, slot, InodeNr(nr));
        named.push(nr);
    }
    seal::orphan_block(image, survey, owned.place, owned.seed);
    let present = random.chance(3, 4);
    if present {
        let ro_compat = survey.sb.ro_compat() | RoCompat::ORPHAN_PRESENT;
        let field = fields!(RawSuperblock: s_feature_ro_compat)[0];
        set_superblock(image, survey, &field, u64::from(ro_compat.bits()));
    }
    Some(format!("orphan file: block {} names inodes {named:?}, said to be in use: {present}", owned.place))
}

//! Single changes.

use onggi_disk_format::ext4::{
    Compat, GroupDescriptor, GroupFlags, Inode, InodeFlags, extent, inode, inode_seed, orphan, xattr,
};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

use super::{directory, truncate};
use crate::CheckError;
use crate::analysis::{Outcome, mapping};
use crate::fix::Fix;
use crate::replay::journal_superblock;
use crate::volume::Volume;

/// Applies `fix`; `false` when nothing changed, because the place it speaks of has changed before.
pub(super) fn apply(volume: &mut Volume<'_>, look: &Outcome, fix: &Fix) -> Result<bool, CheckError> {
    match *fix {
        Fix::Superblock => {
            volume.write_superblock()?;
            volume.bad_checksum = false;
            Ok(true)
        }
        Fix::Group(group) => reset_group(volume, GroupNr(group)),
        Fix::InternalJournal => {
            volume.sb.update(|raw| {
                raw.s_journal_dev.set(0);
                raw.s_journal_uuid = [0; 16];
            })?;
            volume.write_superblock()?;
            Ok(true)
        }
        Fix::EmptyLog => empty_log(volume),
        Fix::JournalError => clear_journal_error(volume),
        Fix::InodeChecksum(nr) => edit_bytes(volume, look, nr, |_, _| ()),
        Fix::ClearInode(nr) => edit_bytes(volume, look, nr, |_, bytes| bytes.fill(0)),
        Fix::DeletionTime(nr) => {
            let now = volume.sb.raw().s_wtime.get().max(1);
            edit(volume, look, nr, |inode| inode.dtime = if inode.links_count == 0 { now } else { 0 })
        }
        Fix::UnusedFields(nr) => {
            edit_bytes(volume, look, nr, |_, bytes| bytes[0x70..0x74].fill(0))?;
            // What is read without a feature is written back without its part.
            edit(volume, look, nr, |_| ())
        }
        Fix::ClearFlags(nr, flags) => edit(volume, look, nr, |inode| inode.flags.remove(flags)),
        Fix::ResetMap(nr) => edit(volume, look, nr, forget_blocks),
        Fix::ExtentChecksum(place, seed) => {
            edit_block(volume, place, |block| extent::set_checksum(block, seed).is_ok())
        }
        Fix::Size(nr, size) => edit(volume, look, nr, |inode| inode.size = size),
        Fix::BlockCount(nr, units) => edit(volume, look, nr, |inode| inode.blocks = units),
        Fix::Links(nr, links) => edit(volume, look, nr, |inode| inode.links_count = links),
        Fix::ClearAttributeArea(nr) => edit_bytes(volume, look, nr, |volume, bytes| {
            let extra = u16::from_le_bytes([bytes[inode::BASE_SIZE], bytes[inode::BASE_SIZE + 1]]);
            if let Some(area) = inode::xattr_area(&volume.sb, extra)
                && let Some(area) = bytes.get_mut(area)
            {
                area.fill(0);
            }
        }),
        Fix::DropAttributeBlock(nr) => edit(volume, look, nr, |inode| inode.file_acl = DiskBlock(0)),
        Fix::AttributeRefcount(place, users) => {
            let sb = volume.sb.clone();
            edit_block(volume, place, |block| {
                xattr::set_refcount(&sb, block, place, users);
                true
            })
        }
        Fix::ClearOrphans => clear_orphans(volume, look),
        Fix::Counts => Ok(false),
        _ => directory::apply(volume, look, fix),
    }
}

/// Changes a block in place where `change` says that it did.
pub(super) fn edit_block(
    volume: &Volume<'_>,
    place: DiskBlock,
    change: impl FnOnce(&mut [u8]) -> bool,
) -> Result<bool, CheckError> {
    let mut block = volume.read(place, 1)?;
    let changed = change(&mut block);
    if changed {
        volume.write(place, &block)?;
    }
    Ok(changed)
}

/// Changes the bytes of an inode and recomputes its checksum.
fn edit_bytes(
    volume: &Volume<'_>,
    look: &Outcome,
    nr: InodeNr,
    change: impl FnOnce(&Volume<'_>, &mut [u8]),
) -> Result<bool, CheckError> {
    let Some((place, at)) = volume.inode_place(&look.groups, nr) else { return Ok(false) };
    let size = usize::from(volume.sb.inode_size());
    edit_block(volume, place, |block| {
        let Some(bytes) = block.get_mut(at..at + size) else { return false };
        change(volume, bytes);
        if bytes.iter().any(|&byte| byte != 0) {
            inode::set_checksum(&volume.sb, nr, bytes);
        }
        true
    })
}

/// Changes the fields of an inode.
pub(super) fn edit(
    volume: &Volume<'_>,
    look: &Outcome,
    nr: InodeNr,
    change: impl FnOnce(&mut Inode),
) -> Result<bool, CheckError> {
    let Some((place, at)) = volume.inode_place(&look.groups, nr) else { return Ok(false) };
    edit_block(volume, place, |block| {
        let Some(bytes) = block.get_mut(at..) else { return false };
        let Ok(mut inode) = Inode::read(&volume.sb, nr, bytes) else { return false };
        change(&mut inode);
        inode.encode(&volume.sb, nr, bytes).is_ok()
    })
}

/// An inode's fields.
pub(super) fn read_inode(
    volume: &Volume<'_>,
    look: &Outcome,
    nr: InodeNr,
) -> Result<Option<Inode>, CheckError> {
    let Some((place, at)) = volume.inode_place(&look.groups, nr) else { return Ok(None) };
    let block = volume.read(place, 1)?;
    Ok(block.get(at..).and_then(|bytes| Inode::read(&volume.sb, nr, bytes).ok()))
}

/// Blocks of an inode, without claiming them.
pub(super) fn blocks_of(
    volume: &Volume<'_>,
    nr: InodeNr,
    inode: &Inode,
) -> Result<mapping::Mapping, CheckError> {
    mapping::map_alone(volume, nr, inode)
}

fn forget_blocks(inode: &mut Inode) {
    inode.size = 0;
    inode.blocks = 0;
    inode.i_block.fill(0);
    if inode.flags.contains(InodeFlags::EXTENTS) {
        // Sixty bytes always hold an empty root.
        let _ = extent::encode_leaf(&mut inode.i_block, &[]);
    }
}

/// Takes nothing in the group as never written and recomputes the descriptor's checksum. Bitmaps and
/// counts follow.
fn reset_group(volume: &Volume<'_>, group: GroupNr) -> Result<bool, CheckError> {
    let sb = &volume.sb;
    let (place, at) = sb.descriptor_location(group);
    edit_block(volume, place, |block| {
        let Some(bytes) = block.get_mut(at..) else { return false };
        let Ok(mut descriptor) = GroupDescriptor::read(sb, group, bytes) else { return false };
        // An inode table that was never zeroed holds garbage: what is marked so stays so.
        if descriptor.flags.contains(GroupFlags::INODE_ZEROED) {
            descriptor.flags.remove(GroupFlags::INODE_UNINIT);
            descriptor.itable_unused = 0;
        }
        descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        descriptor.encode(sb, group, bytes).is_ok()
    })
}

fn empty_log(volume: &Volume<'_>) -> Result<bool, CheckError> {
    let Some((mut superblock, place, _)) = journal_superblock(volume)? else { return Ok(false) };
    let next = onggi_disk_format::Tid(superblock.sequence().0.wrapping_add(superblock.maxlen()));
    if superblock.set_tail(0, next).is_err() {
        return Ok(false);
    }
    edit_block(volume, place, |block| {
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        true
    })
}

fn clear_journal_error(volume: &Volume<'_>) -> Result<bool, CheckError> {
    let Some((superblock, place, _)) = journal_superblock(volume)? else { return Ok(false) };
    let Ok(superblock) = superblock.with(|raw| raw.s_errno.set(0)) else { return Ok(false) };
    edit_block(volume, place, |block| {
        let bytes = superblock.encode();
        block[..bytes.len()].copy_from_slice(&bytes);
        true
    })
}

/// Finishes the deletions and truncations that a crash cut short, then empties list and file.
pub(super) fn release_orphans(volume: &mut Volume<'_>, look: &Outcome) -> Result<bool, CheckError> {
    let mut orphans: Vec<InodeNr> = look.orphans.iter().copied().collect();
    orphans.sort_unstable();
    let now = volume.sb.raw().s_wtime.get().max(1);
    for nr in orphans {
        let Some(inode) = read_inode(volume, look, nr)? else { continue };
        if inode.links_count != 0 {
            truncate::truncate(volume, look, nr)?;
            edit(volume, look, nr, |inode| inode.dtime = 0)?;
            continue;
        }
        if inode.file_acl.0 != 0 {
            drop_user(volume, inode.file_acl)?;
        }
        edit(volume, look, nr, |inode| {
            forget_blocks(inode);
            inode.file_acl = DiskBlock(0);
            inode.dtime = now;
        })?;
    }
    clear_orphans(volume, look)
}

/// Takes one user off an attribute block. A block without users is free once the bitmaps are rewritten.
fn drop_user(volume: &Volume<'_>, place: DiskBlock) -> Result<(), CheckError> {
    if !volume.sb.contains_blocks(place, 1) {
        return Ok(());
    }
    let sb = &volume.sb;
    edit_block(volume, place, |block| match xattr::parse_block(sb, block, place) {
        Ok(parsed) if parsed.refcount > 1 => {
            xattr::set_refcount(sb, block, place, parsed.refcount - 1);
            true
        }
        _ => false,
    })?;
    Ok(())
}

fn clear_orphans(volume: &mut Volume<'_>, look: &Outcome) -> Result<bool, CheckError> {
    let sb = volume.sb.clone();
    if let Some(file) = sb.orphan_file()
        && sb.compat().contains(Compat::ORPHAN_FILE)
        && let Some(inode) = read_inode(volume, look, file)?
    {
        let seed = inode_seed(sb.csum_seed(), file, inode.generation);
        for run in blocks_of(volume, file, &inode)?.runs {
            for ahead in 0..u64::from(run.len) {
                let place = DiskBlock(run.start.0 + ahead);
                edit_block(volume, place, |block| {
                    let slots = orphan::slots(block.len());
                    (0..slots).for_each(|slot| {
                        orphan::set_slot(block, slot, InodeNr(0));
                    });
                    orphan::seal(block, sb.has_metadata_csum().then_some((seed, place))).is_ok()
                })?;
            }
        }
    }
    let ro_compat = sb.ro_compat().without(onggi_disk_format::ext4::RoCompat::ORPHAN_PRESENT);
    volume.sb.update(|raw| {
        raw.s_last_orphan.set(0);
        raw.s_feature_ro_compat.set(ro_compat.bits());
    })?;
    volume.write_superblock()?;
    Ok(true)
}

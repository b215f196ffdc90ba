//! Superblock, group descriptors, and where the groups' metadata lies.

use onggi_disk_format::ext4::group::GroupError;
use onggi_disk_format::ext4::{Compat, GroupDescriptor, Incompat};
use onggi_disk_format::jbd2::{self, JournalSuperblock};
use onggi_disk_format::{DiskBlock, GroupNr};

use super::Analysis;
use crate::claims::Owner;
use crate::fix::Fix;
use crate::report::{Code, Place};
use crate::{CheckError, Pass, replay};

impl Analysis<'_, '_> {
    /// Reads every group descriptor and claims the metadata they point to.
    pub(super) fn check_layout(&mut self) -> Result<(), CheckError> {
        if self.volume.bad_checksum {
            let what = "the superblock's checksum is wrong";
            self.problem(Code::SuperblockChecksum, Place::Superblock, what, Some(Fix::Superblock));
        }
        self.read_descriptors()?;
        let sb = &self.volume.sb;
        if sb.incompat().contains(Incompat::MMP) {
            let block = DiskBlock(sb.raw().s_mmp_block.get());
            if sb.contains_blocks(block, 1) {
                self.claim(block, 1, Owner::MultipleMount, Code::MetadataOverlap, Place::Superblock);
            }
        }
        for group in self.all_groups() {
            self.claim_group(group);
        }
        self.check_descriptor_size();
        self.check_journal()?;
        self.progress(Pass::Layout, u64::from(sb.groups()), u64::from(sb.groups()));
        Ok(())
    }

    /// Without 64-bit descriptors nothing uses the field, but e2fsck refuses a volume that sets it so.
    fn check_descriptor_size(&mut self) {
        let size = self.volume.sb.raw().s_desc_size.get();
        if size != 0 && (size > 1024 || !size.is_power_of_two()) {
            let what = format!("s_desc_size is {size}, no power of two up to 1024");
            self.problem(Code::GroupDescriptor, Place::Superblock, what, None);
        }
    }

    fn check_journal(&mut self) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let raw = sb.raw();
        let internal = sb.journal_inode().is_some();
        let elsewhere = raw.s_journal_dev != 0 || raw.s_journal_uuid != [0; 16];
        if sb.compat().contains(Compat::HAS_JOURNAL) && (!internal || elsewhere) {
            let fix = internal.then_some(Fix::InternalJournal);
            self.problem(Code::Journal, Place::Journal, "the journal seems to be on another device", fix);
        }
        if sb.journal_inode().is_none() {
            return Ok(());
        }
        match replay::journal_superblock(self.volume)? {
            None => {
                self.problem(Code::Journal, Place::Journal, "the journal's superblock cannot be read", None);
            }
            Some((superblock, ..)) if !is_known(&superblock) => {
                let what = "the journal has features that this check does not know";
                self.problem(Code::Journal, Place::Journal, what, None);
            }
            Some((superblock, _, blocks)) if blocks < superblock.maxlen() => {
                let what = format!("s_maxlen is {}, the file has {blocks} blocks", superblock.maxlen());
                self.problem(Code::Journal, Place::Journal, what, None);
            }
            Some((superblock, ..)) if superblock.start() != 0 && !replay::is_needed(self.volume) => {
                let what = "the log holds transactions, the superblock says that it is empty";
                self.problem(Code::JournalNotMarked, Place::Journal, what, Some(Fix::EmptyLog));
            }
            Some((superblock, ..)) if superblock.errno() != 0 => {
                let what = format!("s_errno is {}: the journal was stopped by an error", superblock.errno());
                self.problem(Code::Journal, Place::Journal, what, Some(Fix::JournalError));
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn read_descriptors(&mut self) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let per_block = sb.descriptors_per_block();
        let size = usize::from(sb.descriptor_size());
        for index in 0..sb.descriptor_blocks() {
            let place = sb.descriptor_block(index);
            if !sb.contains_blocks(place, 1) {
                self.groups.resize(sb.groups() as usize, None);
                let what = format!("descriptor block {index} does not lie on the volume");
                self.problem(Code::GroupDescriptor, Place::Superblock, what, None);
                break;
            }
            let bytes = self.volume.read(place, 1)?;
            for (slot, bytes) in (0..per_block).zip(bytes.chunks_exact(size)) {
                let group = GroupNr(index * per_block + slot);
                if group.0 < sb.groups() {
                    let descriptor = self.read_descriptor(group, bytes);
                    self.groups.push(descriptor);
                }
            }
        }
        Ok(())
    }

    fn read_descriptor(&mut self, group: GroupNr, bytes: &[u8]) -> Option<GroupDescriptor> {
        let sb = &self.volume.sb;
        let place = Place::Group(group);
        match GroupDescriptor::parse(sb, group, bytes) {
            Ok(descriptor) => Some(descriptor),
            Err(error @ GroupError::Checksum { .. }) => {
                self.problem(Code::GroupChecksum, place, error.to_string(), Some(Fix::Group(group.0)));
                GroupDescriptor::read(sb, group, bytes).ok().filter(|found| self.lies_on_volume(found))
            }
            Err(error @ GroupError::Count { .. }) => {
                self.problem(Code::GroupDescriptor, place, error.to_string(), Some(Fix::Counts));
                GroupDescriptor::read(sb, group, bytes).ok().filter(|found| self.lies_on_volume(found))
            }
            Err(error) => {
                self.problem(Code::GroupDescriptor, place, error.to_string(), None);
                None
            }
        }
    }

    fn lies_on_volume(&self, descriptor: &GroupDescriptor) -> bool {
        let sb = &self.volume.sb;
        sb.contains_blocks(descriptor.block_bitmap, 1)
            && sb.contains_blocks(descriptor.inode_bitmap, 1)
            && sb.contains_blocks(descriptor.inode_table, u64::from(sb.inode_table_blocks()))
    }

    fn claim_group(&mut self, group: GroupNr) {
        let sb = &self.volume.sb;
        let code = Code::MetadataOverlap;
        let place = Place::Group(group);
        let head = sb.head_blocks(group).min(sb.blocks_in_group(group));
        if head > 0 {
            self.claim(sb.first_block_of_group(group), u64::from(head), Owner::Head(group), code, place);
        }
        let Some(descriptor) = self.groups[group.0 as usize] else { return };
        let table = u64::from(sb.inode_table_blocks());
        let parts = [
            (descriptor.block_bitmap, 1, Owner::BlockBitmap(group)),
            (descriptor.inode_bitmap, 1, Owner::InodeBitmap(group)),
            (descriptor.inode_table, table, Owner::InodeTable(group)),
        ];
        let flexible = sb.incompat().contains(Incompat::FLEX_BG);
        for (start, len, owner) in parts {
            let last = DiskBlock(start.0 + len - 1);
            let home = |block| sb.group_of_block(block) == Some(group);
            if !(flexible || home(start) && home(last)) {
                let what = format!("{owner} at block {start} lies outside the group");
                self.problem(Code::GroupDescriptor, place, what, None);
            }
            self.claim(start, len, owner, code, place);
        }
    }
}

fn is_known(superblock: &JournalSuperblock) -> bool {
    superblock.incompat().without(jbd2::Incompat::KNOWN).is_empty() && superblock.ro_compat() == 0
}

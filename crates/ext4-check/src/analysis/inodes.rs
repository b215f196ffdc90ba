//! The inode tables: every inode, its blocks and its attributes.

use onggi_disk_format::ext4::{
    Compat, FileType, GroupDescriptor, GroupFlags, Incompat, Inode, InodeFlags, RoCompat, Superblock, inode,
    inode_seed, superblock,
};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

use super::directories::Directory;
use super::mapping::{self, Mapping, Run};
use super::{Analysis, Record};
use crate::claims::{Owner, set_from};
use crate::fix::Fix;
use crate::report::{Code, Place};
use crate::{CheckError, Pass};

/// Blocks of a table read at once.
const CHUNK: u32 = 64;

/// Flags of features that a volume past [`Volume::open`](crate::volume::Volume::open) does not have.
const FOREIGN_FLAGS: InodeFlags =
    InodeFlags::INLINE_DATA.union(InodeFlags::ENCRYPT).union(InodeFlags::CASEFOLD).union(InodeFlags::IMAGIC);

/// Reserved inodes that nothing uses, quota files apart.
const IDLE: [u32; 5] = [3, 4, 6, 9, 10];

impl Analysis<'_, '_> {
    /// Scans every inode table and compares the inode bitmaps with it.
    pub(super) fn check_inodes(&mut self) -> Result<(), CheckError> {
        let total = u64::from(self.volume.sb.groups());
        for group in self.all_groups() {
            if let Some(descriptor) = self.groups[group.0 as usize] {
                self.check_group_inodes(group, &descriptor)?;
            }
            self.progress(Pass::Inodes, u64::from(group.0) + 1, total);
        }
        Ok(())
    }

    fn check_group_inodes(&mut self, group: GroupNr, descriptor: &GroupDescriptor) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let per_group = sb.inodes_per_group();
        self.stats.inodes += per_group;
        let lazy = self.group_checksums();
        if lazy && descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            self.compare_counts(group, descriptor, (per_group, 0), 0);
            return Ok(());
        }
        let bitmap = self.volume.read(descriptor.inode_bitmap, 1)?;
        let unused = if lazy { descriptor.itable_unused } else { 0 };
        let scanned = per_group.saturating_sub(unused);
        let before = self.records.len();
        let per_block = sb.inodes_per_block();
        let mut index = 0;
        while index < scanned {
            let block = index / per_block;
            let count = CHUNK.min(scanned.div_ceil(per_block) - block);
            let bytes = self.volume.read(DiskBlock(descriptor.inode_table.0 + u64::from(block)), count)?;
            for bytes in bytes.chunks_exact(usize::from(sb.inode_size())) {
                if index >= scanned {
                    break;
                }
                if let Some(nr) = sb.inode_at(group, index)
                    && bytes.iter().any(|&byte| byte != 0)
                {
                    let bit = bitmap[index as usize / 8] >> (index % 8) & 1 == 1;
                    self.check_inode(nr, bytes, bit)?;
                }
                index += 1;
            }
        }
        self.compare_inode_bitmap(group, descriptor, &bitmap, before);
        Ok(())
    }

    fn check_inode(&mut self, nr: InodeNr, bytes: &[u8], bit: bool) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let place = Place::Inode(nr);
        if let Err(error) = inode::verify_checksum(sb, nr, bytes) {
            let fix = Some(Fix::InodeChecksum(nr));
            self.problem(Code::InodeChecksum, place, error.to_string(), fix);
        }
        let reserved = nr < sb.first_inode() && nr != superblock::ROOT_INODE;
        let inode = match Inode::read(sb, nr, bytes) {
            Ok(inode) => inode,
            Err(error) => {
                let links = u16::from_le_bytes([bytes[0x1a], bytes[0x1b]]);
                if links != 0 || bit {
                    let fix = (!reserved).then_some(Fix::ClearInode(nr));
                    self.problem(Code::Inode, place, error.to_string(), fix);
                    self.add_record(nr, FileType::Unknown, links, true);
                }
                return Ok(());
            }
        };
        let orphan = self.orphans.contains(&nr);
        if inode.links_count == 0 && !orphan && !reserved {
            if inode.mode == 0 || inode.dtime != 0 {
                return Ok(());
            }
            if !bit {
                let what = "deleted without a deletion time";
                self.problem(Code::DeletionTime, place, what, Some(Fix::DeletionTime(nr)));
                return Ok(());
            }
        } else if inode.links_count != 0 && inode.dtime != 0 && !orphan {
            let what = "in use and yet has a deletion time";
            self.problem(Code::DeletionTime, place, what, Some(Fix::DeletionTime(nr)));
        }
        self.check_used(nr, &inode, bytes, reserved)
    }

    fn add_record(&mut self, nr: InodeNr, kind: FileType, links: u16, broken: bool) {
        self.records.push(Record {
            nr,
            kind,
            links,
            names: 0,
            parent: InodeNr(0),
            directory: None,
            value: None,
            broken,
        });
    }

    fn check_used(
        &mut self,
        nr: InodeNr,
        inode: &Inode,
        bytes: &[u8],
        reserved: bool,
    ) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let place = Place::Inode(nr);
        self.add_record(nr, inode.kind(), inode.links_count, false);
        let record = self.records.len() - 1;
        if let Some(what) = contradiction(sb, nr, inode) {
            let fix = if inode.kind() == FileType::Unknown || IDLE.contains(&nr.0) {
                Some(Fix::ClearInode(nr))
            } else {
                inode.flags.contains(InodeFlags::INDEX).then_some(Fix::Unindex(nr))
            };
            self.problem(Code::Inode, place, what, fix);
            self.records[record].broken = inode.kind() == FileType::Unknown && !reserved;
        }
        let foreign = inode.flags.intersects(FOREIGN_FLAGS);
        if foreign {
            let what = "has flags of features that the volume lacks";
            self.problem(Code::Inode, place, what, Some(Fix::ClearFlags(nr, FOREIGN_FLAGS)));
        }
        if let Some(field) = unused_field(sb, inode, bytes) {
            let what = format!("{field} is not zero, which nothing uses");
            self.problem(Code::Inode, place, what, Some(Fix::UnusedFields(nr)));
        }
        if inode.flags.contains(InodeFlags::EA_INODE) && sb.incompat().contains(Incompat::EA_INODE) {
            let stored = u64::from(inode.ctime.sec as u32) << 32 | inode.version & 0xffff_ffff;
            self.records[record].value = Some((0, stored));
        }
        let attribute_units = if acl_lies_on_volume(sb, inode) {
            self.check_attributes(nr, inode, bytes)?
        } else {
            let what = format!("i_file_acl {} does not lie on the volume", inode.file_acl);
            self.problem(Code::Attributes, place, what, Some(Fix::DropAttributeBlock(nr)));
            return Ok(());
        };
        if nr == superblock::RESIZE_INODE && sb.compat().contains(Compat::RESIZE_INODE) {
            return self.check_resize_inode(inode);
        }
        let mut units = attribute_units;
        if has_blocks(sb, nr, inode, attribute_units) {
            let (mapping, readable) = self.map(nr, inode)?;
            units += mapping.blocks() * u64::from(sb.block_size() / 512);
            // What recovery will free may be freed in part already, and names nobody.
            let dying = inode.links_count == 0 && self.orphans.contains(&nr);
            if !dying {
                self.check_size(nr, inode, &mapping)?;
            }
            if inode.kind() == FileType::Directory && !dying {
                self.add_directory(record, inode, readable);
            }
        } else if inode.kind() == FileType::Symlink {
            self.check_short_symlink(nr, inode);
        }
        if units != inode.blocks && self.records[record].value.is_none() {
            let what = format!("i_blocks is {}, counted {units}", inode.blocks);
            self.problem(Code::BlockCount, place, what, Some(Fix::BlockCount(nr, units)));
        }
        match inode.kind() {
            FileType::Regular => self.stats.files += 1,
            FileType::Directory => self.stats.directories += 1,
            FileType::Symlink => self.stats.symlinks += 1,
            _ => {}
        }
        Ok(())
    }

    /// Collects and claims an inode's blocks. Those of a directory that may be read come too.
    fn map(&mut self, nr: InodeNr, inode: &Inode) -> Result<(Mapping, Vec<Run>), CheckError> {
        let (owner, place) = (Owner::Inode(nr), Place::Inode(nr));
        let volume = self.volume;
        let mapping = mapping::map(volume, nr, inode, &mut |block| {
            self.claim(block, 1, owner, Code::DoubleClaim, place)
        })?;
        for fault in &mapping.faults {
            self.problem(fault.code, place, fault.what.clone(), Some(fault.fix.clone()));
        }
        let is_dir = inode.kind() == FileType::Directory;
        let mut readable = Vec::new();
        for run in &mapping.runs {
            let len = u64::from(run.len);
            let alone = self.claim(run.start, len, owner, Code::DoubleClaim, place);
            if is_dir && (alone || self.shared_blocks >= len) {
                self.shared_blocks -= if alone { 0 } else { len };
                readable.push(*run);
            }
        }
        Ok((mapping, readable))
    }

    fn check_size(&mut self, nr: InodeNr, inode: &Inode, mapping: &Mapping) -> Result<(), CheckError> {
        let block_size = u64::from(self.volume.sb.block_size());
        let place = Place::Inode(nr);
        match inode.kind() {
            FileType::Directory => {
                let end = mapping.end() * block_size;
                if inode.size != end || end == 0 {
                    let what = format!("a directory of {} bytes has blocks for {end}", inode.size);
                    let fix = if end == 0 { Fix::ClearInode(nr) } else { Fix::Size(nr, end) };
                    self.problem(Code::Size, place, what, Some(fix));
                }
            }
            FileType::Symlink => self.check_long_symlink(nr, inode, mapping)?,
            FileType::Regular if !self.orphans.contains(&nr) => {
                let written = mapping.runs.iter().rev().find(|run| !run.unwritten);
                let last = written.map_or(0, |run| run.end() - 1);
                // Blocks up to the end of the last page may lie past the end of the file.
                let page = (4096 / block_size).max(1);
                let least = if (last + 1).is_multiple_of(page) { last / page * page } else { last };
                let past = written.is_some() && inode.size < least * block_size;
                let most = largest_size(&self.volume.sb, inode);
                if inode.size > most {
                    let what = format!("{} bytes, at most {most} can be mapped", inode.size);
                    let end = mapping.end() * block_size;
                    self.problem(Code::Size, place, what, Some(Fix::Size(nr, end)));
                } else if past && !inode.flags.contains(InodeFlags::VERITY) {
                    let what = format!("{} bytes, but block {last} is written", inode.size);
                    self.problem(Code::Size, place, what, Some(Fix::Size(nr, (last + 1) * block_size)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check_short_symlink(&mut self, nr: InodeNr, inode: &Inode) {
        let len = inode.i_block.iter().position(|&byte| byte == 0).unwrap_or(60);
        if inode.size == 0 || inode.size != len as u64 {
            let what = format!("a symbolic link of {} bytes has a target of {len}", inode.size);
            self.problem(Code::Symlink, Place::Inode(nr), what, Some(Fix::ClearInode(nr)));
        }
    }

    fn check_long_symlink(
        &mut self,
        nr: InodeNr,
        inode: &Inode,
        mapping: &Mapping,
    ) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let good = match mapping.runs[..] {
            [run] if run.block == 0 && run.len == 1 && !run.unwritten => {
                let block = self.volume.read(run.start, 1)?;
                let len = block.iter().position(|&byte| byte == 0).unwrap_or(block.len());
                inode.size == len as u64 && inode.size != 0
            }
            // An orphan's target may be gone already.
            [] => self.orphans.contains(&nr),
            _ => false,
        };
        if !good || inode.size >= u64::from(sb.block_size()) {
            let what = format!("a symbolic link of {} bytes does not have that target", inode.size);
            self.problem(Code::Symlink, Place::Inode(nr), what, Some(Fix::ClearInode(nr)));
        }
        Ok(())
    }

    fn add_directory(&mut self, record: usize, inode: &Inode, runs: Vec<Run>) {
        let sb = &self.volume.sb;
        let nr = self.records[record].nr;
        let hashed = inode.flags.contains(InodeFlags::INDEX);
        if hashed && !sb.compat().contains(Compat::DIR_INDEX) {
            let what = "a hashed directory on a volume without dir_index";
            self.problem(Code::Htree, Place::Inode(nr), what, Some(Fix::Unindex(nr)));
        }
        self.records[record].directory = Some(self.directories.len() as u32);
        let seed = inode_seed(sb.csum_seed(), nr, inode.generation);
        let seed = sb.has_metadata_csum().then_some(seed);
        self.directories.push(Directory::new(nr, seed, hashed, runs));
    }

    /// The resize inode's double-indirect block points to the reserved descriptor blocks, each of which
    /// points to its copies in the groups with a backup.
    fn check_resize_inode(&mut self, inode: &Inode) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let place = Place::Inode(superblock::RESIZE_INODE);
        let pointers: Vec<u32> = words(&inode.i_block);
        let double = DiskBlock(u64::from(pointers[13]));
        let others = pointers.iter().enumerate().any(|(index, &pointer)| index != 13 && pointer != 0);
        if others || !sb.contains_blocks(double, 1) {
            let what = "holds more or less than one double-indirect block";
            self.problem(Code::ResizeInode, place, what, None);
            return Ok(());
        }
        self.claim(double, 1, Owner::Inode(superblock::RESIZE_INODE), Code::DoubleClaim, place);
        let per_block = self.volume.block_size() / 4;
        let reserved = sb.raw().s_reserved_gdt_blocks.get() as usize;
        let table = sb.descriptor_blocks() as usize;
        let mut expected = vec![0u32; per_block];
        for index in 0..reserved.min(per_block) {
            expected[(table + index) % per_block] =
                sb.first_data_block().0 as u32 + 1 + (table + index) as u32;
        }
        if words(&self.volume.read(double, 1)?) != expected {
            let what = format!("block {double} does not list the reserved descriptor blocks");
            self.problem(Code::ResizeInode, place, what, None);
            return Ok(());
        }
        let backups: Vec<GroupNr> =
            self.all_groups().skip(1).filter(|&group| sb.has_super_backup(group)).collect();
        for index in 0..reserved.min(per_block) as u64 {
            let primary = sb.first_data_block().0 + 1 + table as u64 + index;
            let copies = words(&self.volume.read(DiskBlock(primary), 1)?);
            let within = primary - sb.first_data_block().0;
            let right = backups
                .iter()
                .map(|&group| (sb.first_block_of_group(group).0 + within) as u32)
                .chain(std::iter::repeat(0))
                .zip(&copies)
                .all(|(expected, &found)| expected == found);
            if !right {
                let what = format!("block {primary} does not list its copies");
                self.problem(Code::ResizeInode, place, what, None);
                return Ok(());
            }
        }
        let blocks = 1 + reserved as u64 * (1 + backups.len() as u64);
        let units = blocks * u64::from(sb.block_size() / 512);
        if inode.blocks != units {
            let what = format!("i_blocks is {}, counted {units}", inode.blocks);
            let fix = Fix::BlockCount(superblock::RESIZE_INODE, units);
            self.problem(Code::BlockCount, place, what, Some(fix));
        }
        Ok(())
    }

    fn compare_inode_bitmap(
        &mut self,
        group: GroupNr,
        descriptor: &GroupDescriptor,
        bitmap: &[u8],
        before: usize,
    ) {
        let sb = &self.volume.sb;
        let mut expected = vec![0u8; bitmap.len()];
        let mut mark = |index: u32| expected[index as usize / 8] |= 1 << (index % 8);
        if group.0 == 0 {
            (0..sb.first_inode().0 - 1).for_each(&mut mark);
        }
        let first = group.0 * sb.inodes_per_group() + 1;
        self.records[before..].iter().for_each(|record| mark(record.nr.0 - first));
        let used: u32 = expected.iter().map(|byte| byte.count_ones()).sum();
        set_from(&mut expected, sb.inodes_per_group());
        let place = Place::Group(group);
        if let Some(what) = difference(bitmap, &expected, "inode", 1 + u64::from(first - 1)) {
            self.problem(Code::InodeBitmap, place, what, Some(Fix::Counts));
        } else if !descriptor.inode_bitmap_matches(sb, bitmap) {
            let what = "the inode bitmap's checksum is wrong";
            self.problem(Code::BitmapChecksum, place, what, Some(Fix::Counts));
        }
        let directories = self.records[before..].iter().filter(|record| record.kind == FileType::Directory);
        let counted = (sb.inodes_per_group() - used, directories.count() as u32);
        self.compare_counts(group, descriptor, counted, used);
    }

    fn compare_counts(
        &mut self,
        group: GroupNr,
        descriptor: &GroupDescriptor,
        (free, directories): (u32, u32),
        used: u32,
    ) {
        self.stats.inodes_used += used;
        let pairs = [
            ("free inodes", descriptor.free_inodes, free),
            ("directories", descriptor.used_dirs, directories),
        ];
        for (name, stored, counted) in pairs {
            if stored != counted {
                let what = format!("{stored} {name} stored, {counted} counted");
                self.problem(Code::GroupCount, Place::Group(group), what, Some(Fix::Counts));
            }
        }
    }
}

/// Where two bitmaps differ, in words; `first` is the number of bit 0.
pub(super) fn difference(stored: &[u8], expected: &[u8], name: &str, first: u64) -> Option<String> {
    if stored == expected {
        return None;
    }
    let (mut missing, mut extra, mut shown) = (0u32, 0u32, None);
    for (at, (&stored, &expected)) in stored.iter().zip(expected).enumerate() {
        missing += (expected & !stored).count_ones();
        extra += (stored & !expected).count_ones();
        if stored != expected && shown.is_none() {
            shown = Some(first + at as u64 * 8 + u64::from((stored ^ expected).trailing_zeros()));
        }
    }
    let at = shown.unwrap_or(first);
    Some(format!(
        "the {name} bitmap is wrong from {name} {at} on: {missing} used ones are free there, {extra} free ones used"
    ))
}

/// Fields that no inode in use may have together.
fn contradiction(sb: &Superblock, nr: InodeNr, inode: &Inode) -> Option<String> {
    let kind = inode.kind();
    if nr == superblock::ROOT_INODE && kind != FileType::Directory {
        return Some("the root is not a directory".into());
    }
    if kind == FileType::Unknown && nr >= sb.first_inode() {
        return Some(format!("i_mode {:#o} names no file type", inode.mode));
    }
    if inode.flags.contains(InodeFlags::INDEX) && kind != FileType::Directory {
        return Some("is indexed, but no directory".into());
    }
    if inode.flags.contains(InodeFlags::EXTENTS) && !sb.incompat().contains(Incompat::EXTENTS) {
        return Some("has extents on a volume without that feature".into());
    }
    if let Some(what) = reserved_contradiction(sb, nr, inode) {
        return Some(what.into());
    }
    let special =
        matches!(kind, FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket);
    if special && (inode.size != 0 || inode.flags.contains(InodeFlags::EXTENTS)) {
        return Some("is neither file nor directory, and yet has a size or extents".into());
    }
    (inode.size >> 63 != 0).then(|| format!("i_size {} is past 2^63", inode.size))
}

/// A field that holds something although no feature of the volume uses it.
fn unused_field(sb: &Superblock, inode: &Inode, bytes: &[u8]) -> Option<&'static str> {
    let incompat = sb.incompat();
    let large = inode.kind() == FileType::Regular || incompat.contains(Incompat::LARGEDIR);
    let fields = [
        ("i_size_high", 0x6c..0x70, large),
        ("i_obso_faddr", 0x70..0x74, false),
        ("l_i_blocks_high", 0x74..0x76, sb.ro_compat().contains(RoCompat::HUGE_FILE)),
        ("l_i_file_acl_high", 0x76..0x78, incompat.contains(Incompat::BIT64)),
    ];
    let stray = |range: std::ops::Range<usize>| bytes[range].iter().any(|&byte| byte != 0);
    fields.into_iter().find(|(_, range, used)| !used && stray(range.clone())).map(|(field, ..)| field)
}

/// Reserved inodes that nothing uses are empty. The boot loader's inode 5 may hold data.
fn reserved_contradiction(sb: &Superblock, nr: InodeNr, inode: &Inode) -> Option<&'static str> {
    match nr {
        InodeNr(1) => {
            let plain = inode.mode == 0
                && (inode.uid, inode.gid, inode.links_count, inode.dtime) == (0, 0, 0, 0)
                && inode.file_acl.0 == 0
                && inode.flags.without(InodeFlags::EXTENTS).is_empty();
            (!plain).then_some("is the list of bad blocks, and yet a file")
        }
        superblock::RESIZE_INODE => (inode.size > largest_size(sb, inode))
            .then_some("is the resize inode, with a size past every map"),
        _ if IDLE.contains(&nr.0) && !is_special(sb, nr) => {
            let empty = inode.size == 0 && inode.blocks == 0 && inode.i_block == [0; 60] && inode.mode == 0;
            (!empty).then_some("is reserved, and yet in use")
        }
        _ => None,
    }
}

/// Files that no directory names.
pub(super) fn is_special(sb: &Superblock, nr: InodeNr) -> bool {
    let raw = sb.raw();
    let quota = sb.ro_compat().contains(RoCompat::QUOTA)
        && [raw.s_usr_quota_inum.get(), raw.s_grp_quota_inum.get(), raw.s_prj_quota_inum.get()]
            .contains(&nr.0);
    quota || sb.journal_inode() == Some(nr) || sb.orphan_file() == Some(nr)
}

/// The largest size that the inode's kind of map can reach.
fn largest_size(sb: &Superblock, inode: &Inode) -> u64 {
    let block_size = u64::from(sb.block_size());
    if inode.flags.contains(InodeFlags::EXTENTS) {
        return (block_size << 32) - 1;
    }
    let per_block = block_size / 4;
    let blocks = 12 + per_block + per_block.pow(2) + per_block.pow(3);
    (blocks * block_size).min((block_size << 32) - 1)
}

fn acl_lies_on_volume(sb: &Superblock, inode: &Inode) -> bool {
    inode.file_acl.0 == 0 || sb.contains_blocks(inode.file_acl, 1)
}

/// Whether `i_block` maps blocks. A symbolic link keeps a short target there.
fn has_blocks(sb: &Superblock, nr: InodeNr, inode: &Inode, attribute_units: u64) -> bool {
    match inode.kind() {
        FileType::Regular | FileType::Directory => true,
        FileType::Symlink => {
            inode.flags.contains(InodeFlags::EXTENTS) || inode.size >= 60 || inode.blocks > attribute_units
        }
        // The list of bad blocks has no mode.
        FileType::Unknown => nr.0 == 1 && sb.first_inode().0 > 1,
        _ => false,
    }
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
}

//! Block bitmaps and the counts of free things.

use onggi_disk_format::ext4::superblock::STATE_VALID;
use onggi_disk_format::ext4::{GroupFlags, Incompat};

use super::Analysis;
use super::inodes::difference;
use crate::fix::Fix;
use crate::report::{Code, Place};
use crate::{CheckError, Pass};

impl Analysis<'_, '_> {
    /// Compares every block bitmap and every count with what is in use.
    pub(super) fn check_bitmaps(&mut self) -> Result<(), CheckError> {
        let sb = &self.volume.sb;
        let total = u64::from(sb.groups());
        let mut free_blocks = 0;
        for group in self.all_groups() {
            let used = self.claims.used(group);
            self.stats.blocks_used += u64::from(used);
            let free = sb.blocks_in_group(group).saturating_sub(used);
            free_blocks += u64::from(free);
            self.progress(Pass::Bitmaps, u64::from(group.0) + 1, total);
            let Some(descriptor) = self.groups[group.0 as usize] else { continue };
            let place = Place::Group(group);
            if descriptor.free_blocks != free {
                let what = format!("{} free blocks stored, {free} counted", descriptor.free_blocks);
                self.problem(Code::GroupCount, place, what, Some(Fix::Counts));
            }
            if self.group_checksums() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
                if self.claims.has_data(group) {
                    let what = "files have blocks here, yet the block bitmap counts as never written";
                    self.problem(Code::BlockBitmap, place, what, Some(Fix::Counts));
                }
                continue;
            }
            let stored = self.volume.read(descriptor.block_bitmap, 1)?;
            let expected = self.claims.bitmap(sb, group);
            let first = sb.first_block_of_group(group).0;
            if let Some(what) = difference(&stored, &expected, "block", first) {
                self.problem(Code::BlockBitmap, place, what, Some(Fix::Counts));
            } else if !descriptor.block_bitmap_matches(sb, &stored) {
                let what = "the block bitmap's checksum is wrong";
                self.problem(Code::BitmapChecksum, place, what, Some(Fix::Counts));
            }
        }
        self.stats.blocks = sb.blocks_count();
        self.check_totals(free_blocks);
        Ok(())
    }

    /// The superblock's totals are only brought up to date when a volume is unmounted.
    fn check_totals(&mut self, free_blocks: u64) {
        let sb = &self.volume.sb;
        if sb.incompat().contains(Incompat::RECOVER) || sb.state() & STATE_VALID == 0 {
            return;
        }
        let free_inodes = u64::from(self.stats.inodes.saturating_sub(self.stats.inodes_used));
        let pairs =
            [("blocks", sb.free_blocks(), free_blocks), ("inodes", u64::from(sb.free_inodes()), free_inodes)];
        for (name, stored, counted) in pairs {
            if stored != counted {
                let what = format!("{stored} free {name} stored, {counted} counted");
                self.problem(Code::SuperblockCount, Place::Superblock, what, Some(Fix::Counts));
            }
        }
    }
}

//! Contents of regular files.

pub(crate) mod range;
pub(crate) mod read;
pub(crate) mod readahead;
pub(crate) mod sync;
pub(crate) mod truncate;
pub(crate) mod write;
pub(crate) mod writeback;

use onggi_disk_format::ext4::RoCompat;
use onggi_page_cache::PAGE_SIZE;

use crate::Ext4;

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

impl Ext4 {
    /// Most bytes a file may have: block numbers have 32 bits, the last one marks the end; and without
    /// `huge_file` an inode counts at most 2^32 sectors.
    pub(crate) fn max_file_size(&self) -> u64 {
        let by_number = u64::from(u32::MAX) * self.block_size();
        if self.volume.sb.ro_compat().contains(RoCompat::HUGE_FILE) {
            by_number
        } else {
            by_number.min((u64::from(u32::MAX) << 9) / 100 * 99)
        }
    }

    /// The file block that holds byte `pos`, which lies below [`Ext4::max_file_size`].
    pub(crate) fn block_of(&self, pos: u64) -> u32 {
        (pos / self.block_size()) as u32
    }

    /// Blocks that `size` bytes take.
    pub(crate) fn blocks_for(&self, size: u64) -> u32 {
        size.div_ceil(self.block_size()) as u32
    }
}

//! Directories without an index: every block is looked through.

use onggi_disk_format::FileBlock;
use onggi_disk_format::ext4::inode::Inode;

use super::NewEntry;
use super::block::{Dir, Role, Room, Slot};
use crate::{Handle, VolumeError};

/// Blocks read ahead at a time.
const AHEAD: u32 = 32;

impl Dir<'_> {
    /// Looks for a name in every block.
    pub(super) fn find_linear(&self, inode: &Inode, name: &[u8]) -> Result<Option<Slot>, VolumeError> {
        for nr in 0..self.blocks(inode) {
            self.read_ahead_linear(inode, nr)?;
            let block = self.load(inode, FileBlock(nr), self.linear_role(inode))?;
            if let Some(slot) = self.scan(block, name)? {
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Adds a name where a block has room, else at the end, else turns the directory into an indexed one.
    pub(super) fn insert_linear(
        &self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        new: &NewEntry<'_>,
    ) -> Result<(), VolumeError> {
        let mut fits = None;
        for nr in 0..self.blocks(inode) {
            self.read_ahead_linear(inode, nr)?;
            let block = self.load(inode, FileBlock(nr), Role::Leaf)?;
            match self.survey(&block, new.name)? {
                Room::Gap => {
                    fits = Some(block);
                    break;
                }
                Room::Scattered if self.is_hash_ordered(inode) => return self.compact(h, &block, new),
                Room::Scattered | Room::None => {}
            }
        }
        if let Some(block) = fits {
            return self.put(h, &block, new);
        }
        if self.has_dir_index() && self.blocks(inode) == 1 {
            return self.make_indexed(h, inode, new);
        }
        let block = self.append(h, inode, 1)?.remove(0);
        self.put(h, &block, new)
    }

    /// Whether no block holds another name than `.` and `..`; also for indexed directories.
    pub(super) fn is_empty(&self, inode: &Inode) -> Result<bool, VolumeError> {
        for nr in 0..self.blocks(inode) {
            self.read_ahead_linear(inode, nr)?;
            let block = self.load(inode, FileBlock(nr), self.linear_role(inode))?;
            let bytes = block.buffer.snapshot();
            for entry in self.live(&block, &bytes) {
                if !matches!(entry?.name, b"." | b"..") {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// What to expect of a block that is reached without the index.
    pub(super) fn linear_role(&self, inode: &Inode) -> Role {
        use onggi_disk_format::ext4::InodeFlags;
        if inode.flags.contains(InodeFlags::INDEX) { Role::Any } else { Role::Leaf }
    }

    /// Before the first block of a batch, asks for the whole batch.
    pub(super) fn read_ahead_linear(&self, inode: &Inode, nr: u32) -> Result<(), VolumeError> {
        let blocks = self.blocks(inode);
        if !nr.is_multiple_of(AHEAD) || blocks == 1 {
            return Ok(());
        }
        let batch = nr..nr.saturating_add(AHEAD).min(blocks);
        let places = batch.map(|nr| self.locate(inode, FileBlock(nr))).collect::<Result<Vec<_>, _>>()?;
        Ok(self.volume.buffers.read_ahead(&places)?)
    }
}

//! New blocks at a directory's end.

use onggi_disk_format::ext4::dir as format;
use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::{Incompat, inode::Inode};
use onggi_disk_format::{DiskBlock, FileBlock};

use super::block::{Block, Dir};
use crate::extents::{self, Mapping, Progress};
use crate::{BlockRun, Handle, VolumeError};

impl Dir<'_> {
    /// Adds `count` empty leaves, all or none.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`], and then nothing has changed; the device's, the journal's.
    pub(super) fn append(
        &self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        count: u32,
    ) -> Result<Vec<Block>, VolumeError> {
        let first = self.blocks(inode);
        self.check_size(inode, count)?;
        let runs = self.take(inode, first, count)?;
        let mut at = first;
        for (index, &run) in runs.iter().enumerate() {
            if let Err(error) = self.attach(h, inode, FileBlock(at), run) {
                self.give_back(&runs[index..]);
                self.detach(h, inode, first, at)?;
                return Err(error);
            }
            at += run.len;
        }
        inode.size += u64::from(count) * u64::from(self.volume.block_size());
        let places = runs.iter().flat_map(|run| run.start.0..run.end().0);
        places.zip(first..).map(|(place, nr)| self.empty_leaf(h, FileBlock(nr), DiskBlock(place))).collect()
    }

    /// Without `large_dir` a directory's size has 31 bits.
    fn check_size(&self, inode: &Inode, count: u32) -> Result<(), VolumeError> {
        let size = inode.size + u64::from(count) * u64::from(self.volume.block_size());
        let limit = if self.volume.sb.incompat().contains(Incompat::LARGEDIR) {
            u64::from(u32::MAX) * u64::from(self.volume.block_size())
        } else {
            1 << 31
        };
        if size > limit { Err(VolumeError::NoSpace) } else { Ok(()) }
    }

    fn take(&self, inode: &Inode, first: u32, count: u32) -> Result<Vec<BlockRun>, VolumeError> {
        let mut goal = self.goal(inode, first)?;
        let mut runs: Vec<BlockRun> = Vec::new();
        let mut left = count;
        while left > 0 {
            let run = match self.volume.alloc.take(self.volume, goal, left) {
                Ok(run) => run,
                Err(error) => {
                    self.give_back(&runs);
                    return Err(error);
                }
            };
            left = left.saturating_sub(run.len);
            goal = run.end();
            runs.push(run);
        }
        Ok(runs)
    }

    /// Behind the last block, or where the inode's data should start.
    fn goal(&self, inode: &Inode, first: u32) -> Result<DiskBlock, VolumeError> {
        let Some(last) = first.checked_sub(1) else {
            return Ok(self.volume.alloc.inode_goal(self.nr));
        };
        Ok(match extents::lookup(self.volume, self.nr, inode, FileBlock(last))? {
            Mapping::Mapped { start, .. } => DiskBlock(start.0 + 1),
            Mapping::Hole { .. } => self.volume.alloc.inode_goal(self.nr),
        })
    }

    fn give_back(&self, runs: &[BlockRun]) {
        for &run in runs {
            self.volume.alloc.give_back(run);
        }
    }

    fn attach(
        &self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        block: FileBlock,
        run: BlockRun,
    ) -> Result<(), VolumeError> {
        // A handful of blocks at most.
        let extent = Extent { block, len: run.len as u16, start: run.start, unwritten: false };
        extents::insert(self.volume, h, self.nr, inode, extent)?;
        self.volume.alloc.mark_used(self.volume, h, run)
    }

    /// Takes the blocks `[first, end)` away again.
    fn detach(&self, h: &mut Handle<'_>, inode: &mut Inode, first: u32, end: u32) -> Result<(), VolumeError> {
        let mut left = end;
        while first < left {
            match extents::remove(self.volume, h, self.nr, inode, first..left, false)? {
                Progress::More(end) if end < left => left = end,
                // Blocks past the size do no harm where the handle has no credits to take them away.
                Progress::More(_) | Progress::Done => break,
            }
        }
        Ok(())
    }

    fn empty_leaf(&self, h: &mut Handle<'_>, nr: FileBlock, place: DiskBlock) -> Result<Block, VolumeError> {
        let block = Block { nr, buffer: self.volume.buffers.fresh(place), tail: self.seed.is_some() };
        self.change(h, &block, |bytes, tail| format::init_block(bytes, tail).map(|()| true))?;
        Ok(block)
    }
}

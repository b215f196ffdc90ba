//! What ranges of a file are made of: allocation ahead, holes, zeroes, and looking for them.

use std::ops::Range;
use std::sync::Arc;

use onggi_disk_format::ext4::Extent;
use onggi_disk_format::{DiskBlock, FileBlock};
use onggi_ext4_volume::alloc;
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_vfs::{Context, Errno, FallocateMode, Whence};

use super::PAGE;
use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::error::through_the_door;
use crate::inode::Inode;

impl Ext4 {
    /// Changes what a range is made of. The caller holds `ops` exclusively; the range is checked.
    pub(crate) fn fallocate_locked(
        &self,
        cx: &Context,
        inode: &Arc<Inode>,
        range: Range<u64>,
        mode: FallocateMode,
    ) -> onggi_vfs::Result<()> {
        let result = match mode {
            FallocateMode::Allocate { keep_size } => self.allocate(cx, inode, range, keep_size),
            FallocateMode::PunchHole => self.punch(cx, inode, range),
            FallocateMode::ZeroRange { keep_size } => {
                self.punch(cx, inode, range.clone()).and_then(|()| self.allocate(cx, inode, range, keep_size))
            }
        };
        result.map_err(through_the_door)
    }

    fn allocate(&self, cx: &Context, inode: &Arc<Inode>, range: Range<u64>, keep_size: bool) -> Result<()> {
        let size = inode.state.read().size;
        let grows = !keep_size && range.end > size;
        if grows {
            self.zero_tail(inode, size)?;
        }
        // Delayed blocks get their places first: the rest of the range is then plain holes.
        self.write_back(inode)?;
        let _exclusive = inode.writeback.lock();
        let mut block = self.block_of(range.start);
        let end = self.blocks_for(range.end);
        while block < end {
            block = self.with_space(|| self.allocate_step(cx, inode, block, end))?;
        }
        self.change(2, |h| {
            let mut state = inode.state.write();
            if grows {
                state.size = range.end;
                state.disk.size = range.end;
            }
            state.disk.mtime = disk_time(cx.now);
            state.disk.ctime = disk_time(cx.now);
            self.save_contents(h, inode.nr, &mut state)
        })
    }

    /// Allocates the next hole at or after `block` as unwritten blocks; returns where to go on.
    fn allocate_step(&self, cx: &Context, inode: &Arc<Inode>, block: u32, end: u32) -> Result<u32> {
        let len = {
            let state = inode.state.read();
            match extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))? {
                Mapping::Mapped { len, .. } => return Ok(block.saturating_add(len)),
                Mapping::Hole { len } => len.min(end - block),
            }
        };
        let len = len.min(u32::from(onggi_disk_format::ext4::extent::MAX_UNWRITTEN_LEN));
        let alloc = &self.volume.alloc;
        let goal = {
            let state = inode.state.read();
            let before = block
                .checked_sub(1)
                .map(|before| extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(before)));
            match before.transpose()? {
                Some(Mapping::Mapped { start, .. }) => DiskBlock(start.0 + 1),
                _ => alloc.inode_goal(inode.nr),
            }
        };
        // A promise held over the take keeps these blocks apart from those promised to delayed writes.
        self.promise_blocks(cx, u64::from(len))?;
        let taken = alloc.take(&self.volume, goal, len);
        alloc.unpromise(u64::from(len));
        let run = taken?;
        let credits = extents::credits_for_insert(&inode.state.read().disk, 1) + alloc::CREDITS_MARK_USED + 2;
        let result = self.change(credits, |h| {
            let mut state = inode.state.write();
            let extent =
                Extent { block: FileBlock(block), len: run.len as u16, start: run.start, unwritten: true };
            extents::insert(&self.volume, h, inode.nr, &mut state.disk, extent)?;
            alloc.mark_used(&self.volume, h, run)?;
            self.save_contents(h, inode.nr, &mut state)
        });
        if let Err(error) = result {
            alloc.give_back(run);
            return Err(error);
        }
        Ok(block + run.len)
    }

    fn punch(&self, cx: &Context, inode: &Arc<Inode>, range: Range<u64>) -> Result<()> {
        let block_size = self.block_size();
        let size = inode.state.read().size;
        let first = range.start.next_multiple_of(block_size);
        let last = range.end - range.end % block_size;
        // Parts of blocks at both ends become zeroes, where the file has them.
        let head = range.start..first.min(range.end);
        let tail = last.max(head.end)..range.end;
        for edge in [head, tail] {
            let edge = edge.start.min(size)..edge.end.min(size);
            if !edge.is_empty() && self.is_placed(inode, edge.start)? {
                self.ensure_page(inode, edge.start / PAGE, size)?;
                inode.pages.write_zeroes(edge.start, (edge.end - edge.start) as usize);
                self.queue(inode);
            }
        }
        if first < last {
            if inode.state.read().disk.size < size.min(last) {
                // Data that has yet to bring the size to the device must not go without doing so.
                self.write_back(inode)?;
            }
            let _exclusive = inode.writeback.lock();
            inode.pages.forget_range(first, last - first);
            self.unmap_blocks(cx, inode, self.block_of(first)..self.block_of(last))?;
        } else {
            let mut state = inode.state.write();
            state.disk.mtime = disk_time(cx.now);
            state.disk.ctime = disk_time(cx.now);
            state.unsaved = true;
            drop(state);
            self.queue(inode);
        }
        Ok(())
    }

    fn is_placed(&self, inode: &Inode, pos: u64) -> Result<bool> {
        let state = inode.state.read();
        let block = self.block_of(pos);
        Ok(state.delayed.run_of(block).is_some()
            || matches!(
                extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))?,
                Mapping::Mapped { .. }
            ))
    }

    /// The next data or hole. Delayed blocks are data; unwritten ones are holes until they are written.
    pub(crate) fn seek_locked(&self, inode: &Inode, offset: u64, whence: Whence) -> onggi_vfs::Result<u64> {
        let state = inode.state.read();
        if offset >= state.size {
            return Err(Errno::NXIO.into());
        }
        let end = self.blocks_for(state.size);
        let mut block = self.block_of(offset);
        while block < end {
            let (is_data, len) = self.stretch(inode, &state, block).map_err(through_the_door)?;
            if is_data == (whence == Whence::Data) {
                return Ok(offset.max(u64::from(block) * self.block_size()));
            }
            block = block.saturating_add(len);
        }
        match whence {
            Whence::Hole => Ok(state.size),
            Whence::Data => Err(Errno::NXIO.into()),
        }
    }

    /// Whether `block` is data, and how far that holds.
    fn stretch(&self, inode: &Inode, state: &crate::inode::State, block: u32) -> Result<(bool, u32)> {
        let delayed = state.delayed.next_run(block);
        if let Some(run) = delayed.clone().filter(|run| run.start <= block) {
            return Ok((true, run.end - block));
        }
        let until = delayed.map_or(u32::MAX, |run| run.start - block);
        Ok(match extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))? {
            Mapping::Mapped { len, unwritten: true, .. } => {
                let (dirty, len) = self.dirty_stretch(inode, block, len.min(until));
                (dirty, len)
            }
            Mapping::Mapped { len, .. } => (true, len.min(until)),
            Mapping::Hole { len } => (false, len.min(until)),
        })
    }

    /// Unwritten blocks whose page is dirty are data already.
    fn dirty_stretch(&self, inode: &Inode, block: u32, len: u32) -> (bool, u32) {
        let is_dirty = |block: u32| {
            let page = u64::from(block) * self.block_size() / PAGE;
            inode.pages.is_dirty_or_in_flight(page)
        };
        let here = is_dirty(block);
        let same = (block..block + len).take_while(|&next| is_dirty(next) == here).count();
        (here, same as u32)
    }
}

//! Writing into the page cache. Blocks are promised now and allocated when the pages are written back.

use std::ops::Range;
use std::sync::Arc;

use onggi_disk_format::FileBlock;
use onggi_ext4_volume::VolumeError;
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_vfs::{Context, Errno};

use super::PAGE;
use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::error::through_the_door;
use crate::inode::{Inode, State};

impl Ext4 {
    /// Writes `data`, or as much of it as there is space and size for. The caller holds `ops` exclusively.
    pub(crate) fn write_locked(
        &self,
        cx: &Context,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
    ) -> onggi_vfs::Result<usize> {
        let most = self.max_file_size();
        if data.is_empty() {
            return Ok(0);
        }
        if offset >= most {
            return Err(Errno::FBIG.into());
        }
        let room = usize::try_from(most - offset).unwrap_or(usize::MAX);
        let mut data = &data[..data.len().min(room)];
        let fresh = loop {
            match self.with_space(|| self.promise(cx, inode, offset, data.len() as u64)) {
                Ok(fresh) => break fresh,
                // A part may still fit.
                Err(VolumeError::NoSpace) if data.len() as u64 > self.block_size() => {
                    data = &data[..data.len() / 2];
                }
                Err(error) => return Err(through_the_door(error)),
            }
        };
        self.put(cx, inode, offset, data, fresh).map_err(through_the_door)?;
        Ok(data.len())
    }

    /// Promises a block for each block of the range that has none; returns which.
    fn promise(&self, cx: &Context, inode: &Inode, offset: u64, len: u64) -> Result<Vec<Range<u32>>> {
        let state = inode.state.read();
        let fresh = self.unplaced(inode, &state, self.block_of(offset)..self.blocks_for(offset + len))?;
        let count: u64 = fresh.iter().map(|run| run.len() as u64).sum();
        if count == 0 {
            return Ok(fresh);
        }
        self.promise_blocks(cx, count)?;
        Ok(fresh)
    }

    /// Promises blocks to the caller; root may have the reserved ones.
    pub(crate) fn promise_blocks(&self, cx: &Context, count: u64) -> Result<()> {
        let alloc = &self.volume.alloc;
        if cx.uid == 0 { alloc.promise_privileged(count) } else { alloc.promise(count) }
    }

    /// Blocks of the range with neither a place nor a promise.
    fn unplaced(&self, inode: &Inode, state: &State, range: Range<u32>) -> Result<Vec<Range<u32>>> {
        let mut fresh = Vec::new();
        let mut block = range.start;
        while block < range.end {
            let delayed = state.delayed.next_run(block);
            if let Some(run) = delayed.clone().filter(|run| run.start <= block) {
                block = run.end;
                continue;
            }
            let end = delayed.map_or(range.end, |run| run.start.min(range.end));
            match extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))? {
                Mapping::Mapped { len, .. } => block = block.saturating_add(len),
                Mapping::Hole { len } => {
                    let end = end.min(block.saturating_add(len));
                    fresh.push(block..end);
                    block = end;
                }
            }
        }
        Ok(fresh)
    }

    fn put(
        &self,
        cx: &Context,
        inode: &Arc<Inode>,
        offset: u64,
        data: &[u8],
        fresh: Vec<Range<u32>>,
    ) -> Result<()> {
        let size = inode.state.read().size;
        let end = offset + data.len() as u64;
        let filled = (|| {
            if !offset.is_multiple_of(PAGE) {
                self.ensure_page(inode, offset / PAGE, size)?;
            }
            if !end.is_multiple_of(PAGE) {
                self.ensure_page(inode, end / PAGE, size)?;
            }
            if offset > size { self.zero_tail(inode, size) } else { Ok(()) }
        })();
        if let Err(error) = filled {
            self.volume.alloc.unpromise(fresh.iter().map(|run| run.len() as u64).sum());
            return Err(error);
        }
        {
            // Before the pages are dirty: writeback leaves out what lies past the size.
            let mut state = inode.state.write();
            for run in fresh {
                state.delayed.insert(run);
            }
            if end > state.size {
                state.size = end;
                state.unsaved_size = true;
            }
            state.disk.mtime = disk_time(cx.now);
            state.disk.ctime = disk_time(cx.now);
            state.unsaved = true;
        }
        inode.pages.write(offset, data);
        self.queue(inode);
        Ok(())
    }

    /// Zeroes the rest of the block that holds the end of the file, in the cache and so, at the next
    /// writeback, on the device: what lies there must not show when the file grows.
    pub(crate) fn zero_tail(&self, inode: &Arc<Inode>, size: u64) -> Result<()> {
        let block_size = self.block_size();
        let rest = size.next_multiple_of(block_size) - size;
        if rest == 0 {
            return Ok(());
        }
        let block = self.block_of(size);
        let placed = {
            let state = inode.state.read();
            let mapping = extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))?;
            matches!(mapping, Mapping::Mapped { unwritten: false, .. })
                || state.delayed.run_of(block).is_some()
        };
        if placed {
            self.ensure_page(inode, size / PAGE, size)?;
            inode.pages.write_zeroes(size, rest as usize);
            self.queue(inode);
        }
        Ok(())
    }
}

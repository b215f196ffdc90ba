//! Giving blocks back: truncation, holes, deletion.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;

use onggi_ext4_volume::alloc;
use onggi_ext4_volume::extents::{self, Progress};
use onggi_vfs::{Context, Timestamp};

use super::PAGE;
use crate::Ext4;
use crate::core::{Result, disk_time};
use crate::inode::{Inode, State};
use crate::orphan;

/// Blocks that one step of an unmapping may change.
const STEP_CREDITS: u32 = 64;

impl Ext4 {
    /// Sets the size of a regular file. The caller holds `ops` exclusively.
    pub(crate) fn set_size(&self, cx: &Context, inode: &Arc<Inode>, new: u64) -> Result<()> {
        let old = inode.state.read().size;
        match new.cmp(&old) {
            Ordering::Less => self.shrink(cx, inode, new),
            Ordering::Greater => self.grow(cx, inode, old, new),
            Ordering::Equal => {
                let mut state = inode.state.write();
                state.disk.ctime = disk_time(cx.now);
                state.unsaved = true;
                drop(state);
                self.queue(inode);
                Ok(())
            }
        }
    }

    fn grow(&self, cx: &Context, inode: &Arc<Inode>, old: u64, new: u64) -> Result<()> {
        // What lies below the new size, zeroes behind the old end included, is on the device before a
        // transaction shows that size.
        self.zero_tail(inode, old)?;
        self.write_back(inode)?;
        self.change(2, |h| {
            let mut state = inode.state.write();
            state.size = new;
            state.disk.size = new;
            stamp(&mut state, cx);
            self.save_contents(h, inode.nr, &mut state)
        })
    }

    fn shrink(&self, cx: &Context, inode: &Arc<Inode>, new: u64) -> Result<()> {
        let _exclusive = inode.writeback.lock();
        let first = self.blocks_for(new);
        inode.pages.forget_range(new, (inode.state.read().size - new).next_multiple_of(PAGE) + PAGE);
        self.drop_delayed(&mut inode.state.write(), first..u32::MAX);
        if inode.state.read().disk.size < new {
            self.write_back_locked(inode, 0..new.div_ceil(PAGE))?;
        }
        let more = self.change(STEP_CREDITS + orphan::CREDITS + 2, |h| {
            let mut state = inode.state.write();
            self.drop_preallocation(&mut state);
            state.goal = None;
            state.size = new;
            state.disk.size = new;
            stamp(&mut state, cx);
            self.unmap_step(h, inode, &mut state, first..u32::MAX)
        })?;
        if let Some(end) = more {
            self.unmap_rest(inode, first..end, |_| {})?;
        }
        self.zero_tail(inode, new)
    }

    /// Takes promises back for blocks that will not be written.
    pub(crate) fn drop_delayed(&self, state: &mut State, blocks: Range<u32>) {
        let dropped = state.delayed.remove(blocks);
        self.volume.alloc.unpromise(dropped);
    }

    /// Unmaps as much of the range, from its end, as the handle has room for and saves the inode. What is
    /// left ends at the block returned; the inode is then an orphan, so that recovery goes on where a
    /// power cut interrupts (a truncation by the size; for a hole there is nothing that must go on).
    fn unmap_step(
        &self,
        h: &mut onggi_ext4_volume::Handle<'_>,
        inode: &Arc<Inode>,
        state: &mut State,
        range: Range<u32>,
    ) -> Result<Option<u32>> {
        let revoke = self.revokes(inode, state);
        let progress = extents::remove(&self.volume, h, inode.nr, &mut state.disk, range.clone(), revoke)?;
        let more = match progress {
            Progress::Done => None,
            Progress::More(end) => Some(end),
        };
        if more.is_some() && !state.is_orphan && range.end == u32::MAX {
            self.orphans.add(&self.volume, h, inode.nr)?;
            state.is_orphan = true;
        }
        self.save_contents(h, inode.nr, state)?;
        Ok(more)
    }

    /// Whether freed blocks of the file need revoke records: only what went through the journal does.
    fn revokes(&self, inode: &Inode, state: &State) -> bool {
        inode.kind != onggi_disk_format::ext4::FileType::Regular
            || self.options.data == crate::DataMode::Journal
            || state.journals_data()
    }

    /// Unmaps the range in as many transactions as it takes; `last` changes the inode with the final one.
    fn unmap_rest(&self, inode: &Arc<Inode>, mut range: Range<u32>, last: impl Fn(&mut State)) -> Result<()> {
        loop {
            let more = self.change(STEP_CREDITS + orphan::CREDITS + 2, |h| {
                let mut state = inode.state.write();
                let more = self.unmap_step(h, inode, &mut state, range.clone())?;
                if more.is_none() {
                    last(&mut state);
                    if state.is_orphan && state.disk.links_count != 0 {
                        self.orphans.remove(&self.volume, h, inode.nr)?;
                        state.is_orphan = false;
                        state.disk.dtime = 0;
                    }
                    self.save_contents(h, inode.nr, &mut state)?;
                }
                Ok(more)
            })?;
            match more {
                Some(end) => range.end = end,
                None => return Ok(()),
            }
        }
    }

    /// Makes whole blocks of a file a hole. The caller holds `ops` exclusively and `writeback`.
    pub(crate) fn unmap_blocks(&self, cx: &Context, inode: &Arc<Inode>, blocks: Range<u32>) -> Result<()> {
        self.drop_delayed(&mut inode.state.write(), blocks.clone());
        self.unmap_rest(inode, blocks, |state| stamp(state, cx))
    }

    /// Frees an inode that has no name and that nobody holds, or leaves it to whoever still does.
    pub(crate) fn delete(&self, inode: &Arc<Inode>, now: Timestamp) -> Result<()> {
        let _ops = inode.ops.write();
        let _exclusive = inode.writeback.lock();
        {
            let mut state = inode.state.write();
            if state.freed || state.disk.links_count != 0 || inode.is_retained() {
                return Ok(());
            }
            state.freed = true;
            inode.pages.clear();
            self.drop_delayed(&mut state, 0..u32::MAX);
            self.drop_preallocation(&mut state);
        }
        if inode.has_blocks() {
            self.unmap_rest(inode, 0..u32::MAX, |_| {})?;
        }
        // A number that is free may be handed out at once; its table entry must not be in the way.
        self.inodes.remove(inode);
        self.change(alloc::CREDITS_FREE_INODE + orphan::CREDITS + 4, |h| {
            let mut state = inode.state.write();
            onggi_ext4_volume::xattr::release_block(&self.volume, h, inode.nr, &mut state.disk)?;
            if state.is_orphan {
                self.orphans.remove(&self.volume, h, inode.nr)?;
                state.is_orphan = false;
            }
            state.size = 0;
            state.disk.size = 0;
            state.disk.dtime = (now.sec as u32).max(1);
            state.disk.ctime = disk_time(now);
            self.save(h, inode.nr, &mut state)?;
            self.volume.alloc.free_inode(&self.volume, h, inode.nr, inode.is_dir())
        })
    }

    /// Finishes what a power cut interrupted: frees inodes without names, truncates others to their size.
    pub(crate) fn finish_orphans(&self, found: &[onggi_disk_format::InodeNr], now: Timestamp) -> Result<()> {
        for &nr in found {
            let disk = self.volume.read_inode(nr)?;
            let inode = Inode::new(nr, disk, &self.pages, self.volume.block_size());
            inode.state.write().is_orphan = true;
            self.inodes.insert(&inode);
            if inode.state.read().disk.links_count == 0 {
                self.delete(&inode, now)?;
            } else {
                let first = self.blocks_for(inode.state.read().size);
                self.unmap_rest(&inode, first..u32::MAX, |_| {})?;
                self.zero_tail(&inode, inode.state.read().size)?;
            }
        }
        if !found.is_empty() {
            tracing::info!(count = found.len(), "finished deletions and truncations from before");
            self.write_everything()?;
        }
        Ok(())
    }
}

impl Inode {
    /// Whether the inode's `i_block` can lead to blocks.
    fn has_blocks(&self) -> bool {
        use onggi_disk_format::ext4::{FileType, InodeFlags};
        matches!(self.kind, FileType::Regular | FileType::Directory | FileType::Symlink)
            && self.state.read().disk.flags.contains(InodeFlags::EXTENTS)
    }
}

fn stamp(state: &mut State, cx: &Context) {
    state.disk.mtime = disk_time(cx.now);
    state.disk.ctime = disk_time(cx.now);
}

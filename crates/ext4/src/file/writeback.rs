//! Writing dirty pages to the device, and only then letting the volume's metadata say where they are.
//!
//! What is on the device at each instant: blocks for new data are taken out of the free space in memory
//! only; the data is written there; when the writes are complete a transaction marks the blocks used and
//! puts them in the extent tree. Its commit flushes before its commit record, so no transaction that is
//! durable leads to a block whose data is not. A power cut before the commit leaves blocks that are free on
//! the volume, whatever they hold.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use onggi_block_device::Write;
use onggi_disk_format::ext4::Extent;
use onggi_disk_format::{DiskBlock, FileBlock};
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_ext4_volume::{BlockRun, Handle, VolumeError};
use onggi_page_cache::DirtyPage;

use super::PAGE;
use crate::Ext4;
use crate::core::Result;
use crate::inode::{Inode, State};
use crate::options::DataMode;

/// Pages that go to the device in one batch.
const BATCH: usize = 1024;
/// Blocks set aside beyond the end of a growing file, at least and at most.
const SET_ASIDE: Range<u32> = 16..512;

/// Consecutive file blocks with consecutive places.
struct Piece {
    block: u32,
    run: BlockRun,
    place: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In the extent tree already.
    Old,
    /// In the extent tree as unwritten.
    Unwritten,
    /// Taken for this write; the volume does not know yet.
    New,
}

impl Ext4 {
    /// Writes the file's dirty pages back. Data that could not be written stays dirty, and the error is
    /// counted for every open descriptor.
    pub(crate) fn write_back(&self, inode: &Arc<Inode>) -> Result<()> {
        self.write_back_pages(inode, 0..u64::MAX)
    }

    pub(crate) fn write_back_pages(&self, inode: &Arc<Inode>, pages: Range<u64>) -> Result<()> {
        let _exclusive = inode.writeback.lock();
        self.write_back_locked(inode, pages)
    }

    /// As [`Ext4::write_back_pages`]; the caller holds `writeback`.
    pub(crate) fn write_back_locked(&self, inode: &Arc<Inode>, mut pages: Range<u64>) -> Result<()> {
        loop {
            let taken = inode.pages.take_dirty(pages.clone(), BATCH);
            let Some(last) = taken.last() else { return Ok(()) };
            // Pages dirtied behind this point while we write belong to the next round.
            pages.start = last.page + 1;
            match self.write_pages(inode, &taken) {
                Ok(()) => inode.pages.written(taken.iter().map(|dirty| dirty.page)),
                Err(error) => {
                    inode.pages.untake(&taken);
                    inode.note_write_error(crate::error::errno_of(&error));
                    self.queue(inode);
                    return Err(error);
                }
            }
        }
    }

    fn write_pages(&self, inode: &Arc<Inode>, taken: &[DirtyPage]) -> Result<()> {
        let mut plan = self.plan(inode, taken);
        if matches!(plan, Err(VolumeError::NoSpace)) {
            self.drop_preallocations();
            self.commit_all()?;
            plan = self.plan(inode, taken);
        }
        let pieces = plan?;
        let written = if self.data_in_journal(inode) {
            return self.journal_data(inode, taken, &pieces);
        } else {
            self.write_data(taken, &pieces)
        };
        if let Err(error) = written {
            self.give_back(&pieces);
            return Err(error);
        }
        self.attach(inode, &pieces)
    }

    fn give_back(&self, pieces: &[Piece]) {
        for piece in pieces.iter().filter(|piece| piece.place == Kind::New) {
            self.volume.alloc.give_back(piece.run);
        }
    }

    pub(crate) fn data_in_journal(&self, inode: &Inode) -> bool {
        self.options.data == DataMode::Journal || inode.state.read().journals_data()
    }

    /// Finds or takes a place for each dirty block; on an error nothing is taken.
    fn plan(&self, inode: &Inode, taken: &[DirtyPage]) -> Result<Vec<Piece>> {
        let mut state = inode.state.write();
        let mut pieces = Vec::new();
        for run in self.dirty_runs(taken, self.blocks_for(state.size)) {
            if let Err(error) = self.plan_run(inode, &mut state, run, &mut pieces) {
                self.give_back(&pieces);
                return Err(error);
            }
        }
        Ok(pieces)
    }

    /// Runs of dirty blocks, in order, below block `end`.
    fn dirty_runs(&self, taken: &[DirtyPage], end: u32) -> Vec<Range<u32>> {
        let per_page = (PAGE / self.block_size()) as u32;
        let mut runs: Vec<Range<u32>> = Vec::new();
        for dirty in taken {
            let first = self.block_of(dirty.page * PAGE);
            for index in (0..per_page).filter(|index| dirty.blocks >> index & 1 != 0) {
                let block = first + index;
                match runs.last_mut() {
                    _ if block >= end => return runs,
                    Some(run) if run.end == block => run.end += 1,
                    _ => runs.push(block..block + 1),
                }
            }
        }
        runs
    }

    fn plan_run(
        &self,
        inode: &Inode,
        state: &mut State,
        run: Range<u32>,
        pieces: &mut Vec<Piece>,
    ) -> Result<()> {
        let mut block = run.start;
        while block < run.end {
            let left = run.end - block;
            let piece = match extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))? {
                Mapping::Mapped { start, len, unwritten } => Piece {
                    block,
                    run: BlockRun { start, len: len.min(left) },
                    place: if unwritten { Kind::Unwritten } else { Kind::Old },
                },
                Mapping::Hole { len } => {
                    let run = self.take(inode, state, block, len.min(left))?;
                    Piece { block, run, place: Kind::New }
                }
            };
            block += piece.run.len;
            pieces.push(piece);
        }
        Ok(())
    }

    /// Takes up to `want` blocks for the file's block `block`, near what the file has already.
    fn take(&self, inode: &Inode, state: &mut State, block: u32, want: u32) -> Result<BlockRun> {
        if let Some(aside) = &mut state.preallocated {
            let run = BlockRun { start: aside.start, len: want.min(aside.len) };
            aside.start = run.end();
            aside.len -= run.len;
            if aside.len == 0 {
                state.preallocated = None;
            }
            state.goal = Some(run.end());
            return Ok(run);
        }
        let goal = match state.goal {
            Some(goal) => goal,
            None => self.goal(inode, state, block)?,
        };
        let grows = state.disk.blocks != 0 && block + want >= self.blocks_for(state.size);
        let extra = if grows { want.clamp(SET_ASIDE.start, SET_ASIDE.end) } else { 0 };
        let mut run = self.volume.alloc.take(&self.volume, goal, want.saturating_add(extra))?;
        if run.len > want {
            let aside = BlockRun { start: DiskBlock(run.start.0 + u64::from(want)), len: run.len - want };
            state.preallocated = Some(aside);
            run.len = want;
        }
        state.goal = Some(run.end());
        Ok(run)
    }

    /// Right behind the file's block before this one, else where the inode's group has its data.
    fn goal(&self, inode: &Inode, state: &State, block: u32) -> Result<DiskBlock> {
        if let Some(before) = block.checked_sub(1)
            && let Mapping::Mapped { start, .. } =
                extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(before))?
        {
            return Ok(DiskBlock(start.0 + 1));
        }
        Ok(self.volume.alloc.inode_goal(inode.nr))
    }

    fn write_data(&self, taken: &[DirtyPage], pieces: &[Piece]) -> Result<()> {
        let block_size = self.block_size();
        let mut slices = Vec::new();
        let mut extents = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let from = slices.len();
            slices.extend(self.contents(taken, piece).map(IoSlice::new));
            extents.push((piece.run.start.0 * block_size, from..slices.len()));
        }
        let batch: Vec<Write<'_>> = extents
            .into_iter()
            .map(|(offset, range)| Write { offset, bufs: &slices[range], fua: false })
            .collect();
        self.volume.device().write(&batch)?;
        Ok(())
    }

    /// The content of each block of a piece, in order.
    fn contents<'t>(&self, taken: &'t [DirtyPage], piece: &Piece) -> impl Iterator<Item = &'t [u8]> {
        let block_size = self.block_size() as usize;
        let per_page = (PAGE / self.block_size()) as u32;
        let first_page = u64::from(piece.block / per_page);
        let start = taken.partition_point(|dirty| dirty.page < first_page);
        (piece.block..piece.block + piece.run.len).map(move |block| {
            // A piece is made of consecutive blocks, so its pages follow each other in `taken`.
            let dirty = &taken[start + (u64::from(block / per_page) - first_page) as usize];
            let at = (block % per_page) as usize * block_size;
            &dirty.data[at..at + block_size]
        })
    }

    /// Puts what is written into the extent tree, in as many transactions as that takes; the size on the
    /// volume follows.
    fn attach(&self, inode: &Arc<Inode>, pieces: &[Piece]) -> Result<()> {
        let mut next = 0;
        while next < pieces.len() {
            if !self.needs_transaction(inode, &pieces[next..]) {
                return Ok(());
            }
            let credits = self.attach_credits(inode);
            let budget = credits.saturating_mul(4).min(self.volume.journal.max_credits());
            let result = self.change(budget, |h| {
                let mut state = inode.state.write();
                let mut done = next;
                let mut full = None;
                while done < pieces.len() && (done == next || h.credits_left() >= credits) {
                    match self.attach_piece(h, inode, &mut state, &pieces[done]) {
                        Ok(()) => done += 1,
                        // Undone for this piece; the ones before it are in the tree and are saved.
                        Err(error @ (VolumeError::NoSpace | VolumeError::Limit(_))) => {
                            full = Some(error);
                            break;
                        }
                        Err(error) => return Err(error),
                    }
                }
                self.save_contents(h, inode.nr, &mut state)?;
                Ok((done, full))
            });
            match result {
                Ok((done, None)) => next = done,
                Ok((done, Some(error))) => {
                    self.give_back(&pieces[done + 1..]);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn attach_credits(&self, inode: &Inode) -> u32 {
        let state = inode.state.read();
        let edit = extents::credits_for_insert(&state.disk, 1).max(extents::credits_for_convert(&state.disk));
        edit + onggi_ext4_volume::alloc::CREDITS_MARK_USED + 2
    }

    fn needs_transaction(&self, inode: &Inode, pieces: &[Piece]) -> bool {
        let state = inode.state.read();
        let end = pieces.last().map_or(0, |last| u64::from(last.block + last.run.len) * self.block_size());
        pieces.iter().any(|piece| piece.place != Kind::Old) || end.min(state.size) > state.disk.size
    }

    fn attach_piece(
        &self,
        h: &mut Handle<'_>,
        inode: &Inode,
        state: &mut State,
        piece: &Piece,
    ) -> Result<()> {
        let blocks = piece.block..piece.block + piece.run.len;
        match piece.place {
            Kind::Old => {}
            Kind::Unwritten => {
                let (volume, disk) = (&self.volume, &mut state.disk);
                let progress = extents::convert(volume, h, inode.nr, disk, blocks.clone(), false)?;
                debug_assert_eq!(progress, extents::Progress::Done, "a piece lies in one extent");
            }
            Kind::New => self.insert_new(h, inode, state, piece)?,
        }
        let end = (u64::from(blocks.end) * self.block_size()).min(state.size);
        state.disk.size = state.disk.size.max(end);
        Ok(())
    }

    fn insert_new(&self, h: &mut Handle<'_>, inode: &Inode, state: &mut State, piece: &Piece) -> Result<()> {
        let longest = u32::from(onggi_disk_format::ext4::extent::MAX_LEN);
        self.volume.alloc.mark_used(&self.volume, h, piece.run)?;
        let mut done = 0;
        while done < piece.run.len {
            let len = (piece.run.len - done).min(longest);
            let extent = Extent {
                block: FileBlock(piece.block + done),
                len: len as u16,
                start: DiskBlock(piece.run.start.0 + u64::from(done)),
                unwritten: false,
            };
            if let Err(error) = extents::insert(&self.volume, h, inode.nr, &mut state.disk, extent) {
                // What did get in stays; its blocks are in use, the rest goes back.
                let rest = BlockRun { start: extent.start, len: piece.run.len - done };
                self.volume.alloc.mark_free(&self.volume, h, rest)?;
                return Err(error);
            }
            let kept = state.delayed.remove(extent.block.0..extent.block.0 + len);
            self.volume.alloc.unpromise(kept);
            done += len;
        }
        Ok(())
    }

    /// `data=journal`: place and content in one transaction.
    fn journal_data(&self, inode: &Arc<Inode>, taken: &[DirtyPage], pieces: &[Piece]) -> Result<()> {
        let credits = self.attach_credits(inode);
        let longest = (self.volume.journal.max_credits() / 2).saturating_sub(credits).max(1);
        let mut rest: Vec<Piece> = Vec::new();
        for piece in pieces {
            let mut done = 0;
            while done < piece.run.len {
                let len = (piece.run.len - done).min(longest);
                let start = DiskBlock(piece.run.start.0 + u64::from(done));
                rest.push(Piece {
                    block: piece.block + done,
                    run: BlockRun { start, len },
                    place: piece.place,
                });
                done += len;
            }
        }
        for (index, piece) in rest.iter().enumerate() {
            let result = self.change(credits + piece.run.len, |h| {
                let mut state = inode.state.write();
                for (offset, content) in self.contents(taken, piece).enumerate() {
                    let block = DiskBlock(piece.run.start.0 + offset as u64);
                    let buffer =
                        self.volume.buffers.peek(block).unwrap_or_else(|| self.volume.buffers.fresh(block));
                    h.modify(&buffer, |bytes| bytes.copy_from_slice(content))?;
                }
                self.attach_piece(h, inode, &mut state, piece)?;
                self.save_contents(h, inode.nr, &mut state)
            });
            if let Err(error) = result {
                self.give_back(&rest[index..]);
                return Err(error);
            }
        }
        Ok(())
    }
}

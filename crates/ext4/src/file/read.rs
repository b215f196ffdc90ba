//! Reading: from the page cache, filling it in long requests.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use onggi_block_device::{AlignedBuf, Read};
use onggi_disk_format::{DiskBlock, FileBlock};
use onggi_ext4_volume::extents::{self, Mapping};
use onggi_page_cache::PAGE_SIZE;

use super::PAGE;
use crate::Ext4;
use crate::core::Result;
use crate::inode::Inode;

/// Pages of one request to the device, at most.
const LONGEST_FILL: u64 = 256;
/// Pages that the read-ahead thread fills at once, at most.
const LONGEST_WINDOW: u64 = 1024;
/// Pages the first sequential read reads ahead.
const FIRST_WINDOW: u64 = 32;

impl Ext4 {
    /// Reads up to the end of the file. The caller holds `ops` shared.
    pub(crate) fn read_locked(&self, inode: &Arc<Inode>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let size = inode.state.read().size;
        if offset >= size {
            return Ok(0);
        }
        let len = buf.len().min(usize::try_from(size - offset).unwrap_or(usize::MAX));
        let buf = &mut buf[..len];
        let ahead = self.window(inode, offset, len);
        let end = (offset + len as u64).div_ceil(PAGE);
        let mut done = 0;
        loop {
            done += inode.pages.read(offset + done as u64, &mut buf[done..]);
            if done == len {
                self.prefetch(inode, end, ahead, size);
                return Ok(len);
            }
            let first = (offset + done as u64) / PAGE;
            if self.wait_for_prefetch(inode, first) {
                continue;
            }
            let wanted = end + ahead;
            let range = first..wanted.min(size.div_ceil(PAGE)).min(first + LONGEST_FILL);
            // Somebody else may have filled or the cache dropped them meanwhile: look again.
            if let Some(missing) = inode.pages.first_missing(range) {
                self.fill(inode, missing, size)?;
            }
        }
    }

    /// Pages to read past the request: more with every read that goes on where the last one ended.
    fn window(&self, inode: &Inode, offset: u64, len: usize) -> u64 {
        let sequential = inode.read_end.swap(offset + len as u64, Ordering::Relaxed) == offset;
        let window = match (sequential, inode.read_window.load(Ordering::Relaxed)) {
            (false, _) => 0,
            (true, 0) => FIRST_WINDOW,
            (true, window) => (window * 2).min(LONGEST_WINDOW),
        };
        inode.read_window.store(window, Ordering::Relaxed);
        // A cache that holds little holds no long read-ahead either.
        window.min(self.pages.budget_bytes() / PAGE / 8)
    }

    /// Reads pages into the cache. Bytes past `size` become zeroes, whatever the block holds there.
    pub(crate) fn fill(&self, inode: &Inode, missing: Range<u64>, size: u64) -> Result<()> {
        let block_size = self.block_size();
        let mut pages: Vec<AlignedBuf> = missing.clone().map(|_| self.pages.take_page()).collect();
        let first = self.block_of(missing.start * PAGE);
        let end = self.blocks_for((missing.end * PAGE).min(size.next_multiple_of(block_size)));
        let places = self.places(inode, first..end)?;
        let mut requests: Vec<(u64, Vec<IoSliceMut<'_>>)> = Vec::new();
        let slots = pages.iter_mut().flat_map(|page| page.chunks_exact_mut(block_size as usize));
        let mut follows = None;
        for (index, slot) in slots.enumerate() {
            match places.get(index).copied().flatten() {
                None => {
                    slot.fill(0);
                    follows = None;
                }
                Some(block) => {
                    if let Some(newer) = self.journaled(inode, block) {
                        slot.copy_from_slice(&newer);
                        follows = None;
                        continue;
                    }
                    match requests.last_mut() {
                        Some((_, slots)) if follows == Some(block) => slots.push(IoSliceMut::new(slot)),
                        _ => requests.push((block.0 * block_size, vec![IoSliceMut::new(slot)])),
                    }
                    follows = Some(DiskBlock(block.0 + 1));
                }
            }
        }
        let mut batch: Vec<Read<'_, '_>> =
            requests.iter_mut().map(|(offset, bufs)| Read { offset: *offset, bufs }).collect();
        if !batch.is_empty() {
            self.volume.device().read(&mut batch)?;
        }
        if size < missing.end * PAGE && size > missing.start * PAGE {
            let page = ((size - missing.start * PAGE) / PAGE) as usize;
            pages[page][(size % PAGE) as usize..].fill(0);
        }
        inode.pages.fill(missing.zip(pages));
        Ok(())
    }

    /// Where each block of the range lies; `None` for one that reads as zeroes.
    fn places(&self, inode: &Inode, blocks: Range<u32>) -> Result<Vec<Option<DiskBlock>>> {
        let mut places = Vec::with_capacity(blocks.len());
        let state = inode.state.read();
        let mut block = blocks.start;
        while block < blocks.end {
            let left = blocks.end - block;
            let mapping = extents::lookup(&self.volume, inode.nr, &state.disk, FileBlock(block))?;
            let len = match mapping {
                Mapping::Mapped { start, len, unwritten: false } => {
                    let len = len.min(left);
                    places.extend((0..u64::from(len)).map(|index| Some(DiskBlock(start.0 + index))));
                    len
                }
                Mapping::Mapped { len, .. } | Mapping::Hole { len } => {
                    let len = len.min(left);
                    places.extend((0..len).map(|_| None));
                    len
                }
            };
            block += len;
        }
        Ok(places)
    }

    /// Journaled data that may not be at home yet.
    fn journaled(&self, inode: &Inode, block: DiskBlock) -> Option<Arc<AlignedBuf>> {
        if !self.data_in_journal(inode) {
            return None;
        }
        self.volume.buffers.peek(block).map(|buffer| buffer.snapshot())
    }

    /// Makes sure that a page of which only a part is about to change is cached.
    pub(crate) fn ensure_page(&self, inode: &Inode, page: u64, size: u64) -> Result<()> {
        if page * PAGE < size && !inode.pages.contains(page) {
            self.fill(inode, page..page + 1, size)?;
        }
        Ok(())
    }
}

const _: () = assert!(PAGE as usize == PAGE_SIZE);

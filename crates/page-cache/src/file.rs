//! The pages of one file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use onggi_block_device::AlignedBuf;
use parking_lot::RwLock;

use crate::PageCache;

/// Bytes in a page.
pub const PAGE_SIZE: usize = 4096;

/// One page: its content is an immutable snapshot as soon as somebody else holds it.
struct Slot {
    data: Arc<AlignedBuf>,
    /// One bit for each block of the page that differs from the device, lowest block first.
    dirty: u8,
    /// A writeback of an earlier content has not ended.
    in_flight: bool,
    referenced: AtomicBool,
}

/// A dirty page on its way to the device.
#[derive(Clone, Debug)]
pub struct DirtyPage {
    /// Page number in the file.
    pub page: u64,
    /// Its blocks to write, one bit each, lowest block first.
    pub blocks: u8,
    /// Its content when it was taken; later writes to the page do not show here.
    pub data: Arc<AlignedBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eviction {
    Gone,
    Keep,
}

/// The cached pages of one file. The caller's own lock keeps size changes and reads apart; the page
/// lock here only keeps the table whole.
pub struct FilePages {
    cache: Arc<PageCache>,
    me: Weak<FilePages>,
    block_size: usize,
    pages: RwLock<Table>,
}

/// Every cached page, and which of them are dirty.
#[derive(Default)]
struct Table {
    slots: BTreeMap<u64, Slot>,
    dirty: BTreeSet<u64>,
}

impl Table {
    fn remove(&mut self, page: u64) -> Option<Slot> {
        self.dirty.remove(&page);
        self.slots.remove(&page)
    }
}

impl FilePages {
    /// No pages yet. `block_size` divides or is a multiple of a page; dirtiness is kept per block.
    #[must_use]
    pub fn new(cache: &Arc<PageCache>, block_size: u32) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            cache: Arc::clone(cache),
            me: Weak::clone(me),
            block_size: (block_size as usize).min(PAGE_SIZE),
            pages: RwLock::new(Table::default()),
        })
    }

    /// Copies out the longest cached prefix of `[pos, pos + buf.len())`; returns its length.
    pub fn read(&self, pos: u64, buf: &mut [u8]) -> usize {
        let pages = self.pages.read();
        let mut done = 0;
        for (page, at, from, take) in pieces(pos, buf.len()) {
            let Some(slot) = pages.slots.get(&page) else { break };
            slot.referenced.store(true, Ordering::Relaxed);
            buf[from..from + take].copy_from_slice(&slot.data[at..at + take]);
            done += take;
        }
        done
    }

    /// Whether a page is cached.
    #[must_use]
    pub fn contains(&self, page: u64) -> bool {
        self.pages.read().slots.contains_key(&page)
    }

    /// The first run of pages within `range` that is not cached.
    #[must_use]
    pub fn first_missing(&self, range: Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        let pages = self.pages.read();
        let mut start = range.start;
        for (&page, _) in pages.slots.range(range.clone()) {
            if page > start {
                return Some(start..page);
            }
            start = page + 1;
        }
        (start < range.end).then_some(start..range.end)
    }

    /// Adds pages read from the device. A page that is cached already stays as it is: it may be newer.
    pub fn fill(&self, filled: impl Iterator<Item = (u64, AlignedBuf)>) {
        let mut added = Vec::new();
        {
            let mut pages = self.pages.write();
            for (page, data) in filled {
                if let std::collections::btree_map::Entry::Vacant(vacant) = pages.slots.entry(page) {
                    vacant.insert(Slot::new(data));
                    added.push(page);
                } else {
                    self.cache.give_page(data);
                }
            }
        }
        self.cache.added(&self.me, added.into_iter());
        self.cache.shrink();
    }

    /// Writes `data` at `pos`. A page that is not cached starts as zeroes: the caller has filled those of
    /// which only a part is written.
    pub fn write(&self, pos: u64, data: &[u8]) {
        self.change(pos, data.len(), |piece, from| piece.copy_from_slice(&data[from..from + piece.len()]));
    }

    /// Zeroes the range and marks it dirty; the same rule for uncached pages as [`FilePages::write`].
    pub fn write_zeroes(&self, pos: u64, len: usize) {
        self.change(pos, len, |piece, _| piece.fill(0));
    }

    fn change(&self, pos: u64, len: usize, mut put: impl FnMut(&mut [u8], usize)) {
        let (mut added, mut dirtied) = (Vec::new(), 0);
        {
            let mut table = self.pages.write();
            let Table { slots, dirty } = &mut *table;
            for (page, at, from, take) in pieces(pos, len) {
                let slot = slots.entry(page).or_insert_with(|| {
                    added.push(page);
                    let whole = take == PAGE_SIZE;
                    Slot::new(if whole { self.cache.take_page() } else { self.cache.take_zeroed() })
                });
                put(&mut Arc::make_mut(&mut slot.data)[at..at + take], from);
                slot.referenced.store(true, Ordering::Relaxed);
                if slot.dirty == 0 {
                    dirty.insert(page);
                    dirtied += 1;
                }
                slot.dirty |= self.mask(at, take);
            }
        }
        self.cache.dirtied(dirtied);
        if !added.is_empty() {
            self.cache.added(&self.me, added.into_iter());
            self.cache.shrink();
        }
    }

    /// Zeroes the cached part of the range without marking anything dirty: what lies below is a hole now
    /// or past the end. Blocks wholly inside the range become clean.
    pub fn forget_range(&self, pos: u64, len: u64) {
        let end = pos.saturating_add(len);
        let (first, last) = (pos / PAGE_SIZE as u64, end.div_ceil(PAGE_SIZE as u64));
        let mut cleaned = 0;
        let mut dropped = 0;
        {
            let mut pages = self.pages.write();
            let numbers: Vec<u64> = pages.slots.range(first..last).map(|(&page, _)| page).collect();
            for page in numbers {
                let start = page * PAGE_SIZE as u64;
                let (from, to) = (pos.max(start), end.min(start + PAGE_SIZE as u64));
                let slot = pages.slots.get_mut(&page).expect("listed under the same lock");
                let was_dirty = slot.dirty != 0;
                if to - from == PAGE_SIZE as u64 && !slot.in_flight {
                    let slot = pages.remove(page).expect("listed under the same lock");
                    self.cache.recycle(slot.data);
                    dropped += 1;
                    cleaned += usize::from(was_dirty);
                    continue;
                }
                let (at, to) = ((from - start) as usize, (to - start) as usize);
                Arc::make_mut(&mut slot.data)[at..to].fill(0);
                let (inner, inner_end) = (at.next_multiple_of(self.block_size), to - to % self.block_size);
                if inner < inner_end {
                    slot.dirty &= !self.mask(inner, inner_end - inner);
                }
                if was_dirty && slot.dirty == 0 {
                    pages.dirty.remove(&page);
                    cleaned += 1;
                }
            }
        }
        self.cache.cleaned(cleaned);
        self.cache.removed(dropped);
    }

    /// Takes up to `max` dirty pages of the range for writeback, in order: they count as clean from here
    /// on, and stay cached until [`FilePages::written`]. Pages already in flight are left out.
    pub fn take_dirty(&self, range: Range<u64>, max: usize) -> Vec<DirtyPage> {
        let mut taken = Vec::new();
        {
            let mut table = self.pages.write();
            let Table { slots, dirty } = &mut *table;
            for &page in dirty.range(range) {
                let slot = slots.get_mut(&page).expect("a dirty page is cached");
                if slot.in_flight {
                    continue;
                }
                taken.push(DirtyPage { page, blocks: slot.dirty, data: Arc::clone(&slot.data) });
                slot.dirty = 0;
                slot.in_flight = true;
                if taken.len() == max {
                    break;
                }
            }
            for taken in &taken {
                dirty.remove(&taken.page);
            }
        }
        self.cache.cleaned(taken.len());
        taken
    }

    /// Ends the writeback of pages that [`FilePages::take_dirty`] gave.
    pub fn written(&self, taken: impl IntoIterator<Item = u64>) {
        let mut pages = self.pages.write();
        for page in taken {
            if let Some(slot) = pages.slots.get_mut(&page) {
                slot.in_flight = false;
            }
        }
    }

    /// Ends a writeback that was not done: the blocks are dirty again, save those of pages that have
    /// gone meanwhile.
    pub fn untake(&self, taken: &[DirtyPage]) {
        let mut dirtied = 0;
        {
            let mut table = self.pages.write();
            let Table { slots, dirty } = &mut *table;
            for taken in taken {
                if let Some(slot) = slots.get_mut(&taken.page) {
                    if slot.dirty == 0 {
                        dirty.insert(taken.page);
                        dirtied += 1;
                    }
                    slot.dirty |= taken.blocks;
                    slot.in_flight = false;
                }
            }
        }
        self.cache.dirtied(dirtied);
    }

    /// Whether any page of the range is dirty.
    #[must_use]
    pub fn is_dirty(&self, range: Range<u64>) -> bool {
        self.pages.read().dirty.range(range).next().is_some()
    }

    /// Whether the page differs from the device or is on its way there.
    #[must_use]
    pub fn is_dirty_or_in_flight(&self, page: u64) -> bool {
        self.pages.read().slots.get(&page).is_some_and(|slot| slot.dirty != 0 || slot.in_flight)
    }

    /// Drops every page, dirty or not: the file is gone.
    pub fn clear(&self) {
        let pages = std::mem::take(&mut *self.pages.write());
        self.cache.cleaned(pages.dirty.len());
        self.cache.removed(pages.slots.len());
    }

    pub(crate) fn evict(&self, page: u64) -> Eviction {
        let slot = {
            // The hand may meet a file whose lock its own caller waits for: skip rather than wait.
            let Some(mut pages) = self.pages.try_write() else { return Eviction::Keep };
            match pages.slots.get(&page) {
                None => return Eviction::Gone,
                Some(slot) if slot.dirty != 0 || slot.in_flight => return Eviction::Keep,
                Some(slot) if slot.referenced.swap(false, Ordering::Relaxed) => return Eviction::Keep,
                Some(_) => pages.remove(page),
            }
        };
        if let Some(slot) = slot {
            self.cache.removed(1);
            self.cache.recycle(slot.data);
        }
        Eviction::Gone
    }

    /// Bits of the blocks that `[at, at + len)` of a page touches.
    fn mask(&self, at: usize, len: usize) -> u8 {
        let (first, last) = (at / self.block_size, (at + len - 1) / self.block_size);
        ((1u16 << (last + 1)) - (1u16 << first)) as u8
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Slot {
    fn new(data: AlignedBuf) -> Self {
        Self { data: Arc::new(data), dirty: 0, in_flight: false, referenced: AtomicBool::new(false) }
    }
}

/// Cuts `[pos, pos + len)` at page borders: (page, byte in it, byte in the range, length).
fn pieces(pos: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let here = pos + done as u64;
            let at = (here % PAGE_SIZE as u64) as usize;
            let take = (PAGE_SIZE - at).min(len - done);
            let piece = (here / PAGE_SIZE as u64, at, done, take);
            done += take;
            piece
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_flight_keeps_the_content_it_was_taken_with() {
        let cache = PageCache::new(1 << 20);
        let file = FilePages::new(&cache, 4096);
        file.write(0, b"old");
        let taken = file.take_dirty(0..u64::MAX, 8);
        file.write(0, b"new");
        assert_eq!(&taken[0].data[..3], b"old");
        let mut now = [0; 3];
        assert_eq!(file.read(0, &mut now), 3);
        assert_eq!(&now, b"new");
        assert!(file.take_dirty(0..u64::MAX, 8).is_empty(), "one writeback of a page at a time");
        file.written([0]);
        assert_eq!(file.take_dirty(0..u64::MAX, 8).len(), 1);
    }

    #[test]
    fn dirtiness_is_kept_per_block() {
        let cache = PageCache::new(1 << 20);
        let file = FilePages::new(&cache, 1024);
        file.write(1024, &[1; 1024]);
        file.write(3000, &[1; 100]);
        assert_eq!(file.take_dirty(0..9, 8)[0].blocks, 0b1110);
    }

    #[test]
    #[expect(
        clippy::reversed_empty_ranges,
        reason = "a file cut short leaves such a range to who reads ahead"
    )]
    fn nothing_is_missing_of_nothing() {
        let cache = PageCache::new(1 << 20);
        let file = FilePages::new(&cache, 4096);
        file.write(0, &[1; 4096]);
        assert_eq!((file.first_missing(9..2), file.first_missing(3..3)), (None, None));
        assert_eq!(file.first_missing(0..3), Some(1..3));
    }

    #[test]
    fn clean_pages_go_when_the_budget_is_full_and_dirty_ones_stay() {
        let cache = PageCache::new(64 * PAGE_SIZE as u64);
        let file = FilePages::new(&cache, 4096);
        file.write(0, &[7; 10 * PAGE_SIZE]);
        file.fill((100..400).map(|page| (page, AlignedBuf::zeroed(PAGE_SIZE))));
        assert!(cache.used_bytes() <= 64 * PAGE_SIZE as u64, "{cache:?}");
        assert_eq!(cache.dirty_bytes(), 10 * PAGE_SIZE as u64);
        assert!((0..10).all(|page| file.contains(page)));
        file.clear();
        assert_eq!((cache.used_bytes(), cache.dirty_bytes()), (0, 0));
    }

    #[test]
    fn forgetting_a_range_zeroes_edges_and_drops_whole_pages() {
        let cache = PageCache::new(1 << 20);
        let file = FilePages::new(&cache, 1024);
        file.write(0, &[9; 3 * PAGE_SIZE]);
        file.forget_range(1000, 8192);
        assert!(!file.contains(1));
        let mut bytes = [1; PAGE_SIZE];
        assert_eq!(file.read(0, &mut bytes), PAGE_SIZE);
        assert!(bytes[..1000].iter().all(|&byte| byte == 9) && bytes[1000..].iter().all(|&byte| byte == 0));
        let dirty = file.take_dirty(0..9, 8);
        assert_eq!((dirty[0].page, dirty[0].blocks), (0, 0b0001));
        assert_eq!((dirty[1].page, dirty[1].blocks), (2, 0b1111));
        assert_eq!(file.first_missing(0..5), Some(1..2));
    }
}

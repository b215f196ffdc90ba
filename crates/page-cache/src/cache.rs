//! What all files share: the budget, the clock hand, spare pages.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use onggi_block_device::AlignedBuf;
use parking_lot::Mutex;

use crate::file::{Eviction, FilePages, PAGE_SIZE};

/// Spare pages kept for reuse, so that a cache at its budget allocates nothing.
const SPARE_PAGES: usize = 4096;

/// The budget that all files of a volume share.
pub struct PageCache {
    budget: usize,
    pages: AtomicUsize,
    dirty: AtomicUsize,
    /// Second-chance clock over every cached page, in order of arrival.
    clock: Mutex<VecDeque<(Weak<FilePages>, u64)>>,
    spare: Mutex<Vec<AlignedBuf>>,
}

impl PageCache {
    /// A cache for at most `budget_bytes` of pages. Dirty pages are never dropped: the engine writes
    /// them back before they fill the budget.
    #[must_use]
    pub fn new(budget_bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            budget: usize::try_from(budget_bytes / PAGE_SIZE as u64).unwrap_or(usize::MAX).max(64),
            pages: AtomicUsize::new(0),
            dirty: AtomicUsize::new(0),
            clock: Mutex::new(VecDeque::new()),
            spare: Mutex::new(Vec::new()),
        })
    }

    /// Bytes the pages may take.
    #[must_use]
    pub fn budget_bytes(&self) -> u64 {
        (self.budget * PAGE_SIZE) as u64
    }

    /// Bytes in pages now.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        (counted(&self.pages) * PAGE_SIZE) as u64
    }

    /// Bytes in dirty pages now.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        (counted(&self.dirty) * PAGE_SIZE) as u64
    }

    /// A page of unspecified content.
    #[must_use]
    pub fn take_page(&self) -> AlignedBuf {
        self.spare.lock().pop().unwrap_or_else(|| AlignedBuf::zeroed(PAGE_SIZE))
    }

    /// A page of zeroes.
    #[must_use]
    pub fn take_zeroed(&self) -> AlignedBuf {
        match self.spare.lock().pop() {
            Some(mut page) => {
                page.fill(0);
                page
            }
            None => AlignedBuf::zeroed(PAGE_SIZE),
        }
    }

    /// Gives a page back for reuse.
    pub fn give_page(&self, page: AlignedBuf) {
        let mut spare = self.spare.lock();
        if spare.len() < SPARE_PAGES {
            spare.push(page);
        }
    }

    pub(crate) fn recycle(&self, page: Arc<AlignedBuf>) {
        if let Ok(page) = Arc::try_unwrap(page) {
            self.give_page(page);
        }
    }

    pub(crate) fn added(&self, file: &Weak<FilePages>, pages: impl Iterator<Item = u64>) {
        let mut clock = self.clock.lock();
        let before = clock.len();
        clock.extend(pages.map(|page| (Weak::clone(file), page)));
        self.pages.fetch_add(clock.len() - before, Ordering::Relaxed);
    }

    pub(crate) fn removed(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }

    pub(crate) fn dirtied(&self, pages: usize) {
        self.dirty.fetch_add(pages, Ordering::Relaxed);
    }

    pub(crate) fn cleaned(&self, pages: usize) {
        self.dirty.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Evicts clean pages until the budget holds or one turn of the clock found nothing more. Call with
    /// no file's page lock held.
    pub(crate) fn shrink(&self) {
        let mut turns = 2 * self.clock_len();
        while counted(&self.pages) > self.budget && turns > 0 {
            turns -= 1;
            let Some((file, page)) = self.clock.lock().pop_front() else { return };
            let Some(owner) = file.upgrade() else { continue };
            if owner.evict(page) == Eviction::Keep {
                self.clock.lock().push_back((file, page));
            }
        }
        self.sweep();
    }

    fn clock_len(&self) -> usize {
        self.clock.lock().len()
    }

    /// Entries of truncated pages and dropped files stay on the clock until its hand passes; this keeps
    /// their number within the number of live pages.
    fn sweep(&self) {
        let mut clock = self.clock.lock();
        if clock.len() > 4096 + 2 * counted(&self.pages) {
            clock.retain(|(file, page)| file.upgrade().is_some_and(|file| file.contains(*page)));
        }
    }
}

/// What a counter stands at. Pages are counted outside their file's lock, so that one thread may count a
/// page out before another has counted it in: for a moment it is below zero.
fn counted(counter: &AtomicUsize) -> usize {
    usize::try_from(counter.load(Ordering::Relaxed).cast_signed()).unwrap_or(0)
}

impl std::fmt::Debug for PageCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PageCache")
            .field("budget_bytes", &self.budget_bytes())
            .field("used_bytes", &self.used_bytes())
            .field("dirty_bytes", &self.dirty_bytes())
            .finish_non_exhaustive()
    }
}

//! Page-aligned memory for requests whose own memory direct I/O cannot take.

use std::ops::{Deref, DerefMut};

use parking_lot::Mutex;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// Alignment and smallest size of a bounce buffer, in bytes.
pub(crate) const PAGE: usize = 4096;

/// Size classes kept for reuse: one page shifted left by 0 to 8, so up to 1 MiB.
const CLASSES: usize = 9;

/// Bytes of idle buffers kept in one class.
const KEPT: usize = 4 << 20;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Idle buffers by size class.
#[derive(Default)]
pub(crate) struct BouncePool {
    idle: [Mutex<Vec<Box<[Page]>>>; CLASSES],
}

/// A borrowed page-aligned buffer; it goes back to its pool when dropped.
pub(crate) struct Bounce<'p> {
    pool: &'p BouncePool,
    pages: Box<[Page]>,
    len: usize,
}

impl BouncePool {
    /// A buffer of `len` bytes with unspecified contents.
    pub(crate) fn take(&self, len: usize) -> Bounce<'_> {
        let count = len.div_ceil(PAGE).max(1);
        let class = class_of(count);
        let idle = self.idle.get(class).and_then(|list| list.lock().pop());
        let pages = idle.unwrap_or_else(|| {
            let count = if class < CLASSES { 1 << class } else { count };
            <[Page]>::new_box_zeroed_with_elems(count).expect("out of memory")
        });
        Bounce { pool: self, pages, len }
    }

    fn give(&self, pages: Box<[Page]>) {
        let class = class_of(pages.len());
        if let Some(list) = self.idle.get(class) {
            let mut list = list.lock();
            if list.len() < KEPT / (PAGE << class) {
                list.push(pages);
            }
        }
    }
}

fn class_of(pages: usize) -> usize {
    pages.next_power_of_two().trailing_zeros() as usize
}

impl Deref for Bounce<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.pages.as_bytes()[..self.len]
    }
}

impl DerefMut for Bounce<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.pages.as_mut_bytes()[..self.len]
    }
}

impl Drop for Bounce<'_> {
    fn drop(&mut self) {
        self.pool.give(std::mem::take(&mut self.pages));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle_buffers(pool: &BouncePool) -> usize {
        pool.idle.iter().map(|list| list.lock().len()).sum()
    }

    #[test]
    fn buffers_are_aligned_and_reused() {
        let pool = BouncePool::default();
        let first = {
            let mut bounce = pool.take(5000);
            assert_eq!(bounce.len(), 5000);
            bounce.fill(7);
            bounce.as_ptr().addr()
        };
        assert!(first.is_multiple_of(PAGE));
        assert_eq!(idle_buffers(&pool), 1);
        assert_eq!(pool.take(8192).as_ptr().addr(), first);
        assert_eq!(pool.take(512).len(), 512);
        assert_eq!(idle_buffers(&pool), 2);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let pool = BouncePool::default();
        let many: Vec<_> = (0..20).map(|_| pool.take(1 << 20)).collect();
        drop(many);
        assert_eq!(idle_buffers(&pool), 4);
        drop(pool.take((1 << 20) + 1));
        assert_eq!(idle_buffers(&pool), 4, "a buffer above the largest class is freed");
    }
}

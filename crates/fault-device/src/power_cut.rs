//! A volatile write cache in front of a real device, for a process that will be killed.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;

use onggi_block_device::{
    AfterDiscard, Attributes, BlockDevice, ByteRange, DeviceError, ErrorLatch, Operation, Read, Write,
};
use parking_lot::RwLock;

use crate::prng::Prng;
use crate::snapshot::{PAGE, gather, pages};

const SECTOR: usize = 512;

/// Bytes held before more is let through.
const LIMIT: u64 = 256 << 20;

/// Zeroed or discarded ranges longer than this go straight through.
const LONGEST_ZEROES: u64 = 64 << 20;

/// Writes given to the inner device at a time while flushing: a kill in between splits the flush.
const BATCH: usize = 32;

static ZEROES: [u8; PAGE as usize] = [0; PAGE as usize];

/// Holds unflushed writes in memory, so that a process killed with SIGKILL loses them as a disk that
/// loses power does: what the inner device then holds is the flushed state plus a random, seeded
/// subset of the sectors written since.
pub struct PowerCut<D> {
    inner: D,
    attributes: Attributes,
    limit: u64,
    cache: RwLock<Cache>,
    latch: ErrorLatch,
}

/// Unflushed sectors of one 4 KiB page.
struct Held {
    /// `None`: the held sectors are zero.
    data: Option<Box<[u8; PAGE as usize]>>,
    /// Bit n: sector n of the page is held.
    sectors: u8,
}

struct Cache {
    held: BTreeMap<u64, Held>,
    /// Memory that `held` has taken for data.
    bytes: u64,
    prng: Prng,
}

/// Bits of the sectors in these bytes of a page.
fn bits(within: &Range<usize>) -> u8 {
    let (from, to) = (within.start / SECTOR, within.end / SECTOR);
    ((1u16 << to) - (1u16 << from)) as u8
}

/// Runs of set bits as bytes of a page.
fn runs(mut sectors: u8) -> impl Iterator<Item = Range<usize>> {
    std::iter::from_fn(move || {
        (sectors != 0).then(|| {
            let from = sectors.trailing_zeros();
            let len = (sectors >> from).trailing_ones();
            sectors &= !((((1u16 << len) - 1) << from) as u8);
            from as usize * SECTOR..(from + len) as usize * SECTOR
        })
    })
}

impl Held {
    fn bytes(&self) -> &[u8; PAGE as usize] {
        self.data.as_deref().unwrap_or(&ZEROES)
    }
}

impl Cache {
    fn hold(&mut self, offset: u64, bytes: &[u8]) {
        for (page, within, from) in pages(offset, bytes.len() as u64) {
            let held = self.held.entry(page).or_insert(Held { data: None, sectors: 0 });
            let data = held.data.get_or_insert_with(|| {
                self.bytes += PAGE;
                Box::new(ZEROES)
            });
            held.sectors |= bits(&within);
            let len = within.len();
            data[within].copy_from_slice(&bytes[from..from + len]);
        }
    }

    fn hold_zeroes(&mut self, range: ByteRange) {
        for (page, within, _) in pages(range.offset, range.len) {
            let held = self.held.entry(page).or_insert(Held { data: None, sectors: 0 });
            held.sectors |= bits(&within);
            if let Some(data) = &mut held.data {
                data[within].fill(0);
            }
        }
    }

    /// Lets go of a range whose new contents are elsewhere.
    fn drop_range(&mut self, range: ByteRange) {
        if range.len == 0 {
            return;
        }
        let end = range.offset + range.len;
        let touched: Vec<u64> =
            self.held.range(range.offset / PAGE..end.div_ceil(PAGE)).map(|(&page, _)| page).collect();
        for page in touched {
            let start = page * PAGE;
            let within = (range.offset.max(start) - start) as usize..(end.min(start + PAGE) - start) as usize;
            self.release(page, bits(&within));
        }
    }

    fn release(&mut self, page: u64, sectors: u8) {
        if let Some(held) = self.held.get_mut(&page) {
            held.sectors &= !sectors;
            if held.sectors == 0 {
                self.bytes -= if held.data.is_some() { PAGE } else { 0 };
                self.held.remove(&page);
            }
        }
    }

    /// Of these sectors, those in atomic units of `unit` bytes that the dice pick.
    fn pick(&mut self, unit: usize, sectors: u8) -> u8 {
        let mut picked = 0;
        for from in (0..PAGE as usize).step_by(unit) {
            if self.prng.chance(1, 2) {
                picked |= bits(&(from..from + unit));
            }
        }
        picked & sectors
    }

    /// A held page somewhere.
    fn any_page(&mut self) -> Option<u64> {
        let last = *self.held.last_key_value()?.0;
        let from = self.prng.below(last + 1);
        self.held.range(from..).next().map(|(&page, _)| page)
    }
}

impl<D: BlockDevice> PowerCut<D> {
    /// A cache in front of `inner`; `seed` decides what leaks.
    pub fn new(inner: D, seed: u64) -> Self {
        Self::with_limit(inner, seed, LIMIT)
    }

    /// As [`PowerCut::new`], holding at most about `limit` bytes.
    pub fn with_limit(inner: D, seed: u64, limit: u64) -> Self {
        let attributes = Attributes { volatile_cache: true, fua: true, ..inner.attributes().clone() };
        let cache = RwLock::new(Cache { held: BTreeMap::new(), bytes: 0, prng: Prng::new(seed) });
        Self { inner, attributes, limit, cache, latch: ErrorLatch::default() }
    }

    /// The device below: what a kill at this moment leaves.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Bytes of sectors held in memory and nowhere else.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let cache = self.cache.read();
        cache.held.values().map(|held| u64::from(held.sectors.count_ones()) * SECTOR as u64).sum()
    }

    /// What a power cut never splits, as far as a page goes.
    fn unit(&self) -> usize {
        (self.attributes.physical_sector.max(self.attributes.logical_sector) as usize)
            .clamp(SECTOR, PAGE as usize)
    }

    /// Lets some sectors through to the inner device ahead of any flush.
    fn leak(&self, cache: &mut Cache, leaks: &[(u64, u8)]) -> Result<(), DeviceError> {
        let mut writes = Vec::new();
        for (page, sectors) in leaks {
            let Some(held) = cache.held.get(page) else { continue };
            for run in runs(held.sectors & sectors) {
                writes.push((page * PAGE + run.start as u64, [IoSlice::new(&held.bytes()[run])]));
            }
        }
        self.put(&writes)?;
        for &(page, sectors) in leaks {
            cache.release(page, sectors);
        }
        Ok(())
    }

    fn put(&self, writes: &[(u64, [IoSlice<'_>; 1])]) -> Result<(), DeviceError> {
        for some in writes.chunks(BATCH) {
            let batch: Vec<_> =
                some.iter().map(|(offset, bufs)| Write { offset: *offset, bufs, fua: false }).collect();
            self.inner.write(&batch)?;
        }
        Ok(())
    }

    /// After a change of `range`: rolls the dice over what leaks of it, of the rest, and for lack of room.
    fn maybe_leak(&self, cache: &mut Cache, range: ByteRange) -> Result<(), DeviceError> {
        let mut leaks = Vec::new();
        let fate = cache.prng.below(4);
        if fate < 2 {
            for (page, within, _) in pages(range.offset, range.len) {
                let all = bits(&within);
                let sectors = if fate == 0 { all } else { cache.pick(self.unit(), all) };
                leaks.push((page, sectors));
            }
        }
        if cache.prng.chance(1, 8)
            && let Some(page) = cache.any_page()
        {
            leaks.push((page, cache.pick(self.unit(), u8::MAX)));
        }
        self.leak(cache, &leaks)?;
        while cache.bytes > self.limit {
            let Cache { held, prng, .. } = &mut *cache;
            let some: Vec<_> =
                held.keys().filter(|_| prng.chance(1, 4)).map(|&page| (page, u8::MAX)).collect();
            self.leak(cache, &some)?;
        }
        Ok(())
    }

    fn write_one(&self, cache: &mut Cache, write: &Write<'_>) -> Result<(), DeviceError> {
        let range = ByteRange { offset: write.offset, len: write.bytes() };
        if write.fua {
            // Older unflushed bytes of the place must not come back over it.
            self.inner.write(std::slice::from_ref(write))?;
            cache.drop_range(range);
            return Ok(());
        }
        cache.hold(write.offset, &gather(write));
        self.maybe_leak(cache, range)
    }

    /// Holds or, where they are long, lets through zeroes. `through` says how.
    fn zeroes(
        &self,
        range: ByteRange,
        through: impl FnOnce(&D) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let mut cache = self.cache.write();
        if range.len > LONGEST_ZEROES {
            through(&self.inner)?;
            cache.drop_range(range);
            return Ok(());
        }
        cache.hold_zeroes(range);
        self.maybe_leak(&mut cache, range)
    }

    /// Gives all that is held to the inner device, in a random order.
    fn drain(&self, cache: &mut Cache) -> Result<(), DeviceError> {
        let mut writes = Vec::new();
        let mut empty: Vec<ByteRange> = Vec::new();
        for (page, held) in &cache.held {
            let start = page * PAGE;
            if held.data.is_none() && held.sectors == u8::MAX {
                match empty.last_mut() {
                    Some(last) if last.offset + last.len == start => last.len += PAGE,
                    _ => empty.push(ByteRange { offset: start, len: PAGE }),
                }
                continue;
            }
            for run in runs(held.sectors) {
                writes.push((start + run.start as u64, [IoSlice::new(&held.bytes()[run])]));
            }
        }
        cache.prng.shuffle(&mut writes);
        let zeroes_first = cache.prng.chance(1, 2);
        if !zeroes_first {
            self.put(&writes)?;
        }
        for range in empty {
            self.inner.write_zeroes(range, true)?;
        }
        if zeroes_first {
            self.put(&writes)?;
        }
        self.inner.flush()?;
        cache.held.clear();
        cache.bytes = 0;
        Ok(())
    }
}

impl<D: BlockDevice> BlockDevice for PowerCut<D> {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        let cache = self.cache.read();
        self.inner.read(batch)?;
        for read in batch {
            let mut at = read.offset;
            for buf in read.bufs.iter_mut() {
                overlay(&cache, at, buf);
                at += buf.len() as u64;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in batch {
            self.attributes.admit(Operation::Write, write.offset, write.bytes())?;
        }
        let promises = batch.iter().any(|write| write.fua);
        if promises {
            self.latch.check()?;
        }
        let mut cache = self.cache.write();
        let result = batch.iter().try_for_each(|write| self.write_one(&mut cache, write));
        if promises { self.latch.note(result) } else { result }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let mut cache = self.cache.write();
        self.latch.check()?;
        self.latch.note(self.drain(&mut cache))
    }

    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        for range in ranges {
            self.attributes.admit(Operation::Discard, range.offset, range.len)?;
        }
        let Some(limits) = self.attributes.discard else { return Ok(()) };
        for &range in ranges {
            if limits.after == AfterDiscard::Zero {
                self.zeroes(range, |inner| inner.discard(&[range]))?;
            } else {
                let mut cache = self.cache.write();
                self.inner.discard(&[range])?;
                cache.drop_range(range);
            }
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.attributes.admit(Operation::WriteZeroes, range.offset, range.len)?;
        self.zeroes(range, |inner| inner.write_zeroes(range, may_unmap))
    }
}

/// Puts what the cache holds over bytes read from `offset` on.
fn overlay(cache: &Cache, offset: u64, buf: &mut [u8]) {
    if buf.is_empty() {
        return;
    }
    let end = offset + buf.len() as u64;
    for (page, held) in cache.held.range(offset / PAGE..end.div_ceil(PAGE)) {
        for run in runs(held.sectors) {
            let from = (page * PAGE + run.start as u64).max(offset);
            let to = (page * PAGE + run.end as u64).min(end);
            if from < to {
                let source = (from - page * PAGE) as usize..(to - page * PAGE) as usize;
                buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(&held.bytes()[source]);
            }
        }
    }
}

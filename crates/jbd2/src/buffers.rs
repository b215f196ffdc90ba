//! The cache of metadata blocks.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onggi_block_device::{AlignedBuf, BlockDevice, DeviceError, Operation, Read};
use onggi_disk_format::DiskBlock;
use parking_lot::{Condvar, Mutex, RwLock};

use crate::buffer::{Buffer, Content};

/// Shards of the map; a power of two.
const SHARDS: usize = 64;
/// Steps of the eviction hand for one insertion.
const HAND_STEPS: usize = 32;
/// Blocks in one request of a read-ahead.
const RUN_BLOCKS: usize = 256;

/// One shard: the blocks, and the ring the eviction hand walks.
#[derive(Default)]
struct Shard {
    slots: HashMap<DiskBlock, Slot>,
    ring: Vec<DiskBlock>,
    hand: usize,
}

struct Slot {
    buffer: Arc<Buffer>,
    /// Index in the ring.
    at: usize,
}

impl Shard {
    fn insert(&mut self, buffer: Arc<Buffer>) {
        let nr = buffer.nr();
        if let Some(slot) = self.slots.get_mut(&nr) {
            slot.buffer = buffer;
            return;
        }
        self.slots.insert(nr, Slot { buffer, at: self.ring.len() });
        self.ring.push(nr);
    }

    fn remove(&mut self, nr: DiskBlock) -> Option<Arc<Buffer>> {
        let slot = self.slots.remove(&nr)?;
        self.ring.swap_remove(slot.at);
        if let Some(moved) = self.ring.get(slot.at).and_then(|nr| self.slots.get_mut(nr)) {
            moved.at = slot.at;
        }
        Some(slot.buffer)
    }

    /// Second chance: drops blocks that nobody holds and nobody looked up since the last pass. The
    /// shard is locked for writing, so a count of one cannot grow meanwhile.
    fn evict(&mut self, budget: usize) {
        for _ in 0..HAND_STEPS {
            if self.slots.len() <= budget {
                return;
            }
            if self.hand >= self.ring.len() {
                self.hand = 0;
            }
            let nr = self.ring[self.hand];
            let idle = self.slots.get(&nr).is_none_or(|slot| {
                Arc::strong_count(&slot.buffer) == 1 && !slot.buffer.referenced.swap(false, Ordering::Relaxed)
            });
            if idle {
                self.remove(nr);
            } else {
                self.hand += 1;
            }
        }
    }
}

/// Cached metadata blocks. A buffer that anybody holds stays, so a miss may always read the device.
pub struct Buffers {
    device: Arc<dyn BlockDevice>,
    block_size: u32,
    shard_budget: usize,
    shards: Box<[RwLock<Shard>]>,
    loads: Mutex<()>,
    load_ended: Condvar,
    serials: AtomicU64,
}

impl Buffers {
    /// A cache over `device` that tries to stay within `budget_bytes`.
    ///
    /// # Panics
    /// When `block_size` is not a multiple of 512 or is zero.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_size: u32, budget_bytes: u64) -> Arc<Self> {
        assert!(block_size > 0 && block_size.is_multiple_of(512), "block size {block_size}");
        let blocks = usize::try_from(budget_bytes / u64::from(block_size)).unwrap_or(usize::MAX);
        Arc::new(Self {
            device,
            block_size,
            shard_budget: (blocks / SHARDS).max(1),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            loads: Mutex::new(()),
            load_ended: Condvar::new(),
            serials: AtomicU64::new(0),
        })
    }

    /// The device underneath.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// The block, from the cache or else from the device. Concurrent callers get one and the same buffer.
    ///
    /// # Errors
    /// The device's own; nothing stays cached then.
    pub fn read(&self, nr: DiskBlock) -> Result<Arc<Buffer>, DeviceError> {
        loop {
            if let Some(buffer) = self.lookup(nr) {
                if self.wait_loaded(&buffer) {
                    return Ok(buffer);
                }
                continue;
            }
            let offset = self.offset_of(nr)?;
            let Some(buffer) = self.claim(nr) else { continue };
            let mut bytes = AlignedBuf::zeroed(self.block_size as usize);
            let read = self.device.read_at(offset, &mut bytes);
            self.finish_load(&buffer, read.is_ok().then_some(bytes));
            return read.map(|()| buffer);
        }
    }

    /// Reads in one batch those of `blocks` that are not cached, adjacent ones in one request.
    ///
    /// # Errors
    /// The device's own; none of this batch stays cached then.
    pub fn read_ahead(&self, blocks: &[DiskBlock]) -> Result<(), DeviceError> {
        let mut wanted: Vec<DiskBlock> =
            blocks.iter().copied().filter(|&nr| self.lookup(nr).is_none()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        if let Some(&last) = wanted.last() {
            self.offset_of(last)?;
        }
        let claimed: Vec<Arc<Buffer>> = wanted.into_iter().filter_map(|nr| self.claim(nr)).collect();
        let runs = claimed.chunk_by(|a, b| a.nr().0 + 1 == b.nr().0).flat_map(|run| run.chunks(RUN_BLOCKS));
        let mut loads: Vec<(&[Arc<Buffer>], Vec<AlignedBuf>)> = runs
            .map(|run| (run, run.iter().map(|_| AlignedBuf::zeroed(self.block_size as usize)).collect()))
            .collect();
        let mut slices: Vec<(u64, Vec<IoSliceMut<'_>>)> = loads
            .iter_mut()
            .map(|(run, bytes)| {
                let offset = run[0].nr().0 * u64::from(self.block_size);
                (offset, bytes.iter_mut().map(|bytes| IoSliceMut::new(bytes)).collect())
            })
            .collect();
        let mut batch: Vec<Read<'_, '_>> =
            slices.iter_mut().map(|(offset, bufs)| Read { offset: *offset, bufs }).collect();
        let read = if batch.is_empty() { Ok(()) } else { self.device.read(&mut batch) };
        for (run, bytes) in loads {
            for (buffer, bytes) in run.iter().zip(bytes) {
                self.finish_load(buffer, read.is_ok().then_some(bytes));
            }
        }
        read
    }

    /// A newly allocated block: zeroes, nothing read, counts as verified. Replaces what was cached.
    pub fn fresh(&self, nr: DiskBlock) -> Arc<Buffer> {
        let buffer = Buffer::zeroed(nr, self.block_size);
        let mut shard = self.shard(nr).write();
        if let Some(slot) = shard.slots.get(&nr) {
            slot.buffer.retire();
        }
        shard.insert(Arc::clone(&buffer));
        shard.evict(self.shard_budget);
        buffer
    }

    /// The block if it is cached.
    #[must_use]
    pub fn peek(&self, nr: DiskBlock) -> Option<Arc<Buffer>> {
        self.lookup(nr).filter(|buffer| buffer.content_state() == Content::Ready)
    }

    /// Drops a freed block from the cache. Whoever still holds the buffer can read it, but a change
    /// to it reaches no transaction any more.
    pub fn forget(&self, nr: DiskBlock) {
        if let Some(buffer) = self.shard(nr).write().remove(nr) {
            buffer.retire();
        }
    }

    /// A number no transaction over this cache has had.
    pub(crate) fn next_serial(&self) -> u64 {
        self.serials.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn shard(&self, nr: DiskBlock) -> &RwLock<Shard> {
        // Fibonacci hashing: neighbours and strides spread alike.
        let hash = nr.0.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.shards[usize::try_from(hash).unwrap_or(0) & (SHARDS - 1)]
    }

    fn offset_of(&self, nr: DiskBlock) -> Result<u64, DeviceError> {
        nr.byte_offset(self.block_size).ok_or(DeviceError::OutOfRange {
            operation: Operation::Read,
            offset: u64::MAX,
            len: u64::from(self.block_size),
            size: self.device.attributes().size,
        })
    }

    fn lookup(&self, nr: DiskBlock) -> Option<Arc<Buffer>> {
        let shard = self.shard(nr).read();
        let buffer = &shard.slots.get(&nr)?.buffer;
        buffer.referenced.store(true, Ordering::Relaxed);
        Some(Arc::clone(buffer))
    }

    /// Puts a loading buffer into the map; `None` when the block is there already.
    fn claim(&self, nr: DiskBlock) -> Option<Arc<Buffer>> {
        let mut shard = self.shard(nr).write();
        if shard.slots.contains_key(&nr) {
            return None;
        }
        let buffer = Buffer::loading(nr);
        shard.insert(Arc::clone(&buffer));
        shard.evict(self.shard_budget);
        Some(buffer)
    }

    /// Ends a load; a failed one leaves the map before anybody is woken.
    fn finish_load(&self, buffer: &Arc<Buffer>, bytes: Option<AlignedBuf>) {
        if bytes.is_none() {
            let mut shard = self.shard(buffer.nr()).write();
            if shard.slots.get(&buffer.nr()).is_some_and(|slot| Arc::ptr_eq(&slot.buffer, buffer)) {
                shard.remove(buffer.nr());
            }
        }
        buffer.loaded(bytes);
        drop(self.loads.lock());
        self.load_ended.notify_all();
    }

    /// Whether the content arrived.
    fn wait_loaded(&self, buffer: &Buffer) -> bool {
        if buffer.content_state() == Content::Loading {
            let mut loads = self.loads.lock();
            while buffer.content_state() == Content::Loading {
                self.load_ended.wait(&mut loads);
            }
        }
        buffer.content_state() == Content::Ready
    }
}

impl std::fmt::Debug for Buffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Buffers").field("block_size", &self.block_size).finish_non_exhaustive()
    }
}

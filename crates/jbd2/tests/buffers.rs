//! The buffer cache: one buffer per block, pinned ones stay, failed reads leave nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onggi_block_device::{
    Attributes, BlockDevice, ByteRange, DeviceError, MemoryDevice, Operation, Read, Write,
};
use onggi_disk_format::DiskBlock;
use onggi_fault_device::{Fault, Faults};
use onggi_jbd2::Buffers;

const SIZE: u32 = 1024;

/// Counts read requests, and reads slowly enough for callers to meet.
struct Slow {
    inner: MemoryDevice,
    reads: AtomicU64,
}

impl BlockDevice for Slow {
    fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }
    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        self.reads.fetch_add(batch.len() as u64, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(5));
        self.inner.read(batch)
    }
    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        self.inner.write(batch)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        self.inner.discard(ranges)
    }
    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.inner.write_zeroes(range, may_unmap)
    }
}

/// A device whose block `n` is full of the low byte of `n`.
fn numbered(blocks: u64) -> MemoryDevice {
    let device = MemoryDevice::new(blocks * u64::from(SIZE));
    for nr in 0..blocks {
        device.write_at(nr * u64::from(SIZE), &[nr as u8; SIZE as usize]).unwrap();
    }
    device
}

#[test]
fn callers_of_one_block_share_one_read_and_one_buffer() {
    let device = Arc::new(Slow { inner: numbered(64), reads: AtomicU64::new(0) });
    let buffers = Buffers::new(Arc::clone(&device) as Arc<dyn BlockDevice>, SIZE, 1 << 20);
    let held: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| buffers.read(DiskBlock(9)).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(held.iter().all(|buffer| Arc::ptr_eq(buffer, &held[0])));
    assert_eq!(held[0].snapshot()[..], [9; SIZE as usize]);
    assert_eq!(device.reads.load(Ordering::SeqCst), 1);
}

#[test]
fn read_ahead_merges_neighbours_and_skips_what_is_there() {
    let device = Arc::new(Slow { inner: numbered(64), reads: AtomicU64::new(0) });
    let buffers = Buffers::new(Arc::clone(&device) as Arc<dyn BlockDevice>, SIZE, 1 << 20);
    buffers.read(DiskBlock(12)).unwrap();
    let blocks: Vec<_> = [14, 10, 11, 12, 13, 10, 40].map(DiskBlock).into();
    buffers.read_ahead(&blocks).unwrap();
    // One for block 12, then 10-11, 13-14 and 40.
    assert_eq!(device.reads.load(Ordering::SeqCst), 4);
    for nr in blocks {
        assert_eq!(buffers.peek(nr).unwrap().snapshot()[..], [nr.0 as u8; SIZE as usize]);
    }
    assert_eq!(device.reads.load(Ordering::SeqCst), 4);
    buffers.read_ahead(&[]).unwrap();
}

#[test]
fn failed_reads_leave_nothing_behind() {
    let device = Arc::new(Faults::new(numbered(64)));
    let buffers = Buffers::new(Arc::clone(&device) as Arc<dyn BlockDevice>, SIZE, 1 << 20);
    device.inject(Fault::on(Operation::Read));
    assert!(buffers.read(DiskBlock(3)).is_err());
    assert!(buffers.peek(DiskBlock(3)).is_none());
    device.inject(Fault::on(Operation::Read));
    assert!(buffers.read_ahead(&[DiskBlock(3), DiskBlock(4)]).is_err());
    assert!(buffers.peek(DiskBlock(4)).is_none());
    assert_eq!(buffers.read(DiskBlock(3)).unwrap().snapshot()[0], 3);
    for wild in [64, u64::MAX / 2, u64::MAX] {
        assert!(matches!(buffers.read(DiskBlock(wild)), Err(DeviceError::OutOfRange { .. })), "{wild}");
        assert!(buffers.read_ahead(&[DiskBlock(1), DiskBlock(wild)]).is_err());
        assert!(buffers.peek(DiskBlock(wild)).is_none());
    }
    assert!(buffers.read(DiskBlock(1)).is_ok());
}

#[test]
fn eviction_keeps_to_the_budget_and_drops_no_held_buffer() {
    let device: Arc<dyn BlockDevice> = Arc::new(numbered(8192));
    // Two blocks a shard.
    let buffers = Buffers::new(device, SIZE, 128 * u64::from(SIZE));
    let held: Vec<_> = (0..200).map(|nr| buffers.read(DiskBlock(nr * 7)).unwrap()).collect();
    for nr in 0..8192 {
        buffers.read(DiskBlock(nr)).unwrap();
    }
    for buffer in &held {
        let cached = buffers.peek(buffer.nr()).expect("held, so still cached");
        assert!(Arc::ptr_eq(&cached, buffer));
    }
    let pinned = held.len();
    drop(held);
    for nr in 0..8192 {
        buffers.read(DiskBlock(nr)).unwrap();
    }
    let cached = (0..8192).filter(|&nr| buffers.peek(DiskBlock(nr)).is_some()).count();
    assert!(cached <= 128 + pinned, "{cached}");
    assert!(cached >= 64, "{cached}");
}

#[test]
fn a_check_runs_until_it_passes_and_then_never_again() {
    let buffers = Buffers::new(Arc::new(numbered(64)), SIZE, 1 << 20);
    let buffer = buffers.read(DiskBlock(5)).unwrap();
    let mut runs = 0;
    assert_eq!(buffer.verify_once(|_| Err("bad")), Err("bad"));
    for _ in 0..3 {
        buffer
            .verify_once(|bytes| {
                runs += 1;
                if bytes[0] == 5 { Ok(()) } else { Err("wrong block") }
            })
            .unwrap();
    }
    assert_eq!(runs, 1);
    buffers.fresh(DiskBlock(5)).verify_once(|_| Err("never called")).unwrap();
}

#[test]
fn a_fresh_block_is_zero_and_a_forgotten_one_is_read_again() {
    let buffers = Buffers::new(Arc::new(numbered(64)), SIZE, 1 << 20);
    let old = buffers.read(DiskBlock(5)).unwrap();
    let fresh = buffers.fresh(DiskBlock(5));
    assert!(!Arc::ptr_eq(&old, &fresh) && Arc::ptr_eq(&fresh, &buffers.read(DiskBlock(5)).unwrap()));
    assert_eq!((old.snapshot()[0], fresh.snapshot()[0]), (5, 0));
    buffers.forget(DiskBlock(5));
    buffers.forget(DiskBlock(6));
    assert!(buffers.peek(DiskBlock(5)).is_none());
    assert_eq!(buffers.read(DiskBlock(5)).unwrap().snapshot()[0], 5);
}

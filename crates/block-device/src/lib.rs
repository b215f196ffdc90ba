//! The device contract.
//!
//! **Does:** says what a block device is to Onggi: batched vectored reads and writes, flush, FUA,
//! discard, write-zeroes, attributes; holds the aligned buffers that travel through it and the
//! in-memory backend.
//! **Never does:** caching, ordering, retrying. A failed flush stays failed ([`ErrorLatch`]).
//! **Called by:** the journal, the caches, the engines, mkfs and check; backends implement it.
//! **Locks:** backends take only their own leaf locks.
//!
//! What the engines assume of a device is written down once, in `docs/DEVICE.md`.

mod buffer;
mod error;
mod latch;
mod memory;
mod shared;

pub use buffer::AlignedBuf;
pub use error::{DeviceError, Operation};
pub use latch::ErrorLatch;
pub use memory::MemoryDevice;

use std::io::{IoSlice, IoSliceMut};

/// What a discarded range reads as afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterDiscard {
    /// Always zeroes.
    Zero,
    /// Some fixed content, unknown which.
    Deterministic,
    /// May change from one read to the next.
    NonDeterministic,
}

/// How a device takes discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Ranges are best given in multiples of this many bytes.
    pub granularity: u64,
    /// First byte of the first whole granule.
    pub alignment: u64,
    /// What a discarded range reads as.
    pub after: AfterDiscard,
}

/// What an engine must know of a device before it uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// Bytes on the device.
    pub size: u64,
    /// Smallest addressable unit in bytes (offset and length alignment of every request).
    pub logical_sector: u32,
    /// Atomic unit in bytes: a power cut tears a request between such sectors, never inside one.
    pub physical_sector: u32,
    /// A completed write may still be lost until a flush.
    pub volatile_cache: bool,
    /// FUA is done by the device itself; where false a FUA write costs a write and a flush.
    pub fua: bool,
    /// Requests that usefully overlap.
    pub queue_depth: u32,
    /// `None` where discard does nothing.
    pub discard: Option<DiscardLimits>,
    /// Nothing may be written.
    pub read_only: bool,
}

impl Attributes {
    /// Passes when `operation` may touch `[offset, offset + len)`: on whole logical sectors, on the
    /// device, and no change of a read-only one.
    ///
    /// # Errors
    /// [`DeviceError::ReadOnly`], [`DeviceError::Misaligned`] or [`DeviceError::OutOfRange`].
    pub fn admit(&self, operation: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        if self.read_only && !matches!(operation, Operation::Read | Operation::Flush) {
            return Err(DeviceError::ReadOnly { operation });
        }
        let sector = self.logical_sector;
        if !offset.is_multiple_of(u64::from(sector)) || !len.is_multiple_of(u64::from(sector)) {
            return Err(DeviceError::Misaligned { operation, offset, len, sector });
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(DeviceError::OutOfRange { operation, offset, len, size: self.size }),
        }
    }
}

/// One read of a batch: `bufs` are filled in order from `offset` on.
#[derive(Debug)]
pub struct Read<'a, 'b> {
    /// Byte address on the device.
    pub offset: u64,
    /// Where the bytes go, in order.
    pub bufs: &'a mut [IoSliceMut<'b>],
}

impl Read<'_, '_> {
    /// Bytes asked for.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bufs.iter().fold(0, |sum: u64, buf| sum.saturating_add(buf.len() as u64))
    }
}

/// One write of a batch: `bufs` are written in order from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Byte address on the device.
    pub offset: u64,
    /// What is written, in order.
    pub bufs: &'a [IoSlice<'a>],
    /// Durable when the call returns; says nothing of other writes.
    pub fua: bool,
}

impl Write<'_> {
    /// Bytes to write.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bufs.iter().fold(0, |sum: u64, buf| sum.saturating_add(buf.len() as u64))
    }
}

/// A byte range on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// The contract. Every call blocks until all it asks for is complete; requests of one batch overlap
/// and are ordered neither with each other nor with those of other threads, not even at one address.
///
/// Offsets and total lengths are multiples of the logical sector; memory of any alignment is taken
/// (an aligned buffer saves a copy).
pub trait BlockDevice: Send + Sync {
    /// What this device is.
    fn attributes(&self) -> &Attributes;

    /// Reads a batch.
    ///
    /// # Errors
    /// The first request that failed; the contents of every buffer of the batch are then unspecified.
    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError>;

    /// Writes a batch. Completion means accepted, not durable, save for requests with `fua`.
    ///
    /// # Errors
    /// The first request that failed; each request of the batch may or may not have reached the device.
    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError>;

    /// Makes durable every write and discard that completed before this call.
    ///
    /// # Errors
    /// After a failed flush every later flush and FUA write fails too: what was lost stays lost.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Tells the device that the ranges hold nothing. Volatile until a flush, like a write.
    ///
    /// # Errors
    /// As [`BlockDevice::write`]. A device without discard succeeds and does nothing.
    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError>;

    /// Makes the range read as zeroes, without sending them where the device can. With `may_unmap`
    /// the device may deallocate it.
    ///
    /// # Errors
    /// As [`BlockDevice::write`].
    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError>;

    /// Reads one range into one buffer.
    ///
    /// # Errors
    /// As [`BlockDevice::read`].
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.read(&mut [Read { offset, bufs: &mut [IoSliceMut::new(buf)] }])
    }

    /// Writes one buffer at one place.
    ///
    /// # Errors
    /// As [`BlockDevice::write`].
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
        self.write(&[Write { offset, bufs: &[IoSlice::new(buf)], fua: false }])
    }
}

//! Writes in large batches.

use std::io::IoSlice;

use onggi_block_device::{BlockDevice, ByteRange, DeviceError, Write};

/// Bytes gathered before a batch goes out.
const BATCH: usize = 8 << 20;
/// Most buffers in one request.
const MAX_BUFFERS: usize = 256;

/// Gathers blocks and writes them, neighbours in one request. Zeroing is immediate, so it comes before
/// the blocks written over it.
pub(crate) struct Output<'a> {
    device: &'a dyn BlockDevice,
    block_size: u32,
    pending: Vec<(u64, Vec<u8>)>,
    pending_bytes: usize,
    written: u64,
}

impl<'a> Output<'a> {
    pub(crate) fn new(device: &'a dyn BlockDevice, block_size: u32) -> Self {
        Self { device, block_size, pending: Vec::new(), pending_bytes: 0, written: 0 }
    }

    /// Bytes given to [`Output::write`] so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    /// Writes whole blocks from `block` on.
    pub(crate) fn write(&mut self, block: u64, bytes: Vec<u8>) -> Result<(), DeviceError> {
        self.written += bytes.len() as u64;
        self.pending_bytes += bytes.len();
        self.pending.push((block * u64::from(self.block_size), bytes));
        if self.pending_bytes >= BATCH { self.finish() } else { Ok(()) }
    }

    /// Zeroes `count` blocks.
    pub(crate) fn zero(&mut self, block: u64, count: u64) -> Result<(), DeviceError> {
        let size = u64::from(self.block_size);
        self.zero_bytes(ByteRange { offset: block * size, len: count * size })
    }

    /// Zeroes a byte range.
    pub(crate) fn zero_bytes(&mut self, range: ByteRange) -> Result<(), DeviceError> {
        if range.len == 0 { Ok(()) } else { self.device.write_zeroes(range, true) }
    }

    /// Tells the device that `range` holds nothing.
    pub(crate) fn discard(&mut self, range: ByteRange) -> Result<(), DeviceError> {
        if self.device.attributes().discard.is_none() { Ok(()) } else { self.device.discard(&[range]) }
    }

    /// Writes what is gathered.
    pub(crate) fn finish(&mut self) -> Result<(), DeviceError> {
        let mut pending = std::mem::take(&mut self.pending);
        self.pending_bytes = 0;
        pending.sort_by_key(|(offset, _)| *offset);
        let mut runs: Vec<(u64, u64, Vec<IoSlice<'_>>)> = Vec::new();
        for (offset, bytes) in &pending {
            match runs.last_mut() {
                Some((_, end, slices)) if end == offset && slices.len() < MAX_BUFFERS => {
                    *end += bytes.len() as u64;
                    slices.push(IoSlice::new(bytes));
                }
                _ => runs.push((*offset, offset + bytes.len() as u64, vec![IoSlice::new(bytes)])),
            }
        }
        let batch: Vec<Write<'_>> =
            runs.iter().map(|(offset, _, bufs)| Write { offset: *offset, bufs, fua: false }).collect();
        if batch.is_empty() { Ok(()) } else { self.device.write(&batch) }
    }
}

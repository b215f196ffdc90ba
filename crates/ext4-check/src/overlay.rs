//! A device whose writes stay in memory.

use std::collections::HashMap;
use std::io::IoSliceMut;

use onggi_block_device::{Attributes, BlockDevice, ByteRange, DeviceError, Operation, Read, Write};
use parking_lot::RwLock;

/// Bytes of one remembered piece.
const PIECE: usize = 4096;

/// Reads what was written here, else what the device below holds; never writes to it.
pub(crate) struct Overlay<'d> {
    below: &'d dyn BlockDevice,
    attributes: Attributes,
    pieces: RwLock<HashMap<u64, Box<[u8; PIECE]>>>,
}

impl<'d> Overlay<'d> {
    pub(crate) fn new(below: &'d dyn BlockDevice) -> Self {
        let attributes = Attributes { read_only: false, ..below.attributes().clone() };
        Self { below, attributes, pieces: RwLock::new(HashMap::new()) }
    }

    fn check(&self, operation: Operation, offset: u64, len: u64) -> Result<(), DeviceError> {
        let size = self.attributes.size;
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(()),
            _ => Err(DeviceError::OutOfRange { operation, offset, len, size }),
        }
    }

    fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(Operation::Write, offset, bytes.len() as u64)?;
        let mut pieces = self.pieces.write();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (nr, within) = (at / PIECE as u64, (at % PIECE as u64) as usize);
            let take = (PIECE - within).min(bytes.len() - done);
            let piece = match pieces.entry(nr) {
                std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::hash_map::Entry::Vacant(entry) => {
                    let mut piece = Box::new([0; PIECE]);
                    let start = nr * PIECE as u64;
                    let there = self.attributes.size.saturating_sub(start).min(PIECE as u64) as usize;
                    self.below.read_at(start, &mut piece[..there])?;
                    entry.insert(piece)
                }
            };
            piece[within..within + take].copy_from_slice(&bytes[done..done + take]);
            done += take;
        }
        Ok(())
    }

    /// Lays remembered bytes over `bytes`, read from `offset`.
    fn cover(&self, offset: u64, bytes: &mut [u8]) {
        let pieces = self.pieces.read();
        let mut done = 0;
        while !pieces.is_empty() && done < bytes.len() {
            let at = offset + done as u64;
            let (nr, within) = (at / PIECE as u64, (at % PIECE as u64) as usize);
            let take = (PIECE - within).min(bytes.len() - done);
            if let Some(piece) = pieces.get(&nr) {
                bytes[done..done + take].copy_from_slice(&piece[within..within + take]);
            }
            done += take;
        }
    }
}

impl BlockDevice for Overlay<'_> {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        self.below.read(batch)?;
        for read in batch {
            let mut offset = read.offset;
            for buf in read.bufs.iter_mut() {
                let buf: &mut IoSliceMut<'_> = buf;
                self.cover(offset, buf);
                offset += buf.len() as u64;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in batch {
            let mut offset = write.offset;
            for buf in write.bufs {
                self.put(offset, buf)?;
                offset += buf.len() as u64;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _ranges: &[ByteRange]) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange, _may_unmap: bool) -> Result<(), DeviceError> {
        self.check(Operation::WriteZeroes, range.offset, range.len)?;
        let zeroes = [0; PIECE];
        let (mut at, end) = (range.offset, range.offset + range.len);
        while at < end {
            let take = (end - at).min(PIECE as u64);
            self.put(at, &zeroes[..take as usize])?;
            at += take;
        }
        Ok(())
    }
}

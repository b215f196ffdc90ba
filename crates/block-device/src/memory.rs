//! A device in memory.

use parking_lot::RwLock;

use crate::{
    AfterDiscard, Attributes, BlockDevice, ByteRange, DeviceError, DiscardLimits, Operation, Read, Write,
};

/// Bytes under one lock: reads and writes of one lock's stretch are serial, others overlap.
const STRETCH: usize = 1 << 20;

/// Absent until first written.
type Stretch = RwLock<Option<Box<[u8]>>>;

/// A volatile device of fixed size; fresh bytes are zero. A stretch takes memory when first written.
pub struct MemoryDevice {
    attributes: Attributes,
    stretches: Box<[Stretch]>,
}

impl MemoryDevice {
    /// A device of `size` bytes with 512-byte sectors, a volatile cache and FUA.
    ///
    /// # Panics
    /// When `size` is not a multiple of 512 or exceeds the address space.
    #[must_use]
    pub fn new(size: u64) -> Self {
        assert!(size.is_multiple_of(512), "size {size} is not a multiple of 512");
        let count = usize::try_from(size.div_ceil(STRETCH as u64)).expect("size fits the address space");
        Self {
            attributes: Attributes {
                size,
                logical_sector: 512,
                physical_sector: 512,
                volatile_cache: true,
                fua: true,
                queue_depth: 64,
                discard: Some(DiscardLimits { granularity: 4096, alignment: 0, after: AfterDiscard::Zero }),
                read_only: false,
            },
            stretches: (0..count).map(|_| RwLock::new(None)).collect(),
        }
    }

    /// A device holding `image`, padded with zeroes to whole sectors.
    #[must_use]
    pub fn from_bytes(image: &[u8]) -> Self {
        let device = Self::new(image.len().next_multiple_of(512) as u64);
        device.put(0, image);
        device
    }

    /// All its bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.attributes.size).expect("fits: it was allocated")];
        self.get(0, &mut all);
        all
    }

    /// Cuts `[offset, offset + len)` at stretch borders: (stretch, byte in it, byte in the range, length).
    fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        let start = usize::try_from(offset).expect("checked against the size");
        let mut done = 0;
        std::iter::from_fn(move || {
            (done < len).then(|| {
                let at = start + done;
                let take = (STRETCH - at % STRETCH).min(len - done);
                let piece = (at / STRETCH, at % STRETCH, done, take);
                done += take;
                piece
            })
        })
    }

    fn put(&self, offset: u64, bytes: &[u8]) {
        for (stretch, at, from, take) in Self::pieces(offset, bytes.len()) {
            let mut slot = self.stretches[stretch].write();
            let home = slot.get_or_insert_with(|| vec![0; STRETCH].into_boxed_slice());
            home[at..at + take].copy_from_slice(&bytes[from..from + take]);
        }
    }

    fn get(&self, offset: u64, bytes: &mut [u8]) {
        for (stretch, at, from, take) in Self::pieces(offset, bytes.len()) {
            match &*self.stretches[stretch].read() {
                Some(home) => bytes[from..from + take].copy_from_slice(&home[at..at + take]),
                None => bytes[from..from + take].fill(0),
            }
        }
    }

    fn zero(&self, range: ByteRange) {
        let len = usize::try_from(range.len).expect("checked against the size");
        for (stretch, at, _, take) in Self::pieces(range.offset, len) {
            let mut slot = self.stretches[stretch].write();
            if take == STRETCH {
                *slot = None;
            } else if let Some(home) = slot.as_mut() {
                home[at..at + take].fill(0);
            }
        }
    }
}

impl BlockDevice for MemoryDevice {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        for read in batch {
            self.attributes.admit(Operation::Read, read.offset, read.bytes())?;
            let mut offset = read.offset;
            for buf in read.bufs.iter_mut() {
                self.get(offset, buf);
                offset += buf.len() as u64;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in batch {
            self.attributes.admit(Operation::Write, write.offset, write.bytes())?;
            let mut offset = write.offset;
            for buf in write.bufs {
                self.put(offset, buf);
                offset += buf.len() as u64;
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        for &range in ranges {
            self.attributes.admit(Operation::Discard, range.offset, range.len)?;
            self.zero(range);
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange, _may_unmap: bool) -> Result<(), DeviceError> {
        self.attributes.admit(Operation::WriteZeroes, range.offset, range.len)?;
        self.zero(range);
        Ok(())
    }
}

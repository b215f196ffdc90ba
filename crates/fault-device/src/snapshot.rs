//! A device as it was, plus what was written since.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use onggi_block_device::{
    AfterDiscard, Attributes, BlockDevice, ByteRange, DeviceError, Operation, Read, Write,
};
use parking_lot::RwLock;

/// Bytes of one copied page.
pub(crate) const PAGE: u64 = 4096;

/// What a discarded byte reads as where the device does not promise zeroes.
const AFTER_DISCARD: u8 = 0xa5;

type Page = [u8; PAGE as usize];

/// A writable view of a base that nobody may change any more. It costs memory and time only for the
/// 4 KiB pages written through it.
pub struct Snapshot {
    base: Arc<dyn BlockDevice>,
    attributes: Attributes,
    changed: RwLock<BTreeMap<u64, Arc<Page>>>,
}

/// Cuts `[offset, offset + len)` at page borders: (page, bytes in the page, first byte in the range).
pub(crate) fn pages(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<usize>, usize)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        (done < len).then(|| {
            let at = offset + done;
            let (page, from) = (at / PAGE, (at % PAGE) as usize);
            let take = (PAGE - at % PAGE).min(len - done);
            let piece = (page, from..from + take as usize, done as usize);
            done += take;
            piece
        })
    })
}

impl Snapshot {
    /// A view of `base`, writable even when `base` is not.
    #[must_use]
    pub fn over(base: Arc<dyn BlockDevice>) -> Self {
        let attributes = Attributes { read_only: false, ..base.attributes().clone() };
        Self { base, attributes, changed: RwLock::default() }
    }

    /// A second view with the same contents; the two change apart from each other.
    #[must_use]
    pub fn fork(&self) -> Self {
        Self {
            base: Arc::clone(&self.base),
            attributes: self.attributes.clone(),
            changed: RwLock::new(self.changed.read().clone()),
        }
    }

    /// All its bytes.
    ///
    /// # Errors
    /// The base's.
    pub fn to_bytes(&self) -> Result<Vec<u8>, DeviceError> {
        let mut bytes = vec![0; self.attributes.size as usize];
        self.get(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Pages that are its own.
    #[must_use]
    pub fn changed_pages(&self) -> usize {
        self.changed.read().len()
    }

    fn base_page(&self, page: u64) -> Result<Page, DeviceError> {
        let mut bytes = [0; PAGE as usize];
        let start = page * PAGE;
        let len = PAGE.min(self.attributes.size - start) as usize;
        self.base.read_at(start, &mut bytes[..len])?;
        Ok(bytes)
    }

    fn change(
        &self,
        offset: u64,
        len: u64,
        mut fill: impl FnMut(&mut [u8], Range<usize>),
    ) -> Result<(), DeviceError> {
        let mut changed = self.changed.write();
        for (page, within, from) in pages(offset, len) {
            let (whole, piece) = (within.len() == PAGE as usize, from..from + within.len());
            let entry = match changed.entry(page) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    let before = if whole { [0; PAGE as usize] } else { self.base_page(page)? };
                    entry.insert(Arc::new(before))
                }
            };
            fill(&mut Arc::make_mut(entry)[within], piece);
        }
        Ok(())
    }

    /// Writes `bytes` at `offset`, which was checked.
    pub(crate) fn put(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.change(offset, bytes.len() as u64, |page, from| page.copy_from_slice(&bytes[from]))
    }

    fn fill(&self, range: ByteRange, byte: u8) -> Result<(), DeviceError> {
        self.change(range.offset, range.len, |page, _| page.fill(byte))
    }

    /// Zeroes a range, which was checked.
    pub(crate) fn zero(&self, range: ByteRange) -> Result<(), DeviceError> {
        self.fill(range, 0)
    }

    /// Gives a range, which was checked, the contents that a discard leaves.
    pub(crate) fn forget(&self, range: ByteRange) -> Result<(), DeviceError> {
        match &self.attributes.discard {
            None => Ok(()),
            Some(limits) if limits.after == AfterDiscard::Zero => self.zero(range),
            Some(_) => self.fill(range, AFTER_DISCARD),
        }
    }

    /// Reads `[offset, offset + bytes.len())`, which was checked: the base first, then what changed.
    fn get(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let changed = self.changed.read();
        let end = offset + bytes.len() as u64;
        let mut own = changed.range(offset / PAGE..end.div_ceil(PAGE)).peekable();
        let mut at = offset;
        while at < end {
            let next_own = own.peek().map_or(end, |(page, _)| (**page * PAGE).max(at));
            if at < next_own {
                let (from, to) = ((at - offset) as usize, (next_own - offset) as usize);
                self.base.read_at(at, &mut bytes[from..to])?;
                at = next_own;
            } else if let Some((page, own)) = own.next() {
                let stop = end.min((page + 1) * PAGE);
                let within = (at - page * PAGE) as usize..(stop - page * PAGE) as usize;
                bytes[(at - offset) as usize..(stop - offset) as usize].copy_from_slice(&own[within]);
                at = stop;
            }
        }
        Ok(())
    }
}

impl BlockDevice for Snapshot {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        for read in batch {
            self.attributes.admit(Operation::Read, read.offset, read.bytes())?;
            if let [one] = read.bufs {
                self.get(read.offset, one)?;
                continue;
            }
            let mut bytes = vec![0; read.bytes() as usize];
            self.get(read.offset, &mut bytes)?;
            let mut rest = &bytes[..];
            for buf in read.bufs.iter_mut() {
                let (head, tail) = rest.split_at(buf.len());
                buf.copy_from_slice(head);
                rest = tail;
            }
        }
        Ok(())
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in batch {
            self.attributes.admit(Operation::Write, write.offset, write.bytes())?;
            if let [one] = write.bufs {
                self.put(write.offset, one)?;
                continue;
            }
            self.put(write.offset, &gather(write))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        for &range in ranges {
            self.attributes.admit(Operation::Discard, range.offset, range.len)?;
            self.forget(range)?;
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange, _may_unmap: bool) -> Result<(), DeviceError> {
        self.attributes.admit(Operation::WriteZeroes, range.offset, range.len)?;
        self.zero(range)
    }
}

/// The bytes of a write in one piece.
pub(crate) fn gather(write: &Write<'_>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(write.bytes() as usize);
    for buf in write.bufs {
        bytes.extend_from_slice(buf);
    }
    bytes
}

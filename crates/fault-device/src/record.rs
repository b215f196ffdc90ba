//! What a device was asked, in order.

use std::collections::BTreeMap;
use std::sync::Arc;

use onggi_block_device::{Attributes, BlockDevice, ByteRange, DeviceError, Read, Write};
use parking_lot::Mutex;

use crate::snapshot::gather;

/// One thing asked of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Bytes to a place.
    Write {
        /// Byte address.
        offset: u64,
        /// What was written; shared, so that a copy of the log is cheap.
        data: Arc<[u8]>,
        /// Durable at completion.
        fua: bool,
    },
    /// A range given up.
    Discard(ByteRange),
    /// A range zeroed.
    WriteZeroes(ByteRange),
    /// All that completed before is to be durable.
    Flush,
}

impl Request {
    /// Bytes it changes; empty for a flush.
    #[must_use]
    pub fn range(&self) -> ByteRange {
        match self {
            Self::Write { offset, data, .. } => ByteRange { offset: *offset, len: data.len() as u64 },
            Self::Discard(range) | Self::WriteZeroes(range) => *range,
            Self::Flush => ByteRange { offset: 0, len: 0 },
        }
    }
}

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The device was given a request. From here on it may take effect.
    Submitted {
        /// Counts up from 0 in the order of submission.
        id: u64,
        /// What was asked.
        request: Request,
    },
    /// The device answered.
    Completed {
        /// The request.
        id: u64,
        /// False when it failed: then it may have taken effect or not, and promises nothing.
        ok: bool,
    },
    /// The caller's own note, such as "this fsync was acknowledged".
    Mark(u64),
}

/// A device whose every change is written down. Reads are not.
///
/// Many threads may use it at once: what was in flight together is in flight together in the log.
pub struct Recorder<D> {
    inner: D,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    next: u64,
}

impl Log {
    fn submit(&mut self, request: Request) -> u64 {
        let id = self.next;
        self.next += 1;
        self.events.push(Event::Submitted { id, request });
        id
    }
}

impl<D: BlockDevice> Recorder<D> {
    /// Records what goes to `inner`, whose contents now are the base of all crash states.
    pub fn new(inner: D) -> Self {
        Self { inner, log: Mutex::default() }
    }

    /// Writes `label` in the log.
    pub fn mark(&self, label: u64) {
        self.log.lock().events.push(Event::Mark(label));
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> Vec<Event> {
        self.log.lock().events.clone()
    }

    /// Events so far: the position of a power cut now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The device below and the log.
    #[must_use]
    pub fn into_parts(self) -> (D, Vec<Event>) {
        (self.inner, self.log.into_inner().events)
    }

    fn record(
        &self,
        requests: impl Iterator<Item = Request>,
        run: impl FnOnce(&D) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let requests: Vec<_> = requests.collect();
        let ids = {
            let mut log = self.log.lock();
            let first = log.next;
            for request in requests {
                log.submit(request);
            }
            first..log.next
        };
        let result = run(&self.inner);
        let ok = result.is_ok();
        self.log.lock().events.extend(ids.map(|id| Event::Completed { id, ok }));
        result
    }
}

impl<D: BlockDevice> BlockDevice for Recorder<D> {
    fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        self.inner.read(batch)
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in batch {
            let operation = onggi_block_device::Operation::Write;
            self.attributes().admit(operation, write.offset, write.bytes())?;
        }
        let requests = batch.iter().map(|write| Request::Write {
            offset: write.offset,
            data: gather(write).into(),
            fua: write.fua,
        });
        self.record(requests, |inner| inner.write(batch))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.record(std::iter::once(Request::Flush), |inner| inner.flush())
    }

    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        for range in ranges {
            self.attributes().admit(onggi_block_device::Operation::Discard, range.offset, range.len)?;
        }
        self.record(ranges.iter().map(|&range| Request::Discard(range)), |inner| inner.discard(ranges))
    }

    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.attributes().admit(onggi_block_device::Operation::WriteZeroes, range.offset, range.len)?;
        self.record(std::iter::once(Request::WriteZeroes(range)), |inner| {
            inner.write_zeroes(range, may_unmap)
        })
    }
}

/// The labels marked before `position`, in order.
pub fn marks(log: &[Event], position: usize) -> impl Iterator<Item = u64> {
    log[..position].iter().filter_map(|event| match event {
        Event::Mark(label) => Some(*label),
        _ => None,
    })
}

/// Pairs of requests that were in flight together on a common byte: the device may order them either
/// way, so an engine should have none.
#[must_use]
pub fn overlaps(log: &[Event]) -> Vec<(u64, u64)> {
    let mut in_flight = BTreeMap::new();
    let mut pairs = Vec::new();
    for event in log {
        match event {
            Event::Submitted { id, request } => {
                let new = request.range();
                for (&other, old) in &in_flight {
                    let old: &ByteRange = old;
                    if old.offset < new.offset + new.len && new.offset < old.offset + old.len {
                        pairs.push((other, *id));
                    }
                }
                in_flight.insert(*id, new);
            }
            Event::Completed { id, .. } => {
                in_flight.remove(id);
            }
            Event::Mark(_) => {}
        }
    }
    pairs
}

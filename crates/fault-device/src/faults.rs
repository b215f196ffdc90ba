//! Requests that fail when they are told to.

use onggi_block_device::{
    Attributes, BlockDevice, ByteRange, DeviceError, ErrorLatch, Operation, Read, Write,
};
use parking_lot::Mutex;

use crate::prng::Prng;
use crate::snapshot::gather;

/// Which requests fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    operation: Operation,
    within: Option<ByteRange>,
    after: u64,
    times: Option<u64>,
    errno: i32,
    torn: Option<u64>,
}

impl Fault {
    /// `EIO`.
    pub const EIO: i32 = 5;
    /// `ENOSPC`.
    pub const ENOSPC: i32 = 28;

    /// The next request of this kind fails, once, with `EIO`.
    #[must_use]
    pub fn on(operation: Operation) -> Self {
        Self { operation, within: None, after: 0, times: Some(1), errno: Self::EIO, torn: None }
    }

    /// Only requests that touch `range` match. A flush touches none.
    #[must_use]
    pub fn within(self, range: ByteRange) -> Self {
        Self { within: Some(range), ..self }
    }

    /// So many matching requests pass first.
    #[must_use]
    pub fn after(self, passed: u64) -> Self {
        Self { after: passed, ..self }
    }

    /// So many matching requests fail.
    #[must_use]
    pub fn times(self, times: u64) -> Self {
        Self { times: Some(times), ..self }
    }

    /// Every matching request fails from then on.
    #[must_use]
    pub fn forever(self) -> Self {
        Self { times: None, ..self }
    }

    /// The error number.
    #[must_use]
    pub fn errno(self, errno: i32) -> Self {
        Self { errno, ..self }
    }

    /// A write that fails still reaches a random subset of its sectors.
    #[must_use]
    pub fn torn(self, seed: u64) -> Self {
        Self { torn: Some(seed), ..self }
    }

    /// Whether this request fails; counts it.
    fn strikes(&mut self, operation: Operation, range: ByteRange) -> bool {
        let touches = self.within.is_none_or(|within| {
            range.offset < within.offset.saturating_add(within.len)
                && within.offset < range.offset.saturating_add(range.len)
        });
        if operation != self.operation || !touches {
            return false;
        }
        if self.after > 0 {
            self.after -= 1;
            return false;
        }
        match &mut self.times {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }
}

/// A device that fails as its [`Fault`]s say. A flush or FUA write that failed stays failed.
pub struct Faults<D> {
    inner: D,
    state: Mutex<State>,
    latch: ErrorLatch,
}

#[derive(Default)]
struct State {
    faults: Vec<Fault>,
    hits: u64,
    seen: [u64; 5],
}

impl<D: BlockDevice> Faults<D> {
    /// A device that fails nothing yet.
    pub fn new(inner: D) -> Self {
        Self { inner, state: Mutex::default(), latch: ErrorLatch::default() }
    }

    /// Adds a fault; of two that match one request, the first added strikes and only it counts a hit.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Takes all faults away. A failed flush stays failed.
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// Requests that failed on purpose.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.state.lock().hits
    }

    /// Requests of this kind so far, so that a test can fail each of them in turn.
    #[must_use]
    pub fn seen(&self, operation: Operation) -> u64 {
        self.state.lock().seen[operation as usize]
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// The fault that strikes this request, and its error.
    fn strike(&self, operation: Operation, range: ByteRange) -> Option<(Fault, DeviceError)> {
        let mut state = self.state.lock();
        state.seen[operation as usize] += 1;
        let fault = *state.faults.iter_mut().find_map(|fault| {
            let struck = fault.strikes(operation, range);
            struck.then_some(fault)
        })?;
        state.hits += 1;
        let ByteRange { offset, len } = range;
        Some((fault, DeviceError::Io { operation, offset, len, errno: fault.errno }))
    }

    fn fail(&self, operation: Operation, range: ByteRange) -> Result<(), DeviceError> {
        self.strike(operation, range).map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Writes the sectors of `write` that the fault spares.
    fn tear(&self, write: &Write<'_>, seed: u64) {
        let (mut prng, bytes) = (Prng::new(seed), gather(write));
        let sector = self.inner.attributes().logical_sector as usize;
        for (nth, bytes) in bytes.chunks(sector).enumerate() {
            if prng.chance(1, 2) {
                // The request fails whatever becomes of this part of it.
                let _ = self.inner.write_at(write.offset + (nth * sector) as u64, bytes);
            }
        }
    }
}

impl<D: BlockDevice> BlockDevice for Faults<D> {
    fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        for read in batch.iter() {
            self.fail(Operation::Read, ByteRange { offset: read.offset, len: read.bytes() })?;
        }
        self.inner.read(batch)
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        let promises = batch.iter().any(|write| write.fua);
        if promises {
            self.latch.check()?;
        }
        let mut first_error = None;
        let mut spared = Vec::with_capacity(batch.len());
        for write in batch {
            let (offset, len) = (write.offset, write.bytes());
            self.attributes().admit(Operation::Write, offset, len)?;
            match self.strike(Operation::Write, ByteRange { offset, len }) {
                None => spared.push(*write),
                Some((fault, error)) => {
                    if let Some(seed) = fault.torn {
                        self.tear(write, seed);
                    }
                    first_error.get_or_insert(error);
                }
            }
        }
        let written = self.inner.write(&spared);
        let result = first_error.map_or(written, Err);
        if promises { self.latch.note(result) } else { result }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.latch.check()?;
        let struck = self.fail(Operation::Flush, ByteRange { offset: 0, len: 0 });
        self.latch.note(struck.and_then(|()| self.inner.flush()))
    }

    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        for &range in ranges {
            self.fail(Operation::Discard, range)?;
        }
        self.inner.discard(ranges)
    }

    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.fail(Operation::WriteZeroes, range)?;
        self.inner.write_zeroes(range, may_unmap)
    }
}

//! The device itself.

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::path::Path;

use onggi_block_device::{
    AlignedBuf, Attributes, BlockDevice, ByteRange, DeviceError, ErrorLatch, Operation, Read, Write,
};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::bounce::{Bounce, BouncePool};
use crate::open::{Alignment, Backend, OpenError, OpenOptions, Opened};
use crate::threads::Threads;
use crate::uring::Uring;
use crate::vectored::{MOST_BUFFERS, patiently};
use crate::{ioctl, open, vectored};

/// Bytes of zeroes written by one request where the file cannot be told to zero itself.
const ZEROES: usize = 1 << 20;

/// An image file or a block device. The lock is held until it is dropped.
pub struct FileDevice {
    file: File,
    attributes: Attributes,
    block_device: bool,
    direct: Option<Alignment>,
    uring: Option<Uring>,
    threads: Threads,
    bounces: BouncePool,
    latch: ErrorLatch,
}

impl FileDevice {
    /// Opens an image file or a block device. A file is used up to its last whole sector.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::InUse`] when another process has it: for writing, anyone; for
    /// reading, a writer.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Self, OpenError> {
        Self::new(path.as_ref(), options, None)
    }

    /// Opens `path` for writing with room for `size` bytes: a missing file is created sparse, a shorter
    /// one grows. What is there already stays, and so does the size of a longer file or a block
    /// device: [`Attributes::size`] says what there is.
    ///
    /// # Errors
    /// As [`FileDevice::open`]; [`OpenError::BadSize`] when `size` is not one or more sectors,
    /// [`OpenError::TooSmall`] when a block device has less.
    pub fn create(path: impl AsRef<Path>, size: u64) -> Result<Self, OpenError> {
        Self::create_with(path, size, OpenOptions::default())
    }

    /// [`FileDevice::create`] with options; `read_only` is ignored.
    ///
    /// # Errors
    /// As [`FileDevice::create`].
    pub fn create_with(path: impl AsRef<Path>, size: u64, options: OpenOptions) -> Result<Self, OpenError> {
        let path = path.as_ref();
        if size == 0 || !size.is_multiple_of(512) || i64::try_from(size).is_err() {
            return Err(OpenError::BadSize { path: path.to_owned(), size });
        }
        Self::new(path, OpenOptions { read_only: false, ..options }, Some(size))
    }

    fn new(path: &Path, options: OpenOptions, grow_to: Option<u64>) -> Result<Self, OpenError> {
        let Opened { file, attributes, block_device, direct } = open::open(path, options, grow_to)?;
        let depth = attributes.queue_depth;
        let uring = match options.backend {
            Backend::Threads => None,
            // Through the page cache the kernel hands ring requests to its own threads: ours are as good.
            Backend::Auto if direct.is_none() => None,
            Backend::Auto => Uring::new(depth).ok(),
            Backend::Uring => Some(Uring::new(depth).map_err(|source| OpenError::System {
                path: path.to_owned(),
                doing: "set up io_uring",
                source,
            })?),
        };
        Ok(Self {
            file,
            attributes,
            block_device,
            direct,
            uring,
            threads: Threads::new(depth),
            bounces: BouncePool::default(),
            latch: ErrorLatch::default(),
        })
    }

    /// Whether requests go past the host's page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct.is_some()
    }

    /// How batches reach the kernel: never [`Backend::Auto`].
    #[must_use]
    pub fn backend(&self) -> Backend {
        if self.uring.is_some() { Backend::Uring } else { Backend::Threads }
    }

    /// Whether direct I/O takes memory at this address and of this length.
    fn takes(&self, buf: &[u8]) -> bool {
        self.direct.is_none_or(|alignment| {
            buf.as_ptr().addr().is_multiple_of(alignment.memory as usize)
                && buf.len().is_multiple_of(alignment.offset as usize)
        })
    }

    /// A request alone gains nothing from a ring (`examples/measure.rs`).
    fn read_batch(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        match (&self.uring, batch) {
            (_, [one]) if one.bufs.len() <= MOST_BUFFERS => vectored::read(self.file.as_fd(), one, 0),
            (Some(uring), batch) => uring.read(self.file.as_fd(), batch),
            (None, batch) => self.threads.read(self.file.as_fd(), batch),
        }
    }

    fn write_batch(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        match (&self.uring, batch) {
            (_, [one]) if one.bufs.len() <= MOST_BUFFERS => vectored::write(self.file.as_fd(), one, 0),
            (Some(uring), batch) => uring.write(self.file.as_fd(), batch),
            // Copies into the page cache take turns at the file's lock: threads would only queue.
            (None, batch) if self.direct.is_none() && batch.iter().all(|write| !write.fua) => {
                batch.iter().try_for_each(|write| vectored::write(self.file.as_fd(), write, 0))
            }
            (None, batch) => self.threads.write(self.file.as_fd(), batch),
        }
    }

    /// Reads a batch of which some memory is misaligned: those requests land in bounce buffers.
    fn read_bounced(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        let mut bounces: Vec<Option<Bounce<'_>>> = batch
            .iter()
            .map(|read| {
                let fits = read.bufs.iter().all(|buf| self.takes(buf));
                (!fits).then(|| self.bounces.take(read.bytes() as usize))
            })
            .collect();
        let mut slices: Vec<(u64, Vec<IoSliceMut<'_>>)> = batch
            .iter_mut()
            .zip(&mut bounces)
            .map(|(read, bounce)| match bounce {
                Some(bounce) => (read.offset, vec![IoSliceMut::new(bounce)]),
                None => (read.offset, read.bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect()),
            })
            .collect();
        let mut ready: Vec<_> =
            slices.iter_mut().map(|(offset, bufs)| Read { offset: *offset, bufs }).collect();
        self.read_batch(&mut ready)?;
        drop(slices);
        for (read, bounce) in batch.iter_mut().zip(&bounces) {
            let Some(bounce) = bounce else { continue };
            let mut from = 0;
            for buf in read.bufs.iter_mut() {
                let len = buf.len();
                buf.copy_from_slice(&bounce[from..from + len]);
                from += len;
            }
        }
        Ok(())
    }

    /// Writes a batch of which some memory is misaligned: those requests leave from bounce buffers.
    fn write_bounced(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        let bounces: Vec<Option<Bounce<'_>>> = batch
            .iter()
            .map(|write| {
                let fits = write.bufs.iter().all(|buf| self.takes(buf));
                (!fits).then(|| {
                    let mut bounce = self.bounces.take(write.bytes() as usize);
                    let mut to = 0;
                    for buf in write.bufs {
                        bounce[to..to + buf.len()].copy_from_slice(buf);
                        to += buf.len();
                    }
                    bounce
                })
            })
            .collect();
        let slices: Vec<Option<[IoSlice<'_>; 1]>> =
            bounces.iter().map(|bounce| bounce.as_ref().map(|bounce| [IoSlice::new(bounce)])).collect();
        let ready: Vec<Write<'_>> = batch
            .iter()
            .zip(&slices)
            .map(|(write, own)| Write { bufs: own.as_ref().map_or(write.bufs, |own| own), ..*write })
            .collect();
        self.write_batch(&ready)
    }

    fn discard_one(&self, range: ByteRange) -> Result<(), Errno> {
        if self.block_device {
            return patiently(|| ioctl::discard(self.file.as_fd(), range));
        }
        self.punch(range)
    }

    fn punch(&self, range: ByteRange) -> Result<(), Errno> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        patiently(|| rustix::fs::fallocate(&self.file, mode, range.offset, range.len))
    }

    fn zero_range(&self, range: ByteRange) -> Result<(), Errno> {
        let mode = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        patiently(|| rustix::fs::fallocate(&self.file, mode, range.offset, range.len))
    }

    /// Zeroes a range the long way.
    fn write_zero_bytes(&self, range: ByteRange) -> Result<(), DeviceError> {
        let zeroes = AlignedBuf::zeroed(ZEROES.min(usize::try_from(range.len).unwrap_or(ZEROES)));
        let mut done = 0;
        while done < range.len {
            let len = (range.len - done).min(ZEROES as u64);
            self.write_at(range.offset + done, &zeroes[..len as usize])?;
            done += len;
        }
        Ok(())
    }
}

/// The error of a request on `range`.
fn failed(operation: Operation, range: ByteRange) -> impl Fn(Errno) -> DeviceError {
    move |errno| DeviceError::Io {
        operation,
        offset: range.offset,
        len: range.len,
        errno: errno.raw_os_error(),
    }
}

/// Whether the file just cannot do it, and a longer way may work.
fn unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

impl BlockDevice for FileDevice {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        for read in batch.iter() {
            self.attributes.admit(Operation::Read, read.offset, read.bytes())?;
        }
        let takes_all =
            self.direct.is_none() || batch.iter().all(|read| read.bufs.iter().all(|buf| self.takes(buf)));
        if takes_all { self.read_batch(batch) } else { self.read_bounced(batch) }
    }

    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        for write in batch {
            self.attributes.admit(Operation::Write, write.offset, write.bytes())?;
        }
        let promises = batch.iter().any(|write| write.fua);
        if promises {
            self.latch.check()?;
        }
        let takes_all =
            self.direct.is_none() || batch.iter().all(|write| write.bufs.iter().all(|buf| self.takes(buf)));
        let result = if takes_all { self.write_batch(batch) } else { self.write_bounced(batch) };
        // A synchronous write that fails may have used up the one report of an earlier write's loss.
        if promises { self.latch.note(result) } else { result }
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.attributes.read_only {
            return Ok(());
        }
        self.latch.check()?;
        let flushed = patiently(|| rustix::fs::fdatasync(&self.file));
        self.latch.note(flushed.map_err(failed(Operation::Flush, ByteRange { offset: 0, len: 0 })))
    }

    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        for range in ranges {
            self.attributes.admit(Operation::Discard, range.offset, range.len)?;
        }
        if self.attributes.discard.is_none() {
            return Ok(());
        }
        for &range in ranges.iter().filter(|range| range.len > 0) {
            self.discard_one(range).map_err(failed(Operation::Discard, range))?;
        }
        Ok(())
    }

    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.attributes.admit(Operation::WriteZeroes, range.offset, range.len)?;
        if range.len == 0 {
            return Ok(());
        }
        let mut outcome = Err(Errno::OPNOTSUPP);
        if may_unmap {
            outcome = self.punch(range);
        }
        if outcome.is_err_and(unsupported) {
            outcome = self.zero_range(range);
        }
        match outcome {
            Err(errno) if unsupported(errno) => self.write_zero_bytes(range),
            outcome => outcome.map_err(failed(Operation::WriteZeroes, range)),
        }
    }
}

impl std::fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileDevice")
            .field("attributes", &self.attributes)
            .field("direct", &self.direct)
            .field("backend", &self.backend())
            .finish_non_exhaustive()
    }
}

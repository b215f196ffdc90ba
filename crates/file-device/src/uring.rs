//! Batches through io_uring.
//!
//! A few rings stand ready; a caller holds one for the length of a batch, submits all of it and waits
//! for all of it. No submission outlives the call whose buffers it names.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::{IoUring, opcode, squeue, types};
use onggi_block_device::{DeviceError, Operation, Read, Write};
use parking_lot::{Mutex, MutexGuard};

use crate::vectored::{self, MOST_BUFFERS};

/// Rings of one device; each comes to life when a caller finds the others busy.
const RINGS: usize = 16;

/// Submissions a ring holds at most.
const MOST_ENTRIES: u32 = 1024;

/// Result of a piece that the kernel has not taken.
const NOT_TAKEN: i32 = -libc::EAGAIN;

/// The rings of one device.
pub(crate) struct Uring {
    entries: u32,
    rings: Box<[Mutex<Option<IoUring>>]>,
    /// The kernel takes no submissions any more.
    gone: AtomicBool,
}

/// One submission: up to [`MOST_BUFFERS`] buffers of one request.
struct Piece {
    request: usize,
    /// First of its buffers in the request.
    first: usize,
    /// The kernel's view of its buffers: `IoSlice` and `IoSliceMut` are laid out as `iovec`.
    iovecs: *const libc::iovec,
    count: usize,
    offset: u64,
    operation: Operation,
    fua: bool,
}

impl Piece {
    fn entry(&self, file: RawFd) -> squeue::Entry {
        let (file, count) = (types::Fd(file), self.count as u32);
        if self.operation == Operation::Read {
            opcode::Readv::new(file, self.iovecs, count).offset(self.offset).build()
        } else {
            let flags = if self.fua { libc::RWF_DSYNC } else { 0 };
            opcode::Writev::new(file, self.iovecs, count).offset(self.offset).rw_flags(flags).build()
        }
    }
}

impl Uring {
    /// Rings of `queue_depth` entries.
    ///
    /// # Errors
    /// The kernel's when it makes no ring.
    pub(crate) fn new(queue_depth: u32) -> io::Result<Self> {
        let entries = queue_depth.clamp(1, MOST_ENTRIES).next_power_of_two();
        let rings: Box<[_]> = (0..RINGS).map(|_| Mutex::new(None)).collect();
        *rings[0].lock() = Some(ring(entries)?);
        Ok(Self { entries, rings, gone: AtomicBool::new(false) })
    }

    /// Reads a batch.
    pub(crate) fn read(&self, file: BorrowedFd<'_>, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        let mut pieces = Vec::with_capacity(batch.len());
        for (request, read) in batch.iter_mut().enumerate() {
            let mut offset = read.offset;
            for (chunk, bufs) in read.bufs.chunks_mut(MOST_BUFFERS).enumerate() {
                pieces.push(Piece {
                    request,
                    first: chunk * MOST_BUFFERS,
                    iovecs: bufs.as_mut_ptr().cast(),
                    count: bufs.len(),
                    offset,
                    operation: Operation::Read,
                    fua: false,
                });
                offset += bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
            }
        }
        let results = self.transfer(file, &pieces);
        let mut outcome = Ok(());
        for (piece, &result) in pieces.iter().zip(&results) {
            let bufs = &mut batch[piece.request].bufs[piece.first..piece.first + piece.count];
            let mut rest = Read { offset: piece.offset, bufs };
            let len = rest.bytes();
            outcome =
                outcome.and(progress(piece, len, result).and_then(|done| {
                    if done == len { Ok(()) } else { vectored::read(file, &mut rest, done) }
                }));
        }
        outcome
    }

    /// Writes a batch.
    pub(crate) fn write(&self, file: BorrowedFd<'_>, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        let mut pieces = Vec::with_capacity(batch.len());
        for (request, write) in batch.iter().enumerate() {
            let mut offset = write.offset;
            for (chunk, bufs) in write.bufs.chunks(MOST_BUFFERS).enumerate() {
                pieces.push(Piece {
                    request,
                    first: chunk * MOST_BUFFERS,
                    iovecs: bufs.as_ptr().cast(),
                    count: bufs.len(),
                    offset,
                    operation: Operation::Write,
                    fua: write.fua,
                });
                offset += bufs.iter().map(|buf| buf.len() as u64).sum::<u64>();
            }
        }
        let results = self.transfer(file, &pieces);
        let mut outcome = Ok(());
        for (piece, &result) in pieces.iter().zip(&results) {
            let bufs = &batch[piece.request].bufs[piece.first..piece.first + piece.count];
            let rest = Write { offset: piece.offset, bufs, fua: piece.fua };
            let len = rest.bytes();
            outcome = outcome.and(
                progress(piece, len, result)
                    .and_then(|done| if done == len { Ok(()) } else { vectored::write(file, &rest, done) }),
            );
        }
        outcome
    }

    /// Runs every piece that the kernel takes and says what became of each: bytes or a negative error
    /// number.
    fn transfer(&self, file: BorrowedFd<'_>, pieces: &[Piece]) -> Vec<i32> {
        let mut results = vec![NOT_TAKEN; pieces.len()];
        if !self.gone.load(Ordering::Relaxed) {
            let mut slot = self.free_slot();
            if slot.is_none() {
                *slot = ring(self.entries).ok();
            }
            if let Some(ring) = slot.as_mut()
                && !drive(ring, file.as_raw_fd(), pieces, &mut results)
            {
                *slot = None;
                self.gone.store(true, Ordering::Relaxed);
            }
        }
        results
    }

    /// A ring that nobody holds, beginning with the one this thread had last; waits when all are held.
    fn free_slot(&self) -> MutexGuard<'_, Option<IoUring>> {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static HOME: usize = THREADS.fetch_add(1, Ordering::Relaxed));
        let home = HOME.with(|home| *home);
        let free = (0..RINGS).find_map(|step| self.rings[(home + step) % RINGS].try_lock());
        free.unwrap_or_else(|| self.rings[home % RINGS].lock())
    }
}

fn ring(entries: u32) -> io::Result<IoUring> {
    // Completions are only ever wanted by the thread that waits for them: no need to interrupt it.
    IoUring::builder().setup_coop_taskrun().build(entries).or_else(|_| IoUring::new(entries))
}

/// Bytes of `piece` that are done; the rest, if any, is for the caller to finish.
fn progress(piece: &Piece, len: u64, result: i32) -> Result<u64, DeviceError> {
    match u64::try_from(result) {
        // Nothing at all at the end of a file that shrank: asking once more gives the error its name.
        Ok(done) => Ok(done.min(len)),
        Err(_) if result == -libc::EAGAIN || result == -libc::EINTR => Ok(0),
        Err(_) => {
            Err(DeviceError::Io { operation: piece.operation, offset: piece.offset, len, errno: -result })
        }
    }
}

/// Submits all pieces and waits until none is in flight. False when the ring is unusable from now on.
///
/// Nothing between the first submission and the return can unwind: the buffers stay borrowed.
fn drive(ring: &mut IoUring, file: RawFd, pieces: &[Piece], results: &mut [i32]) -> bool {
    let room = ring.params().sq_entries() as usize;
    let (mut next, mut in_flight) = (0, 0);
    loop {
        while in_flight < room && next < pieces.len() {
            let entry = pieces[next].entry(file).user_data(next as u64);
            // SAFETY: the iovecs and the memory they name are borrowed by the caller of `transfer`,
            // for writing where the kernel fills them, and this function returns only when no
            // submission is in flight.
            if unsafe { ring.submission().push(&entry) }.is_err() {
                break;
            }
            next += 1;
            in_flight += 1;
        }
        if in_flight == 0 {
            return true;
        }
        let want = if next == pieces.len() { in_flight } else { 1 };
        let outcome = ring.submit_and_wait(want);
        in_flight -= reap(ring, results);
        match outcome.map_err(|error| error.raw_os_error()) {
            Ok(_) | Err(Some(libc::EINTR)) => {}
            Err(Some(libc::EAGAIN | libc::EBUSY)) => std::thread::yield_now(),
            Err(_) => {
                // The kernel takes no more: those it has not taken never start, the others must end.
                in_flight -= ring.submission().len();
                while in_flight > 0 {
                    std::thread::sleep(Duration::from_micros(100));
                    in_flight -= reap(ring, results);
                }
                return false;
            }
        }
    }
}

/// Takes the completions that have arrived; says how many.
fn reap(ring: &mut IoUring, results: &mut [i32]) -> usize {
    let mut count = 0;
    for completion in ring.completion() {
        if let Some(result) = results.get_mut(completion.user_data() as usize) {
            *result = completion.result();
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, IoSliceMut};
    use std::os::fd::AsFd;

    use super::*;

    fn uring(queue_depth: u32) -> Option<Uring> {
        let uring = Uring::new(queue_depth);
        if let Err(error) = &uring {
            println!("skipped: this kernel makes no io_uring ({error})");
        }
        uring.ok()
    }

    #[test]
    fn a_batch_larger_than_the_ring() {
        let Some(uring) = uring(4) else { return };
        let file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..100 * 512).map(|i| (i / 512) as u8).collect();
        let slices: Vec<_> = bytes.chunks(512).map(|chunk| [IoSlice::new(chunk)]).collect();
        let batch: Vec<_> = slices
            .iter()
            .enumerate()
            .map(|(i, bufs)| Write { offset: i as u64 * 512, bufs, fua: i % 7 == 0 })
            .collect();
        uring.write(file.as_fd(), &batch).unwrap();
        let mut back = vec![0; bytes.len()];
        let mut slices: Vec<_> = back.chunks_mut(512).map(|chunk| [IoSliceMut::new(chunk)]).collect();
        let mut batch: Vec<_> = slices
            .iter_mut()
            .enumerate()
            .map(|(i, bufs)| Read { offset: i as u64 * 512, bufs: &mut bufs[..] })
            .collect();
        uring.read(file.as_fd(), &mut batch).unwrap();
        assert!(back == bytes);
    }

    #[test]
    fn without_a_ring_every_piece_is_left_to_the_caller() {
        let Some(uring) = uring(4) else { return };
        uring.gone.store(true, Ordering::Relaxed);
        let file = tempfile::tempfile().unwrap();
        let bytes = [3; 1024];
        uring.write(file.as_fd(), &[Write { offset: 0, bufs: &[IoSlice::new(&bytes)], fua: false }]).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1024);
    }

    #[test]
    fn an_error_keeps_its_number_and_the_others_are_done() {
        let Some(uring) = uring(8) else { return };
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), [5; 1024]).unwrap();
        let read_only = std::fs::File::open(path.path()).unwrap();
        let bytes = [3; 512];
        let write = Write { offset: 512, bufs: &[IoSlice::new(&bytes)], fua: false };
        assert_eq!(
            uring.write(read_only.as_fd(), &[write]),
            Err(DeviceError::Io { operation: Operation::Write, offset: 512, len: 512, errno: libc::EBADF })
        );
        let (mut a, mut b) = ([0; 512], [0; 512]);
        let mut batch = [
            Read { offset: 4096, bufs: &mut [IoSliceMut::new(&mut a)] },
            Read { offset: 512, bufs: &mut [IoSliceMut::new(&mut b)] },
        ];
        let error = uring.read(read_only.as_fd(), &mut batch).unwrap_err();
        assert_eq!(error.errno(), libc::EIO, "past the end of the file");
        assert_eq!(b, [5; 512]);
    }
}

//! One request at a time through preadv and pwritev, to its last byte.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use onggi_block_device::{DeviceError, Operation, Read, Write};
use rustix::io::{Errno, ReadWriteFlags};

/// Buffers the kernel takes in one call (`IOV_MAX`).
pub(crate) const MOST_BUFFERS: usize = 1024;

/// Times a request answered with EAGAIN is tried again, a millisecond apart.
const PATIENCE: u32 = 1000;

/// Completes `request`, of which the first `done` bytes are already there.
pub(crate) fn read(file: BorrowedFd<'_>, request: &mut Read<'_, '_>, done: u64) -> Result<(), DeviceError> {
    let (offset, len) = (request.offset, request.bytes());
    let failed = |errno: Errno| DeviceError::Io {
        operation: Operation::Read,
        offset,
        len,
        errno: errno.raw_os_error(),
    };
    let mut done = done;
    if done == 0 && request.bufs.len() <= MOST_BUFFERS {
        done = patiently(|| read_once(file, request.bufs, offset)).map_err(failed)?;
        if done == len {
            return Ok(());
        }
        if done == 0 {
            return Err(failed(Errno::IO));
        }
    }
    let mut slices: Vec<_> =
        request.bufs.iter_mut().filter(|buf| !buf.is_empty()).map(|buf| IoSliceMut::new(buf)).collect();
    let mut rest = &mut slices[..];
    IoSliceMut::advance_slices(&mut rest, usize::try_from(done).map_err(|_| failed(Errno::INVAL))?);
    while !rest.is_empty() {
        let some = rest.len().min(MOST_BUFFERS);
        let read = patiently(|| read_once(file, &mut rest[..some], offset + done)).map_err(failed)?;
        if read == 0 {
            return Err(failed(Errno::IO));
        }
        done += read;
        IoSliceMut::advance_slices(&mut rest, read as usize);
    }
    Ok(())
}

/// Completes `request`, of which the first `done` bytes are already there.
pub(crate) fn write(file: BorrowedFd<'_>, request: &Write<'_>, done: u64) -> Result<(), DeviceError> {
    let (offset, len) = (request.offset, request.bytes());
    let failed = |errno: Errno| DeviceError::Io {
        operation: Operation::Write,
        offset,
        len,
        errno: errno.raw_os_error(),
    };
    let mut done = done;
    if done == 0 && request.bufs.len() <= MOST_BUFFERS {
        done = patiently(|| write_once(file, request.bufs, offset, request.fua)).map_err(failed)?;
        if done == len {
            return Ok(());
        }
        if done == 0 {
            return Err(failed(Errno::IO));
        }
    }
    let mut slices: Vec<_> =
        request.bufs.iter().filter(|buf| !buf.is_empty()).map(|buf| IoSlice::new(buf)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, usize::try_from(done).map_err(|_| failed(Errno::INVAL))?);
    while !rest.is_empty() {
        let some = rest.len().min(MOST_BUFFERS);
        let written =
            patiently(|| write_once(file, &rest[..some], offset + done, request.fua)).map_err(failed)?;
        if written == 0 {
            return Err(failed(Errno::IO));
        }
        done += written;
        IoSlice::advance_slices(&mut rest, written as usize);
    }
    Ok(())
}

fn read_once(file: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<u64, Errno> {
    let read = match bufs {
        [one] => rustix::io::pread(file, &mut **one, offset)?,
        many => rustix::io::preadv(file, many, offset)?,
    };
    Ok(read as u64)
}

fn write_once(file: BorrowedFd<'_>, bufs: &[IoSlice<'_>], offset: u64, fua: bool) -> Result<u64, Errno> {
    let written = match bufs {
        many if fua => rustix::io::pwritev2(file, many, offset, ReadWriteFlags::DSYNC)?,
        [one] => rustix::io::pwrite(file, one, offset)?,
        many => rustix::io::pwritev(file, many, offset)?,
    };
    Ok(written as u64)
}

/// Calls again while the kernel says that it was interrupted, and for a while when it says "later".
pub(crate) fn patiently<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let mut later = 0;
    loop {
        match call() {
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if later < PATIENCE => {
                later += 1;
                std::thread::sleep(Duration::from_millis(1));
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    fn file_of(len: usize) -> std::fs::File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len as u64).unwrap();
        file
    }

    #[test]
    fn interruptions_are_retried_and_errors_are_not() {
        let mut calls = 0;
        let result = patiently(|| {
            calls += 1;
            match calls {
                1 => Err(Errno::INTR),
                2 => Err(Errno::AGAIN),
                _ => Ok(calls),
            }
        });
        assert_eq!(result, Ok(3));
        let mut calls = 0;
        assert_eq!(
            patiently(|| {
                calls += 1;
                Err::<(), _>(Errno::IO)
            }),
            Err(Errno::IO)
        );
        assert_eq!(calls, 1);
    }

    #[test]
    fn a_request_goes_on_where_it_stopped() {
        let file = file_of(4096);
        let bytes: Vec<u8> = (0..4096u32).map(|i| (i % 251) as u8).collect();
        let bufs = [IoSlice::new(&bytes[..1000]), IoSlice::new(&[]), IoSlice::new(&bytes[1000..])];
        // The first 1500 bytes count as written: they stay zero in the file.
        write(file.as_fd(), &Write { offset: 0, bufs: &bufs, fua: false }, 1500).unwrap();
        let mut back = vec![9; 4096];
        let (a, b) = back.split_at_mut(3000);
        let mut bufs = [IoSliceMut::new(a), IoSliceMut::new(&mut []), IoSliceMut::new(b)];
        read(file.as_fd(), &mut Read { offset: 0, bufs: &mut bufs }, 100).unwrap();
        assert_eq!(bufs[0].len(), 3000, "the caller's slices stay as they were");
        assert_eq!(back[..100], [9; 100]);
        assert_eq!(back[100..1500], [0; 1400]);
        assert_eq!(back[1500..], bytes[1500..]);
    }

    #[test]
    fn more_buffers_than_one_call_takes() {
        let file = file_of(0);
        let bytes: Vec<u8> = (0..3000 * 16).map(|i| (i % 253) as u8).collect();
        let bufs: Vec<_> = bytes.chunks(16).map(IoSlice::new).collect();
        write(file.as_fd(), &Write { offset: 512, bufs: &bufs, fua: true }, 0).unwrap();
        let mut back = vec![0; bytes.len()];
        let mut bufs: Vec<_> = back.chunks_mut(16).map(IoSliceMut::new).collect();
        read(file.as_fd(), &mut Read { offset: 512, bufs: &mut bufs }, 0).unwrap();
        assert!(back == bytes);
    }

    #[test]
    fn the_end_of_the_file_is_an_error() {
        let file = file_of(1024);
        let mut back = [0; 2048];
        let mut request = Read { offset: 0, bufs: &mut [IoSliceMut::new(&mut back)] };
        let error = read(file.as_fd(), &mut request, 0).unwrap_err();
        assert_eq!(error, DeviceError::Io { operation: Operation::Read, offset: 0, len: 2048, errno: 5 });
    }
}

//! The one ioctl that has no safe wrapper.
#![allow(unsafe_code)]

use std::os::fd::BorrowedFd;

use onggi_block_device::ByteRange;
use rustix::io::Errno;
use rustix::ioctl::{self, Setter};

/// `BLKDISCARD` of `linux/fs.h`: `_IO(0x12, 119)`, argument two u64: start and length in bytes.
const BLKDISCARD: ioctl::Opcode = ioctl::opcode::none(0x12, 119);

/// Discards a range of a block device.
pub(crate) fn discard(device: BorrowedFd<'_>, range: ByteRange) -> Result<(), Errno> {
    // SAFETY: BLKDISCARD takes a pointer to two u64 and only reads them. It drops the contents of the
    // range, which no Rust reference covers.
    unsafe { ioctl::ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new([range.offset, range.len])) }
}

//! A device behind a pointer is that device.

use std::sync::Arc;

use crate::{Attributes, BlockDevice, ByteRange, DeviceError, Read, Write};

macro_rules! forward {
    ($($pointer:ty),+) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn attributes(&self) -> &Attributes {
                (**self).attributes()
            }
            fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
                (**self).read(batch)
            }
            fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
                (**self).write(batch)
            }
            fn flush(&self) -> Result<(), DeviceError> {
                (**self).flush()
            }
            fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
                (**self).discard(ranges)
            }
            fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
                (**self).write_zeroes(range, may_unmap)
            }
            fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), DeviceError> {
                (**self).read_at(offset, buf)
            }
            fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), DeviceError> {
                (**self).write_at(offset, buf)
            }
        }
    )+};
}

forward!(Arc<D>, Box<D>, &D);

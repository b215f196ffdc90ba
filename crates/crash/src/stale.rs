//! A device full of somebody else's old data.

use onggi_block_device::{
    AfterDiscard, Attributes, BlockDevice, ByteRange, DeviceError, DiscardLimits, Operation, Read, Write,
};

/// Every byte of a fresh device, and of what was discarded.
pub const STALE: u8 = 0xa5;

/// A read-only device of nothing but [`STALE`].
pub(crate) struct StaleDevice(Attributes);

impl StaleDevice {
    pub(crate) fn new(size: u64, physical_sector: u32, fua: bool) -> Self {
        Self(Attributes {
            size,
            logical_sector: 512,
            physical_sector,
            volatile_cache: true,
            fua,
            queue_depth: 32,
            discard: Some(DiscardLimits {
                granularity: 4096,
                alignment: 0,
                after: AfterDiscard::Deterministic,
            }),
            read_only: true,
        })
    }
}

impl BlockDevice for StaleDevice {
    fn attributes(&self) -> &Attributes {
        &self.0
    }

    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        for read in batch {
            read.bufs.iter_mut().for_each(|buf| buf.fill(STALE));
        }
        Ok(())
    }

    fn write(&self, _batch: &[Write<'_>]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly { operation: Operation::Write })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, _ranges: &[ByteRange]) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly { operation: Operation::Discard })
    }

    fn write_zeroes(&self, _range: ByteRange, _may_unmap: bool) -> Result<(), DeviceError> {
        Err(DeviceError::ReadOnly { operation: Operation::WriteZeroes })
    }
}

//! The error latch: a flush that failed once has failed for good.

use std::sync::atomic::{AtomicI32, Ordering};

use crate::DeviceError;

/// Remembers the first failed flush of a device.
#[derive(Debug, Default)]
pub struct ErrorLatch(AtomicI32);

impl ErrorLatch {
    /// Passes while nothing has failed.
    ///
    /// # Errors
    /// [`DeviceError::Latched`] with the first failure's error number.
    pub fn check(&self) -> Result<(), DeviceError> {
        match self.0.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(DeviceError::Latched { errno }),
        }
    }

    /// Latches the failure of `result` and hands it on.
    ///
    /// # Errors
    /// `result`'s own.
    pub fn note<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        if let Err(error) = &result {
            let _ = self.0.compare_exchange(0, error.errno(), Ordering::AcqRel, Ordering::Acquire);
        }
        result
    }
}

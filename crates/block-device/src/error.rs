//! What can go wrong at a device.

use std::fmt;

/// The kind of request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing.
    Flush,
    /// Discarding.
    Discard,
    /// Writing zeroes.
    WriteZeroes,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write zeroes",
        })
    }
}

/// Why a device request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// The range does not lie on the device.
    #[error("{operation} of {len} bytes at {offset} runs past the device's {size} bytes")]
    OutOfRange {
        /// What was asked.
        operation: Operation,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
        /// Size of the device in bytes.
        size: u64,
    },
    /// Offset or length is not a multiple of the logical sector.
    #[error("{operation} of {len} bytes at {offset} is not aligned to {sector}-byte sectors")]
    Misaligned {
        /// What was asked.
        operation: Operation,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        len: u64,
        /// The logical sector in bytes.
        sector: u32,
    },
    /// The device answered with an error.
    #[error("{operation} of {len} bytes at {offset}: {}", std::io::Error::from_raw_os_error(*.errno))]
    Io {
        /// What was asked.
        operation: Operation,
        /// Where, in bytes; 0 for a flush.
        offset: u64,
        /// How much, in bytes; 0 for a flush.
        len: u64,
        /// The system's error number.
        errno: i32,
    },
    /// An earlier flush failed, so nothing can be promised to be durable any more.
    #[error("an earlier flush failed ({}); no later one can make up for it", std::io::Error::from_raw_os_error(*.errno))]
    Latched {
        /// Error number of the flush that failed.
        errno: i32,
    },
    /// The device was opened for reading.
    #[error("{operation} on a device opened read-only")]
    ReadOnly {
        /// What was asked.
        operation: Operation,
    },
}

impl DeviceError {
    /// The system error number nearest to this error.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::OutOfRange { .. } => 5,
            Self::Misaligned { .. } => 22,
            Self::Io { errno, .. } | Self::Latched { errno } => *errno,
            Self::ReadOnly { .. } => 30,
        }
    }
}

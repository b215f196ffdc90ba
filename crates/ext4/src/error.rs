//! Errors of mounting, and how the volume's errors look through the door.

use onggi_block_device::DeviceError;
use onggi_disk_format::ext4::superblock::SuperblockError;
use onggi_ext4_volume::VolumeError;
use onggi_jbd2::{JournalError, RecoveryError};
use onggi_vfs::Errno;

/// Why a volume cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// The superblock breaks a rule.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// A feature that reading needs is not supported.
    #[error("the volume uses features that are not supported here: {0}")]
    Unsupported(String),
    /// A feature that writing needs is not supported.
    #[error("the volume uses features that are not supported for writing here: {0}; mount it read-only")]
    ReadOnlyOnly(String),
    /// The device cannot hold even a superblock.
    #[error("{size} bytes are too few for an ext4 volume")]
    TooSmall {
        /// Bytes on the device.
        size: u64,
    },
    /// The volume ends past the device's end.
    #[error(
        "superblock: s_blocks_count says {blocks} blocks of {block_size} bytes, the device has {size} bytes: truncated?"
    )]
    Truncated {
        /// Bytes on the device.
        size: u64,
        /// Blocks of the volume.
        blocks: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// Blocks are smaller than what the device writes at once.
    #[error("the volume's {block}-byte blocks are smaller than the device's {sector}-byte sectors")]
    SectorSize {
        /// The device's logical sector.
        sector: u32,
        /// The volume's block.
        block: u32,
    },
    /// The journal must be replayed, which a read-only mount of a read-only device cannot do.
    #[error("the journal needs recovery, and the device is read-only")]
    DirtyJournal,
    /// The journal could not be replayed.
    #[error("journal recovery: {0}")]
    Recovery(#[from] RecoveryError),
    /// Something below is broken.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The journal could not be opened.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// The number callers see of a volume's error.
fn errno(error: &VolumeError) -> Errno {
    match error {
        VolumeError::NoSpace => Errno::NOSPC,
        VolumeError::Corrupt { .. } => Errno::UCLEAN,
        VolumeError::Unsupported { .. } => Errno::OPNOTSUPP,
        VolumeError::Limit(_) => Errno::NOSPC,
        VolumeError::Invalid(_) => Errno::INVAL,
        VolumeError::Exists => Errno::EXIST,
        VolumeError::Missing => Errno::NODATA,
        VolumeError::Device(error) => Errno::from_raw_os_error(error.errno()),
        VolumeError::Journal(_) => Errno::ROFS,
    }
}

/// As [`errno`], as a plain number.
pub(crate) fn errno_of(error: &VolumeError) -> i32 {
    errno(error).raw_os_error()
}

/// What callers see of a volume's error.
pub(crate) fn through_the_door(error: VolumeError) -> onggi_vfs::Error {
    let errno = errno(&error);
    match error {
        VolumeError::NoSpace | VolumeError::Exists | VolumeError::Missing => errno.into(),
        error => onggi_vfs::Error::with_detail(errno, error),
    }
}

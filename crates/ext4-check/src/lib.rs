//! Consistency check and repair of ext4 volumes.
//!
//! **Does:** replays the journal, reads all metadata in one pass, and names every broken rule with its
//! place; repairs what it can when asked to. It shares no code with the engine but the byte formats and
//! the journal's replay, so that it can judge the engine.
//! **Never does:** writes in [`Mode::ReadOnly`] (a dirty journal is then replayed in memory), clocks.
//! **Called by:** `onggi check`, the crash explorer, tests.
//! **Locks:** the overlay's own.

mod analysis;
mod claims;
mod fix;
mod overlay;
mod repair;
mod replay;
mod report;
mod volume;

pub use report::{Code, Place, Problem, Replay, Report, Stats};

use onggi_block_device::{BlockDevice, DeviceError};
use onggi_disk_format::ext4::superblock::SuperblockError;
use onggi_jbd2::RecoveryError;

use overlay::Overlay;
use volume::Volume;

/// What a check may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    ReadOnly,
    /// What can be repaired without losing anything: the journal, orphans, counts and bitmaps.
    Preen,
    /// Whatever can be repaired.
    Yes,
}

/// A stage of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    /// Superblock and group descriptors.
    Layout,
    /// Inode tables.
    Inodes,
    /// Directories.
    Directories,
    /// Link counts and ways to the root.
    Links,
    /// Bitmaps and counts.
    Bitmaps,
    /// Writing repairs.
    Repair,
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The stage.
    pub pass: Pass,
    /// Steps of it that are done.
    pub done: u64,
    /// Steps it has.
    pub total: u64,
}

/// Why a check could not be done. The exit code of fsck(8) is 8.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The superblock breaks a rule past which nothing can be found.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// The volume has features that this check does not know.
    #[error("the volume has features that this check does not know: {0}")]
    Unsupported(String),
    /// The device is shorter than the volume.
    #[error("the device has {device} bytes, the volume needs {volume}")]
    TooSmall {
        /// Bytes of the device.
        device: u64,
        /// Bytes the superblock speaks of.
        volume: u64,
    },
    /// The journal that must be replayed cannot be found.
    #[error("the journal must be replayed, but its inode is broken: {0}")]
    JournalInode(String),
    /// The journal cannot be replayed.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Checks the ext4 volume on `device`, and repairs it as `mode` allows.
///
/// # Errors
/// The check could not be done; the volume may be damaged past what it can name.
pub fn check(
    device: &dyn BlockDevice,
    mode: Mode,
    progress: &dyn Fn(Progress),
) -> Result<Report, CheckError> {
    let mut report = Report::default();
    let volume = Volume::open(device)?;
    if mode == Mode::ReadOnly {
        if !replay::is_needed(&volume) {
            return look(&volume, report, progress);
        }
        let overlay = Overlay::new(device);
        let replayed = replay::replay(&Volume::open(&overlay)?)?;
        report.replay = replayed.map(|replay| Replay { in_memory: true, ..replay });
        return look(&Volume::open(&overlay)?, report, progress);
    }
    if replay::is_needed(&volume) {
        report.replay = replay::replay(&volume)?;
        report.modified = true;
    }
    repair::repair(device, mode, report, progress)
}

fn look(volume: &Volume<'_>, mut report: Report, progress: &dyn Fn(Progress)) -> Result<Report, CheckError> {
    let outcome = analysis::analyse(volume, progress)?;
    report.problems = outcome.problems.kept;
    report.more_problems = outcome.problems.more;
    report.stats = outcome.stats;
    Ok(report)
}

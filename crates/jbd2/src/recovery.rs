//! Replaying a dirty log.

use std::collections::HashMap;

use onggi_block_device::{AlignedBuf, BlockDevice};
use onggi_disk_format::jbd2::{Incompat, JournalSuperblock, parse_revoke, unescape};
use onggi_disk_format::{DiskBlock, Tid};

use crate::error::JournalError;
use crate::home::write_blocks;
use crate::log_reader::LogReader;
use crate::map::JournalMap;
use crate::scan::{Logged, Scan, scan};
use crate::superblock::SuperblockHome;

/// Bytes of images held while they are written home.
const BATCH_BYTES: usize = 4 << 20;

/// What recovery found and did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The log was not marked empty.
    pub was_dirty: bool,
    /// Whole transactions in the log.
    pub transactions: u32,
    /// Blocks written home.
    pub blocks: u64,
    /// Blocks whose last image was revoked.
    pub revoked: u64,
    /// A transaction that began and whose blocks break a checksum or a rule: the log was taken to end
    /// before it. A power cut leaves at most one such; it was never acknowledged.
    pub damaged: Option<Tid>,
    /// The error number that the journal was stopped with earlier (negative as Linux stores it), or 0. It
    /// stays recorded until [`crate::Journal::clear_errno`].
    pub errno: i32,
    /// The transaction that an opened journal starts with.
    pub next: Tid,
}

/// Why a log was not replayed. Nothing was written home unless the device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryError {
    /// The journal needs something that Onggi does not do.
    #[error("journal: {feature} is not supported")]
    Unsupported {
        /// The feature's name.
        feature: String,
    },
    /// A committed image belongs past the end of the volume.
    #[error("journal block {at}: its home, block {home}, lies past the volume's {volume_blocks} blocks")]
    OutsideVolume {
        /// Where it lies in the journal.
        at: u32,
        /// Where it claims to belong.
        home: DiskBlock,
        /// Blocks on the volume.
        volume_blocks: u64,
    },
    /// A committed image belongs inside the journal itself.
    #[error("journal block {at}: its home, block {home}, belongs to the journal itself")]
    InsideJournal {
        /// Where it lies in the journal.
        at: u32,
        /// Where it claims to belong.
        home: DiskBlock,
    },
    /// The superblock breaks a rule, or the device failed.
    #[error(transparent)]
    Journal(JournalError),
}

impl From<JournalError> for RecoveryError {
    fn from(error: JournalError) -> Self {
        match error {
            JournalError::Unsupported { feature } => Self::Unsupported { feature },
            other => Self::Journal(other),
        }
    }
}

/// Replays the whole transactions of the log and marks it empty; a clean journal is left alone. All of a
/// transaction's blocks are verified before anything is written. Run again after a power cut in the
/// middle, it does the same once more.
///
/// # Errors
/// [`RecoveryError`]; the log then stays dirty.
pub fn recover(
    device: &dyn BlockDevice,
    block_size: u32,
    map: &JournalMap,
    volume_blocks: u64,
) -> Result<Recovery, RecoveryError> {
    let mut home = SuperblockHome::load(device, block_size, map)?;
    let superblock = home.superblock().clone();
    let mut recovery = Recovery {
        was_dirty: superblock.start() != 0,
        transactions: 0,
        blocks: 0,
        revoked: 0,
        damaged: None,
        errno: superblock.errno(),
        next: superblock.sequence(),
    };
    if !recovery.was_dirty {
        return Ok(recovery);
    }
    if superblock.incompat().contains(Incompat::FAST_COMMIT) {
        let feature = Incompat::FAST_COMMIT.names().concat();
        return Err(RecoveryError::Unsupported { feature });
    }
    let end = superblock.log_end().unwrap_or_default();
    let mut reader = LogReader::new(device, map, block_size, end);
    let found = scan(&superblock, &mut reader)?;
    check_homes(&found, map, volume_blocks)?;
    let (images, revoked) = newest(&superblock, &found, &mut reader)?;
    replay(device, block_size, &images, &mut reader)?;
    device.flush().map_err(|source| JournalError::Device { during: "flushing the replay", source })?;
    let after = Tid(superblock.sequence().0.wrapping_add(found.transactions));
    recovery.transactions = found.transactions;
    recovery.blocks = images.len() as u64;
    recovery.revoked = revoked;
    recovery.damaged = found.damaged.then_some(after);
    // Every transaction takes at least one log block, so that no number still readable in the log, not
    // even behind a damaged place, is used again.
    let ring = end.saturating_sub(superblock.first());
    recovery.next = Tid(after.0.wrapping_add(ring));
    home.store(device, 0, recovery.next)?;
    tracing::info!(?recovery, "the journal was replayed");
    Ok(recovery)
}

fn check_homes(found: &Scan, map: &JournalMap, volume_blocks: u64) -> Result<(), RecoveryError> {
    for &Logged { home, at, .. } in &found.images {
        if home.0 >= volume_blocks {
            return Err(RecoveryError::OutsideVolume { at, home, volume_blocks });
        }
        if map.contains(home) {
            return Err(RecoveryError::InsideJournal { at, home });
        }
    }
    Ok(())
}

/// The newest image of each block, in log order, without those revoked by the same or a later
/// transaction; and how many those are.
fn newest(
    superblock: &JournalSuperblock,
    found: &Scan,
    reader: &mut LogReader<'_>,
) -> Result<(Vec<Logged>, u64), RecoveryError> {
    let mut newest: HashMap<DiskBlock, Logged> =
        found.images.iter().map(|image| (image.home, *image)).collect();
    let before = newest.len();
    for revoke in &found.revoke_blocks {
        // Records of blocks without an image are dropped at once: a log may hold very many.
        let (_, blocks) = parse_revoke(&superblock.layout(), reader.block(revoke.at)?)
            .map_err(|rule| RecoveryError::Journal(rule.into()))?;
        for nr in blocks {
            if newest.get(&nr).is_some_and(|image| image.transaction <= revoke.transaction) {
                newest.remove(&nr);
            }
        }
    }
    let revoked = (before - newest.len()) as u64;
    let mut images: Vec<Logged> = newest.into_values().collect();
    images.sort_unstable_by_key(|image| image.at);
    Ok((images, revoked))
}

fn replay(
    device: &dyn BlockDevice,
    block_size: u32,
    images: &[Logged],
    reader: &mut LogReader<'_>,
) -> Result<(), RecoveryError> {
    let batch = (BATCH_BYTES / block_size as usize).max(1);
    for images in images.chunks(batch) {
        let mut copies = Vec::with_capacity(images.len());
        for image in images {
            let mut copy = AlignedBuf::copy_of(reader.block(image.at)?);
            if image.escaped {
                unescape(&mut copy);
            }
            copies.push((image.home, copy));
        }
        copies.sort_unstable_by_key(|(home, _)| *home);
        let blocks: Vec<(DiskBlock, &[u8])> = copies.iter().map(|(home, copy)| (*home, &copy[..])).collect();
        write_blocks(device, block_size, &blocks)
            .map_err(|source| JournalError::Device { during: "replaying", source })?;
    }
    Ok(())
}

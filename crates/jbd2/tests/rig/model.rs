//! What a toy volume means, and which of its states a device holds.

use std::collections::{BTreeMap, HashMap};

use onggi_block_device::BlockDevice;
use onggi_disk_format::DiskBlock;
use onggi_disk_format::jbd2::MAGIC;
use onggi_fault_device::Prng;

use super::Rig;

/// What a block is to the toy engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nobody's: may hold anything.
    Free,
    /// Journaled.
    Metadata(Vec<u8>),
    /// Written in place before its transaction committed.
    Data(Vec<u8>),
}

/// The volume's meaning after a transaction.
pub type State = BTreeMap<u64, Use>;

/// Random bytes, often with the journal's magic number in front.
pub fn pattern(rig: &Rig, prng: &mut Prng) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::with_capacity(rig.block_size as usize);
    while bytes.len() < rig.block_size as usize {
        bytes.extend(prng.bits().to_le_bytes());
    }
    if prng.chance(1, 3) {
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
    }
    bytes
}

/// Which state of the history the device holds; the newest such.
pub fn matching(rig: &Rig, device: &dyn BlockDevice, history: &[State], from: usize) -> Option<usize> {
    let mut held: HashMap<u64, Vec<u8>> = HashMap::new();
    (from..history.len()).rev().find(|&at| {
        history[at].iter().all(|(&nr, block)| match block {
            Use::Free => true,
            Use::Metadata(bytes) | Use::Data(bytes) => {
                held.entry(nr).or_insert_with(|| rig.block(device, DiskBlock(nr))) == bytes
            }
        })
    })
}

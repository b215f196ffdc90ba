//! Superblocks that change in one sector only.
//!
//! A superblock spans two 512-byte sectors, with its checksum at the end of the second and everything
//! that changes while a volume is mounted in the first. A power cut may keep one sector of a write and
//! lose the other, which would leave a checksum that does not match: no implementation mounts that. So
//! the checksum is kept as it is: the last four bytes of `s_last_mounted`, behind the path's end where
//! nobody looks, take the value that makes the old checksum right again. CRC-32C is linear, so there is
//! exactly one.

use std::mem::offset_of;
use std::sync::LazyLock;

use zerocopy::IntoBytes;

use super::superblock::{SUPERBLOCK_SIZE, Superblock};
use super::{RawSuperblock, le32};
use crate::checksum::crc32c;

const SECTOR: usize = 512;
const CHECKSUM: usize = offset_of!(RawSuperblock, s_checksum);
/// Where the balancing bytes lie.
const BALANCE: usize = offset_of!(RawSuperblock, s_last_mounted) + 60;

const _: () = {
    assert!(BALANCE + 4 <= SECTOR);
    assert!(CHECKSUM + 4 == SUPERBLOCK_SIZE);
};

impl Superblock {
    /// The superblock's bytes to be written over `old`, whose checksum is right: where the volume has
    /// checksums, all bytes past the first 512 stay the same. Only a change of fields beyond them takes
    /// a fresh checksum, and both sectors.
    #[must_use]
    pub fn encode_over(&self, old: &[u8]) -> [u8; SUPERBLOCK_SIZE] {
        let mut raw = *self.raw();
        let same_tail = old.get(SECTOR..CHECKSUM) == raw.as_bytes().get(SECTOR..CHECKSUM);
        let Some(stored) = le32(old, CHECKSUM).filter(|_| same_tail && self.has_metadata_csum()) else {
            return self.encode();
        };
        // The path ends before the balancing bytes.
        raw.s_last_mounted[59..].fill(0);
        let difference = crc32c(!0, &raw.as_bytes()[..CHECKSUM]) ^ stored;
        raw.s_last_mounted[60..].copy_from_slice(&apply(&BALANCING, difference).to_le_bytes());
        raw.s_checksum.set(stored);
        zerocopy::transmute!(raw)
    }
}

/// A linear map of 32 bits, by the image of each bit.
type Map = [u32; 32];

/// From a difference of checksums to the balancing word that makes it.
static BALANCING: LazyLock<Map> = LazyLock::new(|| {
    let sum = |word: u32| {
        let mut bytes = [0; SUPERBLOCK_SIZE];
        bytes[BALANCE..BALANCE + 4].copy_from_slice(&word.to_le_bytes());
        crc32c(!0, &bytes[..CHECKSUM])
    };
    let none = sum(0);
    // Gauss and Jordan: whatever turns the images into single bits turns the words into the inverse.
    let mut images: Map = std::array::from_fn(|bit| sum(1 << bit) ^ none);
    let mut words: Map = std::array::from_fn(|bit| 1 << bit);
    for bit in 0..32 {
        let pivot =
            (bit..32).find(|&row| images[row] >> bit & 1 != 0).expect("four bytes of a CRC-32 are onto");
        images.swap(bit, pivot);
        words.swap(bit, pivot);
        for row in (0..32).filter(|&row| row != bit) {
            if images[row] >> bit & 1 != 0 {
                images[row] ^= images[bit];
                words[row] ^= words[bit];
            }
        }
    }
    words
});

fn apply(map: &Map, word: u32) -> u32 {
    (0..32).filter(|bit| word >> bit & 1 != 0).fold(0, |sum, bit| sum ^ map[bit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_balanced() {
        let mut bytes = [0x5a; SUPERBLOCK_SIZE];
        let target = crc32c(!0, &bytes[..CHECKSUM]);
        for change in 0..2000u32 {
            bytes[(change as usize * 7) % BALANCE] ^= change as u8 | 1;
            bytes[BALANCE..BALANCE + 4].fill(0);
            let difference = crc32c(!0, &bytes[..CHECKSUM]) ^ target;
            bytes[BALANCE..BALANCE + 4].copy_from_slice(&apply(&BALANCING, difference).to_le_bytes());
            assert_eq!(crc32c(!0, &bytes[..CHECKSUM]), target);
        }
    }
}

//! Blind damage: no structure is looked at and no checksum is made right.

use super::Change;
use crate::Random;

/// Flips one to 64 bits, near each other half of the time.
pub(super) fn flip(image: &mut [u8], random: &mut Random) -> Change {
    let count = 1 + random.below(64);
    let near = random.chance(1, 2);
    let first = random.index(image.len());
    for _ in 0..count {
        let at = if near { first + random.index(512) } else { random.index(image.len()) };
        if let Some(byte) = image.get_mut(at) {
            *byte ^= 1 << random.below(8);
        }
    }
    let place = if near { format!("within 512 bytes from {first}") } else { "anywhere".into() };
    format!("{count} bits flipped {place}").into()
}

/// Zeroes up to 64 KiB.
pub(super) fn zero(image: &mut [u8], random: &mut Random) -> Change {
    let sector = 512;
    let start = random.index(image.len() / sector) * sector;
    let len = (1 + random.index(128)) * sector;
    let end = image.len().min(start + len);
    let fill = if random.chance(1, 4) { 0xff } else { 0 };
    image[start..end].fill(fill);
    format!("bytes {start}..{end} become {fill:#x}").into()
}

/// Copies blocks of 1 KiB over others.
pub(super) fn move_blocks(image: &mut [u8], random: &mut Random) -> Change {
    let unit = 1024 << random.below(3);
    let blocks = image.len() / unit;
    let (from, to) = (random.index(blocks) * unit, random.index(blocks) * unit);
    if blocks > 0 {
        image.copy_within(from..from + unit, to);
    }
    format!("{unit} bytes at {from} overwrite those at {to}").into()
}

/// Cuts the image.
pub(super) fn truncate(image: &mut [u8], random: &mut Random) -> Change {
    let length = match random.below(4) {
        0 => random.index(4096),
        1 => random.index(image.len()),
        2 => image.len().saturating_sub(1 + random.index(4096)),
        _ => random.index(image.len() / 1024) * 1024,
    }
    .min(image.len());
    // Whoever does not cut the image sees zeroes there.
    image[length..].fill(0);
    Change { text: format!("cut to {length} bytes"), length: Some(length) }
}

//! Bitmaps as the disk stores them, searched and changed a 64-bit word at a time.
//!
//! A bitmap is a slice of whole 8-byte words; bit `n` is bit `n % 8` of byte `n / 8`. Ranges past the slice
//! panic: callers pass bits of a group, and a bitmap is one block.

use std::ops::Range;

const WORD: usize = 8;

fn load(bytes: &[u8], word: usize) -> u64 {
    let at = word * WORD;
    let mut raw = [0; WORD];
    raw.copy_from_slice(&bytes[at..at + WORD]);
    u64::from_le_bytes(raw)
}

fn store(bytes: &mut [u8], word: usize, value: u64) {
    bytes[word * WORD..(word + 1) * WORD].copy_from_slice(&value.to_le_bytes());
}

/// The words that `range` touches, each with the mask of its bits in the range.
fn masks(range: Range<u32>) -> impl Iterator<Item = (usize, u64)> {
    let words = if range.is_empty() { 0..0 } else { range.start / 64..range.end.div_ceil(64) };
    words.map(move |word| {
        let low = range.start.max(word * 64) - word * 64;
        let high = range.end.min((word + 1) * 64) - word * 64;
        (word as usize, (u64::MAX >> (64 - (high - low))) << low)
    })
}

/// Sets the bits; how many were clear.
pub(super) fn set(bytes: &mut [u8], range: Range<u32>) -> u32 {
    masks(range).fold(0, |changed, (word, mask)| {
        let old = load(bytes, word);
        store(bytes, word, old | mask);
        changed + (!old & mask).count_ones()
    })
}

/// Clears the bits; how many were set.
pub(super) fn clear(bytes: &mut [u8], range: Range<u32>) -> u32 {
    masks(range).fold(0, |changed, (word, mask)| {
        let old = load(bytes, word);
        store(bytes, word, old & !mask);
        changed + (old & mask).count_ones()
    })
}

/// How many bits of the range are set.
pub(super) fn count_set(bytes: &[u8], range: Range<u32>) -> u32 {
    masks(range).map(|(word, mask)| (load(bytes, word) & mask).count_ones()).sum()
}

/// The first clear bit in the range.
pub(super) fn next_clear(bytes: &[u8], range: Range<u32>) -> Option<u32> {
    next(bytes, range, u64::MAX)
}

/// The first set bit in the range, its end when there is none.
pub(super) fn next_set(bytes: &[u8], range: Range<u32>) -> u32 {
    let end = range.end;
    next(bytes, range, 0).unwrap_or(end)
}

/// First bit in the range that is set once every word is xored with `flip`.
fn next(bytes: &[u8], range: Range<u32>, flip: u64) -> Option<u32> {
    if range.is_empty() {
        return None;
    }
    let mut word = range.start / 64;
    let mut bits = (load(bytes, word as usize) ^ flip) & (u64::MAX << (range.start % 64));
    while bits == 0 {
        word += 1;
        if word * 64 >= range.end {
            return None;
        }
        bits = load(bytes, word as usize) ^ flip;
    }
    let at = word * 64 + bits.trailing_zeros();
    (at < range.end).then_some(at)
}

/// Start of the run of clear bits that ends right before `end`; `end` itself when the bit before is set.
pub(super) fn clear_run_start(bytes: &[u8], end: u32) -> u32 {
    if end == 0 {
        return 0;
    }
    let mut word = (end - 1) / 64;
    let mut bits = load(bytes, word as usize) & (u64::MAX >> (63 - (end - 1) % 64));
    while bits == 0 {
        if word == 0 {
            return 0;
        }
        word -= 1;
        bits = load(bytes, word as usize);
    }
    word * 64 + 64 - bits.leading_zeros()
}

/// The runs of clear bits in the range, in order.
pub(super) fn clear_runs(bytes: &[u8], range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut from = range.start;
    std::iter::from_fn(move || {
        let start = next_clear(bytes, from..range.end)?;
        from = next_set(bytes, start..range.end);
        Some(start..from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn naive(bytes: &[u8], at: u32) -> bool {
        bytes[at as usize / 8] >> (at % 8) & 1 == 1
    }

    proptest! {
        #[test]
        fn words_agree_with_bits(bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 40), a in 0u32..320, b in 0u32..320) {
            let range = a.min(b)..a.max(b);
            let clear: Vec<u32> = range.clone().filter(|&at| !naive(&bytes, at)).collect();
            prop_assert_eq!(next_clear(&bytes, range.clone()), clear.first().copied());
            let first_set = range.clone().find(|&at| naive(&bytes, at)).unwrap_or(range.end);
            prop_assert_eq!(next_set(&bytes, range.clone()), first_set);
            prop_assert_eq!(count_set(&bytes, range.clone()) as usize, range.len() - clear.len());
            let runs: Vec<u32> = clear_runs(&bytes, range.clone()).flatten().collect();
            prop_assert_eq!(runs, clear.clone());
            let mut start = range.end;
            while start > 0 && !naive(&bytes, start - 1) {
                start -= 1;
            }
            prop_assert_eq!(clear_run_start(&bytes, range.end), start);
            let mut copy = bytes.clone();
            prop_assert_eq!(set(&mut copy, range.clone()) as usize, clear.len());
            for at in 0..320 {
                prop_assert_eq!(naive(&copy, at), naive(&bytes, at) || range.contains(&at));
            }
            let mut copy = bytes.clone();
            prop_assert_eq!(super::clear(&mut copy, range.clone()) as usize, range.len() - clear.len());
            for at in 0..320 {
                prop_assert_eq!(naive(&copy, at), naive(&bytes, at) && !range.contains(&at));
            }
        }
    }
}

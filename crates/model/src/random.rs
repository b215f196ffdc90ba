//! A small seeded generator (SplitMix64): the same seed gives the same run on every machine.

/// A stream of numbers that its seed fixes.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A stream of its own for every seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed ^ 0x6f6e_6767_6900_0000)
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// True `percent` times in a hundred.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// When there is none.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}

/// The bytes that a write numbered `fill` puts at `offset`: they depend on the place and on the write,
/// so that bytes of another place or another write are told apart. Never zero.
#[must_use]
pub fn pattern(fill: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    let mut word = [0; 8];
    let mut have = None;
    for at in offset..offset.saturating_add(len as u64) {
        if have != Some(at / 8) {
            have = Some(at / 8);
            word = Random::new(fill.wrapping_mul(0x0100_0000_01b3).wrapping_add(at / 8))
                .next_u64()
                .to_le_bytes();
        }
        bytes.push(word[(at % 8) as usize] | 1);
    }
    bytes
}

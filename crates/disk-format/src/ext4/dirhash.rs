//! Hashes of names in hashed directories.

/// A hash algorithm as a directory stores it (`hash_version`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// 0.
    Legacy,
    /// 1.
    HalfMd4,
    /// 2.
    Tea,
}

/// An algorithm and the way it takes characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashVersion {
    /// What is computed.
    pub algorithm: Algorithm,
    /// Whether characters past 127 count as positive.
    pub unsigned: bool,
}

/// The largest hash; it stands for the end of a directory, so no name has it.
pub const END: u32 = 0x7fff_ffff << 1;

impl HashVersion {
    /// The version a directory's root names; versions 0 to 2 take the volume's signedness, 3 to 5 are
    /// their unsigned forms. `None` for SipHash and the unknown.
    #[must_use]
    pub fn from_stored(version: u8, volume_unsigned: bool) -> Option<Self> {
        let algorithm = match version % 3 {
            0 => Algorithm::Legacy,
            1 => Algorithm::HalfMd4,
            _ => Algorithm::Tea,
        };
        (version < 6).then_some(Self { algorithm, unsigned: version >= 3 || volume_unsigned })
    }

    /// What a new directory's root stores (0 to 2).
    #[must_use]
    pub fn stored(self) -> u8 {
        match self.algorithm {
            Algorithm::Legacy => 0,
            Algorithm::HalfMd4 => 1,
            Algorithm::Tea => 2,
        }
    }

    /// Hash and minor hash of `name`. The low bit of the hash is clear and it is below [`END`].
    #[must_use]
    pub fn hash(self, name: &[u8], seed: Option<[u32; 4]>) -> (u32, u32) {
        let mut state = seed.unwrap_or([0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]);
        let (hash, minor) = match self.algorithm {
            Algorithm::Legacy => (legacy(name, self.unsigned), 0),
            Algorithm::HalfMd4 => {
                let mut rest = name;
                while !rest.is_empty() {
                    half_md4(&mut state, &words::<8>(rest, self.unsigned));
                    rest = rest.get(32..).unwrap_or_default();
                }
                (state[1], state[2])
            }
            Algorithm::Tea => {
                let mut rest = name;
                while !rest.is_empty() {
                    tea(&mut state, &words::<4>(rest, self.unsigned));
                    rest = rest.get(16..).unwrap_or_default();
                }
                (state[0], state[1])
            }
        };
        let hash = hash & !1;
        (if hash == END { END - 2 } else { hash }, minor)
    }
}

fn character(byte: u8, unsigned: bool) -> u32 {
    if unsigned { u32::from(byte) } else { i32::from(byte as i8) as u32 }
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mixed = before.wrapping_add(last ^ character(byte, unsigned).wrapping_mul(7_152_373));
        before = last;
        last = if mixed >> 31 == 1 { mixed.wrapping_sub(0x7fff_ffff) } else { mixed };
    }
    last << 1
}

/// The next `4 * N` characters as words, most significant first, padded with the length left.
fn words<const N: usize>(rest: &[u8], unsigned: bool) -> [u32; N] {
    let len = rest.len() as u32;
    let pad = len | len << 8;
    let pad = pad | pad << 16;
    let mut out = [pad; N];
    for (word, chunk) in out.iter_mut().zip(rest.chunks(4)) {
        *word = chunk.iter().fold(pad, |word, &byte| character(byte, unsigned).wrapping_add(word << 8));
    }
    out
}

/// MD4's compression with half its steps per round.
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(u32, [usize; 8], [u32; 4], Mix); 3] = [
        (0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], |x, y, z| z ^ (x & (y ^ z))),
        (0x5a82_7999, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], |x, y, z| (x & y).wrapping_add((x ^ y) & z)),
        (0x6ed9_eba1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], |x, y, z| x ^ y ^ z),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (constant, order, shifts, mix) in ROUNDS {
        for (step, &index) in order.iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[index]).wrapping_add(constant);
            // The four registers take turns: what was `a` comes back as the next step's `b`.
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

/// Sixteen rounds of the Tiny Encryption Algorithm.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut left, mut right, mut sum) = (state[0], state[1], 0u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        let mix = |half: u32, first: u32, second: u32| {
            (half << 4).wrapping_add(first) ^ half.wrapping_add(sum) ^ (half >> 5).wrapping_add(second)
        };
        left = left.wrapping_add(mix(right, key[0], key[1]));
        right = right.wrapping_add(mix(left, key[2], key[3]));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What debugfs's `dx_hash -h ALGORITHM -s 01234567-89ab-cdef-0123-456789abcdef NAME` prints.
    #[test]
    fn vectors_of_debugfs() {
        let seed = [0x6745_2301_u32, 0xefcd_ab89, 0x6745_2301, 0xefcd_ab89];
        let long = "a_rather_long_name_that_takes_more_than_one_round_of_the_hash";
        let vectors: [(Algorithm, &str, u32, u32); 6] = [
            (Algorithm::Legacy, "hello", 0x3225_2546, 0),
            (Algorithm::HalfMd4, "hello", 0xa26e_4a80, 0x97e5_b7f7),
            (Algorithm::Tea, "hello", 0x6f5b_b1a8, 0x2319_17c2),
            (Algorithm::Legacy, long, 0xca7e_816c, 0),
            (Algorithm::HalfMd4, long, 0x4806_0988, 0xb6b0_a35a),
            (Algorithm::Tea, long, 0xcbf7_2226, 0xa234_da45),
        ];
        for (algorithm, name, hash, minor) in vectors {
            let version = HashVersion { algorithm, unsigned: false };
            assert_eq!(version.hash(name.as_bytes(), Some(seed)), (hash, minor), "{algorithm:?} {name}");
        }
    }
}

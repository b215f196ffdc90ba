//! Checksums in the form ext4 and jbd2 store them.

/// CRC-32C without the customary inversions: `seed` is the running state, the result the next one.
/// A chain starts at `!0` or at a seed made from an earlier chain.
#[must_use]
pub fn crc32c(seed: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!seed, bytes)
}

/// CRC-16 (polynomial 0x8005, reflected), the checksum of group descriptors under `uninit_bg`.
/// A chain starts at `!0`.
#[must_use]
pub fn crc16(seed: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(seed, |crc, &byte| (crc >> 8) ^ CRC16_TABLE[usize::from((crc as u8) ^ byte)])
}

/// CRC-32 (polynomial 0x04c11db7, most significant bit first), without inversions: the whole-transaction
/// checksum of journals with the first checksum format. A chain starts at `!0`.
#[must_use]
pub fn crc32_be(seed: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(seed, |crc, &byte| (crc << 8) ^ CRC32_BE_TABLE[usize::from((crc >> 24) as u8 ^ byte)])
}

const CRC16_TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = at as u16;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ 0xa001 } else { value >> 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
};

const CRC32_BE_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut at = 0;
    while at < 256 {
        let mut value = (at as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            value = if value >> 31 == 1 { (value << 1) ^ 0x04c1_1db7 } else { value << 1 };
            bit += 1;
        }
        table[at] = value;
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_values_of_the_catalogue() {
        // CRC-32/ISCSI, CRC-16/MODBUS and CRC-32/MPEG-2 of "123456789".
        assert_eq!(crc32c(!0, b"123456789"), !0xe306_9283);
        assert_eq!(crc16(!0, b"123456789"), 0x4b37);
        assert_eq!(crc32_be(!0, b"123456789"), 0x0376_e6e7);
    }

    #[test]
    fn chains_split_anywhere() {
        let whole = crc32c(!0, b"123456789");
        assert_eq!(crc32c(crc32c(!0, b"1234"), b"56789"), whole);
    }
}

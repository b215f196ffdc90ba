//! Where a format ends: the numbers behind `EFBIG`, `EMLINK`, `ENAMETOOLONG` and `ENOSPC`.

/// The limits that a model keeps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes in a block: the grain of holes.
    pub block_size: u32,
    /// Largest size of a regular file in bytes.
    pub max_file_size: u64,
    /// Most names of a file; a directory with more links than this counts one from then on.
    pub link_max: u32,
    /// Longest target of a symbolic link in bytes.
    pub symlink_max: usize,
    /// Longest value of an extended attribute in bytes; more is `ENOSPC`.
    pub xattr_value_max: usize,
}

impl Limits {
    /// ext4 with extents, `dir_nlink` and no `ea_inode`.
    #[must_use]
    pub fn ext4(block_size: u32) -> Self {
        Self {
            block_size,
            max_file_size: ((1 << 32) - 1) * u64::from(block_size),
            link_max: 65_000,
            symlink_max: 4095.min(block_size as usize - 1),
            // A block that holds one value also holds a 32-byte header, a 16-byte entry, a name of at
            // least one byte padded to four, and four zero bytes.
            xattr_value_max: block_size as usize - 56,
        }
    }
}

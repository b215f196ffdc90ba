//! What the caller may choose.

use crate::{Features, MkfsError};

/// How large the journal becomes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalSize {
    /// By the volume's size, as mke2fs; none where the volume has fewer than 2048 blocks.
    #[default]
    Default,
    /// This many bytes, cut to whole blocks.
    Bytes(u64),
}

/// Whether inode tables are zeroed now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LazyTables {
    /// Now where the device discards to zeroes, later elsewhere.
    #[default]
    Auto,
    /// The unused part is left to the first mount (only with `metadata_csum` or `uninit_bg`).
    Lazy,
    /// Now.
    Zeroed,
}

/// Hash of new directories.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashAlgorithm {
    /// `legacy`.
    Legacy,
    /// `half_md4`.
    #[default]
    HalfMd4,
    /// `tea`.
    Tea,
}

/// The volume sizes that mke2fs tells apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeClass {
    /// Below 3 MiB.
    Floppy,
    /// Below 512 MiB.
    Small,
    /// Below 4 TiB.
    Default,
    /// Below 16 TiB.
    Big,
    /// From 16 TiB.
    Huge,
}

impl SizeClass {
    /// The class of a volume of `bytes`.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        match bytes >> 20 {
            0..3 => Self::Floppy,
            3..512 => Self::Small,
            512..0x40_0000 => Self::Default,
            0x40_0000..0x100_0000 => Self::Big,
            _ => Self::Huge,
        }
    }

    /// Bytes in a block.
    #[must_use]
    pub fn block_size(self) -> u32 {
        if matches!(self, Self::Floppy | Self::Small) { 1024 } else { 4096 }
    }

    /// Bytes of volume for each inode.
    #[must_use]
    pub fn inode_ratio(self) -> u32 {
        match self {
            Self::Floppy => 8192,
            Self::Small => 4096,
            Self::Default => 16384,
            Self::Big => 32768,
            Self::Huge => 65536,
        }
    }
}

/// What to make. [`Options::new`] is `mke2fs -t ext4`.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Blocks of the volume (of 1 KiB while `block_size` is absent); the whole device where absent.
    pub size_blocks: Option<u64>,
    /// 1024, 2048 or 4096 bytes; by [`SizeClass`] where absent.
    pub block_size: Option<u32>,
    /// 128 or a larger power of two.
    pub inode_size: u16,
    /// Bytes of volume for each inode; by [`SizeClass`] where absent.
    pub inode_ratio: Option<u32>,
    /// Number of inodes; goes before `inode_ratio`.
    pub inodes: Option<u32>,
    /// At most 16 bytes.
    pub label: Vec<u8>,
    /// The volume's identity.
    pub uuid: [u8; 16],
    /// Seed of directory hashes.
    pub hash_seed: [u8; 16],
    /// Hash of new directories.
    pub hash_algorithm: HashAlgorithm,
    /// Seconds since 1970: every time stamp of the volume.
    pub now: u64,
    /// Features; see [`Options::parse_features`].
    pub features: Features,
    /// Size of the journal, where `has_journal` is set.
    pub journal: JournalSize,
    /// Share of the blocks that only the superuser may use.
    pub reserved_percent: f64,
    /// Whether inode tables are zeroed now.
    pub lazy_tables: LazyTables,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Permissions of the root directory.
    pub root_perms: u16,
    /// `-E resize=`: the blocks that the volume shall be able to grow to online.
    pub resize: Option<u64>,
    /// `-G`: groups whose metadata lies together; a power of two.
    pub groups_per_flex: u32,
    /// `-E orphan_file_size=`: bytes of the orphan file; by the volume's size where absent.
    pub orphan_file_size: Option<u64>,
    /// `-E stride=`: blocks on one disk of the RAID.
    pub stride: u16,
    /// `-E stripe_width=`: data blocks in a stripe of the RAID.
    pub stripe_width: u32,
    /// Tell the device first that it holds nothing.
    pub discard: bool,
}

impl Options {
    /// What `mke2fs -t ext4` makes, with this identity, hash seed and time.
    #[must_use]
    pub fn new(uuid: [u8; 16], hash_seed: [u8; 16], now: u64) -> Self {
        Self {
            size_blocks: None,
            block_size: None,
            inode_size: 256,
            inode_ratio: None,
            inodes: None,
            label: Vec::new(),
            uuid,
            hash_seed,
            hash_algorithm: HashAlgorithm::default(),
            now,
            features: Features::default(),
            journal: JournalSize::default(),
            reserved_percent: 5.0,
            lazy_tables: LazyTables::default(),
            root_owner: (0, 0),
            root_perms: 0o755,
            resize: None,
            groups_per_flex: 16,
            orphan_file_size: None,
            stride: 0,
            stripe_width: 0,
            discard: true,
        }
    }

    /// Edits the features by a list as of `mke2fs -O`: `^` clears, `none` clears all.
    ///
    /// # Errors
    /// An unknown name. Whether the set can be made is said by [`crate::format`].
    pub fn parse_features(&mut self, list: &str) -> Result<(), MkfsError> {
        self.features.edit(list)
    }
}

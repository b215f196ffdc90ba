//! Why a volume cannot be made.

use onggi_block_device::DeviceError;
use onggi_disk_format::ext4::dir::DirError;
use onggi_disk_format::ext4::extent::ExtentError;
use onggi_disk_format::ext4::group::GroupError;
use onggi_disk_format::ext4::inode::InodeError;
use onggi_disk_format::ext4::orphan::OrphanError;
use onggi_disk_format::ext4::superblock::SuperblockError;
use onggi_disk_format::jbd2::JournalError;

/// Why a volume cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum MkfsError {
    #[error("the feature {0} cannot be made")]
    Unsupported(&'static str),
    #[error("there is no feature called {0:?}")]
    UnknownFeature(String),
    #[error("the feature {feature} needs {needs}")]
    FeatureNeeds { feature: &'static str, needs: &'static str },
    #[error("block size {0} is not 1024, 2048 or 4096")]
    BlockSize(u32),
    #[error("block size {block_size} is below the device's sectors of {sector} bytes")]
    BlockBelowSector { block_size: u32, sector: u32 },
    #[error("inode size {inode_size} is not a power of two from 128 to the block size, {block_size}")]
    InodeSize { inode_size: u16, block_size: u32 },
    #[error("one inode for {0} bytes: the ratio must lie between 1024 and 67108864")]
    InodeRatio(u32),
    #[error("{0} groups in a flexible group are not a power of two")]
    GroupsPerFlex(u32),
    #[error("{0} inodes do not fit the groups")]
    TooManyInodes(u64),
    #[error("{blocks} blocks of {block_size} bytes are asked for, the device has {available}")]
    PastDevice { blocks: u64, block_size: u32, available: u64 },
    #[error("{0} blocks are too few for a volume")]
    TooSmall(u64),
    #[error("{0} blocks do not fit 32-bit block numbers (feature 64bit)")]
    TooBig(u64),
    #[error("{0} percent of the blocks cannot be reserved: at most 50")]
    Reserved(f64),
    #[error("a label has at most 16 bytes, not {0}")]
    Label(usize),
    #[error("growth to {resize} blocks is asked for, but the volume has {blocks} already")]
    Resize { resize: u64, blocks: u64 },
    #[error(
        "a journal of {blocks} blocks: it must have 1024 to 10240000, and at most half of the {free} that are free"
    )]
    JournalSize { blocks: u64, free: u64 },
    #[error("an orphan file of {bytes} bytes: it must have 1 to 512 blocks of {block_size} bytes")]
    OrphanFileSize { bytes: u64, block_size: u32 },
    #[error("no room for {0}")]
    NoRoom(&'static str),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    #[error(transparent)]
    Group(#[from] GroupError),
    #[error(transparent)]
    Inode(#[from] InodeError),
    #[error(transparent)]
    Extent(#[from] ExtentError),
    #[error(transparent)]
    Directory(#[from] DirError),
    #[error(transparent)]
    Orphan(#[from] OrphanError),
    #[error(transparent)]
    Journal(#[from] JournalError),
}

//! Why a structure could not be read or changed.

use onggi_block_device::DeviceError;
use onggi_disk_format::{DiskBlock, InodeNr};
use onggi_jbd2::JournalError;

/// What went wrong below the engine.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// No free block (or no free inode) is left.
    #[error("no space is left on the volume")]
    NoSpace,
    /// A structure on the volume breaks a rule of the format.
    #[error("{structure} at {place}: {rule}")]
    Corrupt {
        /// Which structure.
        structure: &'static str,
        /// Where it lies.
        place: Place,
        /// The rule it breaks.
        rule: String,
    },
    /// The volume uses something that is not written yet.
    #[error("the volume's feature {feature} is not supported here")]
    Unsupported {
        /// The feature, in mke2fs's spelling.
        feature: &'static str,
    },
    /// A limit of the format: too many links, a directory too deep, a value too large.
    #[error("{0}")]
    Limit(&'static str),
    /// What the caller passed breaks a rule.
    #[error("{0}")]
    Invalid(&'static str),
    /// The name or the attribute exists already.
    #[error("the name exists already")]
    Exists,
    /// There is no such name or attribute.
    #[error("there is no such name")]
    Missing,
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

/// Where on the volume something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A block of the volume.
    Block(DiskBlock),
    /// An inode.
    Inode(InodeNr),
    /// A logical block of an inode's contents.
    FileBlock(InodeNr, u32),
    /// A block group.
    Group(u32),
    /// The superblock.
    Superblock,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Block(block) => write!(f, "block {block}"),
            Self::Inode(nr) => write!(f, "inode {nr}"),
            Self::FileBlock(nr, block) => write!(f, "inode {nr}, its block {block}"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Superblock => f.write_str("byte 1024"),
        }
    }
}

impl VolumeError {
    /// A broken rule.
    pub fn corrupt(structure: &'static str, place: Place, rule: impl std::fmt::Display) -> Self {
        Self::Corrupt { structure, place, rule: rule.to_string() }
    }
}

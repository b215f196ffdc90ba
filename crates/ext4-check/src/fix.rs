//! What would repair a problem.

use onggi_disk_format::ext4::InodeFlags;
use onggi_disk_format::{DiskBlock, InodeNr};

/// A single change of the volume. Bitmaps and counts are recomputed after every other change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fix {
    /// Recompute the superblock's checksum.
    Superblock,
    /// Recompute a group descriptor's checksum, taking nothing in the group as never written.
    Group(u32),
    /// Forget the journal on another device.
    InternalJournal,
    /// Empty the log without replaying it.
    EmptyLog,
    /// Forget the error that stopped the journal.
    JournalError,
    /// Recompute an inode's checksum.
    InodeChecksum(InodeNr),
    /// Free the inode.
    ClearInode(InodeNr),
    /// Give the inode a deletion time.
    DeletionTime(InodeNr),
    /// Clear fields that no feature of the volume uses.
    UnusedFields(InodeNr),
    /// Clear flags.
    ClearFlags(InodeNr, InodeFlags),
    /// Forget the inode's blocks.
    ResetMap(InodeNr),
    /// Recompute an extent block's checksum.
    ExtentChecksum(DiskBlock, u32),
    /// Set `i_size`.
    Size(InodeNr, u64),
    /// Set `i_blocks`.
    BlockCount(InodeNr, u64),
    /// Set the link count.
    Links(InodeNr, u16),
    /// Forget the attributes in the inode.
    ClearAttributeArea(InodeNr),
    /// Forget the attribute block.
    DropAttributeBlock(InodeNr),
    /// Set an attribute block's count of users.
    AttributeRefcount(DiskBlock, u32),
    /// Recompute a directory block's checksum.
    DirectoryChecksum { place: DiskBlock, seed: u32 },
    /// Keep a directory block's entries before `keep`; the rest of the block becomes free room.
    CutDirectory { place: DiskBlock, seed: Option<u32>, keep: usize },
    /// Make a directory's first block anew, with `.` and `..` only.
    FirstBlock { place: DiskBlock, seed: Option<u32>, dir: InodeNr, parent: InodeNr },
    /// Remove an entry.
    RemoveEntry { place: DiskBlock, seed: Option<u32>, offset: usize },
    /// Point an entry at an inode, with the stored file type.
    SetEntry { place: DiskBlock, seed: Option<u32>, offset: usize, nr: InodeNr, kind: u8 },
    /// Make a hashed directory a plain one.
    Unindex(InodeNr),
    /// Give the inode a name in lost+found.
    Reconnect(InodeNr),
    /// Empty the orphan list and the orphan file.
    ClearOrphans,
    /// Recompute bitmaps and counts.
    Counts,
}

impl Fix {
    /// Whether it loses nothing, so that it is done without asking.
    pub(crate) fn is_safe(&self) -> bool {
        matches!(
            self,
            Self::Counts
                | Self::BlockCount(..)
                | Self::Links(..)
                | Self::DeletionTime(_)
                | Self::AttributeRefcount(..)
        )
    }
}

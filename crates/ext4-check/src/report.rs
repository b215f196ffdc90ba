//! What a check found.

use std::fmt;

use onggi_disk_format::{DiskBlock, FileBlock, GroupNr, InodeNr};

/// Problems kept one by one; the rest is only counted.
const MOST_PROBLEMS: usize = 10_000;

macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $text:expr;)*) => {
        /// The rule that a volume breaks.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $($(#[$doc])* $code,)*
        }

        impl Code {
            /// A stable name for programs.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $text,)*
                }
            }
        }
    };
}

codes! {
    /// The superblock's checksum is wrong.
    SuperblockChecksum = "superblock-checksum";
    /// The log holds transactions although the superblock says that it is empty.
    JournalNotMarked = "journal-not-marked";
    /// The journal's inode or superblock is broken.
    Journal = "journal";
    /// A group descriptor's checksum is wrong.
    GroupChecksum = "group-checksum";
    /// A group descriptor points outside the volume or counts too much.
    GroupDescriptor = "group-descriptor";
    /// Metadata of a group lies on other metadata.
    MetadataOverlap = "metadata-overlap";
    /// The resize inode does not hold the reserved descriptor blocks.
    ResizeInode = "resize-inode";
    /// An inode's checksum is wrong.
    InodeChecksum = "inode-checksum";
    /// An inode's fields contradict each other.
    Inode = "inode";
    /// A deleted inode has no deletion time.
    DeletionTime = "deletion-time";
    /// An inode in use is neither linked nor on the orphan list.
    Unlinked = "unlinked";
    /// An extent node or an indirect block breaks a rule.
    Mapping = "mapping";
    /// An extent node's checksum is wrong.
    MappingChecksum = "mapping-checksum";
    /// A block has two owners.
    DoubleClaim = "double-claim";
    /// `i_blocks` is wrong.
    BlockCount = "block-count";
    /// `i_size` does not fit the blocks.
    Size = "size";
    /// Extended attributes break a rule.
    Attributes = "attributes";
    /// An attribute block's count of users is wrong.
    AttributeRefcount = "attribute-refcount";
    /// An inode that holds an attribute's value is missing or counts its users wrong.
    ValueInode = "value-inode";
    /// A symbolic link has no proper target.
    Symlink = "symlink";
    /// A directory block's checksum is wrong.
    DirectoryChecksum = "directory-checksum";
    /// A directory block's chain of entries is broken.
    DirectoryBlock = "directory-block";
    /// A directory has a hole.
    DirectoryHole = "directory-hole";
    /// `.` or `..` is missing or wrong.
    DotEntries = "dot-entries";
    /// An entry names an inode that is not in use or may not be named.
    EntryInode = "entry-inode";
    /// An entry's file type is wrong.
    EntryType = "entry-type";
    /// A name stands twice in one directory.
    DuplicateName = "duplicate-name";
    /// A directory has two names.
    DirectoryLinkedTwice = "directory-linked-twice";
    /// The index of a directory is broken.
    Htree = "htree";
    /// A directory cannot be reached from the root.
    DirectoryLoop = "directory-loop";
    /// An inode has no name.
    Disconnected = "disconnected";
    /// A link count is wrong.
    LinkCount = "link-count";
    /// The orphan list or the orphan file is broken.
    Orphans = "orphans";
    /// A block bitmap is wrong.
    BlockBitmap = "block-bitmap";
    /// An inode bitmap is wrong.
    InodeBitmap = "inode-bitmap";
    /// A bitmap's checksum is wrong.
    BitmapChecksum = "bitmap-checksum";
    /// A count in a group descriptor is wrong.
    GroupCount = "group-count";
    /// A count in the superblock is wrong.
    SuperblockCount = "superblock-count";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Where a problem lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// The superblock.
    Superblock,
    /// The journal.
    Journal,
    /// A block group.
    Group(GroupNr),
    /// An inode.
    Inode(InodeNr),
    /// A block of the volume.
    Block(DiskBlock),
    /// A block of a directory.
    Directory {
        /// The directory.
        dir: InodeNr,
        /// Its block.
        block: FileBlock,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Superblock => f.write_str("superblock"),
            Self::Journal => f.write_str("journal"),
            Self::Group(group) => write!(f, "group {group}"),
            Self::Inode(nr) => write!(f, "inode {nr}"),
            Self::Block(block) => write!(f, "block {block}"),
            Self::Directory { dir, block } => write!(f, "directory {dir}, block {block}"),
        }
    }
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The rule.
    pub code: Code,
    /// Where.
    pub place: Place,
    /// What is wrong, as a sentence without its place.
    pub what: String,
    /// The volume no longer has this problem.
    pub fixed: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = if self.fixed { " (fixed)" } else { "" };
        write!(f, "{}: {} [{}]{done}", self.place, self.what, self.code)
    }
}

/// Problems with a bound on how many are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Problems {
    pub(crate) kept: Vec<Problem>,
    pub(crate) more: u64,
}

impl Problems {
    /// Whether the problem was kept.
    pub(crate) fn push(&mut self, problem: Problem) -> bool {
        let room = self.kept.len() < MOST_PROBLEMS;
        if room {
            self.kept.push(problem);
        } else {
            self.more += 1;
        }
        room
    }
}

/// What the volume holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Inodes on the volume.
    pub inodes: u32,
    /// Inodes in use, reserved ones included.
    pub inodes_used: u32,
    /// Directories.
    pub directories: u32,
    /// Regular files.
    pub files: u32,
    /// Symbolic links.
    pub symlinks: u32,
    /// Blocks on the volume.
    pub blocks: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Names in directories, `.` and `..` left out.
    pub names: u64,
    /// Inodes whose deletion or truncation a crash cut short.
    pub orphans: u32,
}

/// What the replay of the journal did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replay {
    /// Transactions replayed.
    pub transactions: u64,
    /// Blocks written.
    pub blocks: u64,
    /// The blocks went to memory, not to the device: the check did not change the volume.
    pub in_memory: bool,
}

/// The outcome of a check.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every rule broken, in the order found.
    pub problems: Vec<Problem>,
    /// Problems past the first ten thousand, only counted.
    pub more_problems: u64,
    /// Present when the journal held transactions.
    pub replay: Option<Replay>,
    /// The volume was changed.
    pub modified: bool,
    /// What the volume holds.
    pub stats: Stats,
}

impl Report {
    /// Whether no problem was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.more_problems == 0
    }

    /// Whether a problem is left.
    #[must_use]
    pub fn has_unfixed(&self) -> bool {
        self.more_problems > 0 || self.problems.iter().any(|problem| !problem.fixed)
    }

    /// The exit code of fsck(8): 0 without problems, 1 when all were fixed, 4 when some are left. A check
    /// that could not be done ([`crate::CheckError`]) has code 8.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        if self.has_unfixed() { 4 } else { u8::from(!self.is_clean()) }
    }
}

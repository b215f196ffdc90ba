//! The types that cross the door.

/// An inode number. The root's is [`crate::FileSystem::root`]'s answer, whatever the format calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ino(pub u64);

/// Seconds and nanoseconds since the epoch; `nsec` is below 1,000,000,000.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp {
    /// Seconds, negative before 1970.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

/// Who asks, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Context {
    /// Owner of what is created.
    pub uid: u32,
    /// Group of what is created, unless the directory hands down its own.
    pub gid: u32,
    /// The time that changes are stamped with.
    pub now: Timestamp,
}

/// What kind of thing an inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileKind {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Block device.
    BlockDevice,
    /// Character device.
    CharDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// What an inode says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Its number.
    pub ino: Ino,
    /// Tells apart two lives of one number.
    pub generation: u32,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits, set-id bits and sticky bit: `0o7777` at most.
    pub perm: u16,
    /// Names it has; a directory counts `.` and its children's `..`.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Major and minor number of a device.
    pub rdev: (u32, u32),
    /// Bytes.
    pub size: u64,
    /// 512-byte units allocated, those reserved for delayed writes included.
    pub blocks: u64,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation, where the format keeps it.
    pub crtime: Timestamp,
    /// Preferred I/O size in bytes.
    pub block_size: u32,
}

/// Attributes to change; `None` leaves one alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, `0o7777` at most.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Truncate or extend to this many bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<Timestamp>,
    /// Last change of contents.
    pub mtime: Option<Timestamp>,
    /// Creation.
    pub crtime: Option<Timestamp>,
}

/// What to create, for [`crate::FileSystem::create`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node<'a> {
    /// Empty regular file.
    Regular,
    /// Empty directory.
    Directory,
    /// Symbolic link with this target, 1 to 4095 bytes.
    Symlink(&'a [u8]),
    /// Block device, major and minor.
    BlockDevice(u32, u32),
    /// Character device, major and minor.
    CharDevice(u32, u32),
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The inode it names.
    pub ino: Ino,
    /// Its kind as the directory tells it.
    pub kind: FileKind,
    /// The name, without a slash or a zero byte.
    pub name: Vec<u8>,
    /// Where a later [`crate::FileSystem::readdir`] goes on after this entry.
    pub next: u64,
}

/// What a rename may do to the target's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// Fail with `EEXIST` where it exists.
    NoReplace,
    /// Swap the two; `ENOENT` where it does not exist.
    Exchange,
}

/// What a range becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallocateMode {
    /// Allocated, reading as before (zeroes where there was nothing).
    Allocate {
        /// Leave the size alone even where the range ends past it.
        keep_size: bool,
    },
    /// A hole, reading as zeroes; the size stays.
    PunchHole,
    /// Allocated and reading as zeroes.
    ZeroRange {
        /// Leave the size alone even where the range ends past it.
        keep_size: bool,
    },
}

/// What [`crate::FileSystem::seek`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whence {
    /// The next byte that may be data.
    Data,
    /// The next byte of a hole; the end of the file counts as one.
    Hole,
}

/// Whether an extended attribute may, must or must not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// `EEXIST` where it exists.
    Create,
    /// `ENODATA` where it does not.
    Replace,
}

/// How full a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    /// Bytes in a block.
    pub block_size: u32,
    /// Blocks that files can use or do use.
    pub blocks: u64,
    /// Free blocks, the reserved ones included.
    pub free_blocks: u64,
    /// Free blocks for everybody.
    pub available_blocks: u64,
    /// Inodes.
    pub inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// How often writing a file's data back has failed, and how it last failed.
///
/// An open file compares `count` with what it saw last, so that each of two descriptors learns of a
/// failure that only one of them caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteErrors {
    /// Failures since the volume was opened.
    pub count: u64,
    /// The latest failure's error number, 0 for none.
    pub errno: i32,
}

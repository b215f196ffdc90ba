//! The FUSE protocol as the kernel speaks it: `struct fuse_*` of `include/uapi/linux/fuse.h`, version
//! 7.39, in host byte order. Names are the protocol's own.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major version.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version spoken here.
pub(crate) const MINOR: u32 = 39;
/// The oldest minor version spoken here (Linux 5.2): the first where directories need no OPENDIR.
pub(crate) const OLDEST_MINOR: u32 = 31;
/// Node id of the root.
pub(crate) const ROOT_ID: u64 = 1;

macro_rules! opcodes {
    ($($name:ident = $value:literal),* $(,)?) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Opcode { $($name),* }

        impl Opcode {
            /// `None` for an operation unknown here.
            pub(crate) fn from_wire(value: u32) -> Option<Self> {
                match value { $($value => Some(Self::$name),)* _ => None }
            }
        }
    };
}

opcodes! {
    Lookup = 1, Forget = 2, GetAttr = 3, SetAttr = 4, ReadLink = 5, Symlink = 6, MkNod = 8, MkDir = 9,
    Unlink = 10, RmDir = 11, Rename = 12, Link = 13, Open = 14, Read = 15, Write = 16, StatFs = 17,
    Release = 18, Fsync = 20, SetXattr = 21, GetXattr = 22, ListXattr = 23, RemoveXattr = 24, Init = 26,
    ReadDir = 28, FsyncDir = 30, Create = 35, Interrupt = 36, Destroy = 38, Ioctl = 39, BatchForget = 42,
    Fallocate = 43, ReadDirPlus = 44, Rename2 = 45, Lseek = 46, CopyFileRange = 47, SyncFs = 50,
    TmpFile = 51, Statx = 52,
}

/// Bits of `fuse_init_in.flags` and `fuse_init_out.flags`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const WRITEBACK_CACHE: u64 = 1 << 16;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
}

/// Bits of `fuse_setattr_in.valid`.
pub(crate) mod fattr {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ATIME: u32 = 1 << 4;
    pub(crate) const MTIME: u32 = 1 << 5;
    pub(crate) const ATIME_NOW: u32 = 1 << 7;
    pub(crate) const MTIME_NOW: u32 = 1 << 8;
    pub(crate) const CTIME: u32 = 1 << 10;
    pub(crate) const KILL_SUIDGID: u32 = 1 << 11;
}

/// `fuse_open_out.open_flags`: keep what the kernel has cached of the file.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// `fuse_open_in.open_flags`: a truncating open must drop the set-id bits.
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: comes from the kernel's cache; nobody in particular wrote it.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// `fuse_write_in.write_flags`: drop the set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_fsync_in.fsync_flags`: data only.
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
/// Notification code: drop (after writing home) what is cached of an inode.
pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;

macro_rules! wire_struct {
    ($(#[$meta:meta])* $name:ident, $size:literal { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type),* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire_struct! {
    /// `fuse_in_header`; `total_extlen` counts 8-byte units at the end of the request.
    InHeader, 40 {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32, total_extlen: u16,
        padding: u16,
    }
}
wire_struct! {
    /// `fuse_out_header`.
    OutHeader, 16 { len: u32, error: i32, unique: u64 }
}
wire_struct! {
    /// `fuse_init_in`.
    InitIn, 64 { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
}
wire_struct! {
    /// `fuse_init_out`.
    InitOut, 64 {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
        flags2: u32, unused: [u32; 7],
    }
}
wire_struct! {
    /// `fuse_attr`.
    WireAttr, 88 {
        ino: u64, size: u64, blocks: u64, atime: i64, mtime: i64, ctime: i64, atimensec: u32, mtimensec: u32,
        ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32, blksize: u32, flags: u32,
    }
}
wire_struct! {
    /// `fuse_entry_out`.
    EntryOut, 128 {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: WireAttr,
    }
}
wire_struct! {
    /// `fuse_attr_out`.
    AttrOut, 104 { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: WireAttr }
}
wire_struct! {
    /// `fuse_sx_time`.
    SxTime, 16 { tv_sec: i64, tv_nsec: u32, reserved: i32 }
}
wire_struct! {
    /// `fuse_statx`.
    WireStatx, 256 {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16, spare0: u16,
        ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime, btime: SxTime, ctime: SxTime,
        mtime: SxTime, rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
}
wire_struct! {
    /// `fuse_statx_out`.
    StatxOut, 288 { attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: WireStatx }
}
wire_struct! {
    /// `fuse_setattr_in`.
    SetAttrIn, 88 {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: i64, mtime: i64, ctime: i64,
        atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
        unused5: u32,
    }
}
wire_struct! {
    /// `fuse_mknod_in`.
    MkNodIn, 16 { mode: u32, rdev: u32, umask: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_mkdir_in`.
    MkDirIn, 8 { mode: u32, umask: u32 }
}
wire_struct! {
    /// `fuse_rename2_in`.
    Rename2In, 16 { newdir: u64, flags: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_open_in`.
    OpenIn, 8 { flags: u32, open_flags: u32 }
}
wire_struct! {
    /// `fuse_open_out`.
    OpenOut, 16 { fh: u64, open_flags: u32, backing_id: i32 }
}
wire_struct! {
    /// `fuse_create_in`, for CREATE and TMPFILE.
    CreateIn, 16 { flags: u32, mode: u32, umask: u32, open_flags: u32 }
}
wire_struct! {
    /// `fuse_release_in`.
    ReleaseIn, 24 { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
}
wire_struct! {
    /// `fuse_read_in`, for READ, READDIR and READDIRPLUS.
    ReadIn, 40 {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
}
wire_struct! {
    /// `fuse_write_in`.
    WriteIn, 40 {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32,
    }
}
wire_struct! {
    /// `fuse_write_out`.
    WriteOut, 8 { size: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_kstatfs`.
    StatFsOut, 80 {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32, frsize: u32,
        padding: u32, spare: [u32; 6],
    }
}
wire_struct! {
    /// `fuse_fsync_in`.
    FsyncIn, 16 { fh: u64, fsync_flags: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_setxattr_in` in its short form.
    SetXattrIn, 8 { size: u32, flags: u32 }
}
wire_struct! {
    /// `fuse_getxattr_in` and `fuse_getxattr_out`.
    GetXattr, 8 { size: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_batch_forget_in`.
    BatchForgetIn, 8 { count: u32, dummy: u32 }
}
wire_struct! {
    /// `fuse_forget_one`.
    ForgetOne, 16 { nodeid: u64, nlookup: u64 }
}
wire_struct! {
    /// `fuse_fallocate_in`.
    FallocateIn, 32 { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_lseek_in`.
    LseekIn, 24 { fh: u64, offset: u64, whence: u32, padding: u32 }
}
wire_struct! {
    /// `fuse_copy_file_range_in`.
    CopyFileRangeIn, 56 {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    }
}
wire_struct! {
    /// `fuse_dirent` without its name.
    Dirent, 24 { ino: u64, off: u64, namelen: u32, kind: u32 }
}
wire_struct! {
    /// `fuse_notify_inval_inode_out`.
    NotifyInvalInode, 24 { ino: u64, off: i64, len: i64 }
}

//! The door of the house.
//!
//! **Does:** names what every engine offers ([`FileSystem`]) and the types that cross the door:
//! inode numbers, attributes, errors, open files; walks paths ([`path`]).
//! **Never does:** I/O, caching, permission checks (the kernel does those for a mount), clocks: the time
//! of a change comes in with its [`Context`].
//! **Called by:** fuse, the command line, workloads, the crash explorer. Implemented by engines.
//! **Locks:** none.

mod error;
mod filesystem;
mod open_file;
pub mod path;
mod types;

pub use error::{Errno, Error, Result};
pub use filesystem::FileSystem;
pub use open_file::OpenFile;
pub use types::{
    Attr, Context, DirEntry, FallocateMode, FileKind, Ino, Node, RenameMode, SetAttr, StatFs, Timestamp,
    Whence, WriteErrors, XattrMode,
};

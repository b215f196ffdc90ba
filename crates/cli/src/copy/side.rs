//! What copying asks of a tree of files.

use onggi_vfs::{Attr, Node, Result, SetAttr};

/// Attributes of a file, and what tells it from all others of its side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) attr: Attr,
    /// The file system that its inode number belongs to.
    pub(crate) dev: u64,
}

impl Meta {
    /// Equal for two names of one file.
    pub(crate) fn identity(&self) -> (u64, u64) {
        (self.dev, self.attr.ino.0)
    }
}

/// A file open for writing.
pub(crate) trait Writer {
    /// Writes all of `data`.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    /// Makes the file this long.
    fn set_len(&mut self, len: u64) -> Result<()>;
}

/// A tree of files.
pub(crate) trait Side {
    /// A file, as long as nobody removes it.
    type At: Clone;

    /// Attributes of the file itself, be it a symbolic link.
    fn meta(&self, at: &Self::At) -> Result<Meta>;
    /// The file behind a symbolic link.
    fn follow(&self, at: &Self::At) -> Result<Self::At>;
    /// A name in a directory, if it is there.
    fn child(&self, dir: &Self::At, name: &[u8]) -> Result<Option<Self::At>>;
    /// The names in a directory, sorted, without `.` and `..`.
    fn list(&self, dir: &Self::At) -> Result<Vec<(Vec<u8>, Self::At)>>;
    /// A symbolic link's target.
    fn readlink(&self, at: &Self::At) -> Result<Vec<u8>>;
    /// All extended attributes that can be read, sorted by name.
    fn xattrs(&self, at: &Self::At) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Hands over a file's data in order, holes left out.
    fn read(&self, at: &Self::At, take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()>;

    /// Makes a file. `EEXIST` where the name is there.
    fn make(&self, dir: &Self::At, name: &[u8], node: Node<'_>, perm: u16) -> Result<Self::At>;
    /// Gives a file one more name.
    fn link(&self, at: &Self::At, dir: &Self::At, name: &[u8]) -> Result<()>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, dir: &Self::At, name: &[u8]) -> Result<()>;
    /// Opens a regular file for writing.
    fn writer<'s>(&'s self, at: &Self::At) -> Result<Box<dyn Writer + 's>>;
    /// Changes attributes of the file itself.
    fn set_meta(&self, at: &Self::At, changes: &SetAttr) -> Result<()>;
    /// Sets an extended attribute.
    fn set_xattr(&self, at: &Self::At, name: &[u8], value: &[u8]) -> Result<()>;
    /// The permissions that remain of `perm` for a new file.
    fn mask(&self, perm: u16) -> u16;
}

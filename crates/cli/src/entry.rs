//! One file's attributes in words and as JSON.

use onggi_vfs::{Attr, FileKind};
use serde::Serialize;

use crate::quantity::machine_time;

/// The first letter of `ls -l`.
pub(crate) fn letter(kind: FileKind) -> char {
    match kind {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
    }
}

/// The kind as stat(1) says it.
pub(crate) fn kind_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "regular file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symbolic link",
        FileKind::BlockDevice => "block special file",
        FileKind::CharDevice => "character special file",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
    }
}

/// `-rwxr-xr-x`.
pub(crate) fn mode_text(kind: FileKind, perm: u16) -> String {
    let mut text = String::from(letter(kind));
    for (shift, special, marks) in [(6, 0o4000, ['s', 'S']), (3, 0o2000, ['s', 'S']), (0, 0o1000, ['t', 'T'])]
    {
        let bits = perm >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (perm & special != 0, bits & 1 != 0) {
            (true, true) => marks[0],
            (true, false) => marks[1],
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// A file for programs.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// The name or path as text.
    pub(crate) name: String,
    /// Its bytes, where they are no text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name_bytes: Option<Vec<u8>>,
    #[serde(rename = "type")]
    kind: &'static str,
    inode: u64,
    /// Four octal digits.
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    /// Bytes allocated.
    allocated: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<(u32, u32)>,
    accessed: String,
    modified: String,
    changed: String,
    created: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl Entry {
    /// A file under a name; `target` for a symbolic link.
    pub(crate) fn new(name: &[u8], attr: &Attr, target: Option<&[u8]>) -> Self {
        let is_device = matches!(attr.kind, FileKind::BlockDevice | FileKind::CharDevice);
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            name_bytes: std::str::from_utf8(name).is_err().then(|| name.to_vec()),
            kind: kind_name(attr.kind),
            inode: attr.ino.0,
            mode: format!("{:04o}", attr.perm),
            links: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            size: attr.size,
            allocated: attr.blocks.saturating_mul(512),
            device: is_device.then_some(attr.rdev),
            accessed: machine_time(attr.atime),
            modified: machine_time(attr.mtime),
            changed: machine_time(attr.ctime),
            created: machine_time(attr.crtime),
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_spelt() {
        for (kind, perm, text) in [
            (FileKind::Regular, 0o644, "-rw-r--r--"),
            (FileKind::Directory, 0o1777, "drwxrwxrwt"),
            (FileKind::Directory, 0o1776, "drwxrwxrwT"),
            (FileKind::Regular, 0o4755, "-rwsr-xr-x"),
            (FileKind::Regular, 0o2640, "-rw-r-S---"),
            (FileKind::CharDevice, 0, "c---------"),
        ] {
            assert_eq!(mode_text(kind, perm), text);
        }
    }
}

//! A fixed script of changes, in damaged and whole places alike.

use onggi_vfs::{
    Attr, Error, FallocateMode, FileKind, FileSystem, Ino, Node, RenameMode, SetAttr, XattrMode,
};

use crate::support::CX;
use crate::walk::judge;
use crate::watch::Watched;

/// Directories worked in, and names changed in each.
const MOST_DIRECTORIES: usize = 6;
const MOST_NAMES: usize = 10;

/// Changes `fs` in several directories. Every call may fail, with an error that says why.
pub(crate) fn script(watched: &Watched, fs: &dyn FileSystem) {
    let script = Script { watched, fs };
    let mut dirs = vec![fs.root()];
    let mut at = 0;
    while at < dirs.len() {
        for entry in script.names(dirs[at]) {
            if entry.1 == FileKind::Directory && !dirs.contains(&entry.2) && dirs.len() < MOST_DIRECTORIES {
                dirs.push(entry.2);
            }
        }
        at += 1;
    }
    for (index, &dir) in dirs.iter().enumerate() {
        script.fresh(dir, dirs[(index + 1) % dirs.len()]);
    }
    script.took("sync", fs.sync());
    for &dir in dirs.iter().rev() {
        script.existing(dir);
    }
    script.took("sync", fs.sync());
}

struct Script<'a> {
    watched: &'a Watched,
    fs: &'a dyn FileSystem,
}

impl Script<'_> {
    fn took<T>(&self, what: &str, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| judge(self.watched, what, &error)).ok()
    }

    /// The first names of a directory but for `.` and `..`, their kinds and inodes.
    fn names(&self, dir: Ino) -> Vec<(Vec<u8>, FileKind, Ino)> {
        let page = self.took("readdir", self.fs.readdir(dir, 0, MOST_NAMES + 2)).unwrap_or_default();
        let real = page.into_iter().filter(|entry| entry.name != b"." && entry.name != b"..");
        real.map(|entry| (entry.name, entry.kind, entry.ino)).collect()
    }

    /// Makes, moves and removes things that were not there.
    fn fresh(&self, dir: Ino, other: Ino) {
        let fs = self.fs;
        if let Some(file) = self.took("create", fs.create(&CX, dir, b"new", Node::Regular, 0o644)) {
            self.file(&file);
            self.took("link", fs.link(&CX, file.ino, other, b"new link"));
        }
        for number in 0..30 {
            let name = format!("{number:02} {}", "long ".repeat(40));
            self.took("create", fs.create(&CX, dir, name.as_bytes(), Node::Fifo, 0o600));
        }
        self.took("mkdir", fs.create(&CX, dir, b"sub", Node::Directory, 0o755));
        if let Some(sub) = self.took("mkdir", fs.create(&CX, dir, b"sub2", Node::Directory, 0o755)) {
            self.took("create", fs.create(&CX, sub.ino, b"inside", Node::Regular, 0o644));
            self.took("rename", fs.rename(&CX, dir, b"sub2", other, b"moved", RenameMode::Replace));
        }
        self.took("symlink", fs.create(&CX, dir, b"link", Node::Symlink(&[b'x'; 800]), 0o777));
        self.took("rename", fs.rename(&CX, dir, b"new", dir, b"newer", RenameMode::NoReplace));
        self.took("rename", fs.rename(&CX, dir, b"newer", other, b"newest", RenameMode::Replace));
        self.took("rename", fs.rename(&CX, dir, b"link", dir, b"sub", RenameMode::Exchange));
        self.took("rmdir", fs.rmdir(&CX, dir, b"link"));
        self.took("unlink", fs.unlink(&CX, dir, b"sub"));
        if let Some(file) = self.took("tmpfile", fs.tmpfile(&CX, dir, 0o600)) {
            self.took("write", fs.write(&CX, file.ino, 0, &[3; 9000]));
            fs.release(file.ino, 1);
        }
        self.took("fsync", fs.fsync(dir, false));
    }

    /// Changes what was there.
    fn existing(&self, dir: Ino) {
        let fs = self.fs;
        for (index, (name, kind, ino)) in self.names(dir).into_iter().enumerate() {
            let Some(attr) = self.took("getattr", fs.getattr(ino)) else { continue };
            match attr.kind {
                FileKind::Regular => self.file(&attr),
                _ => self.attributes(ino),
            }
            let new = format!("renamed {index}");
            self.took("rename", fs.rename(&CX, dir, &name, dir, new.as_bytes(), RenameMode::Replace));
            let name = if fs.lookup(dir, &name).is_ok() { name.as_slice() } else { new.as_bytes() };
            if kind == FileKind::Directory {
                self.took("rmdir", fs.rmdir(&CX, dir, name));
            } else if index % 2 == 0 {
                self.took("unlink", fs.unlink(&CX, dir, name));
            }
        }
        self.took("fsync", fs.fsync(dir, false));
    }

    /// Writes, grows, shrinks and punches a file.
    fn file(&self, attr: &Attr) {
        let (fs, ino) = (self.fs, attr.ino);
        let retained = self.took("retain", fs.retain(ino, attr.generation)).is_some();
        self.took("write", fs.write(&CX, ino, 0, &[1; 5000]));
        self.took("write", fs.write(&CX, ino, attr.size / 2, &[2; 3000]));
        self.took("append", fs.append(&CX, ino, &[3; 2000]));
        self.took("fsync", fs.fsync(ino, true));
        let modes = [
            FallocateMode::PunchHole,
            FallocateMode::Allocate { keep_size: false },
            FallocateMode::ZeroRange { keep_size: true },
        ];
        for (index, mode) in modes.into_iter().enumerate() {
            let offset = attr.size / 4 + index as u64 * 3000;
            self.took("fallocate", fs.fallocate(&CX, ino, offset, 20_000, mode));
        }
        self.took("write", fs.write(&CX, ino, (attr.size / 4).saturating_add(7000), &[4; 100]));
        self.attributes(ino);
        let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        self.took("extend", fs.setattr(&CX, ino, &size(attr.size.saturating_add(70_001))));
        self.took("truncate", fs.setattr(&CX, ino, &size(attr.size / 3 + 1)));
        self.took("fsync", fs.fsync(ino, false));
        if retained {
            fs.release(ino, 1);
        }
    }

    fn attributes(&self, ino: Ino) {
        let fs = self.fs;
        self.took("setxattr", fs.setxattr(&CX, ino, b"user.small", b"value", XattrMode::Set));
        self.took("setxattr", fs.setxattr(&CX, ino, b"user.large", &[b'l'; 700], XattrMode::Set));
        self.took("setxattr", fs.setxattr(&CX, ino, b"trusted.name0", b"x", XattrMode::Create));
        self.took("removexattr", fs.removexattr(&CX, ino, b"user.name0"));
        self.took("removexattr", fs.removexattr(&CX, ino, b"user.small"));
        let changes = SetAttr { perm: Some(0o640), uid: Some(7), ..SetAttr::default() };
        self.took("setattr", fs.setattr(&CX, ino, &changes));
    }
}

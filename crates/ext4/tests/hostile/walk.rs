//! Reads everything that a volume shows.

use std::collections::HashSet;

use onggi_vfs::{Attr, Errno, Error, FileKind, FileSystem, Ino, Whence};

use crate::support::CX;
use crate::watch::Watched;

/// Names read from one directory, bytes from one file, inodes visited.
const MOST_NAMES: usize = 20_000;
const MOST_BYTES: u64 = 4 << 20;
const MOST_INODES: usize = 5_000;

/// Whether an error may come from a volume whose device never fails. Counts broken rules.
pub(crate) fn judge(watched: &Watched, what: &str, error: &Error) {
    let text = error.to_string();
    if error.errno() == Errno::UCLEAN {
        let place = text.bytes().any(|byte| byte.is_ascii_digit()) || text.contains("superblock");
        if error.detail().is_none() || !place {
            watched.fail(format!("{what}: an error without its place: {text:?}"), String::new());
        }
    }
    if text.contains("runs past the device") || text.contains("is not aligned to") {
        watched.fail(format!("{what}: the device was asked for what it does not have"), text);
    }
}

/// Walks all directories; what it found to be broken.
pub(crate) fn everything(watched: &Watched, fs: &dyn FileSystem) -> Vec<String> {
    let mut broken = Vec::new();
    let mut note = |what: &str, error: &Error| {
        judge(watched, what, error);
        broken.push(format!("{what}: {error}"));
    };
    if let Err(error) = fs.statfs() {
        note("statfs", &error);
    }
    let mut seen = HashSet::from([fs.root()]);
    let mut left = vec![fs.root()];
    while let Some(ino) = left.pop() {
        let attr = match fs.getattr(ino) {
            Ok(attr) => attr,
            Err(error) => {
                note("getattr", &error);
                continue;
            }
        };
        attributes(fs, ino, &mut note);
        match attr.kind {
            FileKind::Directory => {
                for child in directory(watched, fs, ino, &mut note) {
                    if seen.len() < MOST_INODES && seen.insert(child) {
                        left.push(child);
                    }
                }
            }
            FileKind::Regular => contents(watched, fs, &attr, &mut note),
            FileKind::Symlink => {
                if let Err(error) = fs.readlink(ino) {
                    note("readlink", &error);
                }
            }
            _ => {}
        }
    }
    broken
}

fn attributes(fs: &dyn FileSystem, ino: Ino, note: &mut dyn FnMut(&str, &Error)) {
    match fs.listxattr(ino) {
        Ok(names) => {
            for name in names {
                if let Err(error) = fs.getxattr(ino, &name) {
                    note("getxattr", &error);
                }
            }
        }
        Err(error) => note("listxattr", &error),
    }
}

fn directory(
    watched: &Watched,
    fs: &dyn FileSystem,
    dir: Ino,
    note: &mut dyn FnMut(&str, &Error),
) -> Vec<Ino> {
    let mut cookies = HashSet::new();
    let (mut found, mut cookie) = (Vec::new(), 0);
    while found.len() < MOST_NAMES {
        let page = match fs.readdir(dir, cookie, 37) {
            Ok(page) => page,
            Err(error) => {
                note("readdir", &error);
                break;
            }
        };
        let Some(last) = page.last() else { break };
        cookie = last.next;
        if !cookies.insert(cookie) {
            watched.fail("readdir comes back to where it was".into(), format!("inode {}", dir.0));
            break;
        }
        for (index, entry) in page.iter().enumerate() {
            if index % 16 == 0
                && let Err(error) = fs.lookup(dir, &entry.name)
            {
                note("lookup", &error);
            }
            found.push(entry.ino);
        }
    }
    if let Err(error) = fs.lookup(dir, b"there is no such name here") {
        note("lookup", &error);
    }
    found
}

fn contents(watched: &Watched, fs: &dyn FileSystem, attr: &Attr, note: &mut dyn FnMut(&str, &Error)) {
    let mut buf = vec![0; 1 << 16];
    let (mut at, mut bytes) = (0, 0);
    while bytes < MOST_BYTES {
        let data = match fs.seek(attr.ino, at, Whence::Data) {
            Ok(data) => data,
            Err(error) => {
                note("seek data", &error);
                break;
            }
        };
        let hole = match fs.seek(attr.ino, data, Whence::Hole) {
            Ok(hole) => hole,
            Err(error) => {
                note("seek hole", &error);
                break;
            }
        };
        if data < at || hole <= data {
            watched.fail("seek does not move on".into(), format!("from {at}: data {data}, hole {hole}"));
            break;
        }
        let mut offset = data;
        while offset < hole && bytes < MOST_BYTES {
            match fs.read(&CX, attr.ino, offset, &mut buf) {
                Ok(0) => break,
                Ok(done) => (offset, bytes) = (offset + done as u64, bytes + done as u64),
                Err(error) => {
                    note("read", &error);
                    offset = offset.saturating_add(buf.len() as u64);
                    bytes += buf.len() as u64;
                }
            }
        }
        at = hole;
    }
    // The far end of a large sparse file.
    for offset in [attr.size.saturating_sub(5), attr.size, u64::MAX - 1] {
        if let Err(error) = fs.read(&CX, attr.ino, offset, &mut buf) {
            note("read", &error);
        }
    }
}

//! Walking paths.
//!
//! A path starts at the root whether or not it begins with a slash. Symbolic links are followed inside
//! the volume: an absolute target starts at the volume's root. `..` of the root is the root.

use std::collections::VecDeque;

use crate::{Attr, Context, Errno, FileKind, FileSystem, Ino, Node, Result};

/// Most symbolic links followed on one path.
pub const LINK_LIMIT: usize = 40;
const NAME_MAX: usize = 255;

/// What a walk still has to do: names in order, and whether a directory must come out of it.
struct Walk<'a> {
    fs: &'a dyn FileSystem,
    at: Attr,
    names: VecDeque<Vec<u8>>,
    links: usize,
    /// So many of the next names come from links' targets, not from the path itself.
    of_links: usize,
    /// The path ends in a slash, `.` or `..`: its last link is followed and leads to a directory.
    directory: bool,
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

fn ends_as_directory(path: &[u8]) -> bool {
    path.ends_with(b"/") || names(path).next_back().is_none_or(|last| last == b"." || last == b"..")
}

impl<'a> Walk<'a> {
    fn new(fs: &'a dyn FileSystem, path: &[u8]) -> Result<Self> {
        if path.is_empty() {
            return Err(Errno::NOENT.into());
        }
        let names = names(path).map(<[u8]>::to_vec).collect();
        Ok(Self {
            fs,
            at: fs.getattr(fs.root())?,
            names,
            links: 0,
            of_links: 0,
            directory: ends_as_directory(path),
        })
    }

    /// Puts a link's target in front of what is left.
    fn follow(&mut self, link: Ino) -> Result<()> {
        self.links += 1;
        if self.links > LINK_LIMIT {
            return Err(Errno::LOOP.into());
        }
        let target = self.fs.readlink(link)?;
        if target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        if target.starts_with(b"/") {
            self.at = self.fs.getattr(self.fs.root())?;
        }
        if self.names.is_empty() {
            self.directory |= ends_as_directory(&target);
        }
        for name in names(&target).rev() {
            self.names.push_front(name.to_vec());
            self.of_links += 1;
        }
        Ok(())
    }

    /// The next name, and whether it is the path's own.
    fn next_name(&mut self) -> Option<(Vec<u8>, bool)> {
        let own = self.of_links == 0;
        self.of_links = self.of_links.saturating_sub(1);
        Some((self.names.pop_front()?, own))
    }

    /// One step down, or over to a link's target.
    fn find(&mut self, name: &[u8], follow: bool) -> Result<()> {
        if self.at.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        if name == b"." {
            return Ok(());
        }
        let found = self.fs.lookup(self.at.ino, name)?;
        if found.kind == FileKind::Symlink && follow {
            return self.follow(found.ino);
        }
        self.at = found;
        Ok(())
    }

    /// Walks until no more than `left` names are left.
    fn run(&mut self, left: usize, follow_last: bool) -> Result<()> {
        while self.names.len() > left {
            let Some((name, _)) = self.next_name() else { break };
            let follow = !self.names.is_empty() || follow_last || self.directory;
            self.find(&name, follow)?;
        }
        Ok(())
    }
}

/// What a path names. With `follow_last` a symbolic link at its end is followed; links before the end
/// always are, and so is one before a trailing slash.
///
/// # Errors
/// `ENOENT` (an empty path included), `ENOTDIR`, `ELOOP` after [`LINK_LIMIT`] links, `ENAMETOOLONG`,
/// and the engine's own.
pub fn resolve(fs: &dyn FileSystem, path: &[u8], follow_last: bool) -> Result<Attr> {
    let mut walk = Walk::new(fs, path)?;
    walk.run(0, follow_last)?;
    if walk.directory && walk.at.kind != FileKind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    Ok(walk.at)
}

/// The directory that holds a path's last name, and that name. A trailing slash is dropped: whether a
/// directory is meant is the caller's to know. A link with the last name is not followed.
///
/// # Errors
/// As [`resolve`]; `EINVAL` for a path that ends in `.` or `..` or is only slashes.
pub fn resolve_parent(fs: &dyn FileSystem, path: &[u8]) -> Result<(Attr, Vec<u8>)> {
    let mut walk = Walk::new(fs, path)?;
    let last = match walk.names.pop_back() {
        Some(name) if name != b"." && name != b".." => name,
        _ => return Err(Errno::INVAL.into()),
    };
    // With its last name gone, whatever the rest leads to has to be a directory.
    walk.directory = true;
    walk.run(0, true)?;
    if walk.at.kind != FileKind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    if last.len() > NAME_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok((walk.at, last))
}

/// Makes a directory and those above it that are missing; answers with the last one.
///
/// # Errors
/// `ENOTDIR` where something else has the name, and those of [`resolve`] and [`FileSystem::create`].
pub fn mkdir_all(fs: &dyn FileSystem, cx: &Context, path: &[u8], perm: u16) -> Result<Attr> {
    let mut walk = Walk::new(fs, path)?;
    walk.directory = true;
    while let Some((name, own)) = walk.next_name() {
        let dir = walk.at.ino;
        match walk.find(&name, true) {
            // A link that dangles stays an error.
            Err(error) if own && error.errno() == Errno::NOENT && walk.at.ino == dir => {
                walk.at = fs.create(cx, dir, &name, Node::Directory, perm)?;
            }
            other => other?,
        }
    }
    if walk.at.kind == FileKind::Directory { Ok(walk.at) } else { Err(Errno::NOTDIR.into()) }
}

/// All of a regular file, as long as it is no more than `limit` bytes.
///
/// # Errors
/// `EFBIG` past the limit, and those of [`FileSystem::read`].
pub fn read_all(fs: &dyn FileSystem, ino: Ino, limit: usize) -> Result<Vec<u8>> {
    const STEP: usize = 1 << 20;
    let attr = fs.getattr(ino)?;
    let cx = Context { uid: 0, gid: 0, now: attr.atime };
    let mut all = Vec::new();
    loop {
        let start = all.len();
        all.resize(start + STEP.min(limit.saturating_sub(start).saturating_add(1)), 0);
        let got = fs.read(&cx, ino, start as u64, &mut all[start..])?;
        all.truncate(start + got);
        if all.len() > limit {
            return Err(Errno::FBIG.into());
        }
        if got == 0 {
            return Ok(all);
        }
    }
}

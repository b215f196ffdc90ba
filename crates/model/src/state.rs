//! Everything a model volume is made of.

use std::collections::BTreeMap;
use std::sync::Arc;

use onggi_vfs::{Attr, Context, Errno, FileKind, Ino, Node, Timestamp};

use crate::Limits;
use crate::content::Content;

/// What system calls answer.
pub(crate) type Answer<T> = Result<T, Errno>;

pub(crate) const ROOT: Ino = Ino(1);
/// Longest name in bytes.
pub(crate) const NAME_MAX: usize = 255;

/// A directory's entries, by name.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    pub(crate) parent: Ino,
    pub(crate) entries: BTreeMap<Vec<u8>, Entry>,
}

/// One name: what it names, and its place in the order of a listing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) ino: Ino,
    pub(crate) place: u64,
}

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Regular { size: u64, content: Content },
    Directory(Directory),
    Symlink(Vec<u8>),
    Special { kind: FileKind, rdev: (u32, u32) },
}

#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) perm: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    pub(crate) ctime: Timestamp,
    pub(crate) crtime: Timestamp,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Arc<[u8]>>,
    pub(crate) body: Body,
    pub(crate) retained: u64,
    /// Made without a name, so that it may get its first one.
    pub(crate) linkable: bool,
}

impl Inode {
    pub(crate) fn kind(&self) -> FileKind {
        match &self.body {
            Body::Regular { .. } => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special { kind, .. } => *kind,
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Directory(_))
    }

    /// Contents changed.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        self.mtime = now;
        self.ctime = now;
    }
}

/// A whole volume. Cloning copies pointers, not contents.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) limits: Limits,
    inodes: BTreeMap<Ino, Arc<Inode>>,
    next_ino: u64,
    next_place: u64,
    pub(crate) read_only: bool,
}

impl State {
    /// An empty root directory, `0o755`, owned by root, all times zero.
    pub(crate) fn new(limits: Limits) -> Self {
        let root = Inode {
            perm: 0o755,
            uid: 0,
            gid: 0,
            nlink: 2,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            crtime: Timestamp::default(),
            xattrs: BTreeMap::new(),
            body: Body::Directory(Directory { parent: ROOT, entries: BTreeMap::new() }),
            retained: 1,
            linkable: false,
        };
        Self {
            limits,
            inodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            next_ino: ROOT.0 + 1,
            next_place: 3,
            read_only: false,
        }
    }

    pub(crate) fn inode(&self, ino: Ino) -> Answer<&Inode> {
        self.inodes.get(&ino).map(|inode| &**inode).ok_or(Errno::NOENT)
    }

    pub(crate) fn inode_count(&self) -> u64 {
        self.inodes.len() as u64
    }

    pub(crate) fn block_count(&self) -> u64 {
        let blocks = |inode: &Arc<Inode>| match &inode.body {
            Body::Regular { content, .. } => content.block_count(),
            Body::Directory(_) => 1,
            _ => 0,
        };
        self.inodes.values().map(blocks).sum()
    }

    /// An inode to change. `EROFS` after unmount.
    pub(crate) fn edit(&mut self, ino: Ino) -> Answer<&mut Inode> {
        if self.read_only {
            return Err(Errno::ROFS);
        }
        self.inodes.get_mut(&ino).map(Arc::make_mut).ok_or(Errno::NOENT)
    }

    pub(crate) fn directory(&self, ino: Ino) -> Answer<&Directory> {
        match &self.inode(ino)?.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(crate) fn attr(&self, ino: Ino) -> Answer<Attr> {
        let inode = self.inode(ino)?;
        let block_size = u64::from(self.limits.block_size);
        let (size, blocks, rdev) = match &inode.body {
            Body::Regular { size, content } => (*size, content.block_count(), (0, 0)),
            Body::Directory(_) => (block_size, 1, (0, 0)),
            Body::Symlink(target) => (target.len() as u64, 0, (0, 0)),
            Body::Special { rdev, .. } => (0, 0, *rdev),
        };
        Ok(Attr {
            ino,
            generation: 1,
            kind: inode.kind(),
            perm: inode.perm,
            nlink: inode.nlink,
            uid: inode.uid,
            gid: inode.gid,
            rdev,
            size,
            blocks: blocks * block_size / 512,
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            crtime: inode.crtime,
            block_size: self.limits.block_size,
        })
    }

    /// A new inode without a name. The directory hands down its group where it has the set-group-id
    /// bit, and the bit to directories.
    pub(crate) fn make(&mut self, cx: &Context, dir: Ino, node: Node<'_>, perm: u16) -> Answer<Ino> {
        let parent = self.inode(dir)?;
        let hands_down = parent.perm & 0o2000 != 0;
        let gid = if hands_down { parent.gid } else { cx.gid };
        let special = |kind, rdev| Body::Special { kind, rdev };
        let (body, perm) = match node {
            Node::Regular => (Body::Regular { size: 0, content: Content::new(self.limits.block_size) }, perm),
            Node::Directory => (
                Body::Directory(Directory { parent: dir, entries: BTreeMap::new() }),
                if hands_down { perm | 0o2000 } else { perm },
            ),
            Node::Symlink(target) => (Body::Symlink(target.to_vec()), 0o777),
            Node::BlockDevice(major, minor) => (special(FileKind::BlockDevice, (major, minor)), perm),
            Node::CharDevice(major, minor) => (special(FileKind::CharDevice, (major, minor)), perm),
            Node::Fifo => (special(FileKind::Fifo, (0, 0)), perm),
            Node::Socket => (special(FileKind::Socket, (0, 0)), perm),
        };
        let inode = Inode {
            perm: perm & 0o7777,
            uid: cx.uid,
            gid,
            nlink: 0,
            atime: cx.now,
            mtime: cx.now,
            ctime: cx.now,
            crtime: cx.now,
            xattrs: BTreeMap::new(),
            body,
            retained: 0,
            linkable: false,
        };
        let ino = Ino(self.next_ino);
        self.next_ino += 1;
        self.inodes.insert(ino, Arc::new(inode));
        Ok(ino)
    }

    /// Points `name` at `ino`, wherever it pointed before, and stamps the directory.
    pub(crate) fn point(&mut self, now: Timestamp, dir: Ino, name: &[u8], ino: Ino) -> Answer<()> {
        let place = self.next_place;
        self.next_place += 1;
        let directory = self.edit(dir)?;
        directory.touch(now);
        if let Body::Directory(directory) = &mut directory.body {
            directory
                .entries
                .entry(name.to_vec())
                .and_modify(|entry| entry.ino = ino)
                .or_insert(Entry { ino, place });
        }
        if let Body::Directory(moved) = &mut self.edit(ino)?.body {
            moved.parent = dir;
        }
        Ok(())
    }

    /// Takes `name` out of the directory and stamps the directory.
    pub(crate) fn unpoint(&mut self, now: Timestamp, dir: Ino, name: &[u8]) -> Answer<()> {
        let directory = self.edit(dir)?;
        directory.touch(now);
        if let Body::Directory(directory) = &mut directory.body {
            directory.entries.remove(name);
        }
        Ok(())
    }

    /// A directory got one more subdirectory.
    pub(crate) fn add_subdirectory(&mut self, dir: Ino) -> Answer<()> {
        let link_max = self.limits.link_max;
        let inode = self.edit(dir)?;
        inode.nlink = match inode.nlink {
            1 => 1,
            n if n >= link_max => 1,
            n => n + 1,
        };
        Ok(())
    }

    /// A directory lost a subdirectory.
    pub(crate) fn drop_subdirectory(&mut self, dir: Ino) -> Answer<()> {
        let inode = self.edit(dir)?;
        if inode.nlink > 2 {
            inode.nlink -= 1;
        }
        Ok(())
    }

    /// An inode lost a name: a directory its only one.
    pub(crate) fn drop_name(&mut self, now: Timestamp, ino: Ino) -> Answer<()> {
        let inode = self.edit(ino)?;
        inode.ctime = now;
        inode.nlink = if inode.is_dir() { 0 } else { inode.nlink - 1 };
        self.forget_if_dead(ino);
        Ok(())
    }

    /// Frees an inode that has neither a name nor a retain.
    pub(crate) fn forget_if_dead(&mut self, ino: Ino) {
        if self.inodes.get(&ino).is_some_and(|inode| inode.nlink == 0 && inode.retained == 0) {
            self.inodes.remove(&ino);
        }
    }

    /// Adds to the retains, also of an inode on a volume that is read-only by now.
    pub(crate) fn retain(&mut self, ino: Ino) -> Answer<()> {
        let inode = self.inodes.get_mut(&ino).map(Arc::make_mut).ok_or(Errno::STALE)?;
        inode.retained += 1;
        Ok(())
    }

    pub(crate) fn release(&mut self, ino: Ino, count: u64) {
        if let Some(inode) = self.inodes.get_mut(&ino).map(Arc::make_mut) {
            inode.retained = inode.retained.saturating_sub(count);
        }
        self.forget_if_dead(ino);
    }
}

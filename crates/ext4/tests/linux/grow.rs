//! A tree of every kind of inode, the same on every file system for one seed, and changes to it.

use std::collections::BTreeMap;

use onggi_model::{Random, pattern};
use onggi_vfs::{
    Context, FallocateMode, FileKind, FileSystem, Ino, Node, RenameMode, Result, SetAttr, Timestamp,
    XattrMode,
};

/// What the volume can hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) block_size: u64,
    /// Inodes of 128 bytes: seconds of 32 bits and no nanoseconds.
    pub(crate) old_inodes: bool,
    /// Times before 2310: later ones e2fsck takes for the work of an old kernel and mends.
    pub(crate) early: bool,
    /// Names to make, about.
    pub(crate) entries: usize,
}

struct Grower<'a> {
    fs: &'a dyn FileSystem,
    random: Random,
    limits: Limits,
    cx: Context,
    made: usize,
    /// Attributes that later changes would spoil, set at the end.
    finish: Vec<(Ino, SetAttr)>,
    files: Vec<Ino>,
}

const TARGETS: [usize; 8] = [1, 58, 59, 60, 61, 500, 1023, 4095];
const DEVICES: [(u32, u32); 6] = [(1, 3), (8, 1), (255, 255), (256, 0), (259, 70_000), (4095, 0xf_ffff)];

/// Grows the tree `top` in the root.
pub(crate) fn grow(fs: &dyn FileSystem, seed: u64, limits: Limits) -> Result<()> {
    let cx = Context { uid: 0, gid: 0, now: Timestamp { sec: 1_700_000_000, nsec: 0 } };
    let mut grower =
        Grower { fs, random: Random::new(seed), limits, cx, made: 0, finish: Vec::new(), files: Vec::new() };
    let top = grower.make(fs.root(), b"top", Node::Directory)?;
    grower.crowd(top, b"crowd", limits.entries / 2)?;
    grower.large_files(top)?;
    let mut directories = vec![top];
    while grower.made < limits.entries {
        let parent = *grower.random.pick(&directories);
        let name = grower.name();
        let dir = grower.make(parent, &name, Node::Directory)?;
        directories.push(dir);
        let names = 1 + grower.random.below(*[3, 20, 120].get(directories.len() % 3).unwrap_or(&3));
        for _ in 0..names {
            grower.anything(dir)?;
        }
    }
    let finish = std::mem::take(&mut grower.finish);
    for (ino, changes) in finish.iter().rev() {
        fs.setattr(&grower.cx, *ino, changes)?;
    }
    Ok(())
}

impl Grower<'_> {
    /// A fresh name; the number in it keeps it apart from all others.
    fn name(&mut self) -> Vec<u8> {
        let mut name = format!("{}", self.made).into_bytes();
        let wanted = match self.random.below(10) {
            0 => 255,
            1 => 200 + self.random.below(56) as usize,
            2..5 => 30,
            _ => 0,
        };
        if wanted > 0 {
            name.push(b'-');
        }
        while name.len() < wanted {
            match self.random.below(256) as u8 {
                0 | b'/' => name.push(0xff),
                byte => name.push(byte),
            }
        }
        name
    }

    fn make(&mut self, dir: Ino, name: &[u8], node: Node<'_>) -> Result<Ino> {
        let perm = self.random.below(0o10000) as u16;
        let ino = self.fs.create(&self.cx, dir, name, node, perm)?.ino;
        self.made += 1;
        self.attributes(ino, node, perm)?;
        Ok(ino)
    }

    fn attributes(&mut self, ino: Ino, node: Node<'_>, perm: u16) -> Result<()> {
        let id = |random: &mut Random| match random.below(3) {
            0 => 0,
            1 => random.below(65_536) as u32,
            _ => 65_536 + random.below(4_000_000_000) as u32,
        };
        let (uid, gid) = (id(&mut self.random), id(&mut self.random));
        let (atime, mtime) = (self.time(), self.time());
        let symlink = matches!(node, Node::Symlink(_));
        self.finish.push((
            ino,
            SetAttr {
                perm: (!symlink).then_some(perm),
                uid: Some(uid),
                gid: Some(gid),
                atime: Some(atime),
                mtime: Some(mtime),
                ..SetAttr::default()
            },
        ));
        if self.random.chance(30) {
            let user = matches!(node, Node::Regular | Node::Directory);
            for _ in 0..1 + self.random.below(3) {
                self.attribute(ino, user)?;
            }
        }
        Ok(())
    }

    fn attribute(&mut self, ino: Ino, user: bool) -> Result<()> {
        let space = *self.random.pick(if user {
            &["user.", "trusted.", "security."]
        } else {
            &["trusted.", "security."]
        });
        let number = self.random.below(4);
        let name = format!("{space}{}{number}", "n".repeat(1 + self.random.below(12) as usize));
        // Few different large values, so that inodes come to share a block. One large value at most fits.
        let large = self.random.chance(25) && self.fs.listxattr(ino)?.is_empty();
        let value = if large {
            pattern(number, 0, (self.limits.block_size / 2 - 8 * number) as usize)
        } else {
            let len = self.random.below(40) as usize;
            pattern(self.random.next_u64(), 0, len)
        };
        self.fs.setxattr(&self.cx, ino, name.as_bytes(), &value, XattrMode::Set)
    }

    fn time(&mut self) -> Timestamp {
        let sec = match self.random.below(4) {
            0 => -(self.random.below(1 << 31) as i64),
            1 if !self.limits.old_inodes => {
                (1 << 31) + self.random.below(if self.limits.early { 8 } else { 12 } * 1_000_000_000) as i64
            }
            _ => self.random.below(1 << 31) as i64,
        };
        let nsec = if self.limits.old_inodes { 0 } else { self.random.below(1_000_000_000) as u32 };
        Timestamp { sec, nsec }
    }

    fn anything(&mut self, dir: Ino) -> Result<()> {
        let name = self.name();
        match self.random.below(20) {
            0..11 => {
                let ino = self.make(dir, &name, Node::Regular)?;
                self.files.push(ino);
                self.fill(ino)?;
            }
            11 | 12 if !self.files.is_empty() => {
                let ino = *self.random.pick(&self.files);
                self.fs.link(&self.cx, ino, dir, &name)?;
                self.made += 1;
            }
            13..16 => {
                let most = 4095.min(self.limits.block_size as usize - 1);
                let len = (*self.random.pick(&TARGETS)).min(most);
                let mut target = vec![b'.'; len];
                target.iter_mut().skip(1).step_by(7).for_each(|byte| *byte = 0xfe);
                self.make(dir, &name, Node::Symlink(&target))?;
            }
            16 => drop(self.make(dir, &name, Node::Fifo)?),
            17 => drop(self.make(dir, &name, Node::Socket)?),
            kind => {
                let (major, minor) = *self.random.pick(&DEVICES);
                let block = kind == 18;
                let node =
                    if block { Node::BlockDevice(major, minor) } else { Node::CharDevice(major, minor) };
                self.make(dir, &name, node)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, ino: Ino, offset: u64, len: u64) -> Result<()> {
        let data = pattern(self.random.next_u64(), offset, len as usize);
        let written = self.fs.write(&self.cx, ino, offset, &data)?;
        assert_eq!(written, data.len(), "the volume is full");
        Ok(())
    }

    fn fill(&mut self, ino: Ino) -> Result<()> {
        let block = self.limits.block_size;
        match self.random.below(10) {
            0 => Ok(()),
            1..6 => {
                let len = self.random.below(3 * block);
                self.put(ino, 0, len)
            }
            6 => {
                let len = self.random.below(40 * block);
                self.put(ino, 0, len)
            }
            7 => {
                for _ in 0..1 + self.random.below(6) {
                    let (offset, len) = (self.random.below(1 << 20), self.random.below(3 * block));
                    self.put(ino, offset, len)?;
                }
                let size = self.random.below(1 << 21);
                self.fs.setattr(&self.cx, ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
            }
            8 => {
                let keep_size = self.random.chance(50);
                let (offset, len) = (self.random.below(20 * block), 1 + self.random.below(40 * block));
                self.fs.fallocate(&self.cx, ino, offset, len, FallocateMode::Allocate { keep_size })?;
                let (offset, len) = (self.random.below(30 * block), self.random.below(4 * block));
                self.put(ino, offset, len)
            }
            _ => {
                self.put(ino, 0, 20 * block)?;
                let (offset, len) = (self.random.below(20 * block), 1 + self.random.below(9 * block));
                self.fs.fallocate(&self.cx, ino, offset, len, FallocateMode::PunchHole)?;
                let (offset, len) = (self.random.below(20 * block), 1 + self.random.below(9 * block));
                let mode = FallocateMode::ZeroRange { keep_size: true };
                self.fs.fallocate(&self.cx, ino, offset, len, mode)
            }
        }
    }

    /// A directory of many names, most of them of files without contents.
    fn crowd(&mut self, top: Ino, name: &[u8], names: usize) -> Result<()> {
        let dir = self.make(top, name, Node::Directory)?;
        let mut last = None;
        for _ in 0..names {
            let name = self.name();
            match (self.random.below(4), last) {
                (0, Some(ino)) => {
                    self.fs.link(&self.cx, ino, dir, &name)?;
                    self.made += 1;
                }
                (1, _) => drop(self.make(dir, &name, Node::Symlink(b"elsewhere"))?),
                _ => last = Some(self.make(dir, &name, Node::Regular)?),
            }
        }
        Ok(())
    }

    /// Files whose extent trees are deep, and one that ends far out.
    fn large_files(&mut self, top: Ino) -> Result<()> {
        let block = self.limits.block_size;
        for (name, extents) in [(b"leaves", 300), (b"levels", 2600)] {
            let ino = self.make(top, name, Node::Regular)?;
            for nr in 0..extents {
                self.put(ino, 2 * nr * block, block)?;
            }
        }
        let solid = self.make(top, b"solid", Node::Regular)?;
        for piece in 0..16 {
            self.put(solid, piece << 20, 1 << 20)?;
        }
        let far = self.make(top, b"far", Node::Regular)?;
        self.put(far, 0, 10)?;
        self.put(far, (1 << 40) - 5, 10)
    }
}

/// Changes about half of a tree: what is there is given by path.
pub(crate) fn alter(
    fs: &dyn FileSystem,
    paths: &BTreeMap<Vec<u8>, FileKind>,
    seed: u64,
    limits: Limits,
) -> Result<()> {
    let cx = Context { uid: 7, gid: 70_000, now: Timestamp { sec: 1_800_000_000, nsec: 0 } };
    let mut random = Random::new(seed);
    let mut inos = BTreeMap::from([(Vec::new(), fs.root())]);
    let new = fs.create(&cx, fs.root(), b"moved", Node::Directory, 0o755)?.ino;
    for (index, (path, &kind)) in paths.iter().enumerate() {
        if path.is_empty() || path == b"lost+found" {
            continue;
        }
        let slash = path.iter().rposition(|&byte| byte == b'/');
        let (parent, name) = slash.map_or((&b""[..], &path[..]), |at| (&path[..at], &path[at + 1..]));
        let dir = inos[parent];
        let ino = fs.lookup(dir, name)?.ino;
        if kind == FileKind::Directory {
            inos.insert(path.clone(), ino);
        }
        match random.below(8) {
            0..3 if kind != FileKind::Directory => fs.unlink(&cx, dir, name)?,
            3 if kind != FileKind::Directory => {
                let new_name = format!("{index}-{}", "m".repeat(random.below(200) as usize));
                fs.rename(&cx, dir, name, new, new_name.as_bytes(), RenameMode::NoReplace)?;
            }
            4 if kind == FileKind::Regular => {
                let data = pattern(random.next_u64(), 0, random.below(5 * limits.block_size) as usize);
                fs.append(&cx, ino, &data)?;
            }
            5 if kind == FileKind::Regular => {
                let size = random.below(fs.getattr(ino)?.size.clamp(1, 1 << 22) + 100);
                fs.setattr(&cx, ino, &SetAttr { size: Some(size), ..SetAttr::default() })?;
            }
            6 if kind == FileKind::Regular => {
                let (offset, len) = (random.below(1 << 16), 1 + random.below(1 << 16));
                fs.fallocate(&cx, ino, offset, len, FallocateMode::PunchHole)?;
            }
            _ => change_attributes(fs, &cx, ino, &mut random)?,
        }
    }
    Ok(())
}

fn change_attributes(fs: &dyn FileSystem, cx: &Context, ino: Ino, random: &mut Random) -> Result<()> {
    let mut names = fs.listxattr(ino)?;
    names.sort();
    if let Some(name) = names.first() {
        let value = fs.getxattr(ino, name)?;
        let half = &value[..value.len() / 2];
        match random.below(3) {
            0 => fs.removexattr(cx, ino, name)?,
            1 => fs.setxattr(cx, ino, name, half, XattrMode::Replace)?,
            _ => {}
        }
    }
    fs.setxattr(cx, ino, b"trusted.t", b"t", XattrMode::Set)?;
    let uid = Some(random.below(1 << 32) as u32);
    fs.setattr(cx, ino, &SetAttr { uid, ..SetAttr::default() }).map(drop)
}

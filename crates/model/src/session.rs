//! Running operations on one file system, so that two runs give comparable outcomes.

use std::collections::{BTreeMap, BTreeSet};

use onggi_vfs::{Attr, Context, Errno, Error, FileKind, FileSystem, Ino, Node as Kind, Result, Timestamp};

use crate::ops::{Made, Op, Place, Step};
use crate::tree::{Compare, show};
use crate::{Generator, ModelFs, Profile, Random, pattern};

/// Attributes without what belongs to a format: inode numbers, sizes of directories, blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttrView {
    kind: FileKind,
    perm: u16,
    nlink: u32,
    owner: (u32, u32),
    rdev: (u32, u32),
    size: Option<u64>,
    atime: Option<Timestamp>,
    times: Option<(Timestamp, Timestamp)>,
    crtime: Option<Timestamp>,
}

/// What an operation answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It failed.
    Error(Errno),
    /// It did what it should.
    Done,
    /// It had nothing to act on, such as a slot that holds no file.
    Skipped,
    /// Attributes.
    Attr(Box<AttrView>),
    /// Bytes: how many, a digest, and the first few.
    Bytes(usize, u64, Vec<u8>),
    /// Offset and count of what was written.
    Written(u64, usize),
    /// Where a seek ended.
    Offset(u64),
    /// Names.
    Names(BTreeSet<Vec<u8>>),
    /// A listing.
    Listing(BTreeMap<Vec<u8>, FileKind>),
    /// An answer that breaks a rule of its own.
    Broken(String),
}

/// A run on one file system: its top directory, its open files.
pub struct Session<'a> {
    fs: &'a dyn FileSystem,
    top: Ino,
    compare: Compare,
    slots: BTreeMap<u8, (Ino, u32)>,
    graves: BTreeMap<u8, (Ino, u32)>,
}

impl From<Error> for Outcome {
    fn from(error: Error) -> Self {
        Self::Error(error.errno())
    }
}

type Ran = std::result::Result<Outcome, Outcome>;

impl<'a> Session<'a> {
    /// A run below `top`.
    #[must_use]
    pub fn new(fs: &'a dyn FileSystem, top: Ino, compare: Compare) -> Self {
        Self { fs, top, compare, slots: BTreeMap::new(), graves: BTreeMap::new() }
    }

    /// The top directory.
    #[must_use]
    pub fn top(&self) -> Ino {
        self.top
    }

    /// The inode at a place.
    ///
    /// # Errors
    /// The lookups' own; `EBADF` for an empty slot.
    pub fn resolve(&self, place: &Place) -> Result<Ino> {
        let mut at = match place.slot {
            None => self.top,
            Some(slot) => self.slots.get(&slot).ok_or(Errno::BADF)?.0,
        };
        for name in &place.names {
            // What `.` and `..` name in a removed directory is nobody's business, nor what is above.
            let above = at == self.top && name == b"..";
            if above || (name == b"." || name == b"..") && self.fs.getattr(at)?.nlink == 0 {
                return Err(Errno::BADF.into());
            }
            at = self.fs.lookup(at, name)?.ino;
        }
        Ok(at)
    }

    fn at(&self, place: &Place) -> std::result::Result<Ino, Outcome> {
        self.resolve(place).map_err(|error| match error.errno() {
            Errno::BADF => Outcome::Skipped,
            errno => Outcome::Error(errno),
        })
    }

    /// The directory and the last name of a place.
    fn parent<'p>(&self, place: &'p Place) -> std::result::Result<(Ino, &'p [u8]), Outcome> {
        let (last, dirs) = place.names.split_last().ok_or(Outcome::Skipped)?;
        let dir = self.at(&Place { slot: place.slot, names: dirs.to_vec() })?;
        Ok((dir, last))
    }

    fn view(&self, attr: &Attr) -> Outcome {
        Outcome::Attr(Box::new(AttrView {
            kind: attr.kind,
            perm: attr.perm,
            nlink: attr.nlink,
            owner: (attr.uid, attr.gid),
            rdev: attr.rdev,
            size: (attr.kind != FileKind::Directory).then_some(attr.size),
            atime: None,
            times: self.compare.times.then_some((attr.mtime, attr.ctime)),
            crtime: self.compare.crtime.then_some(attr.crtime),
        }))
    }

    /// Runs a step.
    pub fn run(&mut self, step: &Step) -> Outcome {
        let cx = step.context();
        let ran = match &step.op {
            Op::Create { .. }
            | Op::Tmpfile { .. }
            | Op::Link { .. }
            | Op::Unlink(_)
            | Op::Rmdir(_)
            | Op::Rename { .. } => self.run_names(&cx, &step.op),
            Op::Open { at, slot } => self.open(at, *slot),
            Op::Close(slot) => self.close(*slot),
            Op::Revive(slot) => self.revive(*slot),
            Op::Write { .. }
            | Op::Append { .. }
            | Op::Read { .. }
            | Op::Fallocate { .. }
            | Op::Seek { .. } => self.run_contents(&cx, &step.op),
            other => self.run_rest(&cx, other),
        };
        ran.unwrap_or_else(|outcome| outcome)
    }

    fn run_names(&mut self, cx: &Context, op: &Op) -> Ran {
        match op {
            Op::Create { at, made, perm } => {
                let (dir, name) = self.parent(at)?;
                let node = match made {
                    Made::Regular => Kind::Regular,
                    Made::Directory => Kind::Directory,
                    Made::Symlink(target) => Kind::Symlink(target),
                    Made::BlockDevice(major, minor) => Kind::BlockDevice(*major, *minor),
                    Made::CharDevice(major, minor) => Kind::CharDevice(*major, *minor),
                    Made::Fifo => Kind::Fifo,
                    Made::Socket => Kind::Socket,
                };
                Ok(self.view(&self.fs.create(cx, dir, name, node, *perm)?))
            }
            Op::Tmpfile { dir, perm, slot } => {
                let dir = self.at(dir)?;
                let attr = self.fs.tmpfile(cx, dir, *perm)?;
                self.drop_slot(*slot);
                self.slots.insert(*slot, (attr.ino, attr.generation));
                Ok(self.view(&attr))
            }
            Op::Link { from, to } => {
                let ino = self.at(from)?;
                let (dir, name) = self.parent(to)?;
                Ok(self.view(&self.fs.link(cx, ino, dir, name)?))
            }
            Op::Unlink(at) => {
                let (dir, name) = self.parent(at)?;
                self.fs.unlink(cx, dir, name)?;
                Ok(Outcome::Done)
            }
            Op::Rmdir(at) => {
                let (dir, name) = self.parent(at)?;
                self.fs.rmdir(cx, dir, name)?;
                Ok(Outcome::Done)
            }
            Op::Rename { from, to, mode } => {
                let (dir, name) = self.parent(from)?;
                let (new_dir, new_name) = self.parent(to)?;
                self.fs.rename(cx, dir, name, new_dir, new_name, *mode)?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    fn open(&mut self, at: &Place, slot: u8) -> Ran {
        let attr = self.fs.getattr(self.at(at)?)?;
        self.fs.retain(attr.ino, attr.generation)?;
        self.drop_slot(slot);
        self.slots.insert(slot, (attr.ino, attr.generation));
        Ok(self.view(&attr))
    }

    fn close(&mut self, slot: u8) -> Ran {
        if self.drop_slot(slot) { Ok(Outcome::Done) } else { Ok(Outcome::Skipped) }
    }

    /// Empties a slot; remembers what died with it.
    fn drop_slot(&mut self, slot: u8) -> bool {
        let Some((ino, generation)) = self.slots.remove(&slot) else { return false };
        let last = !self.slots.values().any(|&(other, _)| other == ino);
        if last && self.fs.getattr(ino).is_ok_and(|attr| attr.nlink == 0) {
            self.graves.insert(slot, (ino, generation));
        }
        self.fs.release(ino, 1);
        true
    }

    fn revive(&self, slot: u8) -> Ran {
        let &(ino, generation) = self.graves.get(&slot).ok_or(Outcome::Skipped)?;
        self.fs.retain(ino, generation)?;
        self.fs.release(ino, 1);
        Ok(Outcome::Done)
    }

    /// Closes every open file.
    pub fn close_all(&mut self) {
        for slot in self.slots.keys().copied().collect::<Vec<_>>() {
            self.drop_slot(slot);
        }
    }

    fn run_contents(&self, cx: &Context, op: &Op) -> Ran {
        match op {
            Op::Write { at, offset, len, fill } => {
                let data = pattern(*fill, *offset, *len);
                Ok(Outcome::Written(*offset, self.fs.write(cx, self.at(at)?, *offset, &data)?))
            }
            Op::Append { at, len, fill } => {
                let (offset, written) = self.fs.append(cx, self.at(at)?, &pattern(*fill, 0, *len))?;
                Ok(Outcome::Written(offset, written))
            }
            Op::Read { at, offset, len } => {
                let mut buf = vec![0xee; *len];
                let got = self.fs.read(cx, self.at(at)?, *offset, &mut buf)?;
                let bytes = buf.get(..got);
                Ok(bytes.map_or_else(|| Outcome::Broken(format!("read {got} bytes of {len}")), bytes_outcome))
            }
            Op::Fallocate { at, offset, len, mode } => {
                self.fs.fallocate(cx, self.at(at)?, *offset, *len, *mode)?;
                Ok(Outcome::Done)
            }
            Op::Seek { at, offset, whence } => {
                let ino = self.at(at)?;
                if self.fs.getattr(ino)?.kind != FileKind::Regular {
                    return Ok(Outcome::Skipped);
                }
                Ok(Outcome::Offset(self.fs.seek(ino, *offset, *whence)?))
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    fn run_rest(&self, cx: &Context, op: &Op) -> Ran {
        match op {
            Op::Stat(at) => Ok(self.view(&self.fs.getattr(self.at(at)?)?)),
            Op::Readlink(at) => Ok(bytes_outcome(&self.fs.readlink(self.at(at)?)?)),
            Op::Setattr { at, changes } => {
                let ino = self.at(at)?;
                let mut changes = *changes;
                if self.fs.getattr(ino)?.kind == FileKind::Symlink {
                    changes.perm = None;
                }
                let attr = self.fs.setattr(cx, ino, &changes)?;
                let mut outcome = self.view(&attr);
                if let Outcome::Attr(view) = &mut outcome {
                    view.atime = changes.atime.map(|_| attr.atime);
                }
                Ok(outcome)
            }
            Op::Setxattr { at, name, len, fill, mode } => {
                self.fs.setxattr(cx, self.at(at)?, name, &pattern(*fill, 0, *len), *mode)?;
                Ok(Outcome::Done)
            }
            Op::Getxattr { at, name } => Ok(bytes_outcome(&self.fs.getxattr(self.at(at)?, name)?)),
            Op::Listxattr(at) => Ok(Outcome::Names(self.fs.listxattr(self.at(at)?)?.into_iter().collect())),
            Op::Removexattr { at, name } => {
                self.fs.removexattr(cx, self.at(at)?, name)?;
                Ok(Outcome::Done)
            }
            Op::Readdir { at, batch } => self.list(self.at(at)?, *batch),
            Op::Fsync { at, datasync } => {
                self.fs.fsync(self.at(at)?, *datasync)?;
                Ok(Outcome::Done)
            }
            Op::Sync => {
                self.fs.sync()?;
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Skipped),
        }
    }

    fn list(&self, dir: Ino, batch: usize) -> Ran {
        let mut all = BTreeMap::new();
        let mut cookie = 0;
        loop {
            let entries = self.fs.readdir(dir, cookie, batch)?;
            let Some(last) = entries.last() else { return Ok(Outcome::Listing(all)) };
            cookie = last.next;
            if entries.len() > batch {
                return Ok(Outcome::Broken(format!("{} entries of {batch}", entries.len())));
            }
            for entry in entries {
                if all.insert(entry.name.clone(), entry.kind).is_some() {
                    return Ok(Outcome::Broken(format!("{:?} listed twice", show(&entry.name))));
                }
            }
        }
    }
}

/// The seed's first `count` steps of those that succeed, and of few that fail: a run that has no
/// steps to waste, such as one whose power will be cut.
#[must_use]
pub fn dense_steps(seed: u64, profile: Profile, count: usize) -> Vec<Step> {
    let model = ModelFs::with_limits(profile.limits);
    let mut session = Session::new(&model, model.root(), Compare::ALL);
    let mut random = Random::new(!seed);
    let mut keep = |step: &Step| {
        let failed = matches!(session.run(step), Outcome::Error(_) | Outcome::Skipped);
        !failed || random.chance(4)
    };
    Generator::new(seed, profile).filter(|step| keep(step)).take(count).collect()
}

fn bytes_outcome(bytes: &[u8]) -> Outcome {
    let digest = bytes.iter().fold(bytes.len() as u64, |sum, &byte| {
        Random::new(sum.wrapping_mul(31).wrapping_add(u64::from(byte))).next_u64()
    });
    Outcome::Bytes(bytes.len(), digest, bytes[..bytes.len().min(16)].to_vec())
}

//! A toy engine: the model in memory, written whole into one of two slots, in turn.
//!
//! A slot is a header sector (magic, generation, lengths, digest) and a payload: names, then contents.
//! With a [`Bug`] it breaks one promise.

use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_crash::{Engine, Found};
use onggi_model::{Limits, ModelFs, Tree, tree};
use onggi_vfs::{
    Attr, Context, DirEntry, Errno, FallocateMode, FileKind, FileSystem, Ino, Node, RenameMode, Result,
    SetAttr, StatFs, Timestamp, Whence, WriteErrors, XattrMode,
};
use parking_lot::Mutex;

/// The promise that is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    None,
    /// fsync returns at once.
    FsyncDoesNothing,
    /// None: the payload is not flushed before the header, whose digest tells.
    HeaderBeforePayload,
    /// Nothing is flushed at the end.
    NoLastFlush,
    /// Contents are written after the header that covers them.
    ContentsAfterCommit,
    /// A rename commits the removal and then the addition.
    RenameInTwo,
    /// Extended attributes are forgotten.
    NoXattrs,
    /// Recovery panics on a slot that is torn.
    PanicsOnTorn,
    /// Recovery puts the other slot's header out of order, without need.
    RecoveryDestroys,
}

pub(crate) struct Toy(pub(crate) Bug);

const SIZE: u64 = 16 << 20;
const MAGIC: u64 = 0x79_6f74_2d69_6767;

struct ToyFs {
    model: ModelFs,
    device: Arc<dyn BlockDevice>,
    bug: Bug,
    /// Generation of the next commit, and changes since the last.
    turn: Mutex<(u64, u64)>,
}

fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

fn header_at(generation: u64) -> u64 {
    generation % 2 * 4096
}

fn payload_at(generation: u64) -> u64 {
    (1 << 20) + generation % 2 * (7 << 20)
}

fn sectors(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.resize(bytes.len().next_multiple_of(4096), 0);
    bytes
}

fn commit(device: &dyn BlockDevice, generation: u64, tree: &Tree, bug: Bug) -> std::io::Result<()> {
    let fail = |error: onggi_block_device::DeviceError| std::io::Error::from_raw_os_error(error.errno());
    let (names, contents) = encode(tree, bug);
    let (names, contents) = (sectors(names), sectors(contents));
    let covered =
        if bug == Bug::ContentsAfterCommit { names.clone() } else { [&names[..], &contents].concat() };
    let mut header = Vec::new();
    for word in [MAGIC, generation, names.len() as u64, contents.len() as u64, digest(&covered)] {
        header.extend_from_slice(&word.to_le_bytes());
    }
    header.extend_from_slice(&digest(&header).to_le_bytes());
    header.resize(512, 0);
    let at = payload_at(generation);
    device.write_at(at, &names).map_err(fail)?;
    if bug != Bug::ContentsAfterCommit {
        device.write_at(at + names.len() as u64, &contents).map_err(fail)?;
    }
    if bug != Bug::HeaderBeforePayload {
        device.flush().map_err(fail)?;
    }
    device.write_at(header_at(generation), &header).map_err(fail)?;
    if bug == Bug::ContentsAfterCommit {
        device.flush().map_err(fail)?;
        device.write_at(at + names.len() as u64, &contents).map_err(fail)?;
    }
    if bug != Bug::NoLastFlush {
        device.flush().map_err(fail)?;
    }
    Ok(())
}

/// A slot's generation, names and contents; an error for one that is not whole.
fn slot(
    device: &dyn BlockDevice,
    which: u64,
    bug: Bug,
) -> std::result::Result<(u64, Vec<u8>, Vec<u8>), String> {
    let mut header = [0; 512];
    device.read_at(header_at(which), &mut header).map_err(|error| error.to_string())?;
    let word = |n: usize| u64::from_le_bytes(header[n * 8..n * 8 + 8].try_into().unwrap());
    if word(0) != MAGIC || word(5) != digest(&header[..40]) {
        return Err("no header".into());
    }
    let (names, contents) = (word(2) as usize, word(3) as usize);
    let mut payload = vec![0; names + contents];
    device.read_at(payload_at(which), &mut payload).map_err(|error| error.to_string())?;
    let covered = if bug == Bug::ContentsAfterCommit { &payload[..names] } else { &payload[..] };
    if digest(covered) != word(4) {
        assert!(bug != Bug::PanicsOnTorn, "a torn slot");
        return Err("a torn payload".into());
    }
    let contents = payload.split_off(names);
    Ok((word(1), payload, contents))
}

/// Writes values one after another.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn word(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn time(&mut self, time: Timestamp) {
        self.word(time.sec as u64);
        self.word(u64::from(time.nsec));
    }
}

struct In<'a>(&'a [u8]);

impl In<'_> {
    fn word(&mut self) -> u64 {
        let (word, rest) = self.0.split_first_chunk().unwrap();
        self.0 = rest;
        u64::from_le_bytes(*word)
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.word() as usize;
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes.to_vec()
    }

    fn time(&mut self) -> Timestamp {
        Timestamp { sec: self.word() as i64, nsec: self.word() as u32 }
    }
}

const KINDS: [FileKind; 7] = [
    FileKind::Regular,
    FileKind::Directory,
    FileKind::Symlink,
    FileKind::BlockDevice,
    FileKind::CharDevice,
    FileKind::Fifo,
    FileKind::Socket,
];

fn encode(tree: &Tree, bug: Bug) -> (Vec<u8>, Vec<u8>) {
    let (mut names, mut contents) = (Out::default(), Out::default());
    names.word(tree.nodes.len() as u64);
    for (path, node) in &tree.nodes {
        names.bytes(path);
        names.bytes(&node.same_as);
        names.word(KINDS.iter().position(|&kind| kind == node.kind).unwrap() as u64);
        for value in [u32::from(node.perm), node.uid, node.gid, node.rdev.0, node.rdev.1] {
            names.word(u64::from(value));
        }
        names.word(node.size);
        [node.mtime, node.ctime, node.crtime].into_iter().for_each(|time| names.time(time));
        names.bytes(node.target.as_deref().unwrap_or_default());
        let xattrs = if bug == Bug::NoXattrs { 0 } else { node.xattrs.len() };
        names.word(xattrs as u64);
        for (name, value) in node.xattrs.iter().take(xattrs) {
            names.bytes(name);
            names.bytes(value);
        }
        let blocks = if node.same_as == *path { node.content.len() } else { 0 };
        names.word(blocks as u64);
        for (block, bytes) in node.content.iter().take(blocks) {
            names.word(*block);
            contents.0.extend_from_slice(bytes);
        }
    }
    (names.0, contents.0)
}

fn decode(names: &[u8], contents: &[u8], limits: Limits) -> Result<ModelFs> {
    let fs = ModelFs::with_limits(limits);
    let (mut names, mut contents) = (In(names), contents);
    let mut last = Vec::new();
    for _ in 0..names.word() {
        let (path, same_as) = (names.bytes(), names.bytes());
        let kind = KINDS[names.word() as usize];
        let [perm, uid, gid, major, minor] = std::array::from_fn(|_| names.word() as u32);
        let size = names.word();
        let [mtime, ctime, crtime] = std::array::from_fn(|_| names.time());
        let target = names.bytes();
        let now = Context { uid, gid, now: ctime };
        let ino = if path.is_empty() {
            fs.root()
        } else {
            let (dir, name) = onggi_vfs::path::resolve_parent(&fs, &path)?;
            let node = match kind {
                FileKind::Regular => Node::Regular,
                FileKind::Directory => Node::Directory,
                FileKind::Symlink => Node::Symlink(&target),
                FileKind::BlockDevice => Node::BlockDevice(major, minor),
                FileKind::CharDevice => Node::CharDevice(major, minor),
                FileKind::Fifo => Node::Fifo,
                FileKind::Socket => Node::Socket,
            };
            if same_as == path {
                fs.create(&now, dir.ino, &name, node, perm as u16)?.ino
            } else {
                let first = onggi_vfs::path::resolve(&fs, &same_as, false)?;
                fs.link(&now, first.ino, dir.ino, &name)?.ino
            }
        };
        for _ in 0..names.word() {
            let (name, value) = (names.bytes(), names.bytes());
            fs.setxattr(&now, ino, &name, &value, XattrMode::Set)?;
        }
        for _ in 0..names.word() {
            let offset = names.word() * 4096;
            let (block, rest) = contents.split_at(4096);
            contents = rest;
            let len = size.saturating_sub(offset).min(4096) as usize;
            fs.write(&now, ino, offset, &block[..len])?;
        }
        let size = (kind == FileKind::Regular).then_some(size);
        let (perm, uid, gid) = (Some(perm as u16), Some(uid), Some(gid));
        let (mtime, crtime) = (Some(mtime), Some(crtime));
        last.push((now, ino, SetAttr { perm, uid, gid, size, atime: None, mtime, crtime }));
    }
    // Times at the end: making names changes those of directories.
    last.iter().try_for_each(|(now, ino, changes)| fs.setattr(now, *ino, changes).map(drop))?;
    Ok(fs)
}

impl Engine for Toy {
    fn size(&self) -> u64 {
        SIZE
    }

    fn limits(&self) -> Limits {
        Limits::ext4(4096)
    }

    fn mkfs(&self, device: &dyn BlockDevice) -> std::result::Result<(), String> {
        let fs = ModelFs::with_limits(self.limits());
        let tree = tree(&fs, fs.root()).map_err(|error| error.to_string())?;
        commit(device, 1, &tree, Bug::None).map_err(|error| error.to_string())
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> std::result::Result<Arc<dyn FileSystem>, String> {
        let (one, two) = (slot(&*device, 0, self.0), slot(&*device, 1, self.0));
        let older = match (&one, &two) {
            (Ok(one), Ok(two)) => one.0.min(two.0),
            _ => u64::MAX,
        };
        if self.0 == Bug::RecoveryDestroys && older != u64::MAX {
            // Moves the older slot over the newer one: wrong as soon as this is cut off.
            let newer = older + 1;
            device.write_at(header_at(newer), &[0; 512]).map_err(|error| error.to_string())?;
            device.flush().map_err(|error| error.to_string())?;
            let best = [&one, &two].into_iter().flatten().max_by_key(|slot| slot.0).unwrap();
            let model = decode(&best.1, &best.2, self.limits()).map_err(|error| error.to_string())?;
            let tree = tree(&model, model.root()).map_err(|error| error.to_string())?;
            commit(&*device, newer, &tree, Bug::None).map_err(|error| error.to_string())?;
        }
        let best = [one, two].into_iter().flatten().max_by_key(|slot| slot.0).ok_or("no slot is whole")?;
        let model = decode(&best.1, &best.2, self.limits()).map_err(|error| error.to_string())?;
        let turn = Mutex::new((best.0 + 1, 0));
        Ok(Arc::new(ToyFs { model, device, bug: self.0, turn }))
    }

    fn check(&self, device: Arc<dyn BlockDevice>, _found: Found) -> std::result::Result<(), String> {
        let found = [slot(&*device, 0, Bug::None), slot(&*device, 1, Bug::None)];
        if self.0 == Bug::None && found.iter().all(std::result::Result::is_err) {
            return Err(format!("{:?}", found.map(std::result::Result::err)));
        }
        Ok(())
    }
}

impl ToyFs {
    fn commit(&self) -> Result<()> {
        let mut turn = self.turn.lock();
        let tree = tree(&self.model, self.model.root()).map_err(|_| Errno::IO)?;
        commit(&*self.device, turn.0, &tree, self.bug).map_err(|_| Errno::IO)?;
        *turn = (turn.0 + 1, 0);
        Ok(())
    }

    /// Commits now and then of its own accord, as engines do.
    fn changed<T>(&self, result: Result<T>) -> Result<T> {
        let due = {
            let mut turn = self.turn.lock();
            turn.1 += 1;
            turn.1.is_multiple_of(7)
        };
        if due {
            self.commit()?;
        }
        result
    }
}

impl FileSystem for ToyFs {
    fn root(&self) -> Ino {
        self.model.root()
    }

    fn statfs(&self) -> Result<StatFs> {
        self.model.statfs()
    }

    fn lookup(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.model.lookup(dir, name)
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.model.getattr(ino)
    }

    fn setattr(&self, cx: &Context, ino: Ino, changes: &SetAttr) -> Result<Attr> {
        self.changed(self.model.setattr(cx, ino, changes))
    }

    fn create(&self, cx: &Context, dir: Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Attr> {
        self.changed(self.model.create(cx, dir, name, node, perm))
    }

    fn tmpfile(&self, cx: &Context, dir: Ino, perm: u16) -> Result<Attr> {
        self.model.tmpfile(cx, dir, perm)
    }

    fn link(&self, cx: &Context, ino: Ino, dir: Ino, name: &[u8]) -> Result<Attr> {
        self.changed(self.model.link(cx, ino, dir, name))
    }

    fn unlink(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.changed(self.model.unlink(cx, dir, name))
    }

    fn rmdir(&self, cx: &Context, dir: Ino, name: &[u8]) -> Result<()> {
        self.changed(self.model.rmdir(cx, dir, name))
    }

    fn rename(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        new_dir: Ino,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        if self.bug == Bug::RenameInTwo && mode == RenameMode::Replace {
            let before = self.model.snapshot();
            self.model.rename(cx, dir, name, new_dir, new_name, mode)?;
            if before.lookup(dir, name)?.kind != FileKind::Directory {
                before.unlink(cx, dir, name)?;
                let half = ToyFs {
                    model: before,
                    device: Arc::clone(&self.device),
                    bug: self.bug,
                    turn: Mutex::new(*self.turn.lock()),
                };
                half.commit()?;
                *self.turn.lock() = *half.turn.lock();
            }
            return self.commit();
        }
        self.changed(self.model.rename(cx, dir, name, new_dir, new_name, mode))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.model.readlink(ino)
    }

    fn readdir(&self, dir: Ino, cookie: u64, max: usize) -> Result<Vec<DirEntry>> {
        self.model.readdir(dir, cookie, max)
    }

    fn read(&self, cx: &Context, ino: Ino, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.model.read(cx, ino, offset, buf)
    }

    fn write(&self, cx: &Context, ino: Ino, offset: u64, data: &[u8]) -> Result<usize> {
        self.changed(self.model.write(cx, ino, offset, data))
    }

    fn append(&self, cx: &Context, ino: Ino, data: &[u8]) -> Result<(u64, usize)> {
        self.changed(self.model.append(cx, ino, data))
    }

    fn fallocate(&self, cx: &Context, ino: Ino, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        self.changed(self.model.fallocate(cx, ino, offset, len, mode))
    }

    fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Result<u64> {
        self.model.seek(ino, offset, whence)
    }

    fn fsync(&self, ino: Ino, datasync: bool) -> Result<()> {
        self.model.fsync(ino, datasync)?;
        if self.bug == Bug::FsyncDoesNothing { Ok(()) } else { self.commit() }
    }

    fn write_errors(&self, ino: Ino) -> WriteErrors {
        self.model.write_errors(ino)
    }

    fn sync(&self) -> Result<()> {
        self.commit()
    }

    fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.model.getxattr(ino, name)
    }

    fn setxattr(&self, cx: &Context, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.changed(self.model.setxattr(cx, ino, name, value, mode))
    }

    fn listxattr(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.model.listxattr(ino)
    }

    fn removexattr(&self, cx: &Context, ino: Ino, name: &[u8]) -> Result<()> {
        self.changed(self.model.removexattr(cx, ino, name))
    }

    fn retain(&self, ino: Ino, generation: u32) -> Result<()> {
        self.model.retain(ino, generation)
    }

    fn release(&self, ino: Ino, count: u64) {
        self.model.release(ino, count);
    }

    fn unmount(&self) -> Result<()> {
        self.commit()
    }
}

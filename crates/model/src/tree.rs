//! A whole directory tree as a value that can be compared.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use onggi_vfs::{Attr, Context, Errno, Error, FileKind, FileSystem, Ino, Timestamp, Whence};

/// Bytes in a block of [`Node::content`].
pub const CONTENT_BLOCK: u64 = 4096;
/// Most bytes of contents in a tree, against an engine that takes an endless hole for data.
const CONTENT_MAX: usize = 1 << 30;
const NODES_MAX: usize = 1 << 20;
const READ_SIZE: u64 = 1 << 18;

/// Blocks of 4096 bytes by number.
pub type Blocks = BTreeMap<u64, Arc<[u8]>>;

/// What a comparison looks at, besides what it always looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compare {
    /// mtime and ctime.
    pub times: bool,
    /// Creation times.
    pub crtime: bool,
}

impl Compare {
    /// Everything.
    pub const ALL: Self = Self { times: true, crtime: true };
}

/// One file, directory or other inode under one of its names.
#[derive(Clone, Debug)]
pub struct Node {
    /// Its number; not compared.
    pub ino: Ino,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names.
    pub nlink: u32,
    /// Device numbers.
    pub rdev: (u32, u32),
    /// Bytes; 0 for a directory, whose size belongs to its format.
    pub size: u64,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of attributes.
    pub ctime: Timestamp,
    /// Creation.
    pub crtime: Timestamp,
    /// A symbolic link's target.
    pub target: Option<Vec<u8>>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The first path, in order, that names the same inode.
    pub same_as: Vec<u8>,
    /// Contents by block of 4096 bytes; blocks of nothing but zeroes are left out.
    pub content: Blocks,
}

/// Nodes by path; the top directory's path is empty, others have no leading slash.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Every path.
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

/// Why no tree could be taken.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// A call failed.
    #[error("{call} of {path:?}: {error}")]
    Call {
        /// Which call.
        call: &'static str,
        /// On what.
        path: String,
        /// How it failed.
        error: Error,
    },
    /// Two answers do not go together.
    #[error("{path:?}: {rule}")]
    Rule {
        /// Where.
        path: String,
        /// What does not hold.
        rule: String,
    },
}

pub(crate) fn show(path: &[u8]) -> String {
    if path.len() > 80 {
        format!("{}…({} bytes)", path[..40].escape_ascii(), path.len())
    } else {
        path.escape_ascii().to_string()
    }
}

fn rule(path: &[u8], rule: impl Into<String>) -> TreeError {
    TreeError::Rule { path: show(path), rule: rule.into() }
}

fn call<T>(call: &'static str, path: &[u8], result: onggi_vfs::Result<T>) -> Result<T, TreeError> {
    result.map_err(|error| TreeError::Call { call, path: show(path), error })
}

/// Takes the tree below `top`, checking on the way that listings, lookups and attributes agree.
///
/// # Errors
/// A call that failed, or answers that contradict each other.
pub fn tree(fs: &dyn FileSystem, top: Ino) -> Result<Tree, TreeError> {
    let mut room = CONTENT_MAX;
    walk(fs, top, &mut |path, attr| match attr.kind {
        FileKind::Regular => content(fs, path, attr, &mut room),
        _ => Ok(Blocks::new()),
    })
}

/// As [`tree()`], without the contents of files.
///
/// # Errors
/// As [`tree()`].
pub fn shape(fs: &dyn FileSystem, top: Ino) -> Result<Tree, TreeError> {
    walk(fs, top, &mut |_, _| Ok(Blocks::new()))
}

/// The contents of a regular file, as in [`Node::content`].
///
/// # Errors
/// As [`tree()`].
pub fn contents(fs: &dyn FileSystem, ino: Ino) -> Result<Blocks, TreeError> {
    let attr = call("getattr", b"", fs.getattr(ino))?;
    content(fs, b"", &attr, &mut CONTENT_MAX.clone())
}

/// Finds the contents of an inode at a path.
type ContentOf<'a> = dyn FnMut(&[u8], &Attr) -> Result<Blocks, TreeError> + 'a;

fn walk(fs: &dyn FileSystem, top: Ino, content: &mut ContentOf<'_>) -> Result<Tree, TreeError> {
    let mut tree = Tree::default();
    let mut paths: BTreeMap<Ino, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut todo = vec![(Vec::new(), top, None)];
    while let Some((path, ino, parent)) = todo.pop() {
        let attr = call("getattr", &path, fs.getattr(ino))?;
        if attr.ino != ino {
            return Err(rule(&path, format!("getattr of {} answers for {}", ino.0, attr.ino.0)));
        }
        if attr.kind == FileKind::Directory {
            for (name, child) in list(fs, &path, ino, parent)? {
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(&name);
                todo.push((below, child, Some(ino)));
            }
            if paths.contains_key(&ino) {
                return Err(rule(&path, "a directory with two names"));
            }
        }
        let node = node(fs, &path, &attr, content(&path, &attr)?)?;
        paths.entry(ino).or_default().insert(path.clone());
        tree.nodes.insert(path, node);
        if tree.nodes.len() > NODES_MAX {
            return Err(rule(b"", "more inodes than a test makes"));
        }
    }
    for names in paths.values() {
        for name in names {
            if let (Some(node), Some(first)) = (tree.nodes.get_mut(name), names.first()) {
                node.same_as.clone_from(first);
            }
        }
    }
    Ok(tree)
}

/// A directory's names without `.` and `..`.
fn list(
    fs: &dyn FileSystem,
    path: &[u8],
    dir: Ino,
    parent: Option<Ino>,
) -> Result<Vec<(Vec<u8>, Ino)>, TreeError> {
    let mut seen = BTreeSet::new();
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let batch = call("readdir", path, fs.readdir(dir, cookie, 100))?;
        let Some(last) = batch.last() else { break };
        cookie = last.next;
        for entry in batch {
            if !seen.insert(entry.name.clone()) {
                return Err(rule(path, format!("readdir gives {:?} twice", show(&entry.name))));
            }
            match entry.name.as_slice() {
                b"." if entry.ino != dir => return Err(rule(path, "`.` is another inode")),
                b".." if parent.is_some_and(|parent| parent != entry.ino) => {
                    return Err(rule(path, "`..` is not the parent"));
                }
                b"." | b".." => continue,
                _ => {}
            }
            let found = call("lookup", path, fs.lookup(dir, &entry.name))?;
            if found.ino != entry.ino || found.kind != entry.kind {
                let name = show(&entry.name);
                return Err(rule(
                    path,
                    format!(
                        "readdir says {name:?} is {:?} {}, lookup says {:?} {}",
                        entry.kind, entry.ino.0, found.kind, found.ino.0
                    ),
                ));
            }
            names.push((entry.name, entry.ino));
        }
    }
    if seen.contains(b".".as_slice()) && seen.contains(b"..".as_slice()) {
        Ok(names)
    } else {
        Err(rule(path, "readdir gives no `.` or no `..`"))
    }
}

fn node(fs: &dyn FileSystem, path: &[u8], attr: &Attr, content: Blocks) -> Result<Node, TreeError> {
    let mut xattrs = BTreeMap::new();
    for name in call("listxattr", path, fs.listxattr(attr.ino))? {
        let value = call("getxattr", path, fs.getxattr(attr.ino, &name))?;
        xattrs.insert(name, value);
    }
    let target = match attr.kind {
        FileKind::Symlink => Some(call("readlink", path, fs.readlink(attr.ino))?),
        _ => None,
    };
    Ok(Node {
        ino: attr.ino,
        kind: attr.kind,
        perm: attr.perm,
        uid: attr.uid,
        gid: attr.gid,
        nlink: attr.nlink,
        rdev: attr.rdev,
        size: if attr.kind == FileKind::Directory { 0 } else { attr.size },
        mtime: attr.mtime,
        ctime: attr.ctime,
        crtime: attr.crtime,
        target,
        xattrs,
        same_as: path.to_vec(),
        content,
    })
}

fn content(fs: &dyn FileSystem, path: &[u8], attr: &Attr, room: &mut usize) -> Result<Blocks, TreeError> {
    let mut blocks = BTreeMap::new();
    let mut at = 0;
    while at < attr.size {
        let data = match fs.seek(attr.ino, at, Whence::Data) {
            Ok(data) => data,
            Err(error) if error.errno() == Errno::NXIO => break,
            Err(error) => return call("seek for data", path, Err(error)),
        };
        let hole = call("seek for a hole", path, fs.seek(attr.ino, data, Whence::Hole))?;
        // Linux finds data and a hole at the same byte where read-ahead filled a page partly.
        let hole = hole.max(data + 1);
        if data < at || data >= attr.size || hole > attr.size {
            return Err(rule(
                path,
                format!("seek from {at}: data at {data}, hole at {hole}, size {}", attr.size),
            ));
        }
        let mut from = data / CONTENT_BLOCK * CONTENT_BLOCK;
        let end = hole.next_multiple_of(CONTENT_BLOCK);
        while from < end {
            let step = (end - from).min(READ_SIZE);
            read_blocks(fs, path, attr, from, step, &mut blocks)?;
            *room =
                room.checked_sub(step as usize).ok_or_else(|| rule(path, "more data than a test writes"))?;
            from += step;
        }
        at = end;
    }
    Ok(blocks)
}

fn read_blocks(
    fs: &dyn FileSystem,
    path: &[u8],
    attr: &Attr,
    from: u64,
    len: u64,
    blocks: &mut Blocks,
) -> Result<(), TreeError> {
    let cx = Context { uid: 0, gid: 0, now: attr.atime };
    let mut buf = vec![0; len as usize];
    let expected = len.min(attr.size - from) as usize;
    let got = call("read", path, fs.read(&cx, attr.ino, from, &mut buf))?;
    if got != expected {
        return Err(rule(path, format!("read at {from} gives {got} bytes, not {expected}")));
    }
    for (index, block) in buf[..got].chunks(CONTENT_BLOCK as usize).enumerate() {
        if block.iter().any(|&byte| byte != 0) {
            let mut whole = vec![0; CONTENT_BLOCK as usize];
            whole[..block.len()].copy_from_slice(block);
            blocks.insert(from / CONTENT_BLOCK + index as u64, whole.into());
        }
    }
    Ok(())
}

impl Tree {
    /// How this tree differs from the one that was expected, a sentence for each difference.
    #[must_use]
    pub fn diff(&self, expected: &Self, compare: Compare) -> Vec<String> {
        let mut found = Vec::new();
        for path in self.nodes.keys().chain(expected.nodes.keys()).collect::<BTreeSet<_>>() {
            let name = show(path);
            match (self.nodes.get(path), expected.nodes.get(path)) {
                (Some(got), Some(want)) => got.diff(want, &name, compare, &mut found),
                (Some(got), None) => found.push(format!("/{name}: {:?} should not be there", got.kind)),
                (None, Some(want)) => found.push(format!("/{name}: {:?} is missing", want.kind)),
                (None, None) => {}
            }
        }
        found
    }
}

impl Node {
    fn diff(&self, want: &Self, path: &str, compare: Compare, found: &mut Vec<String>) {
        let mut line = String::new();
        macro_rules! field {
            ($name:ident) => {
                if self.$name != want.$name {
                    let _ =
                        write!(line, " {} {:?} should be {:?};", stringify!($name), self.$name, want.$name);
                }
            };
        }
        field!(kind);
        field!(perm);
        field!(uid);
        field!(gid);
        field!(nlink);
        field!(rdev);
        field!(size);
        if compare.times {
            field!(mtime);
            field!(ctime);
        }
        if compare.crtime {
            field!(crtime);
        }
        if self.target != want.target {
            let show = |target: &Option<Vec<u8>>| target.as_deref().map(show);
            let _ = write!(line, " target {:?} should be {:?};", show(&self.target), show(&want.target));
        }
        if self.same_as != want.same_as {
            let _ = write!(
                line,
                " same inode as /{}, should be as /{};",
                show(&self.same_as),
                show(&want.same_as)
            );
        }
        for name in self.xattrs.keys().chain(want.xattrs.keys()).collect::<BTreeSet<_>>() {
            let (got, want) = (self.xattrs.get(name), want.xattrs.get(name));
            if got != want {
                let (got, want) = (got.map(Vec::len), want.map(Vec::len));
                let name = show(name);
                let _ = write!(line, " xattr {name} of {got:?} bytes differs from the expected {want:?};");
            }
        }
        self.diff_content(want, &mut line);
        if !line.is_empty() {
            found.push(format!("/{path}:{line}"));
        }
    }

    fn diff_content(&self, want: &Self, line: &mut String) {
        let zero: Arc<[u8]> = vec![0; CONTENT_BLOCK as usize].into();
        let blocks: BTreeSet<_> = self.content.keys().chain(want.content.keys()).collect();
        let differing: Vec<_> =
            blocks.into_iter().filter(|&b| self.content.get(b) != want.content.get(b)).collect();
        if let Some(&&first) = differing.first() {
            let got = self.content.get(&first).unwrap_or(&zero);
            let want = want.content.get(&first).unwrap_or(&zero);
            let at = got.iter().zip(want.iter()).position(|(a, b)| a != b).unwrap_or(0);
            let end = (at + 8).min(CONTENT_BLOCK as usize);
            let _ = write!(
                line,
                " {} blocks of contents differ, first at byte {}: {:02x?} should be {:02x?};",
                differing.len(),
                first * CONTENT_BLOCK + at as u64,
                &got[at..end],
                &want[at..end]
            );
        }
    }
}

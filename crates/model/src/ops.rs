//! Operations as values, and as lines of text that can be kept and replayed.

use std::fmt;
use std::str::{FromStr, SplitAsciiWhitespace};

use onggi_vfs::{Context, FallocateMode, RenameMode, SetAttr, Timestamp, Whence, XattrMode};

/// Where an operation acts: names below the top directory, or below an open file's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The slot to start from; the top directory where there is none.
    pub slot: Option<u8>,
    /// Names to walk; none for the start itself.
    pub names: Vec<Vec<u8>>,
}

/// What a create makes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Made {
    Regular,
    Directory,
    Symlink(Vec<u8>),
    BlockDevice(u32, u32),
    CharDevice(u32, u32),
    Fifo,
    Socket,
}

/// One operation. Bytes written come from [`crate::pattern`] of `fill` and the place in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Op {
    Create { at: Place, made: Made, perm: u16 },
    Tmpfile { dir: Place, perm: u16, slot: u8 },
    Link { from: Place, to: Place },
    Unlink(Place),
    Rmdir(Place),
    Rename { from: Place, to: Place, mode: RenameMode },
    Stat(Place),
    Readlink(Place),
    Open { at: Place, slot: u8 },
    Close(u8),
    Revive(u8),
    Write { at: Place, offset: u64, len: usize, fill: u64 },
    Append { at: Place, len: usize, fill: u64 },
    Read { at: Place, offset: u64, len: usize },
    Setattr { at: Place, changes: SetAttr },
    Fallocate { at: Place, offset: u64, len: u64, mode: FallocateMode },
    Seek { at: Place, offset: u64, whence: Whence },
    Setxattr { at: Place, name: Vec<u8>, len: usize, fill: u64, mode: XattrMode },
    Getxattr { at: Place, name: Vec<u8> },
    Listxattr(Place),
    Removexattr { at: Place, name: Vec<u8> },
    Readdir { at: Place, batch: usize },
    Fsync { at: Place, datasync: bool },
    Sync,
}

/// An operation, who does it, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Counts the steps of a trace; fixes the time.
    pub time: u64,
    /// Who.
    pub uid: u32,
    /// With which group.
    pub gid: u32,
    /// What.
    pub op: Op,
}

impl Step {
    /// The context that the operation runs in.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { uid: self.uid, gid: self.gid, now: moment(self.time) }
    }
}

/// The time of the step numbered `time`.
#[must_use]
pub fn moment(time: u64) -> Timestamp {
    Timestamp { sec: 1_700_000_000 + time as i64, nsec: (time % 1000 * 999_983) as u32 }
}

/// A line that says no operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an operation: {0:?}")]
pub struct BadStep(pub String);

/// Name bytes as one word: letters, digits and a few signs as they are, others as %XX, and a long run
/// of one byte as ~XX*COUNT~.
struct Word<'a>(&'a [u8]);

const LONG_RUN: usize = 16;

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for run in self.0.chunk_by(|one, next| one == next) {
            let byte = run[0];
            if run.len() >= LONG_RUN {
                write!(f, "~{byte:02x}*{}~", run.len())?;
            } else if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
                run.iter().try_for_each(|&byte| write!(f, "{}", byte as char))?;
            } else {
                run.iter().try_for_each(|byte| write!(f, "%{byte:02x}"))?;
            }
        }
        Ok(())
    }
}

fn unword(word: &str) -> Option<Vec<u8>> {
    let hex = |digits: &str| u8::from_str_radix(digits, 16).ok();
    let mut bytes = Vec::new();
    let mut rest = word;
    while let Some(first) = rest.chars().next() {
        match first {
            '%' => {
                bytes.push(hex(rest.get(1..3)?)?);
                rest = &rest[3..];
            }
            '~' => {
                let (run, tail) = rest[1..].split_once('~')?;
                let (byte, count) = run.split_once('*')?;
                let count = count.parse().ok().filter(|&count: &usize| count <= 1 << 16)?;
                bytes.resize(bytes.len() + count, hex(byte)?);
                rest = tail;
            }
            other => {
                bytes.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[other.len_utf8()..];
            }
        }
    }
    Some(bytes)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            Some(slot) => write!(f, "#{slot}")?,
            None if self.names.is_empty() => f.write_str("@")?,
            None => {}
        }
        self.names.iter().try_for_each(|name| write!(f, "/{}", Word(name)))
    }
}

impl Place {
    fn parse(word: &str) -> Option<Self> {
        let (start, names) = match word.split_once('/') {
            Some((start, names)) => (start, names.split('/').map(unword).collect::<Option<_>>()?),
            None => (word, Vec::new()),
        };
        match start {
            "" if !names.is_empty() => Some(Self { slot: None, names }),
            "@" if names.is_empty() => Some(Self { slot: None, names }),
            _ => Some(Self { slot: Some(start.strip_prefix('#')?.parse().ok()?), names }),
        }
    }
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Regular => f.write_str("file"),
            Self::Directory => f.write_str("dir"),
            Self::Symlink(target) => write!(f, "symlink:{}", Word(target)),
            Self::BlockDevice(major, minor) => write!(f, "block:{major}:{minor}"),
            Self::CharDevice(major, minor) => write!(f, "char:{major}:{minor}"),
            Self::Fifo => f.write_str("fifo"),
            Self::Socket => f.write_str("socket"),
        }
    }
}

impl Made {
    fn parse(word: &str) -> Option<Self> {
        let (kind, rest) = word.split_once(':').unwrap_or((word, ""));
        let numbers = || {
            let (major, minor) = rest.split_once(':')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        Some(match kind {
            "file" => Self::Regular,
            "dir" => Self::Directory,
            "symlink" => Self::Symlink(unword(rest)?),
            "block" => numbers().map(|(major, minor)| Self::BlockDevice(major, minor))?,
            "char" => numbers().map(|(major, minor)| Self::CharDevice(major, minor))?,
            "fifo" => Self::Fifo,
            "socket" => Self::Socket,
            _ => return None,
        })
    }
}

/// A choice between a few values, written as a word.
trait Choice: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("?", |(word, _)| word)
    }

    fn parse(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }
}

impl Choice for RenameMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("replace", Self::Replace), ("noreplace", Self::NoReplace), ("exchange", Self::Exchange)];
}

impl Choice for XattrMode {
    const WORDS: &'static [(&'static str, Self)] =
        &[("set", Self::Set), ("create", Self::Create), ("replace", Self::Replace)];
}

impl Choice for Whence {
    const WORDS: &'static [(&'static str, Self)] = &[("data", Self::Data), ("hole", Self::Hole)];
}

impl Choice for FallocateMode {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("allocate", Self::Allocate { keep_size: false }),
        ("allocate-keep", Self::Allocate { keep_size: true }),
        ("punch", Self::PunchHole),
        ("zero", Self::ZeroRange { keep_size: false }),
        ("zero-keep", Self::ZeroRange { keep_size: true }),
    ];
}

fn write_changes(f: &mut fmt::Formatter<'_>, changes: &SetAttr) -> fmt::Result {
    let SetAttr { perm, uid, gid, size, atime, mtime, crtime } = changes;
    if let Some(perm) = perm {
        write!(f, " perm={perm:o}")?;
    }
    for (name, value) in [("uid", uid), ("gid", gid)] {
        if let Some(value) = value {
            write!(f, " {name}={value}")?;
        }
    }
    if let Some(size) = size {
        write!(f, " size={size}")?;
    }
    for (name, value) in [("atime", atime), ("mtime", mtime), ("crtime", crtime)] {
        if let Some(Timestamp { sec, nsec }) = value {
            write!(f, " {name}={sec}:{nsec}")?;
        }
    }
    Ok(())
}

fn parse_changes(words: SplitAsciiWhitespace<'_>) -> Option<SetAttr> {
    let mut changes = SetAttr::default();
    for word in words {
        let (name, value) = word.split_once('=')?;
        let time = || {
            let (sec, nsec) = value.split_once(':')?;
            Some(Timestamp { sec: sec.parse().ok()?, nsec: nsec.parse().ok()? })
        };
        match name {
            "perm" => changes.perm = Some(u16::from_str_radix(value, 8).ok()?),
            "uid" => changes.uid = Some(value.parse().ok()?),
            "gid" => changes.gid = Some(value.parse().ok()?),
            "size" => changes.size = Some(value.parse().ok()?),
            "atime" => changes.atime = Some(time()?),
            "mtime" => changes.mtime = Some(time()?),
            "crtime" => changes.crtime = Some(time()?),
            _ => return None,
        }
    }
    Some(changes)
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create { at, made, perm } => write!(f, "create {at} {made} {perm:o}"),
            Self::Tmpfile { dir, perm, slot } => write!(f, "tmpfile {dir} {perm:o} {slot}"),
            Self::Link { from, to } => write!(f, "link {from} {to}"),
            Self::Unlink(at) => write!(f, "unlink {at}"),
            Self::Rmdir(at) => write!(f, "rmdir {at}"),
            Self::Rename { from, to, mode } => write!(f, "rename {from} {to} {}", mode.word()),
            Self::Stat(at) => write!(f, "stat {at}"),
            Self::Readlink(at) => write!(f, "readlink {at}"),
            Self::Open { at, slot } => write!(f, "open {at} {slot}"),
            Self::Close(slot) => write!(f, "close {slot}"),
            Self::Revive(slot) => write!(f, "revive {slot}"),
            Self::Write { at, offset, len, fill } => write!(f, "write {at} {offset} {len} {fill}"),
            Self::Append { at, len, fill } => write!(f, "append {at} {len} {fill}"),
            Self::Read { at, offset, len } => write!(f, "read {at} {offset} {len}"),
            Self::Setattr { at, changes } => {
                write!(f, "setattr {at}")?;
                write_changes(f, changes)
            }
            Self::Fallocate { at, offset, len, mode } => {
                write!(f, "fallocate {at} {offset} {len} {}", mode.word())
            }
            Self::Seek { at, offset, whence } => write!(f, "seek {at} {offset} {}", whence.word()),
            Self::Setxattr { at, name, len, fill, mode } => {
                write!(f, "setxattr {at} ={} {len} {fill} {}", Word(name), mode.word())
            }
            Self::Getxattr { at, name } => write!(f, "getxattr {at} ={}", Word(name)),
            Self::Listxattr(at) => write!(f, "listxattr {at}"),
            Self::Removexattr { at, name } => write!(f, "removexattr {at} ={}", Word(name)),
            Self::Readdir { at, batch } => write!(f, "readdir {at} {batch}"),
            Self::Fsync { at, datasync: false } => write!(f, "fsync {at}"),
            Self::Fsync { at, datasync: true } => write!(f, "fdatasync {at}"),
            Self::Sync => f.write_str("sync"),
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}:{} {}", self.time, self.uid, self.gid, self.op)
    }
}

/// The words of a line, taken one by one.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl Words<'_> {
    fn place(&mut self) -> Option<Place> {
        Place::parse(self.0.next()?)
    }

    fn number<T: FromStr>(&mut self) -> Option<T> {
        self.0.next()?.parse().ok()
    }

    fn octal(&mut self) -> Option<u16> {
        u16::from_str_radix(self.0.next()?, 8).ok()
    }

    fn choice<T: Choice>(&mut self) -> Option<T> {
        T::parse(self.0.next()?)
    }

    fn name(&mut self) -> Option<Vec<u8>> {
        unword(self.0.next()?.strip_prefix('=')?)
    }

    fn op(mut self) -> Option<Op> {
        Some(match self.0.next()? {
            "create" => {
                Op::Create { at: self.place()?, made: Made::parse(self.0.next()?)?, perm: self.octal()? }
            }
            "tmpfile" => Op::Tmpfile { dir: self.place()?, perm: self.octal()?, slot: self.number()? },
            "link" => Op::Link { from: self.place()?, to: self.place()? },
            "unlink" => Op::Unlink(self.place()?),
            "rmdir" => Op::Rmdir(self.place()?),
            "rename" => Op::Rename { from: self.place()?, to: self.place()?, mode: self.choice()? },
            "stat" => Op::Stat(self.place()?),
            "readlink" => Op::Readlink(self.place()?),
            "open" => Op::Open { at: self.place()?, slot: self.number()? },
            "close" => Op::Close(self.number()?),
            "revive" => Op::Revive(self.number()?),
            "write" => Op::Write {
                at: self.place()?,
                offset: self.number()?,
                len: self.number()?,
                fill: self.number()?,
            },
            "append" => Op::Append { at: self.place()?, len: self.number()?, fill: self.number()? },
            "read" => Op::Read { at: self.place()?, offset: self.number()?, len: self.number()? },
            "setattr" => Op::Setattr { at: self.place()?, changes: parse_changes(self.0)? },
            "fallocate" => Op::Fallocate {
                at: self.place()?,
                offset: self.number()?,
                len: self.number()?,
                mode: self.choice()?,
            },
            "seek" => Op::Seek { at: self.place()?, offset: self.number()?, whence: self.choice()? },
            "setxattr" => Op::Setxattr {
                at: self.place()?,
                name: self.name()?,
                len: self.number()?,
                fill: self.number()?,
                mode: self.choice()?,
            },
            "getxattr" => Op::Getxattr { at: self.place()?, name: self.name()? },
            "listxattr" => Op::Listxattr(self.place()?),
            "removexattr" => Op::Removexattr { at: self.place()?, name: self.name()? },
            "readdir" => Op::Readdir { at: self.place()?, batch: self.number()? },
            "fsync" => Op::Fsync { at: self.place()?, datasync: false },
            "fdatasync" => Op::Fsync { at: self.place()?, datasync: true },
            "sync" => Op::Sync,
            _ => return None,
        })
    }
}

impl FromStr for Step {
    type Err = BadStep;

    fn from_str(line: &str) -> Result<Self, BadStep> {
        let parse = || {
            let mut words = Words(line.split_ascii_whitespace());
            let time = words.number()?;
            let (uid, gid) = words.0.next()?.split_once(':')?;
            Some(Self { time, uid: uid.parse().ok()?, gid: gid.parse().ok()?, op: words.op()? })
        };
        parse().ok_or_else(|| BadStep(line.to_owned()))
    }
}

//! One copy: from a side to a side, remembering hard links.

use std::collections::HashMap;
use std::fmt::Display;
use std::io::Write;

use anyhow::bail;
use onggi_vfs::{Errno, FileKind, Node, SetAttr, Timestamp};

use super::side::{Meta, Side};
use crate::place::{join, shown};
use crate::progress::Progress;
use crate::report::{At, Complaints, about, reason};
use crate::walk::DEPTH_MAX;

/// How to copy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct How {
    /// Directories with what is in them; symbolic links and special files as they are.
    pub(crate) recursive: bool,
    /// Keep modes, owners and times.
    pub(crate) preserve: bool,
    /// Keep hard links and extended attributes too.
    pub(crate) archive: bool,
    /// Leave alone what is there.
    pub(crate) no_clobber: bool,
    /// Say each name.
    pub(crate) verbose: bool,
    /// Everything gets this time.
    pub(crate) moment: Option<Timestamp>,
    /// Both sides are one tree: a directory must not be copied into itself.
    pub(crate) same_tree: bool,
}

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Tally {
    pub(crate) files: u64,
    pub(crate) directories: u64,
    pub(crate) others: u64,
    pub(crate) hard_links: u64,
    pub(crate) bytes: u64,
}

/// A copy under way.
pub(crate) struct Copier<'a, S: Side, D: Side> {
    pub(crate) from: &'a S,
    pub(crate) to: &'a D,
    pub(crate) how: How,
    pub(crate) progress: &'a Progress,
    pub(crate) complaints: &'a mut Complaints,
    pub(crate) out: &'a mut dyn Write,
    pub(crate) tally: Tally,
    links: HashMap<(u64, u64), D::At>,
    /// Directories made by this copy.
    made: Vec<(u64, u64)>,
    /// Directories above the one being copied.
    above: Vec<(u64, u64)>,
}

/// A name on its way: where it is and how the two ends are called.
struct Names {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Names {
    fn below(&self, name: &[u8]) -> Self {
        Self { from: join(&self.from, name), to: join(&self.to, name) }
    }

    fn source(&self) -> String {
        shown(&self.from)
    }

    fn target(&self) -> String {
        shown(&self.to)
    }
}

impl<'a, S: Side, D: Side> Copier<'a, S, D> {
    pub(crate) fn new(
        from: &'a S,
        to: &'a D,
        how: How,
        progress: &'a Progress,
        complaints: &'a mut Complaints,
        out: &'a mut dyn Write,
    ) -> Self {
        let (links, made, above) = (HashMap::new(), Vec::new(), Vec::new());
        Self { from, to, how, progress, complaints, out, tally: Tally::default(), links, made, above }
    }

    /// Copies a file to `name` in a directory. The texts are how messages call the two.
    pub(crate) fn copy(
        &mut self,
        from: &S::At,
        dir: &D::At,
        name: &[u8],
        from_text: Vec<u8>,
        to_text: Vec<u8>,
    ) -> anyhow::Result<()> {
        self.node(from, dir, name, &Names { from: from_text, to: to_text })
    }

    /// Copies what is in a directory into one that is there, and then its attributes.
    pub(crate) fn merge(
        &mut self,
        from: &S::At,
        dir: &D::At,
        from_text: Vec<u8>,
        to_text: Vec<u8>,
    ) -> anyhow::Result<()> {
        let names = Names { from: from_text, to: to_text };
        let meta = self.from.meta(from).at(names.source())?;
        self.fill(from, dir, &meta, &names)?;
        self.finish(from, dir, &meta, &names, self.how.preserve)
    }

    fn complain(&mut self, what: impl Display, error: &onggi_vfs::Error) {
        self.complaints.add(&anyhow::anyhow!("{what}: {}", reason(error)));
    }

    fn node(&mut self, from: &S::At, dir: &D::At, name: &[u8], names: &Names) -> anyhow::Result<()> {
        let mut from = from.clone();
        let mut meta = self.from.meta(&from).at(names.source())?;
        if meta.attr.kind == FileKind::Symlink && !self.how.recursive {
            from = self.from.follow(&from).at(names.source())?;
            meta = self.from.meta(&from).at(names.source())?;
        }
        self.progress.name(&names.from);
        if meta.attr.kind == FileKind::Directory {
            return self.directory(&from, dir, name, &meta, names);
        }
        if self.how.verbose {
            writeln!(self.out, "'{}' -> '{}'", names.source(), names.target())?;
        }
        let there = self.to.child(dir, name).at(names.target())?;
        if let Some(there) = &there {
            if self.how.no_clobber {
                return Ok(());
            }
            let old = self.to.meta(there).at(names.target())?;
            if old.attr.kind == FileKind::Directory {
                bail!("{}: cannot overwrite directory with non-directory", names.target());
            }
            if self.how.same_tree && old.identity() == meta.identity() {
                bail!("{} and {} are the same file", names.source(), names.target());
            }
        }
        if self.how.archive
            && meta.attr.nlink > 1
            && let Some(first) = self.links.get(&meta.identity())
        {
            if there.is_some() {
                self.to.unlink(dir, name).at(names.target())?;
            }
            self.to.link(first, dir, name).at(names.target())?;
            self.tally.hard_links += 1;
            return Ok(());
        }
        let made = if meta.attr.kind == FileKind::Regular || !self.how.recursive {
            self.regular(&from, dir, name, there, &meta, names)?
        } else {
            self.special(&from, dir, name, there.is_some(), &meta, names)?
        };
        if self.how.archive && meta.attr.nlink > 1 {
            self.links.insert(meta.identity(), made);
        }
        Ok(())
    }

    fn regular(
        &mut self,
        from: &S::At,
        dir: &D::At,
        name: &[u8],
        there: Option<D::At>,
        meta: &Meta,
        names: &Names,
    ) -> anyhow::Result<D::At> {
        if meta.attr.kind != FileKind::Regular {
            bail!("{}: not a regular file (-r copies it as it is)", names.source());
        }
        let (to, new) = match there {
            Some(there) if self.to.meta(&there).at(names.target())?.attr.kind == FileKind::Regular => {
                (there, false)
            }
            Some(_) => {
                self.to.unlink(dir, name).at(names.target())?;
                (self.make_regular(dir, name, meta, names)?, true)
            }
            None => (self.make_regular(dir, name, meta, names)?, true),
        };
        self.contents(from, &to, new, meta, names)?;
        self.finish(from, &to, meta, names, self.how.preserve)?;
        self.tally.files += 1;
        self.progress.file();
        Ok(to)
    }

    fn make_regular(&self, dir: &D::At, name: &[u8], meta: &Meta, names: &Names) -> anyhow::Result<D::At> {
        // While it is being filled nobody else may look into what is to be kept as it was.
        let perm = if self.how.preserve { 0o600 } else { self.to.mask(meta.attr.perm & 0o777) };
        self.to.make(dir, name, Node::Regular, perm).at(names.target())
    }

    fn contents(
        &mut self,
        from: &S::At,
        to: &D::At,
        new: bool,
        meta: &Meta,
        names: &Names,
    ) -> anyhow::Result<()> {
        let mut writer = self.to.writer(to).at(names.target())?;
        if !new {
            writer.set_len(0).at(names.target())?;
        }
        let (mut end, mut bytes, mut writing) = (0, 0, None);
        let read = self.from.read(from, &mut |offset, data| {
            writer.write_at(offset, data).inspect_err(|error| writing = Some(error.clone()))?;
            end = offset + data.len() as u64;
            bytes += data.len() as u64;
            self.progress.bytes(data.len() as u64);
            Ok(())
        });
        self.tally.bytes += bytes;
        if let Some(error) = writing {
            return Err(error).at(names.target());
        }
        read.at(names.source())?;
        if end < meta.attr.size {
            writer.set_len(meta.attr.size).at(names.target())?;
        }
        Ok(())
    }

    fn special(
        &mut self,
        from: &S::At,
        dir: &D::At,
        name: &[u8],
        there: bool,
        meta: &Meta,
        names: &Names,
    ) -> anyhow::Result<D::At> {
        let target;
        let (major, minor) = meta.attr.rdev;
        let node = match meta.attr.kind {
            FileKind::Symlink => {
                target = self.from.readlink(from).at(names.source())?;
                Node::Symlink(&target)
            }
            FileKind::BlockDevice => Node::BlockDevice(major, minor),
            FileKind::CharDevice => Node::CharDevice(major, minor),
            FileKind::Fifo => Node::Fifo,
            FileKind::Socket => Node::Socket,
            FileKind::Regular | FileKind::Directory => unreachable!("copied elsewhere"),
        };
        if there {
            self.to.unlink(dir, name).at(names.target())?;
        }
        let to = self.to.make(dir, name, node, self.to.mask(meta.attr.perm & 0o777)).at(names.target())?;
        self.finish(from, &to, meta, names, self.how.preserve)?;
        self.tally.others += 1;
        self.progress.file();
        Ok(to)
    }

    fn directory(
        &mut self,
        from: &S::At,
        dir: &D::At,
        name: &[u8],
        meta: &Meta,
        names: &Names,
    ) -> anyhow::Result<()> {
        if !self.how.recursive {
            bail!("-r not given; omitting directory {}", names.source());
        }
        if self.how.same_tree && self.made.contains(&meta.identity()) {
            bail!("{}: cannot copy a directory into itself", names.source());
        }
        let there = match self.to.child(dir, name).at(names.target())? {
            Some(there) if self.to.meta(&there).at(names.target())?.attr.kind == FileKind::Symlink => {
                bail!("{}: cannot overwrite a symbolic link with a directory", names.target())
            }
            there => there,
        };
        let (to, new) = match there {
            Some(there) => {
                if self.to.meta(&there).at(names.target())?.attr.kind != FileKind::Directory {
                    bail!("{}: cannot overwrite non-directory with directory", names.target());
                }
                (there, false)
            }
            None => {
                // Its owner must be able to fill it, whatever its mode is to be.
                let to = self.to.make(dir, name, Node::Directory, 0o700).at(names.target())?;
                self.tally.directories += 1;
                (to, true)
            }
        };
        if self.how.verbose && new {
            writeln!(self.out, "'{}' -> '{}'", names.source(), names.target())?;
        }
        if self.how.same_tree && new {
            self.made.push(self.to.meta(&to).at(names.target())?.identity());
        }
        self.fill(from, &to, meta, names)?;
        if new && !self.how.preserve {
            let perm = Some(self.to.mask(meta.attr.perm & 0o777));
            self.to.set_meta(&to, &SetAttr { perm, ..SetAttr::default() }).at(names.target())?;
        }
        self.finish(from, &to, meta, names, self.how.preserve)
    }

    /// Copies what is in a directory; what cannot be copied is complained of and left out.
    fn fill(&mut self, from: &S::At, to: &D::At, meta: &Meta, names: &Names) -> anyhow::Result<()> {
        if self.above.len() >= DEPTH_MAX || self.above.contains(&meta.identity()) {
            return Err(about(Errno::LOOP, names.source()));
        }
        self.above.push(meta.identity());
        let children = self.from.list(from).at(names.source());
        for (name, child) in self.complaints.note(children).unwrap_or_default() {
            let copied = self.node(&child, to, &name, &names.below(&name));
            if let Err(error) = copied {
                if error.downcast_ref::<std::io::Error>().is_some() {
                    return Err(error);
                }
                self.complaints.add(&error);
            }
        }
        self.above.pop();
        Ok(())
    }

    /// Gives a copy its source's attributes, times last.
    fn finish(
        &mut self,
        from: &S::At,
        to: &D::At,
        meta: &Meta,
        names: &Names,
        preserve: bool,
    ) -> anyhow::Result<()> {
        if self.how.archive {
            match self.from.xattrs(from) {
                Ok(xattrs) => {
                    for (name, value) in xattrs {
                        if let Err(error) = self.to.set_xattr(to, &name, &value) {
                            self.complain(format!("{}: attribute {}", names.target(), shown(&name)), &error);
                        }
                    }
                }
                Err(error) => self.complain(names.source(), &error),
            }
        }
        let time = |time| Some(self.how.moment.unwrap_or(time));
        let mut changes = SetAttr::default();
        if preserve {
            changes.uid = Some(meta.attr.uid);
            changes.gid = Some(meta.attr.gid);
            changes.perm = (meta.attr.kind != FileKind::Symlink).then_some(meta.attr.perm);
            changes.atime = time(meta.attr.atime);
            changes.mtime = time(meta.attr.mtime);
        }
        if changes == SetAttr::default() {
            return Ok(());
        }
        self.to.set_meta(to, &changes).at(names.target())
    }
}

//! Names: LOOKUP and everything that makes, moves or removes one.

use onggi_vfs::{Attr, Context, Errno, FileKind, Ino, Node, OpenFile, RenameMode, Result, SetAttr};

use crate::answer::Answer;
use crate::attributes::{decode_dev, type_bits};
use crate::request::Request;
use crate::server::{Outcome, Server, TTL_SECONDS};
use crate::wire::{
    CreateIn, EntryOut, FOPEN_KEEP_CACHE, MkDirIn, MkNodIn, OPEN_KILL_SUIDGID, OpenOut, Rename2In,
};

/// Lookups tried when the inode keeps vanishing between being found and being retained.
const LOOKUP_TRIES: usize = 64;
const O_ACCMODE: u32 = 0o3;
const O_EXCL: u32 = 0o200;
pub(crate) const O_TRUNC: u32 = 0o1000;

/// Whether open flags allow writing.
pub(crate) fn writes(flags: u32) -> bool {
    flags & O_ACCMODE != 0
}

impl Server {
    pub(crate) fn lookup(&self, dir: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let name = request.name()?;
        match self.find(dir, name) {
            Ok(attr) => self.entry(&attr, answer),
            Err(error) if error.errno() == Errno::NOENT && name != b"." && name != b".." => {
                // Node id 0: the kernel may remember that there is no such name.
                answer.put(&EntryOut { entry_valid: TTL_SECONDS, ..EntryOut::default() })?;
                Ok(Outcome::Answered)
            }
            Err(error) => Err(error),
        }
    }

    /// Looks a name up and counts the inode as known to the kernel.
    fn find(&self, dir: Ino, name: &[u8]) -> Result<Attr> {
        for _ in 0..LOOKUP_TRIES {
            // `.` of a node that is no directory comes from a file handle being opened again.
            let attr = if name == b"." { self.fs.getattr(dir)? } else { self.fs.lookup(dir, name)? };
            match self.nodes.remember(&*self.fs, &attr) {
                Ok(()) => return Ok(attr),
                Err(error) if error.errno() == Errno::STALE => {}
                Err(error) => return Err(error),
            }
        }
        Err(Errno::STALE.into())
    }

    /// Answers with an inode that is already counted.
    pub(crate) fn entry(&self, attr: &Attr, answer: &mut Answer) -> Result<Outcome> {
        answer.put(&self.entry_out(attr))?;
        Ok(Outcome::Named(attr.ino))
    }

    fn make(
        &self,
        cx: &Context,
        dir: Ino,
        name: &[u8],
        node: Node<'_>,
        mode: u32,
        answer: &mut Answer,
    ) -> Result<Outcome> {
        let attr = self.fs.create(cx, dir, name, node, (mode & 0o7777) as u16)?;
        self.nodes.remember(&*self.fs, &attr)?;
        self.entry(&attr, answer)
    }

    pub(crate) fn mknod(&self, dir: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let input: MkNodIn = request.take()?;
        let name = request.name()?;
        let (major, minor) = decode_dev(input.rdev);
        let kind = input.mode & 0o170_000;
        let node = if kind == type_bits(FileKind::Regular) || kind == 0 {
            Node::Regular
        } else if kind == type_bits(FileKind::BlockDevice) {
            Node::BlockDevice(major, minor)
        } else if kind == type_bits(FileKind::CharDevice) {
            Node::CharDevice(major, minor)
        } else if kind == type_bits(FileKind::Fifo) {
            Node::Fifo
        } else if kind == type_bits(FileKind::Socket) {
            Node::Socket
        } else {
            return Err(Errno::INVAL.into());
        };
        self.make(&request.context(), dir, name, node, input.mode, answer)
    }

    pub(crate) fn mkdir(&self, dir: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let input: MkDirIn = request.take()?;
        let name = request.name()?;
        self.make(&request.context(), dir, name, Node::Directory, input.mode, answer)
    }

    pub(crate) fn symlink(
        &self,
        dir: Ino,
        request: &mut Request<'_>,
        answer: &mut Answer,
    ) -> Result<Outcome> {
        let name = request.name()?;
        let target = request.name()?;
        self.make(&request.context(), dir, name, Node::Symlink(target), 0o777, answer)
    }

    pub(crate) fn readlink(&self, ino: Ino, answer: &mut Answer) -> Result<()> {
        answer.put_bytes(&self.fs.readlink(ino)?)
    }

    pub(crate) fn link(&self, dir: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let old: u64 = request.take()?;
        let name = request.name()?;
        let attr = self.fs.link(&request.context(), self.nodes.ino(old), dir, name)?;
        self.nodes.remember(&*self.fs, &attr)?;
        self.entry(&attr, answer)
    }

    pub(crate) fn unlink(&self, dir: Ino, request: &mut Request<'_>) -> Result<()> {
        let name = request.name()?;
        self.fs.unlink(&request.context(), dir, name)
    }

    pub(crate) fn rmdir(&self, dir: Ino, request: &mut Request<'_>) -> Result<()> {
        let name = request.name()?;
        self.fs.rmdir(&request.context(), dir, name)
    }

    /// RENAME, whose structure is the target directory alone.
    pub(crate) fn rename(&self, dir: Ino, request: &mut Request<'_>) -> Result<()> {
        let new_dir: u64 = request.take()?;
        self.rename_as(dir, new_dir, RenameMode::Replace, request)
    }

    /// RENAME2, with the flags of renameat2(2).
    pub(crate) fn rename2(&self, dir: Ino, request: &mut Request<'_>) -> Result<()> {
        let input: Rename2In = request.take()?;
        let mode = match input.flags {
            0 => RenameMode::Replace,
            1 => RenameMode::NoReplace,
            2 => RenameMode::Exchange,
            _ => return Err(Errno::INVAL.into()),
        };
        self.rename_as(dir, input.newdir, mode, request)
    }

    fn rename_as(&self, dir: Ino, new_dir: u64, mode: RenameMode, request: &mut Request<'_>) -> Result<()> {
        let name = request.name()?;
        let new_name = request.name()?;
        self.fs.rename(&request.context(), dir, name, self.nodes.ino(new_dir), new_name, mode)
    }

    /// CREATE: makes a regular file and opens it.
    pub(crate) fn create(&self, dir: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let input: CreateIn = request.take()?;
        let name = request.name()?;
        let cx = request.context();
        let perm = (input.mode & 0o7777) as u16;
        let attr = match self.fs.create(&cx, dir, name, Node::Regular, perm) {
            Ok(attr) => {
                self.nodes.remember(&*self.fs, &attr)?;
                attr
            }
            Err(error) if error.errno() == Errno::EXIST && input.flags & O_EXCL == 0 => {
                let attr = self.find(dir, name)?;
                self.open_existing(request, &attr, &input).inspect_err(|_| self.forget(attr.ino, 1))?
            }
            Err(error) => return Err(error),
        };
        self.created(&attr, input.flags, answer)
    }

    /// What CREATE does to a file that turns out to be there.
    fn open_existing(&self, request: &Request<'_>, attr: &Attr, input: &CreateIn) -> Result<Attr> {
        if attr.kind != FileKind::Regular {
            return Err(Errno::EXIST.into());
        }
        if input.flags & O_TRUNC == 0 {
            return Ok(*attr);
        }
        if input.open_flags & OPEN_KILL_SUIDGID != 0 {
            self.drop_set_id(request, attr.ino)?;
        }
        let empty = SetAttr { size: Some(0), ..SetAttr::default() };
        self.fs.setattr(&request.context(), attr.ino, &empty)
    }

    /// TMPFILE: makes a regular file without a name and opens it.
    pub(crate) fn tmpfile(
        &self,
        dir: Ino,
        request: &mut Request<'_>,
        answer: &mut Answer,
    ) -> Result<Outcome> {
        let input: CreateIn = request.take()?;
        let attr = self.fs.tmpfile(&request.context(), dir, (input.mode & 0o7777) as u16)?;
        self.nodes.adopt(&*self.fs, &attr);
        self.created(&attr, input.flags, answer)
    }

    /// Opens an inode that is already counted and answers with both.
    fn created(&self, attr: &Attr, flags: u32, answer: &mut Answer) -> Result<Outcome> {
        let open = || -> Result<u64> {
            let file = OpenFile::open(&*self.fs, attr.ino, attr.generation)?;
            Ok(self.add_handle(file, writes(flags)))
        };
        let fh = open().inspect_err(|_| self.forget(attr.ino, 1))?;
        answer.put(&self.entry_out(attr))?;
        answer.put(&OpenOut { fh, open_flags: FOPEN_KEEP_CACHE, backing_id: 0 })?;
        Ok(Outcome::Opened(Some(attr.ino), fh))
    }
}

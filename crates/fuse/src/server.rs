//! What becomes of a request.

use std::sync::Arc;

use onggi_vfs::{Errno, FileSystem, Ino, Result};

use crate::answer::Answer;
use crate::handles::Handles;
use crate::nodes::Nodes;
use crate::request::Request;
use crate::wire::{BatchForgetIn, ForgetOne, Opcode};

/// Most bytes of data in one READ or WRITE.
pub(crate) const MAX_REQUEST: usize = 1 << 20;
/// How long the kernel may keep names and attributes: nobody else changes them.
pub(crate) const TTL_SECONDS: u64 = 86_400 * 365;

/// The engine, and what the kernel holds of it.
pub(crate) struct Server {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) nodes: Nodes,
    pub(crate) handles: Handles,
}

/// What there is to say after a request was served.
pub(crate) enum Outcome {
    /// The answer is put together.
    Answered,
    /// It names an inode, which counts as looked up once the kernel has the answer.
    Named(Ino),
    /// It names several.
    NamedMany(Vec<Ino>),
    /// It opens a file, and may name its inode too.
    Opened(Option<Ino>, u64),
    /// Nothing is answered.
    Silent,
    /// The kernel has finished.
    Finished,
}

impl Server {
    pub(crate) fn new(fs: Arc<dyn FileSystem>) -> Self {
        let nodes = Nodes::new(fs.root());
        Self { fs, nodes, handles: Handles::default() }
    }

    /// Serves one request.
    pub(crate) fn serve(&self, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let Some(opcode) = Opcode::from_wire(request.header.opcode) else {
            return Err(Errno::NOSYS.into());
        };
        let ino = self.nodes.ino(request.header.nodeid);
        let done = match opcode {
            Opcode::Lookup => return self.lookup(ino, request, answer),
            Opcode::MkNod => return self.mknod(ino, request, answer),
            Opcode::MkDir => return self.mkdir(ino, request, answer),
            Opcode::Symlink => return self.symlink(ino, request, answer),
            Opcode::Link => return self.link(ino, request, answer),
            Opcode::Open => return self.open(ino, request, answer),
            Opcode::Create => return self.create(ino, request, answer),
            Opcode::TmpFile => return self.tmpfile(ino, request, answer),
            Opcode::ReadDir => self.readdir(ino, false, request, answer).map(drop),
            Opcode::ReadDirPlus => {
                return Ok(Outcome::NamedMany(self.readdir(ino, true, request, answer)?));
            }
            Opcode::Forget => {
                let count: u64 = request.take()?;
                self.forget(ino, count);
                return Ok(Outcome::Silent);
            }
            Opcode::BatchForget => {
                let batch: BatchForgetIn = request.take()?;
                for _ in 0..batch.count {
                    let one: ForgetOne = request.take()?;
                    self.forget(self.nodes.ino(one.nodeid), one.nlookup);
                }
                return Ok(Outcome::Silent);
            }
            Opcode::Destroy => return Ok(Outcome::Finished),
            Opcode::GetAttr => self.getattr(ino, answer),
            Opcode::SetAttr => self.setattr(ino, request, answer),
            Opcode::Statx => self.statx(ino, answer),
            Opcode::StatFs => self.statfs(answer),
            Opcode::ReadLink => self.readlink(ino, answer),
            Opcode::Unlink => self.unlink(ino, request),
            Opcode::RmDir => self.rmdir(ino, request),
            Opcode::Rename => self.rename(ino, request),
            Opcode::Rename2 => self.rename2(ino, request),
            Opcode::Read => self.read(ino, request, answer),
            Opcode::Write => self.write(ino, request, answer),
            Opcode::Release => self.release(request),
            Opcode::Fsync => self.fsync(request),
            Opcode::FsyncDir => self.fsyncdir(ino, request),
            Opcode::SyncFs => self.fs.sync(),
            Opcode::Fallocate => self.fallocate(ino, request),
            Opcode::Lseek => self.lseek(ino, request, answer),
            Opcode::CopyFileRange => self.copy_file_range(ino, request, answer),
            Opcode::SetXattr => self.setxattr(ino, request),
            Opcode::GetXattr => self.getxattr(ino, request, answer),
            Opcode::ListXattr => self.listxattr(ino, request, answer),
            Opcode::RemoveXattr => self.removexattr(ino, request),
            Opcode::Ioctl => Err(Errno::NOTTY.into()),
            // Interrupts: requests end by themselves. A second INIT is no part of the protocol.
            Opcode::Interrupt | Opcode::Init => Err(Errno::NOSYS.into()),
        };
        done.map(|()| Outcome::Answered)
    }

    /// Whether the kernel must write home what it caches of the node before the request can be served:
    /// it asks where data is without telling what it has not written yet.
    pub(crate) fn needs_write_back(&self, request: &Request<'_>) -> bool {
        Opcode::from_wire(request.header.opcode) == Some(Opcode::Lseek)
            && self.nodes.may_be_dirty(self.nodes.ino(request.header.nodeid))
    }

    /// Takes back `count` lookups.
    pub(crate) fn forget(&self, ino: Ino, count: u64) {
        self.nodes.forget(&*self.fs, ino, count);
    }

    /// Takes back what an answer gave that the kernel did not take.
    pub(crate) fn undo(&self, outcome: Outcome) {
        match outcome {
            Outcome::Named(ino) => self.forget(ino, 1),
            Outcome::NamedMany(all) => all.into_iter().for_each(|ino| self.forget(ino, 1)),
            Outcome::Opened(ino, fh) => {
                self.drop_handle(fh);
                if let Some(ino) = ino {
                    self.forget(ino, 1);
                }
            }
            Outcome::Answered | Outcome::Silent | Outcome::Finished => {}
        }
    }

    /// Gives everything back: the kernel is gone.
    pub(crate) fn finish(&self) {
        self.handles.remove_all(&*self.fs);
        self.nodes.forget_all(&*self.fs);
    }
}

//! A volume as a side of copying.

use onggi_vfs::{
    Context, Errno, FileKind, FileSystem, Ino, Node, Result, SetAttr, Timestamp, Whence, XattrMode,
};

use super::side::{Meta, Side, Writer};
use crate::images::context;
use crate::walk;

/// Bytes moved at once.
const CHUNK: usize = 1 << 20;

/// An open volume.
pub(crate) struct Volume<'a> {
    fs: &'a dyn FileSystem,
    /// The one time that changes are stamped with; the clock's without it.
    moment: Option<Timestamp>,
    umask: u16,
}

impl<'a> Volume<'a> {
    pub(crate) fn new(fs: &'a dyn FileSystem) -> Self {
        Self { fs, moment: None, umask: umask() }
    }

    /// As if everything happened at one time.
    pub(crate) fn at_moment(mut self, moment: Option<Timestamp>) -> Self {
        self.moment = moment;
        self
    }

    fn cx(&self) -> Context {
        let cx = context();
        Context { now: self.moment.unwrap_or(cx.now), ..cx }
    }
}

/// The process's file-mode creation mask.
pub(crate) fn umask() -> u16 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|mask| u16::from_str_radix(mask.trim(), 8).ok()).unwrap_or(0o022)
}

impl Side for Volume<'_> {
    type At = Ino;

    fn meta(&self, at: &Ino) -> Result<Meta> {
        Ok(Meta { attr: self.fs.getattr(*at)?, dev: 0 })
    }

    fn follow(&self, _at: &Ino) -> Result<Ino> {
        // A volume's places are resolved from their paths before copying begins.
        Err(Errno::LOOP.into())
    }

    fn child(&self, dir: &Ino, name: &[u8]) -> Result<Option<Ino>> {
        match self.fs.lookup(*dir, name) {
            Ok(attr) => Ok(Some(attr.ino)),
            Err(error) if error.errno() == Errno::NOENT => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self, dir: &Ino) -> Result<Vec<(Vec<u8>, Ino)>> {
        Ok(walk::names(self.fs, *dir)?.into_iter().map(|name| (name.name, name.ino)).collect())
    }

    fn readlink(&self, at: &Ino) -> Result<Vec<u8>> {
        self.fs.readlink(*at)
    }

    fn xattrs(&self, at: &Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut names = self.fs.listxattr(*at)?;
        names.sort_unstable();
        names
            .into_iter()
            .map(|name| Ok((self.fs.getxattr(*at, &name)?, name)))
            .map(|pair| pair.map(|(value, name)| (name, value)))
            .collect()
    }

    fn read(&self, at: &Ino, take: &mut dyn FnMut(u64, &[u8]) -> Result<()>) -> Result<()> {
        let cx = self.cx();
        let size = self.fs.getattr(*at)?.size;
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        while offset < size {
            let start = match self.fs.seek(*at, offset, Whence::Data) {
                Ok(start) => start,
                Err(error) if error.errno() == Errno::NXIO => return Ok(()),
                Err(error) => return Err(error),
            };
            let end = self.fs.seek(*at, start, Whence::Hole)?.min(size);
            if start < offset || end <= start {
                return Err(Errno::IO.into());
            }
            offset = start;
            while offset < end {
                let want = usize::try_from(end - offset).unwrap_or(CHUNK).min(CHUNK);
                let len = self.fs.read(&cx, *at, offset, &mut buffer[..want])?;
                if len == 0 {
                    return Ok(());
                }
                take(offset, &buffer[..len])?;
                offset += len as u64;
            }
        }
        Ok(())
    }

    fn make(&self, dir: &Ino, name: &[u8], node: Node<'_>, perm: u16) -> Result<Ino> {
        Ok(self.fs.create(&self.cx(), *dir, name, node, perm)?.ino)
    }

    fn link(&self, at: &Ino, dir: &Ino, name: &[u8]) -> Result<()> {
        self.fs.link(&self.cx(), *at, *dir, name).map(drop)
    }

    fn unlink(&self, dir: &Ino, name: &[u8]) -> Result<()> {
        self.fs.unlink(&self.cx(), *dir, name)
    }

    fn writer<'s>(&'s self, at: &Ino) -> Result<Box<dyn Writer + 's>> {
        if self.fs.getattr(*at)?.kind != FileKind::Regular {
            return Err(Errno::INVAL.into());
        }
        Ok(Box::new(VolumeWriter { volume: self, ino: *at }))
    }

    fn set_meta(&self, at: &Ino, changes: &SetAttr) -> Result<()> {
        self.fs.setattr(&self.cx(), *at, changes).map(drop)
    }

    fn set_xattr(&self, at: &Ino, name: &[u8], value: &[u8]) -> Result<()> {
        self.fs.setxattr(&self.cx(), *at, name, value, XattrMode::Set)
    }

    fn mask(&self, perm: u16) -> u16 {
        perm & !self.umask
    }
}

struct VolumeWriter<'a> {
    volume: &'a Volume<'a>,
    ino: Ino,
}

impl Writer for VolumeWriter<'_> {
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let cx = self.volume.cx();
        let mut done = 0;
        while done < data.len() {
            match self.volume.fs.write(&cx, self.ino, offset + done as u64, &data[done..])? {
                0 => return Err(Errno::IO.into()),
                len => done += len,
            }
        }
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        let changes = SetAttr { size: Some(len), ..SetAttr::default() };
        self.volume.fs.setattr(&self.volume.cx(), self.ino, &changes).map(drop)
    }
}

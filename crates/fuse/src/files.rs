//! Contents of files: OPEN to RELEASE and what happens between.

use onggi_vfs::{Errno, FallocateMode, Ino, OpenFile, Result, SetAttr, Whence};

use crate::answer::Answer;
use crate::names::{O_TRUNC, writes};
use crate::request::Request;
use crate::server::{MAX_REQUEST, Outcome, Server};
use crate::wire::{
    CopyFileRangeIn, FOPEN_KEEP_CACHE, FSYNC_FDATASYNC, FallocateIn, FsyncIn, LseekIn, OPEN_KILL_SUIDGID,
    OpenIn, OpenOut, ReadIn, ReleaseIn, WRITE_CACHE, WRITE_KILL_SUIDGID, WriteIn, WriteOut,
};

const O_DSYNC: u32 = 0o10_000;
/// `O_SYNC` without `O_DSYNC`.
const O_SYNC_BIT: u32 = 0o4_000_000;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// Most bytes that one COPY_FILE_RANGE moves; the kernel asks again for the rest.
const COPY_MAX: u64 = 64 << 20;

impl Server {
    /// Remembers an open file.
    pub(crate) fn add_handle(&self, file: OpenFile, writes: bool) -> u64 {
        if writes {
            self.nodes.add_writer(file.ino);
        }
        self.handles.insert(file, writes)
    }

    /// Closes an open file.
    pub(crate) fn drop_handle(&self, fh: u64) {
        if let Some((ino, true)) = self.handles.remove(&*self.fs, fh) {
            self.nodes.remove_writer(ino);
        }
    }

    pub(crate) fn open(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<Outcome> {
        let input: OpenIn = request.take()?;
        let generation = match self.nodes.generation(ino) {
            Some(generation) => generation,
            None => self.fs.getattr(ino)?.generation,
        };
        let file = OpenFile::open(&*self.fs, ino, generation)?;
        if input.flags & O_TRUNC != 0 {
            let truncate = || -> Result<()> {
                if input.open_flags & OPEN_KILL_SUIDGID != 0 {
                    self.drop_set_id(request, ino)?;
                }
                let empty = SetAttr { size: Some(0), ..SetAttr::default() };
                self.fs.setattr(&request.context(), ino, &empty)?;
                Ok(())
            };
            if let Err(error) = truncate() {
                file.close(&*self.fs);
                return Err(error);
            }
        }
        let fh = self.add_handle(file, writes(input.flags));
        answer.put(&OpenOut { fh, open_flags: FOPEN_KEEP_CACHE, backing_id: 0 })?;
        Ok(Outcome::Opened(None, fh))
    }

    pub(crate) fn release(&self, request: &mut Request<'_>) -> Result<()> {
        let input: ReleaseIn = request.take()?;
        self.drop_handle(input.fh);
        Ok(())
    }

    pub(crate) fn read(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<()> {
        let input: ReadIn = request.take()?;
        let cx = request.context();
        let len = self.fs.read(&cx, ino, input.offset, answer.room(input.size as usize)?)?;
        answer.grow(len);
        Ok(())
    }

    pub(crate) fn write(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<()> {
        let input: WriteIn = request.take()?;
        let data = request.bytes(input.size)?;
        if input.write_flags & WRITE_KILL_SUIDGID != 0 {
            self.drop_set_id(request, ino)?;
        }
        let cached = input.write_flags & WRITE_CACHE != 0;
        let written = self.write_fully(ino, input.offset, data, cached, request)?;
        // The kernel follows a cached write to such a file with an fsync of its own; a direct one is ours.
        if !cached && input.flags & (O_DSYNC | O_SYNC_BIT) != 0 {
            self.handles.get(input.fh)?.file.fsync(&*self.fs, input.flags & O_SYNC_BIT == 0)?;
        }
        answer.put(&WriteOut { size: written, padding: 0 })
    }

    /// Writes until all is written or something is wrong. A part of a cached write is no success: the
    /// kernel would take the whole page for clean.
    fn write_fully(
        &self,
        ino: Ino,
        offset: u64,
        data: &[u8],
        cached: bool,
        request: &Request<'_>,
    ) -> Result<u32> {
        let mut cx = request.context();
        if cached {
            // The kernel owns the times of what it caches and sends them by itself where they changed.
            cx.now = self.fs.getattr(ino)?.mtime;
        }
        let mut done = 0;
        while done < data.len() {
            let at = offset.checked_add(done as u64).ok_or(Errno::FBIG)?;
            match self.fs.write(&cx, ino, at, &data[done..]) {
                Ok(0) => return Err(Errno::IO.into()),
                Ok(len) => done += len,
                Err(_) if done > 0 && !cached => break,
                Err(error) => return Err(error),
            }
        }
        Ok(u32::try_from(done).map_err(|_| Errno::INVAL)?)
    }

    pub(crate) fn fsync(&self, request: &mut Request<'_>) -> Result<()> {
        let input: FsyncIn = request.take()?;
        let handle = self.handles.get(input.fh)?;
        handle.file.fsync(&*self.fs, input.fsync_flags & FSYNC_FDATASYNC != 0)
    }

    pub(crate) fn fsyncdir(&self, ino: Ino, request: &mut Request<'_>) -> Result<()> {
        let input: FsyncIn = request.take()?;
        self.fs.fsync(ino, input.fsync_flags & FSYNC_FDATASYNC != 0)
    }

    pub(crate) fn fallocate(&self, ino: Ino, request: &mut Request<'_>) -> Result<()> {
        const KEEP_SIZE: u32 = 1;
        const PUNCH_HOLE: u32 = 2;
        const ZERO_RANGE: u32 = 0x10;
        const PUNCH_AND_KEEP: u32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_AND_KEEP: u32 = ZERO_RANGE | KEEP_SIZE;
        let input: FallocateIn = request.take()?;
        let mode = match input.mode {
            0 => FallocateMode::Allocate { keep_size: false },
            KEEP_SIZE => FallocateMode::Allocate { keep_size: true },
            PUNCH_AND_KEEP => FallocateMode::PunchHole,
            ZERO_RANGE => FallocateMode::ZeroRange { keep_size: false },
            ZERO_AND_KEEP => FallocateMode::ZeroRange { keep_size: true },
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        self.drop_set_id_unless_root(request, ino)?;
        self.fs.fallocate(&request.context(), ino, input.offset, input.length, mode)
    }

    /// For changes of contents whose request does not say whether the caller may keep the bits.
    fn drop_set_id_unless_root(&self, request: &Request<'_>, ino: Ino) -> Result<()> {
        if request.header.uid == 0 { Ok(()) } else { self.drop_set_id(request, ino) }
    }

    /// LSEEK for data and holes, after [`Server::needs_write_back`] was taken care of.
    pub(crate) fn lseek(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<()> {
        let input: LseekIn = request.take()?;
        let whence = match input.whence {
            SEEK_DATA => Whence::Data,
            SEEK_HOLE => Whence::Hole,
            _ => return Err(Errno::INVAL.into()),
        };
        answer.put(&self.fs.seek(ino, input.offset, whence)?)
    }

    pub(crate) fn copy_file_range(
        &self,
        from: Ino,
        request: &mut Request<'_>,
        answer: &mut Answer,
    ) -> Result<()> {
        let input: CopyFileRangeIn = request.take()?;
        if input.flags != 0 {
            return Err(Errno::INVAL.into());
        }
        let to = self.nodes.ino(input.nodeid_out);
        self.drop_set_id_unless_root(request, to)?;
        let cx = request.context();
        let wanted = input.len.min(COPY_MAX);
        let mut buffer = vec![0; usize::try_from(wanted).map_err(|_| Errno::INVAL)?.min(MAX_REQUEST)];
        let mut done = 0;
        while done < wanted {
            let len = usize::try_from(wanted - done).map_err(|_| Errno::INVAL)?.min(buffer.len());
            let source = input.off_in.checked_add(done).ok_or(Errno::OVERFLOW)?;
            let target = input.off_out.checked_add(done).ok_or(Errno::FBIG)?;
            let copied = self
                .fs
                .read(&cx, from, source, &mut buffer[..len])
                .and_then(|len| Ok((len, self.write_fully(to, target, &buffer[..len], false, request)?)));
            match copied {
                Ok((0, _)) => break,
                Ok((read, written)) => {
                    done += u64::from(written);
                    if (written as usize) < read {
                        break;
                    }
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        let size = u32::try_from(done).map_err(|_| Errno::INVAL)?;
        answer.put(&WriteOut { size, padding: 0 })
    }
}

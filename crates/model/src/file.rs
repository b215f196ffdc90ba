//! The contents of regular files.

use onggi_vfs::{Context, Errno, FallocateMode, Ino, Whence};

use crate::content::Content;
use crate::state::{Answer, Body, Inode, State};

/// A regular file's size and content; `EISDIR` for a directory, `other` for anything else.
fn regular(inode: &Inode, other: Errno) -> Answer<(u64, &Content)> {
    match &inode.body {
        Body::Regular { size, content } => Ok((*size, content)),
        Body::Directory(_) => Err(Errno::ISDIR),
        _ => Err(other),
    }
}

impl State {
    pub(crate) fn read(&self, ino: Ino, offset: u64, buf: &mut [u8]) -> Answer<usize> {
        let (size, content) = regular(self.inode(ino)?, Errno::INVAL)?;
        let left = size.saturating_sub(offset).min(buf.len() as u64) as usize;
        content.read(offset, &mut buf[..left]);
        Ok(left)
    }

    /// Writes at `offset`, or at the end where there is none; answers where and how much.
    pub(crate) fn write(
        &mut self,
        cx: &Context,
        ino: Ino,
        offset: Option<u64>,
        data: &[u8],
    ) -> Answer<(u64, usize)> {
        let max = self.limits.max_file_size;
        let (size, _) = regular(self.inode(ino)?, Errno::INVAL)?;
        let offset = offset.unwrap_or(size);
        let inode = self.edit(ino)?;
        if data.is_empty() {
            return Ok((offset, 0));
        }
        if offset >= max {
            return Err(Errno::FBIG);
        }
        let len = (max - offset).min(data.len() as u64) as usize;
        if let Body::Regular { size, content } = &mut inode.body {
            content.write(offset, &data[..len]);
            *size = (*size).max(offset + len as u64);
        }
        inode.touch(cx.now);
        Ok((offset, len))
    }

    pub(crate) fn fallocate(
        &mut self,
        cx: &Context,
        ino: Ino,
        offset: u64,
        len: u64,
        mode: FallocateMode,
    ) -> Answer<()> {
        if len == 0 {
            self.inode(ino)?;
            return Err(Errno::INVAL);
        }
        regular(self.inode(ino)?, Errno::NODEV)?;
        let end = offset.checked_add(len).filter(|&end| end <= self.limits.max_file_size);
        let end = end.ok_or(Errno::FBIG)?;
        let inode = self.edit(ino)?;
        if let Body::Regular { size, content } = &mut inode.body {
            let keep_size = match mode {
                FallocateMode::Allocate { keep_size } => keep_size,
                FallocateMode::PunchHole => {
                    content.clear(offset, end);
                    true
                }
                FallocateMode::ZeroRange { keep_size } => {
                    content.clear(offset, end);
                    keep_size
                }
            };
            if !keep_size {
                *size = (*size).max(end);
            }
        }
        inode.touch(cx.now);
        Ok(())
    }

    pub(crate) fn seek(&self, ino: Ino, offset: u64, whence: Whence) -> Answer<u64> {
        let (size, content) = regular(self.inode(ino)?, Errno::INVAL)?;
        if offset >= size {
            return Err(Errno::NXIO);
        }
        match whence {
            Whence::Data => content.next_data(offset).filter(|&at| at < size).ok_or(Errno::NXIO),
            Whence::Hole => Ok(content.next_hole(offset).min(size)),
        }
    }
}

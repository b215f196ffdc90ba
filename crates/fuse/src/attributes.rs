//! Attributes as the kernel wants them; GETATTR, STATX, SETATTR, STATFS and extended attributes.

use onggi_vfs::{Attr, Errno, FileKind, Ino, Result, SetAttr, Timestamp, XattrMode};

use crate::answer::Answer;
use crate::request::{Request, now};
use crate::server::{Server, TTL_SECONDS};
use crate::wire::{
    AttrOut, EntryOut, GetXattr, SetAttrIn, SetXattrIn, StatFsOut, StatxOut, SxTime, WireAttr, WireStatx,
    fattr,
};

/// Set-user-id.
const S_ISUID: u16 = 0o4000;
/// Set-group-id, and the bit that gives it its meaning on a regular file.
const S_ISGID: u16 = 0o2000;
const S_IXGRP: u16 = 0o010;

/// The file-type bits of a mode.
pub(crate) fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 0o010_000,
        FileKind::CharDevice => 0o020_000,
        FileKind::Directory => 0o040_000,
        FileKind::BlockDevice => 0o060_000,
        FileKind::Regular => 0o100_000,
        FileKind::Symlink => 0o120_000,
        FileKind::Socket => 0o140_000,
    }
}

/// A device number as the kernel packs it into 32 bits.
pub(crate) fn encode_dev((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

/// The inverse of [`encode_dev`].
pub(crate) fn decode_dev(dev: u32) -> (u32, u32) {
    (dev >> 8 & 0xfff, (dev & 0xff) | (dev >> 12 & 0xf_ff00))
}

/// A time from the wire; nanoseconds past the second are cut to it.
fn timestamp(sec: i64, nsec: u32) -> Timestamp {
    Timestamp { sec, nsec: nsec.min(999_999_999) }
}

fn wire_attr(attr: &Attr) -> WireAttr {
    WireAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.sec,
        mtime: attr.mtime.sec,
        ctime: attr.ctime.sec,
        atimensec: attr.atime.nsec,
        mtimensec: attr.mtime.nsec,
        ctimensec: attr.ctime.nsec,
        mode: type_bits(attr.kind) | u32::from(attr.perm),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: encode_dev(attr.rdev),
        blksize: attr.block_size,
        flags: 0,
    }
}

fn wire_statx(attr: &Attr) -> WireStatx {
    let time = |time: Timestamp| SxTime { tv_sec: time.sec, tv_nsec: time.nsec, reserved: 0 };
    /// `STATX_BASIC_STATS | STATX_BTIME`.
    const MASK: u32 = 0xfff;
    WireStatx {
        mask: MASK,
        blksize: attr.block_size,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        mode: u16::try_from(type_bits(attr.kind)).unwrap_or(0) | attr.perm,
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        btime: time(attr.crtime),
        ctime: time(attr.ctime),
        mtime: time(attr.mtime),
        rdev_major: attr.rdev.0,
        rdev_minor: attr.rdev.1,
        ..WireStatx::default()
    }
}

impl Server {
    /// The answer that names an inode.
    pub(crate) fn entry_out(&self, attr: &Attr) -> EntryOut {
        EntryOut {
            nodeid: self.nodes.id(attr.ino),
            generation: u64::from(attr.generation),
            entry_valid: TTL_SECONDS,
            attr_valid: TTL_SECONDS,
            attr: wire_attr(attr),
            ..EntryOut::default()
        }
    }

    pub(crate) fn getattr(&self, ino: Ino, answer: &mut Answer) -> Result<()> {
        let attr = self.fs.getattr(ino)?;
        answer.put(&AttrOut { attr_valid: TTL_SECONDS, attr: wire_attr(&attr), ..AttrOut::default() })
    }

    pub(crate) fn statx(&self, ino: Ino, answer: &mut Answer) -> Result<()> {
        let attr = self.fs.getattr(ino)?;
        answer.put(&StatxOut { attr_valid: TTL_SECONDS, stat: wire_statx(&attr), ..StatxOut::default() })
    }

    pub(crate) fn setattr(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<()> {
        let input: SetAttrIn = request.take()?;
        let has = |bit| input.valid & bit != 0;
        let mut cx = request.context();
        // The kernel owns the times of what it caches and says so with CTIME; changes are stamped with it.
        if has(fattr::CTIME) {
            cx.now = timestamp(input.ctime, input.ctimensec);
        }
        let time = |set, set_now, sec, nsec| {
            has(set).then(|| if has(set_now) { now() } else { timestamp(sec, nsec) })
        };
        let mut changes = SetAttr {
            perm: has(fattr::MODE).then_some((input.mode & 0o7777) as u16),
            uid: has(fattr::UID).then_some(input.uid),
            gid: has(fattr::GID).then_some(input.gid),
            size: has(fattr::SIZE).then_some(input.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, input.atime, input.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, input.mtime, input.mtimensec),
            crtime: None,
        };
        if (has(fattr::UID | fattr::GID) || has(fattr::KILL_SUIDGID)) && changes.perm.is_none() {
            changes.perm = self.without_set_id(ino)?;
        }
        let attr = self.fs.setattr(&cx, ino, &changes)?;
        answer.put(&AttrOut { attr_valid: TTL_SECONDS, attr: wire_attr(&attr), ..AttrOut::default() })
    }

    /// The permissions of a file after its set-id bits are dropped; `None` where nothing changes.
    fn without_set_id(&self, ino: Ino) -> Result<Option<u16>> {
        let attr = self.fs.getattr(ino)?;
        if attr.kind == FileKind::Directory {
            return Ok(None);
        }
        let mut perm = attr.perm & !S_ISUID;
        if perm & S_IXGRP != 0 {
            perm &= !S_ISGID;
        }
        Ok((perm != attr.perm).then_some(perm))
    }

    /// Drops a file's set-id bits, as a write by somebody without the right to keep them must.
    pub(crate) fn drop_set_id(&self, request: &Request<'_>, ino: Ino) -> Result<()> {
        if let Some(perm) = self.without_set_id(ino)? {
            self.fs.setattr(&request.context(), ino, &SetAttr { perm: Some(perm), ..SetAttr::default() })?;
        }
        Ok(())
    }

    pub(crate) fn statfs(&self, answer: &mut Answer) -> Result<()> {
        let stat = self.fs.statfs()?;
        answer.put(&StatFsOut {
            blocks: stat.blocks,
            bfree: stat.free_blocks,
            bavail: stat.available_blocks,
            files: stat.inodes,
            ffree: stat.free_inodes,
            bsize: stat.block_size,
            namelen: stat.name_max,
            frsize: stat.block_size,
            ..StatFsOut::default()
        })
    }

    pub(crate) fn setxattr(&self, ino: Ino, request: &mut Request<'_>) -> Result<()> {
        let input: SetXattrIn = request.take()?;
        let name = request.name()?;
        let value = request.bytes(input.size)?;
        let mode = match input.flags {
            0 => XattrMode::Set,
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Errno::INVAL.into()),
        };
        self.fs.setxattr(&request.context(), ino, name, value, mode)
    }

    pub(crate) fn getxattr(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<()> {
        let input: GetXattr = request.take()?;
        let name = request.name()?;
        put_sized(answer, input.size, &self.fs.getxattr(ino, name)?)
    }

    pub(crate) fn listxattr(&self, ino: Ino, request: &mut Request<'_>, answer: &mut Answer) -> Result<()> {
        let input: GetXattr = request.take()?;
        let mut names = Vec::new();
        for name in self.fs.listxattr(ino)? {
            names.extend_from_slice(&name);
            names.push(0);
        }
        put_sized(answer, input.size, &names)
    }

    pub(crate) fn removexattr(&self, ino: Ino, request: &mut Request<'_>) -> Result<()> {
        let name = request.name()?;
        self.fs.removexattr(&request.context(), ino, name)
    }
}

/// Answers a size where 0 bytes are asked for, else the bytes where they fit.
fn put_sized(answer: &mut Answer, size: u32, bytes: &[u8]) -> Result<()> {
    let len = u32::try_from(bytes.len()).map_err(|_| Errno::TOOBIG)?;
    match size {
        0 => answer.put(&GetXattr { size: len, padding: 0 }),
        size if len > size => Err(Errno::RANGE.into()),
        _ => answer.put_bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_their_packing() {
        for dev in [(0, 0), (8, 1), (253, 3), (0xfff, 0xf_ffff), (1, 256)] {
            assert_eq!(decode_dev(encode_dev(dev)), dev);
        }
        assert_eq!(encode_dev((8, 1)), 0x801);
    }

    #[test]
    fn nanoseconds_stay_within_their_second() {
        assert_eq!(timestamp(-5, u32::MAX), Timestamp { sec: -5, nsec: 999_999_999 });
    }
}

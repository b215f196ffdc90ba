//! A request as it comes from the kernel.

use onggi_vfs::{Context, Errno, Result, Timestamp};
use rustix::time::{ClockId, clock_gettime};
use zerocopy::FromBytes;

use crate::wire::InHeader;

/// A request: its header, and its body read piece by piece.
pub(crate) struct Request<'a> {
    pub(crate) header: InHeader,
    body: &'a [u8],
}

impl<'a> Request<'a> {
    /// Splits what one read of the device gave. `None` where lengths contradict each other.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, body) = InHeader::read_from_prefix(bytes).ok()?;
        if header.len as usize != bytes.len() {
            return None;
        }
        let extensions = usize::from(header.total_extlen) * 8;
        let body = body.get(..body.len().checked_sub(extensions)?)?;
        Some(Self { header, body })
    }

    /// The next structure of the body; `EINVAL` where the body is too short.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Result<T> {
        let (value, rest) = T::read_from_prefix(self.body).map_err(|_| Errno::INVAL)?;
        self.body = rest;
        Ok(value)
    }

    /// The next zero-terminated string.
    pub(crate) fn name(&mut self) -> Result<&'a [u8]> {
        let end = self.body.iter().position(|&byte| byte == 0).ok_or(Errno::INVAL)?;
        let name = &self.body[..end];
        self.body = &self.body[end + 1..];
        Ok(name)
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: u32) -> Result<&'a [u8]> {
        let bytes = self.body.get(..len as usize).ok_or(Errno::INVAL)?;
        self.body = &self.body[len as usize..];
        Ok(bytes)
    }

    /// Who asks, and when.
    pub(crate) fn context(&self) -> Context {
        Context { uid: self.header.uid, gid: self.header.gid, now: now() }
    }
}

/// The time as the kernel stamps files with: its coarse clock, so that stamps made here and there keep
/// their order.
pub(crate) fn now() -> Timestamp {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp { sec: time.tv_sec, nsec: u32::try_from(time.tv_nsec).unwrap_or(0) }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::wire::{MkDirIn, OpenIn};

    fn message(body: &[u8], extlen: u16) -> Vec<u8> {
        let len = 40 + u32::try_from(body.len()).unwrap();
        let header = InHeader { len, total_extlen: extlen, uid: 7, gid: 8, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_body_comes_apart_in_order() {
        let bytes =
            message(&[MkDirIn { mode: 0o755, umask: 0o22 }.as_bytes(), b"one\0two\0rest"].concat(), 0);
        let mut request = Request::parse(&bytes).unwrap();
        assert_eq!(request.take::<MkDirIn>().unwrap().mode, 0o755);
        assert_eq!(request.name().unwrap(), b"one");
        assert_eq!(request.name().unwrap(), b"two");
        assert_eq!(request.bytes(4).unwrap(), b"rest");
        assert_eq!(request.bytes(1).unwrap_err().errno(), Errno::INVAL);
        assert_eq!((request.context().uid, request.context().gid), (7, 8));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let bytes = message(b"abc", 0);
        assert!(Request::parse(&bytes[..bytes.len() - 1]).is_none());
        assert!(Request::parse(&bytes[..10]).is_none());
        assert!(Request::parse(&message(b"abc", 1)).is_none());
        let mut short = Request::parse(&bytes).unwrap();
        assert_eq!(short.take::<OpenIn>().unwrap_err().errno(), Errno::INVAL);
        assert_eq!(short.name().unwrap_err().errno(), Errno::INVAL);
    }

    #[test]
    fn extensions_are_cut_off() {
        let bytes = message(b"name\0\0\0\0\0\0\0\0\0\0\0\0", 1);
        let mut request = Request::parse(&bytes).unwrap();
        assert_eq!(request.name().unwrap(), b"name");
        assert!(request.bytes(8).is_err());
    }
}

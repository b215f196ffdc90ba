//! An answer as it goes to the kernel: one buffer per worker, its header filled in last.

use onggi_vfs::{Errno, Result};
use zerocopy::{Immutable, IntoBytes};

use crate::wire::OutHeader;

const HEADER: usize = size_of::<OutHeader>();

/// The answer being put together.
pub(crate) struct Answer {
    buffer: Box<[u8]>,
    len: usize,
}

impl Answer {
    /// Room for answers of up to `payload` bytes.
    pub(crate) fn with_room(payload: usize) -> Self {
        Self { buffer: vec![0; HEADER + payload].into_boxed_slice(), len: HEADER }
    }

    /// Forgets what was put in so far.
    pub(crate) fn clear(&mut self) {
        self.len = HEADER;
    }

    /// Bytes put in so far.
    pub(crate) fn payload_len(&self) -> usize {
        self.len - HEADER
    }

    /// Appends a structure; `ERANGE` where the room ends.
    pub(crate) fn put<T: IntoBytes + Immutable>(&mut self, value: &T) -> Result<()> {
        self.put_bytes(value.as_bytes())
    }

    /// Appends bytes; `ERANGE` where the room ends.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Ok(())
    }

    /// Space for `len` bytes after what was put in; [`Answer::grow`] then says how many were used.
    pub(crate) fn room(&mut self, len: usize) -> Result<&mut [u8]> {
        let end = self.len.checked_add(len).ok_or(Errno::RANGE)?;
        Ok(self.buffer.get_mut(self.len..end).ok_or(Errno::RANGE)?)
    }

    /// Counts `len` bytes of the last [`Answer::room`] as put in.
    pub(crate) fn grow(&mut self, len: usize) {
        self.len = (self.len + len).min(self.buffer.len());
    }

    /// The whole message. With an error nothing but the header travels.
    pub(crate) fn message(&mut self, unique: u64, error: Option<Errno>) -> &[u8] {
        if error.is_some() {
            self.clear();
        }
        let len = u32::try_from(self.len).expect("a buffer is far smaller than 4 GiB");
        // The kernel takes 1 to 511 for an error number.
        let error = error.map_or(0, |errno| match errno.raw_os_error() {
            number @ 1..=511 => -number,
            _ => -Errno::IO.raw_os_error(),
        });
        let header = OutHeader { len, error, unique };
        self.buffer[..HEADER].copy_from_slice(header.as_bytes());
        &self.buffer[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_itself() {
        let mut answer = Answer::with_room(8);
        answer.put_bytes(b"abc").unwrap();
        assert_eq!(answer.put_bytes(b"123456").unwrap_err().errno(), Errno::RANGE);
        answer.room(2).unwrap().copy_from_slice(b"de");
        answer.grow(2);
        assert_eq!(answer.payload_len(), 5);
        let message = answer.message(9, None);
        assert_eq!(message[..4], 21u32.to_ne_bytes());
        assert_eq!(message[4..8], 0i32.to_ne_bytes());
        assert_eq!(message[8..16], 9u64.to_ne_bytes());
        assert_eq!(&message[16..], b"abcde");
    }

    #[test]
    fn an_error_travels_alone() {
        let mut answer = Answer::with_room(8);
        answer.put_bytes(b"abc").unwrap();
        let message = answer.message(1, Some(Errno::NOENT));
        assert_eq!(message.len(), 16);
        assert_eq!(message[4..8], (-2i32).to_ne_bytes());
    }
}

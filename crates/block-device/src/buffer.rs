//! Memory that a device can read from and write to without a bounce.

use std::ops::{Deref, DerefMut};

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// The unit of alignment: the smallest logical sector there is.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(512))]
struct Sector([u8; 512]);

/// A heap buffer aligned to 512 bytes, a multiple of 512 bytes long.
pub struct AlignedBuf(Box<[Sector]>);

impl AlignedBuf {
    /// A buffer of zeroes.
    ///
    /// # Panics
    /// When `len` is not a multiple of 512 or memory runs out.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        assert!(len.is_multiple_of(512), "length {len} is not a multiple of 512");
        Self(<[Sector]>::new_box_zeroed_with_elems(len / 512).expect("out of memory"))
    }

    /// A copy of `bytes`, whose length is a multiple of 512.
    #[must_use]
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut buf = Self::zeroed(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }
}

impl Clone for AlignedBuf {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

impl std::fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuf({} bytes)", self.len())
    }
}

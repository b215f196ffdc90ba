//! Newtypes for addresses, so that a block of a file and a block of the disk never mix.

use std::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

address! {
    /// A block of the volume, counted in file-system blocks from its start.
    DiskBlock(u64)
}
address! {
    /// A logical block of a file.
    FileBlock(u32)
}
address! {
    /// An inode number; the first inode is 1, 0 means none.
    InodeNr(u32)
}
address! {
    /// A block group.
    GroupNr(u32)
}

impl DiskBlock {
    /// Byte address of the block, `None` when it does not fit 64 bits.
    #[must_use]
    pub fn byte_offset(self, block_size: u32) -> Option<u64> {
        self.0.checked_mul(u64::from(block_size))
    }
}

/// A journal transaction's sequence number. Wraps around, so it has no total order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tid(pub u32);

impl Tid {
    /// The transaction after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The transaction before this one.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// Whether `self` comes later than `other`, within half the number space.
    #[must_use]
    pub fn after(self, other: Self) -> bool {
        self != other && self.0.wrapping_sub(other.0) < 1 << 31
    }

    /// Whether `self` is `other` or comes later.
    #[must_use]
    pub fn at_or_after(self, other: Self) -> bool {
        self == other || self.after(other)
    }

    /// How many transactions `self` lies past `other`, counting around the wrap.
    #[must_use]
    pub fn since(self, other: Self) -> u32 {
        self.0.wrapping_sub(other.0)
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::Tid;

    #[test]
    fn transaction_order_survives_the_wrap() {
        assert!(Tid(0).after(Tid(u32::MAX)));
        assert!(!Tid(u32::MAX).after(Tid(0)));
        assert!(!Tid(7).after(Tid(7)));
        assert!(Tid(7).at_or_after(Tid(7)));
        assert_eq!(Tid(u32::MAX).next(), Tid(0));
        assert_eq!(Tid(3).since(Tid(u32::MAX)), 4);
    }
}

//! Fields of structures by name, place and width.

/// A field.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) size: usize,
}

/// The named fields of a raw structure of the disk format.
macro_rules! fields {
    ($raw:ty: $($name:ident)*) => {
        vec![$({
            fn size<F>(_: impl Fn(&$raw) -> &F) -> usize {
                size_of::<F>()
            }
            $crate::field::Field {
                name: stringify!($name),
                offset: std::mem::offset_of!($raw, $name),
                size: size(|raw: &$raw| &raw.$name),
            }
        }),*]
    };
}

pub(crate) use fields;

/// Byte order of a structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

impl Field {
    /// A field that no raw structure names.
    pub(crate) const fn new(name: &'static str, offset: usize, size: usize) -> Self {
        Self { name, offset, size }
    }

    /// The value of a field of at most 8 bytes.
    pub(crate) fn get(&self, bytes: &[u8], order: Order) -> Option<u64> {
        let bytes = bytes.get(self.offset..self.offset + self.size)?;
        if bytes.len() > 8 {
            return None;
        }
        let push = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(match order {
            Order::Little => bytes.iter().rev().fold(0, push),
            Order::Big => bytes.iter().fold(0, push),
        })
    }

    /// Stores the low bytes of `value`.
    pub(crate) fn set(&self, bytes: &mut [u8], order: Order, value: u64) {
        let Some(bytes) = bytes.get_mut(self.offset..self.offset + self.size) else { return };
        let len = bytes.len();
        for (index, byte) in bytes.iter_mut().enumerate() {
            let place = if order == Order::Little { index } else { len - 1 - index };
            *byte = if place < 8 { (value >> (8 * place)) as u8 } else { 0 };
        }
    }
}

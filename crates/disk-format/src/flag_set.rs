//! Typed sets of bits with names.

/// Defines a set of named bits in `$inner`: constants, `contains`, `insert`, `remove`, `names`.
macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident($inner:ty) { $($(#[$bit_doc:meta])* $bit:ident = $value:expr, $text:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name($inner);

        impl $name {
            $($(#[$bit_doc])* pub const $bit: Self = Self($value);)*

            /// Every bit that has a name here.
            pub const KNOWN: Self = Self(0 $(| $value)*);

            /// The set with exactly these bits, known or not.
            #[must_use]
            pub const fn from_bits(bits: $inner) -> Self {
                Self(bits)
            }

            /// The bits as stored.
            #[must_use]
            pub const fn bits(self) -> $inner {
                self.0
            }

            /// Whether every bit of `other` is set.
            #[must_use]
            pub const fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            /// Whether any bit of `other` is set.
            #[must_use]
            pub const fn intersects(self, other: Self) -> bool {
                self.0 & other.0 != 0
            }

            /// Whether no bit is set.
            #[must_use]
            pub const fn is_empty(self) -> bool {
                self.0 == 0
            }

            /// The bits of both.
            #[must_use]
            pub const fn union(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }

            /// The bits of `self` that `other` lacks.
            #[must_use]
            pub const fn without(self, other: Self) -> Self {
                Self(self.0 & !other.0)
            }

            /// Sets the bits of `other`.
            pub fn insert(&mut self, other: Self) {
                self.0 |= other.0;
            }

            /// Clears the bits of `other`.
            pub fn remove(&mut self, other: Self) {
                self.0 &= !other.0;
            }

            /// Sets or clears the bits of `other`.
            pub fn set(&mut self, other: Self, on: bool) {
                if on { self.insert(other) } else { self.remove(other) }
            }

            /// Name of each bit that is set; a bit without a name reads `0x...`.
            #[must_use]
            pub fn names(self) -> Vec<String> {
                let mut names = Vec::new();
                let mut rest = self.0;
                while rest != 0 {
                    let bit = rest & rest.wrapping_neg();
                    rest &= !bit;
                    let known: &[($inner, &str)] = &[$(($value, $text)),*];
                    names.push(match known.iter().find(|(value, _)| *value == bit) {
                        Some((_, text)) => (*text).to_string(),
                        None => format!("{bit:#x}"),
                    });
                }
                names
            }

            /// The single bit that `name` stands for.
            #[must_use]
            pub fn by_name(name: &str) -> Option<Self> {
                let known: &[($inner, &str)] = &[$(($value, $text)),*];
                known.iter().find(|(_, text)| *text == name).map(|(value, _)| Self(*value))
            }
        }

        impl std::ops::BitOr for $name {
            type Output = Self;
            fn bitor(self, other: Self) -> Self {
                self.union(other)
            }
        }
    };
}

pub(crate) use flag_set;

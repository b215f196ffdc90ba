//! Copying trees between a directory of the host and a volume, in any direction.

mod copier;
mod host;
mod side;
mod volume;

pub(crate) use copier::{Copier, How, Tally};
pub(crate) use host::Host;
pub(crate) use side::{Side, Writer};
pub(crate) use volume::Volume;

//! The crash explorer.
//!
//! **Does:** runs seeded operations on an engine over a recording device and on the model side by side;
//! notes what each fsync and sync acknowledged; then builds the device as power cuts may leave it, and
//! for each checks the volume, mounts it, compares the tree with what was promised, uses it, unmounts it
//! and checks again; also cuts the power again during recovery. [`campaign`] is all a test needs.
//! **Never does:** knows a format. What is particular to one comes in through [`Engine`].
//! **Called by:** tests of engines, the command line.
//! **Locks:** none.
//!
//! What is promised is written down at [`Promise`].

mod campaign;
mod engine;
mod failure;
mod history;
mod oracle;
#[cfg(test)]
mod oracle_tests;
mod stale;

pub use campaign::{Campaign, Report, campaign};
pub use engine::{Engine, Found, Promise};
pub use failure::{Cut, Failure};
pub use stale::STALE;

//! Devices that go wrong on purpose.
//!
//! **Does:** records what a device is asked ([`Recorder`]) and builds from the record every state that
//! a power cut may leave ([`Explorer`], [`CrashPoint`], [`Snapshot`]); fails chosen requests
//! ([`Faults`]); keeps unflushed writes in a volatile cache that a killed process loses ([`PowerCut`]).
//! **Never does:** knows what the bytes mean. A random choice comes from a seed that the caller gives.
//! **Called by:** the crash explorer, the tests of every room, the command line.
//! **Locks:** one leaf lock per device.
//!
//! The rules of a power cut are written down in `docs/DEVICE.md`.

mod crash;
mod faults;
mod power_cut;
mod prng;
mod record;
mod snapshot;

pub use crash::{Bounds, CrashPoint, Explorer, Survivors, crash_points};
pub use faults::{Fault, Faults};
pub use power_cut::PowerCut;
pub use prng::Prng;
pub use record::{Event, Recorder, Request, marks, overlaps};
pub use snapshot::Snapshot;

//! Image files and block devices.
//!
//! **Does:** opens a regular file or a block device as a [`BlockDevice`]: exclusive lock, O_DIRECT
//! where the file takes it, whole batches through io_uring, a thread pool where the kernel has none.
//! **Never does:** caching, ordering, retrying a flush that failed, blocking on another's lock.
//! **Called by:** the command line, which hands the device to an engine.
//! **Locks:** one ring or one list of bounce buffers at a time; leaf locks all.
//!
//! Open a device after the last `fork`: rings and pool threads do not follow into a child.
//!
//! [`BlockDevice`]: onggi_block_device::BlockDevice

mod bounce;
mod device;
mod ioctl;
mod loop_device;
mod open;
mod queue;
mod threads;
mod uring;
mod vectored;

pub use device::FileDevice;
pub use open::{Backend, Direct, OpenError, OpenOptions};

//! What an engine brings to be cut off.

use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_model::Limits;
use onggi_vfs::FileSystem;

/// What a mode promises of a file's contents after a power cut.
///
/// Under every one: the namespace (names, kinds, link counts, permissions, owners, extended attributes,
/// targets) is that of some moment between the last acknowledged one and the cut; what sync
/// acknowledged, and of an fsync the inode, its names and contents, is not lost; a file is as long as it
/// was at some moment since its last fsync, or in the middle of growing; times are those of some moment
/// since the inode's last fsync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Each sector, or block where that is smaller, holds what it held at some moment since the file's
    /// last fsync. Never anything else's.
    Ordered,
    /// As `Ordered`, and the format's blocks are never torn.
    WholeBlocks,
    /// What changed since the last fsync may hold anything.
    Writeback,
}

/// How a volume to be checked came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The power was cut: the journal may be replayed, then there must be no complaint.
    AfterCut,
    /// It was unmounted: there must be nothing to replay and no complaint.
    AfterUnmount,
}

/// An engine with its options, ready to be cut off. It must do the same on every run: no clock, no
/// random choice, no threads that write on their own.
pub trait Engine {
    /// Bytes of the volume; large enough that no run fills it.
    fn size(&self) -> u64;

    /// Where the format ends.
    fn limits(&self) -> Limits;

    /// What the mounted mode promises.
    fn promise(&self) -> Promise {
        Promise::Ordered
    }

    /// Makes an empty volume. Every byte of the device is [`crate::STALE`] before; what is not needed
    /// should be left so, that reading it by mistake shows.
    ///
    /// # Errors
    /// Why it could not.
    fn mkfs(&self, device: &dyn BlockDevice) -> Result<(), String>;

    /// Mounts, recovering first where needed.
    ///
    /// # Errors
    /// Why it could not.
    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Arc<dyn FileSystem>, String>;

    /// Checks the volume's structures. May change the device, which is thrown away afterwards.
    ///
    /// # Errors
    /// What is wrong with it.
    fn check(&self, device: Arc<dyn BlockDevice>, found: Found) -> Result<(), String>;
}

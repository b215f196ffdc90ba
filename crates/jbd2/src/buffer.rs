//! One cached metadata block.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use onggi_block_device::AlignedBuf;
use onggi_disk_format::DiskBlock;
use parking_lot::RwLock;

/// Where a buffer's content stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The device is being read; wait.
    Loading,
    /// The content is valid.
    Ready,
    /// The read failed; the buffer is out of the map.
    Failed,
}

/// A cached metadata block. Readers take immutable snapshots; only a journal handle changes it.
pub struct Buffer {
    nr: DiskBlock,
    content: RwLock<Arc<AlignedBuf>>,
    state: AtomicU8,
    verified: AtomicBool,
    /// Serial number of the transaction that the buffer last joined; changed under the content lock.
    joined: AtomicU64,
    /// Looked up since the eviction hand last passed.
    pub(crate) referenced: AtomicBool,
    /// Out of the map for good: its block was freed or made anew.
    dead: AtomicBool,
}

impl Buffer {
    pub(crate) fn loading(nr: DiskBlock) -> Arc<Self> {
        Self::build(nr, AlignedBuf::zeroed(0), Content::Loading, false)
    }

    pub(crate) fn zeroed(nr: DiskBlock, block_size: u32) -> Arc<Self> {
        Self::build(nr, AlignedBuf::zeroed(block_size as usize), Content::Ready, true)
    }

    fn build(nr: DiskBlock, bytes: AlignedBuf, content: Content, verified: bool) -> Arc<Self> {
        Arc::new(Self {
            nr,
            content: RwLock::new(Arc::new(bytes)),
            state: AtomicU8::new(content as u8),
            verified: AtomicBool::new(verified),
            joined: AtomicU64::new(0),
            referenced: AtomicBool::new(true),
            dead: AtomicBool::new(false),
        })
    }

    /// Where on the volume the block lives.
    #[must_use]
    pub fn nr(&self) -> DiskBlock {
        self.nr
    }

    /// The content as it is now; later changes leave it alone.
    #[must_use]
    pub fn snapshot(&self) -> Arc<AlignedBuf> {
        Arc::clone(&self.content.read())
    }

    /// Runs `check` on the content unless it has passed before in this buffer's life in the cache.
    ///
    /// # Errors
    /// `check`'s own; it then runs again next time.
    pub fn verify_once<E>(&self, check: impl FnOnce(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if !self.verified.load(Ordering::Acquire) {
            check(&self.snapshot())?;
            self.verified.store(true, Ordering::Release);
        }
        Ok(())
    }

    pub(crate) fn content_state(&self) -> Content {
        match self.state.load(Ordering::Acquire) {
            0 => Content::Loading,
            1 => Content::Ready,
            _ => Content::Failed,
        }
    }

    pub(crate) fn loaded(&self, bytes: Option<AlignedBuf>) {
        let outcome = match bytes {
            Some(bytes) => {
                *self.content.write() = Arc::new(bytes);
                Content::Ready
            }
            None => Content::Failed,
        };
        self.state.store(outcome as u8, Ordering::Release);
    }

    pub(crate) fn retire(&self) {
        self.dead.store(true, Ordering::Release);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether the transaction with this serial number holds the buffer already.
    pub(crate) fn has_joined(&self, serial: u64) -> bool {
        self.joined.load(Ordering::Acquire) == serial
    }

    /// Changes the content for the transaction with this serial number; the flag says whether this is
    /// the buffer's first change in it. Copies only while somebody holds a snapshot.
    pub(crate) fn change<R>(&self, serial: u64, change: impl FnOnce(&mut [u8]) -> R) -> (bool, R) {
        let mut content = self.content.write();
        let first = self.joined.swap(serial, Ordering::AcqRel) != serial;
        let content: &mut Arc<AlignedBuf> = &mut content;
        let bytes: &mut AlignedBuf = Arc::make_mut(content);
        (first, change(bytes))
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({}, {:?})", self.nr, self.content_state())
    }
}

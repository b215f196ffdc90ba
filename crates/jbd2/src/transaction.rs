//! What a transaction gathers, and the journal's state that all threads share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onggi_block_device::AlignedBuf;
use onggi_disk_format::{DiskBlock, Tid};
use parking_lot::Mutex;

use crate::buffer::Buffer;
use crate::error::JournalError;

/// A block as a transaction froze it.
#[derive(Clone)]
pub(crate) struct Image {
    pub(crate) nr: DiskBlock,
    /// Keeps the buffer in the cache while its home copy is older than the image.
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) bytes: Arc<AlignedBuf>,
}

/// What a transaction holds.
#[derive(Default)]
pub(crate) struct Contents<P> {
    pub(crate) buffers: HashMap<DiskBlock, Arc<Buffer>>,
    pub(crate) revoked: HashSet<DiskBlock>,
    pub(crate) payload: P,
}

/// A transaction that handles may join.
pub(crate) struct Transaction<P> {
    pub(crate) tid: Tid,
    /// Unlike the tid never used twice over one buffer cache.
    pub(crate) serial: u64,
    pub(crate) contents: Mutex<Contents<P>>,
    /// Some handle changed something.
    touched: AtomicBool,
}

impl<P: Default> Transaction<P> {
    pub(crate) fn new(tid: Tid, serial: u64) -> Arc<Self> {
        Arc::new(Self { tid, serial, contents: Mutex::default(), touched: AtomicBool::new(false) })
    }
}

impl<P> Transaction<P> {
    pub(crate) fn touch(&self) {
        self.touched.store(true, Ordering::Release);
    }

    pub(crate) fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Acquire)
    }

    /// Takes in the buffers a handle changed. One that was retired since stays out: its block was freed.
    pub(crate) fn merge(&self, joined: &mut Vec<Arc<Buffer>>) {
        if joined.is_empty() {
            return;
        }
        let mut contents = self.contents.lock();
        for buffer in joined.drain(..) {
            if !buffer.is_dead() {
                contents.revoked.remove(&buffer.nr());
                contents.buffers.insert(buffer.nr(), buffer);
            }
        }
    }
}

/// A durable transaction whose images are not all home.
pub(crate) struct Logged {
    pub(crate) tid: Tid,
    pub(crate) serial: u64,
    /// Log position of its first block.
    pub(crate) start: u64,
    /// What it logged; those pending under another serial have been superseded.
    pub(crate) blocks: Vec<DiskBlock>,
}

/// The newest durable image of a block that is not home yet.
pub(crate) struct Pending {
    /// Of the transaction that logged it.
    pub(crate) serial: u64,
    pub(crate) image: Image,
}

/// What the state mutex guards.
pub(crate) struct State<P> {
    pub(crate) running: Arc<Transaction<P>>,
    /// Open handles of the running transaction.
    pub(crate) updates: u32,
    /// Blocks that the running transaction's handles asked for, less what ended handles gave back.
    pub(crate) claimed: u32,
    /// Revoke records of the running transaction's ended handles.
    pub(crate) revokes: u32,
    /// A leader waits for the running transaction's handles to end: nobody may join.
    pub(crate) locked: bool,
    /// Log blocks that the transaction at work may need.
    pub(crate) committing: Option<u64>,
    pub(crate) durable: Tid,
    pub(crate) stopped: Option<JournalError>,
    /// Log positions grow without bound; the ring's length folds them.
    pub(crate) head: u64,
    /// Everything before it is reusable: the superblock on the device says so.
    pub(crate) tail: u64,
    pub(crate) logged: VecDeque<Logged>,
    pub(crate) pending: HashMap<DiskBlock, Pending>,
    /// Blocks that a checkpoint is writing home at this moment.
    pub(crate) in_flight: HashSet<DiskBlock>,
}

impl<P: Default> State<P> {
    pub(crate) fn new(next: Tid, serial: u64) -> Self {
        Self {
            running: Transaction::new(next, serial),
            updates: 0,
            claimed: 0,
            revokes: 0,
            locked: false,
            committing: None,
            durable: next.previous(),
            stopped: None,
            head: 0,
            tail: 0,
            logged: VecDeque::new(),
            pending: HashMap::new(),
            in_flight: HashSet::new(),
        }
    }
}

impl<P> State<P> {
    pub(crate) fn check(&self) -> Result<(), JournalError> {
        self.stopped.clone().map_or(Ok(()), Err)
    }

    pub(crate) fn used(&self) -> u64 {
        self.head - self.tail
    }
}

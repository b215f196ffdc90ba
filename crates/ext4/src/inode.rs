//! Inodes in memory, and the table of those in use.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onggi_disk_format::ext4::{FileType, Inode as DiskInode, InodeFlags};
use onggi_disk_format::{InodeNr, Tid};
use onggi_ext4_volume::BlockRun;
use onggi_page_cache::{FilePages, PageCache};
use onggi_vfs::WriteErrors;
use parking_lot::{Mutex, RwLock};

use crate::blocks::BlockSet;

/// An inode in use. Lock order within one inode: `ops`, `writeback`, then (with a journal handle open)
/// `state`.
pub(crate) struct Inode {
    pub(crate) nr: InodeNr,
    pub(crate) generation: u32,
    pub(crate) kind: FileType,
    /// Shared for reads and look-ups, exclusive for changes of contents and names.
    pub(crate) ops: RwLock<()>,
    /// Held while dirty pages go to the device, and by whoever unmaps blocks.
    pub(crate) writeback: Mutex<()>,
    /// Never held while a journal handle is being started.
    pub(crate) state: RwLock<State>,
    pub(crate) pages: Arc<FilePages>,
    /// Is on the flusher's list.
    pub(crate) queued: AtomicBool,
    /// Where the last read ended, and how many pages the next sequential one reads ahead.
    pub(crate) read_end: AtomicU64,
    pub(crate) read_window: AtomicU64,
    pub(crate) prefetch: Prefetch,
    retains: AtomicU64,
    errors: Mutex<WriteErrors>,
}

/// Pages that the read-ahead thread is about to fill.
#[derive(Default)]
pub(crate) struct Prefetch {
    pub(crate) range: Mutex<Option<std::ops::Range<u64>>>,
    /// Held while they are being filled: a reader who needs one of them waits here.
    pub(crate) under_way: Mutex<()>,
}

/// What changes about an inode.
pub(crate) struct State {
    /// The inode as it is or will be in its table: `disk.size` counts only data that is on the device.
    pub(crate) disk: DiskInode,
    /// The size that callers see.
    pub(crate) size: u64,
    /// Attributes here are newer than any transaction's.
    pub(crate) unsaved: bool,
    /// `unsaved` holds more than timestamps.
    pub(crate) unsaved_size: bool,
    /// Written blocks that have no place on the device yet; each holds one promised block.
    pub(crate) delayed: BlockSet,
    /// Blocks taken beyond the last extent of a growing file, in memory only.
    pub(crate) preallocated: Option<BlockRun>,
    /// Where the next data block had best go.
    pub(crate) goal: Option<onggi_disk_format::DiskBlock>,
    /// Last transaction that changed the inode.
    pub(crate) sync_tid: Option<Tid>,
    /// Last transaction that reading the contents back depends on.
    pub(crate) datasync_tid: Option<Tid>,
    /// The inode is freed; this object is the last that is left of it.
    pub(crate) freed: bool,
    /// Recovery would finish with this inode.
    pub(crate) is_orphan: bool,
    /// Made without a name: may get its first.
    pub(crate) linkable: bool,
}

impl Inode {
    pub(crate) fn new(nr: InodeNr, disk: DiskInode, pages: &Arc<PageCache>, block_size: u32) -> Arc<Self> {
        Arc::new(Self {
            nr,
            generation: disk.generation,
            kind: disk.kind(),
            ops: RwLock::new(()),
            writeback: Mutex::new(()),
            pages: FilePages::new(pages, block_size),
            queued: AtomicBool::new(false),
            read_end: AtomicU64::new(0),
            read_window: AtomicU64::new(0),
            prefetch: Prefetch::default(),
            retains: AtomicU64::new(0),
            errors: Mutex::new(WriteErrors::default()),
            state: RwLock::new(State {
                size: disk.size,
                disk,
                unsaved: false,
                unsaved_size: false,
                delayed: BlockSet::default(),
                preallocated: None,
                goal: None,
                sync_tid: None,
                datasync_tid: None,
                freed: false,
                is_orphan: false,
                linkable: false,
            }),
        })
    }

    /// Passes while the inode is in use; under `ops` it stays so.
    pub(crate) fn still_used(&self) -> onggi_vfs::Result<()> {
        if self.state.read().freed { Err(onggi_vfs::Errno::NOENT.into()) } else { Ok(()) }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    pub(crate) fn retain(&self) {
        self.retains.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back retains; true when none is left.
    pub(crate) fn release(&self, count: u64) -> bool {
        let before = self
            .retains
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(now.saturating_sub(count)));
        before.is_ok_and(|before| before <= count)
    }

    pub(crate) fn is_retained(&self) -> bool {
        self.retains.load(Ordering::Acquire) != 0
    }

    pub(crate) fn note_write_error(&self, errno: i32) {
        let mut errors = self.errors.lock();
        errors.count += 1;
        errors.errno = errno;
    }

    pub(crate) fn write_errors(&self) -> WriteErrors {
        *self.errors.lock()
    }
}

impl State {
    /// Whether contents go through the journal whatever the mount says.
    pub(crate) fn journals_data(&self) -> bool {
        self.disk.flags.contains(InodeFlags::JOURNAL_DATA)
    }
}

const SHARDS: usize = 64;

/// Inodes in use and lately used, by number.
pub(crate) struct InodeTable {
    shards: Vec<Mutex<HashMap<InodeNr, Arc<Inode>>>>,
    /// Inodes a shard keeps before it lets idle ones go.
    capacity: usize,
}

impl InodeTable {
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect(),
            capacity: (capacity / SHARDS).max(16),
        }
    }

    fn shard(&self, nr: InodeNr) -> &Mutex<HashMap<InodeNr, Arc<Inode>>> {
        &self.shards[nr.0 as usize % SHARDS]
    }

    pub(crate) fn cached(&self, nr: InodeNr) -> Option<Arc<Inode>> {
        self.shard(nr).lock().get(&nr).cloned()
    }

    /// The inode, loaded under the shard's lock if it is not in use: a number has one object at any time.
    /// Also returns idle inodes that made room.
    pub(crate) fn get_or_load<E>(
        &self,
        nr: InodeNr,
        load: impl FnOnce() -> Result<Arc<Inode>, E>,
    ) -> Result<(Arc<Inode>, Vec<Arc<Inode>>), E> {
        let mut shard = self.shard(nr).lock();
        if let Some(inode) = shard.get(&nr) {
            return Ok((Arc::clone(inode), Vec::new()));
        }
        let inode = load()?;
        let idle = self.make_room(&mut shard);
        shard.insert(nr, Arc::clone(&inode));
        Ok((inode, idle))
    }

    /// Adds a new inode.
    pub(crate) fn insert(&self, inode: &Arc<Inode>) -> Vec<Arc<Inode>> {
        let mut shard = self.shard(inode.nr).lock();
        let idle = self.make_room(&mut shard);
        shard.insert(inode.nr, Arc::clone(inode));
        idle
    }

    /// Takes this object out, unless the number has a new life already.
    pub(crate) fn remove(&self, inode: &Arc<Inode>) {
        let mut shard = self.shard(inode.nr).lock();
        if shard.get(&inode.nr).is_some_and(|known| Arc::ptr_eq(known, inode)) {
            shard.remove(&inode.nr);
        }
    }

    pub(crate) fn all(&self) -> Vec<Arc<Inode>> {
        self.shards.iter().flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>()).collect()
    }

    /// Takes idle inodes out of a full shard: nobody holds them and nothing of them is newer in memory.
    fn make_room(&self, shard: &mut HashMap<InodeNr, Arc<Inode>>) -> Vec<Arc<Inode>> {
        let mut idle = Vec::new();
        if shard.len() >= self.capacity {
            // A quarter goes at once, so that a full shard is not searched for every newcomer.
            let goal = self.capacity / 4;
            shard.retain(|_, inode| {
                let keep = idle.len() >= goal
                    || Arc::strong_count(inode) > 1
                    || inode.is_retained()
                    || inode.queued.load(Ordering::Acquire)
                    || inode.pages.is_dirty(0..u64::MAX)
                    || inode
                        .state
                        .try_read()
                        .is_none_or(|state| state.unsaved || state.is_orphan || !state.delayed.is_empty());
                if !keep {
                    idle.push(Arc::clone(inode));
                }
                keep
            });
        }
        idle
    }
}

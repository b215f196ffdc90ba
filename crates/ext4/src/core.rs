//! The mounted volume: what all its operations share.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use onggi_disk_format::ext4::Time;
use onggi_disk_format::{InodeNr, Tid};
use onggi_ext4_volume::{Handle, Volume, VolumeError};
use onggi_jbd2::{CommitTime, JournalError, StartError};
use onggi_page_cache::PageCache;
use onggi_vfs::{Errno, Ino, Timestamp};
use parking_lot::Mutex;

use crate::error::through_the_door;
use crate::file::readahead::ReadAhead;
use crate::flusher::Flusher;
use crate::inode::{Inode, InodeTable, State};
use crate::options::MountOptions;
use crate::orphan::Orphans;

/// A mounted ext4 volume.
pub struct Ext4 {
    pub(crate) volume: Volume,
    pub(crate) options: MountOptions,
    pub(crate) inodes: InodeTable,
    pub(crate) pages: Arc<PageCache>,
    pub(crate) orphans: Orphans,
    /// One rename between directories at a time, so that no two of them close a loop.
    pub(crate) renames: Mutex<()>,
    pub(crate) flusher: Flusher,
    pub(crate) read_ahead: ReadAhead,
    /// Set by a read-only mount and by unmount.
    pub(crate) read_only: AtomicBool,
    /// Counts up through the generations of new inodes.
    pub(crate) generations: Mutex<u32>,
    /// Blocks that statfs does not count, as Linux counts them.
    pub(crate) overhead: u64,
    /// Latest time any caller brought along: commits are stamped with it.
    latest: AtomicI64,
}

pub(crate) type Result<T> = std::result::Result<T, VolumeError>;

impl Ext4 {
    pub(crate) fn new(
        volume: Volume,
        options: MountOptions,
        orphans: Orphans,
        overhead: u64,
        now: Timestamp,
    ) -> Self {
        let pages = PageCache::new(options.cache_bytes / 4 * 3);
        Self {
            inodes: InodeTable::new(usize::try_from(options.cache_bytes / 8192).unwrap_or(usize::MAX)),
            flusher: Flusher::new(pages.budget_bytes()),
            read_ahead: ReadAhead::default(),
            pages,
            orphans,
            renames: Mutex::new(()),
            read_only: AtomicBool::new(options.read_only),
            generations: Mutex::new((now.sec as u32).rotate_left(16) ^ now.nsec),
            overhead,
            latest: AtomicI64::new(now.sec),
            volume,
            options,
        }
    }

    /// A handle with room for `credits` blocks. Must not be called with an inode's `state` held.
    pub(crate) fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        let most = self.volume.journal.max_credits();
        loop {
            match self.volume.journal.start(credits.min(most)) {
                Ok(handle) => return Ok(handle),
                Err(StartError::Full(tid)) => self.commit(tid)?,
                Err(StartError::Aborted(error)) => return Err(error.into()),
                Err(error @ StartError::TooBig { .. }) => {
                    return Err(JournalError::Stopped(error.to_string()).into());
                }
            }
        }
    }

    /// Runs a change in a handle. A change that fails after it touched anything (for any reason but one
    /// that it undid itself: no space, a limit, a name that is there or is not) stops the journal: half a
    /// change must not become durable.
    pub(crate) fn change<T>(
        &self,
        credits: u32,
        change: impl FnOnce(&mut Handle<'_>) -> Result<T>,
    ) -> Result<T> {
        let mut handle = self.begin(credits)?;
        let before = handle.credits_left();
        let result = change(&mut handle);
        if let Err(error) = &result
            && handle.credits_left() != before
            && matches!(error, VolumeError::Corrupt { .. } | VolumeError::Device(_) | VolumeError::Journal(_))
        {
            tracing::error!(%error, "a change failed half way; the volume is read-only from here on");
            self.volume.journal.abort(JournalError::Stopped(error.to_string()));
        }
        result
    }

    /// Makes the transaction durable, by this thread or by waiting for the one at it, and frees what it
    /// freed.
    pub(crate) fn commit(&self, tid: Tid) -> Result<()> {
        while let Some(locked) = self.volume.journal.lock(tid)? {
            let now = CommitTime { sec: self.latest.load(Ordering::Relaxed).max(0) as u64, nsec: 0 };
            let committed = locked.write(now)?;
            for run in committed.payload.freed {
                self.volume.alloc.release(run);
            }
        }
        Ok(())
    }

    /// Makes every change so far durable: the transaction whose commit is under way, then the running one.
    pub(crate) fn commit_all(&self) -> Result<()> {
        self.commit(self.volume.journal.durable().next())?;
        match self.volume.journal.running() {
            Some(tid) => self.commit(tid),
            None => Ok(()),
        }
    }

    /// Tries an operation that may run out of space again after everything that waits for a commit to be
    /// free, or is set aside for growing files, has been let go.
    pub(crate) fn with_space<T>(&self, mut operation: impl FnMut() -> Result<T>) -> Result<T> {
        match operation() {
            Err(VolumeError::NoSpace) => {
                self.drop_preallocations();
                self.commit_all()?;
                operation()
            }
            other => other,
        }
    }

    /// Gives back blocks set aside for growing files.
    pub(crate) fn drop_preallocations(&self) {
        for inode in self.inodes.all() {
            self.drop_preallocation(&mut inode.state.write());
        }
    }

    pub(crate) fn drop_preallocation(&self, state: &mut State) {
        if let Some(run) = state.preallocated.take() {
            self.volume.alloc.give_back(run);
        }
    }

    /// The inode, in use: `ESTALE`-like errors for a number that names nothing.
    pub(crate) fn inode(&self, ino: Ino) -> onggi_vfs::Result<Arc<Inode>> {
        let nr = u32::try_from(ino.0).map(InodeNr).map_err(|_| Errno::NOENT)?;
        if nr != onggi_disk_format::ext4::superblock::ROOT_INODE && nr < self.volume.sb.first_inode() {
            return Err(Errno::NOENT.into());
        }
        self.load(nr)
    }

    /// As [`Ext4::inode`], for numbers that the volume itself names.
    pub(crate) fn load(&self, nr: InodeNr) -> onggi_vfs::Result<Arc<Inode>> {
        if let Some(inode) = self.inodes.cached(nr) {
            return Ok(inode);
        }
        let (inode, idle) = self
            .inodes
            .get_or_load(nr, || {
                // An earlier object of this inode may have left changes in a transaction that is not durable.
                let journal = &self.volume.journal;
                let newest = journal.running().unwrap_or_else(|| journal.durable().next());
                let disk = self.volume.read_inode(nr)?;
                // Who has no links and is in use has an object already.
                if disk.links_count == 0 {
                    return Err(VolumeError::Missing);
                }
                let inode = Inode::new(nr, disk, &self.pages, self.volume.block_size());
                let mut state = inode.state.write();
                state.sync_tid = Some(newest);
                state.datasync_tid = Some(newest);
                drop(state);
                Ok(inode)
            })
            .map_err(|error| self.read_error(nr, error))?;
        self.let_go(idle);
        Ok(inode)
    }

    /// A slot that was never used, or was freed, is no corruption but a number that names nothing.
    fn read_error(&self, nr: InodeNr, error: VolumeError) -> onggi_vfs::Error {
        let size = usize::from(self.volume.sb.inode_size());
        let unused =
            self.volume.inode_buffer(nr).ok().is_some_and(|(buffer, byte)| {
                buffer.snapshot()[byte..byte + size].iter().all(|&byte| byte == 0)
            });
        if unused || matches!(error, VolumeError::Missing) {
            Errno::NOENT.into()
        } else {
            through_the_door(error)
        }
    }

    pub(crate) fn let_go(&self, idle: Vec<Arc<Inode>>) {
        for inode in idle {
            self.drop_preallocation(&mut inode.state.write());
        }
    }

    /// Fails where nothing may be changed.
    pub(crate) fn writable(&self) -> onggi_vfs::Result<()> {
        if self.read_only.load(Ordering::Acquire) {
            return Err(Errno::ROFS.into());
        }
        match self.volume.journal.aborted() {
            None => Ok(()),
            Some(error) => Err(onggi_vfs::Error::with_detail(Errno::ROFS, error)),
        }
    }

    /// Writes the inode's fields in the handle's transaction and remembers that transaction.
    pub(crate) fn save(&self, h: &mut Handle<'_>, nr: InodeNr, state: &mut State) -> Result<()> {
        let tid = h.tid();
        // Whatever raised the size is on the device, or has become a hole.
        if state.delayed.is_empty() {
            state.disk.size = state.disk.size.max(state.size);
        }
        if state.is_orphan {
            self.orphans.save_orphan(&self.volume, h, nr, &mut state.disk)?;
        } else {
            self.volume.write_inode(h, nr, &state.disk)?;
        }
        state.unsaved_size = state.disk.size < state.size;
        state.unsaved = state.unsaved_size;
        state.sync_tid = Some(tid);
        Ok(())
    }

    /// As [`Ext4::save`], for a change that reading the contents back depends on.
    pub(crate) fn save_contents(&self, h: &mut Handle<'_>, nr: InodeNr, state: &mut State) -> Result<()> {
        self.save(h, nr, state)?;
        state.datasync_tid = Some(h.tid());
        Ok(())
    }

    pub(crate) fn see_time(&self, now: Timestamp) {
        self.latest.fetch_max(now.sec, Ordering::Relaxed);
    }

    pub(crate) fn next_generation(&self) -> u32 {
        let mut generation = self.generations.lock();
        *generation = generation.wrapping_mul(0x2c92_77b5).wrapping_add(0x5f35_6495);
        *generation
    }

    pub(crate) fn block_size(&self) -> u64 {
        u64::from(self.volume.block_size())
    }
}

pub(crate) fn disk_time(time: Timestamp) -> Time {
    Time { sec: time.sec.clamp(Time::MIN_SEC, Time::MAX_SEC), nsec: time.nsec }
}

pub(crate) fn door_time(time: Time) -> Timestamp {
    Timestamp { sec: time.sec, nsec: time.nsec }
}

//! The journal: handles in, locked transactions out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use onggi_block_device::DeviceError;
use onggi_disk_format::{DiskBlock, Tid};
use parking_lot::{Condvar, Mutex};

use crate::buffers::Buffers;
use crate::checkpoint::Goal;
use crate::commit::Locked;
use crate::error::{JournalError, StartError};
use crate::handle::Handle;
use crate::log::Log;
use crate::map::JournalMap;
use crate::superblock::SuperblockHome;
use crate::transaction::{Contents, Image, State, Transaction};

/// Most blocks of a transaction that is written home without a log.
const UNLOGGED_LIMIT: u32 = 1 << 15;

/// How a journal is opened.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Checksum the log with CRC-32C, version 3 (a volume with `metadata_csum`). Otherwise no checksums.
    pub checksum_v3: bool,
    /// Log block numbers of 64 bits (a volume with `64bit`). A journal that has them keeps them.
    pub sixty_four_bit: bool,
    /// Blocks on the volume.
    pub volume_blocks: u64,
}

/// How full the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pressure {
    /// Log blocks that are not reusable yet.
    pub used: u64,
    /// Log blocks there are; 0 without a log.
    pub total: u64,
}

impl Pressure {
    /// The used share of the log in percent.
    #[must_use]
    pub fn percent(&self) -> u64 {
        (self.used * 100).checked_div(self.total).unwrap_or(0)
    }
}

/// What a journal has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Transactions committed.
    pub commits: u64,
    /// Blocks written to the log, commit blocks included.
    pub logged_blocks: u64,
    /// Blocks written home.
    pub home_blocks: u64,
    /// Checkpoints that a handle or a commit had to wait for.
    pub foreground_checkpoints: u64,
    /// Changes made past a handle's credits.
    pub overdrafts: u64,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) commits: AtomicU64,
    pub(crate) logged_blocks: AtomicU64,
    pub(crate) home_blocks: AtomicU64,
    pub(crate) foreground_checkpoints: AtomicU64,
    pub(crate) overdrafts: AtomicU64,
}

/// Groups changes of metadata blocks into transactions that reach the volume whole or not at all.
///
/// `P` is the engine's payload of a transaction: what it wants back once the transaction is durable.
/// Operations take a [`Handle`] and change buffers through it. To make transaction `tid` durable:
/// `while let Some(locked) = journal.lock(tid)? { let done = locked.write(now)?; .. }`.
pub struct Journal<P> {
    buffers: Arc<Buffers>,
    pub(crate) log: Option<Log>,
    limit: u64,
    most_credits: u32,
    pub(crate) state: Mutex<State<P>>,
    pub(crate) changed: Condvar,
    /// Held by the one checkpointer.
    pub(crate) checkpointing: Mutex<()>,
    stopped: AtomicBool,
    counts: Counts,
}

impl<P: Default + Send> Journal<P> {
    /// Opens a journal whose log is empty ([`crate::recover`] leaves it so). Nothing is written yet; the
    /// features chosen by `settings` reach the device with the first transaction.
    ///
    /// # Errors
    /// [`JournalError::NotRecovered`]; a superblock that breaks a rule or that needs what is not
    /// supported; the device's own.
    pub fn open(buffers: Arc<Buffers>, map: JournalMap, settings: Settings) -> Result<Self, JournalError> {
        let mut home = SuperblockHome::load(buffers.device().as_ref(), buffers.block_size(), &map)?;
        let start = home.superblock().start();
        if start != 0 {
            return Err(JournalError::NotRecovered { start });
        }
        let long_numbers = settings.sixty_four_bit || settings.volume_blocks > 1 << 32;
        home.choose_features(settings.checksum_v3, long_numbers)?;
        let next = home.superblock().sequence();
        let log = Log::new(map, home, buffers.block_size(), settings.volume_blocks);
        if log.most_images() == 0 {
            return Err(JournalError::TooSmall { ring: log.ring() });
        }
        Ok(Self::build(buffers, log.limit(), log.most_images(), Some(log), next))
    }

    /// A journal without a log: a commit writes the blocks home and flushes. A power cut in the middle
    /// leaves part of a transaction behind.
    #[must_use]
    pub fn without_log(buffers: Arc<Buffers>) -> Self {
        Self::build(buffers, u64::from(UNLOGGED_LIMIT), UNLOGGED_LIMIT, None, Tid(1))
    }

    fn build(buffers: Arc<Buffers>, limit: u64, most_credits: u32, log: Option<Log>, next: Tid) -> Self {
        let serial = buffers.next_serial();
        Self {
            buffers,
            log,
            limit,
            most_credits,
            state: Mutex::new(State::new(next, serial)),
            changed: Condvar::new(),
            checkpointing: Mutex::new(()),
            stopped: AtomicBool::new(false),
            counts: Counts::default(),
        }
    }

    /// Begins an operation that changes up to `credits` blocks for the first time in the running
    /// transaction. Waits while that one is being locked, and checkpoints where the log has no room.
    /// The caller must hold no other handle.
    ///
    /// # Errors
    /// [`StartError::Full`]: commit that transaction, then try again.
    pub fn start(&self, credits: u32) -> Result<Handle<'_, P>, StartError> {
        if credits > self.most_credits {
            return Err(StartError::TooBig { credits, most: self.most_credits });
        }
        let mut state = self.state.lock();
        loop {
            state.check()?;
            if state.locked {
                self.changed.wait(&mut state);
                continue;
            }
            let size = self.size_with(&state, credits);
            if size > self.limit {
                return Err(StartError::Full(state.running.tid));
            }
            let needed = size + state.committing.unwrap_or(0);
            if self.free(&state) >= needed {
                break;
            }
            if state.logged.is_empty() && state.committing.is_some() {
                // All that could be freed is free; the commit at work gives its reservation back.
                self.changed.wait(&mut state);
                continue;
            }
            drop(state);
            self.make_room(needed)?;
            state = self.state.lock();
        }
        state.claimed += credits;
        state.updates += 1;
        Ok(Handle::new(self, Arc::clone(&state.running), credits))
    }

    /// Takes part in committing `tid`. `None`: it is durable already, perhaps after waiting for another
    /// thread that was at work on it, or nothing in it has changed. Otherwise the caller leads: open
    /// handles have ended, the transaction is frozen, the next one runs, and the caller must
    /// [`Locked::write`] it. The caller must hold no handle.
    ///
    /// # Errors
    /// [`JournalError::NotBegun`], or why the journal has stopped.
    pub fn lock(&self, tid: Tid) -> Result<Option<Locked<'_, P>>, JournalError> {
        let mut state = self.state.lock();
        loop {
            state.check()?;
            let running = state.running.tid;
            if state.durable.at_or_after(tid) {
                return Ok(None);
            }
            if tid.after(running) {
                return Err(JournalError::NotBegun { tid, running });
            }
            if !state.locked && state.committing.is_none() {
                break;
            }
            self.changed.wait(&mut state);
        }
        state.locked = true;
        while state.updates > 0 && state.stopped.is_none() {
            self.changed.wait(&mut state);
        }
        let stopped = state.check();
        let transaction = Arc::clone(&state.running);
        if stopped.is_err() || !transaction.is_touched() {
            state.locked = false;
            self.changed.notify_all();
            return stopped.map(|()| None);
        }
        drop(state);
        // No handle is open and none can start: the contents stand still until the running one is swapped.
        let contents = std::mem::take(&mut *transaction.contents.lock());
        Ok(Some(self.freeze(&transaction, contents)))
    }

    fn freeze(&self, transaction: &Transaction<P>, contents: Contents<P>) -> Locked<'_, P> {
        let mut images: Vec<Image> = contents
            .buffers
            .into_iter()
            .map(|(nr, buffer)| Image { nr, bytes: buffer.snapshot(), buffer })
            .collect();
        images.sort_unstable_by_key(|image| image.nr);
        let mut revoked: Vec<DiskBlock> = contents.revoked.into_iter().collect();
        revoked.sort_unstable();
        let size = self.log.as_ref().map_or(0, |log| log.size(images.len() as u64, revoked.len() as u64));
        let next = Transaction::new(transaction.tid.next(), self.buffers.next_serial());
        let mut state = self.state.lock();
        state.running = next;
        state.claimed = 0;
        state.revokes = 0;
        state.committing = Some(size);
        state.locked = false;
        drop(state);
        self.changed.notify_all();
        Locked::new(self, transaction.tid, transaction.serial, images, revoked, contents.payload)
    }

    /// Checkpoints everything and marks the log empty. Everything is committed already.
    ///
    /// # Errors
    /// [`JournalError::Uncommitted`], or why the journal has stopped.
    pub fn close(&self) -> Result<(), JournalError> {
        let mut state = self.state.lock();
        while state.stopped.is_none() && (state.locked || state.committing.is_some()) {
            self.changed.wait(&mut state);
        }
        state.check()?;
        let next = state.running.tid;
        if state.updates > 0 || state.running.is_touched() {
            return Err(JournalError::Uncommitted(next));
        }
        // Nobody starts or commits before the log is marked empty.
        state.locked = true;
        drop(state);
        let closed = self.empty_log(next);
        self.state.lock().locked = false;
        self.changed.notify_all();
        closed
    }

    fn empty_log(&self, next: Tid) -> Result<(), JournalError> {
        self.checkpoint(Goal::All)?;
        let flushed = self.buffers.device().flush();
        self.or_stop(flushed.map_err(|source| JournalError::Device { during: "flushing", source }))?;
        let Some(log) = &self.log else { return Ok(()) };
        self.or_stop(log.mark_empty(self.buffers.device().as_ref(), next))
    }
}

impl<P> Journal<P> {
    /// The metadata buffers that this journal protects.
    #[must_use]
    pub fn buffers(&self) -> &Arc<Buffers> {
        &self.buffers
    }

    /// The newest durable transaction.
    #[must_use]
    pub fn durable(&self) -> Tid {
        self.state.lock().durable
    }

    /// Whether a transaction is durable.
    #[must_use]
    pub fn is_durable(&self, tid: Tid) -> bool {
        self.durable().at_or_after(tid)
    }

    /// The running transaction, `None` while nothing in it has changed.
    #[must_use]
    pub fn running(&self) -> Option<Tid> {
        let state = self.state.lock();
        state.running.is_touched().then_some(state.running.tid)
    }

    /// How full the log is.
    #[must_use]
    pub fn log_pressure(&self) -> Pressure {
        let used = self.state.lock().used();
        Pressure { used, total: self.log.as_ref().map_or(0, |log| u64::from(log.ring())) }
    }

    /// Most credits that one handle may ask for.
    #[must_use]
    pub fn max_credits(&self) -> u32 {
        self.most_credits
    }

    /// What the journal has done since it was opened.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counters {
            commits: read(&self.counts.commits),
            logged_blocks: read(&self.counts.logged_blocks),
            home_blocks: read(&self.counts.home_blocks),
            foreground_checkpoints: read(&self.counts.foreground_checkpoints),
            overdrafts: read(&self.counts.overdrafts),
        }
    }

    /// The error number recorded in the journal's superblock, 0 for none or without a log.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.log.as_ref().map_or(0, Log::errno)
    }

    /// Clears the recorded error number, once the engine has taken note of it.
    ///
    /// # Errors
    /// The device's own; the journal has then stopped.
    pub fn clear_errno(&self) -> Result<(), JournalError> {
        self.check_stopped()?;
        let Some(log) = &self.log else { return Ok(()) };
        self.or_stop(log.clear_errno(self.buffers.device().as_ref()))
    }

    /// Stops the journal: nothing is committed or checkpointed any more. The first reason stays.
    pub fn abort(&self, reason: JournalError) {
        self.stop(reason);
    }

    /// Why the journal has stopped, if it has.
    #[must_use]
    pub fn aborted(&self) -> Option<JournalError> {
        self.state.lock().stopped.clone()
    }

    pub(crate) fn count(&self, counter: impl FnOnce(&Counts) -> &AtomicU64) {
        self.count_by(counter, 1);
    }

    pub(crate) fn count_by(&self, counter: impl FnOnce(&Counts) -> &AtomicU64, by: u64) {
        counter(&self.counts).fetch_add(by, Ordering::Relaxed);
    }

    pub(crate) fn check_stopped(&self) -> Result<(), JournalError> {
        if self.stopped.load(Ordering::Acquire) { self.state.lock().check() } else { Ok(()) }
    }

    /// Stops the journal and returns the first reason it stopped for.
    pub(crate) fn stop(&self, reason: JournalError) -> JournalError {
        let mut state = self.state.lock();
        if let Some(first) = &state.stopped {
            return first.clone();
        }
        tracing::error!(error = %reason, "the journal has stopped");
        state.stopped = Some(reason.clone());
        self.stopped.store(true, Ordering::Release);
        drop(state);
        self.changed.notify_all();
        if let Some(log) = &self.log {
            // Best effort: the device may be what failed. Error numbers are stored negative.
            let _ = log.record_errno(self.buffers.device().as_ref(), -reason.errno());
        }
        reason
    }

    /// Stops the journal if `result` is an error.
    pub(crate) fn or_stop<T>(&self, result: Result<T, JournalError>) -> Result<T, JournalError> {
        result.map_err(|error| self.stop(error))
    }

    /// Whether a block may be journaled at all.
    pub(crate) fn admit_block(&self, nr: DiskBlock) -> Result<(), JournalError> {
        let Some(log) = &self.log else { return Ok(()) };
        if nr.0 >= log.volume_blocks {
            return Err(JournalError::OutsideVolume { nr, volume_blocks: log.volume_blocks });
        }
        if log.contains(nr) { Err(JournalError::InsideJournal(nr)) } else { Ok(()) }
    }

    /// Log blocks of the running transaction with `credits` more.
    fn size_with(&self, state: &State<P>, credits: u32) -> u64 {
        let claimed = u64::from(state.claimed) + u64::from(credits);
        self.log.as_ref().map_or(claimed, |log| log.size(claimed, u64::from(state.revokes)))
    }

    /// Log blocks that may be written over. One stays free, so that head and tail never meet in a full log.
    pub(crate) fn free(&self, state: &State<P>) -> u64 {
        self.log.as_ref().map_or(u64::MAX, |log| u64::from(log.ring()).saturating_sub(state.used() + 1))
    }

    pub(crate) fn make_room(&self, blocks: u64) -> Result<(), JournalError> {
        self.count(|counts| &counts.foreground_checkpoints);
        let quarter = self.log.as_ref().map_or(0, |log| u64::from(log.ring() / 4));
        self.checkpoint(Goal::Free(blocks.max(quarter)))
    }

    pub(crate) fn claim_more(&self, credits: u32) -> bool {
        let mut state = self.state.lock();
        let size = self.size_with(&state, credits);
        let granted = state.stopped.is_none()
            && size <= self.limit
            && size + state.committing.unwrap_or(0) <= self.free(&state);
        if granted {
            state.claimed += credits;
        }
        granted
    }

    pub(crate) fn end_handle(&self, unused: u32, revokes: u32) {
        let mut state = self.state.lock();
        state.claimed = state.claimed.saturating_sub(unused);
        state.revokes += revokes;
        state.updates -= 1;
        if state.updates == 0 && state.locked {
            drop(state);
            self.changed.notify_all();
        }
    }

    pub(crate) fn device_failed(during: &'static str) -> impl FnOnce(DeviceError) -> JournalError {
        move |source| JournalError::Device { during, source }
    }
}

impl<P> std::fmt::Debug for Journal<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("logged", &self.log.is_some()).finish_non_exhaustive()
    }
}

//! Writing back in the background.
//!
//! One thread writes files whose pages have been dirty for long, or all of them when too much is dirty,
//! commits what has been running for a commit interval, and checkpoints a journal that fills up. Writers
//! that dirty pages faster than the device takes them write their own file back.

use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::Ext4;
use crate::core::Result;
use crate::inode::Inode;
use onggi_jbd2::Goal;

/// Of the page budget: start writing back, and make writers wait.
const START_DIVISOR: u64 = 8;
const STALL_DIVISOR: u64 = 3;

pub(crate) struct Flusher {
    dirty: Mutex<Vec<Arc<Inode>>>,
    /// Held from taking the list to having written it.
    round: Mutex<()>,
    start_bytes: u64,
    stall_bytes: u64,
    signal: Mutex<Signal>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Signal {
    stop: bool,
    hurry: bool,
}

impl Flusher {
    pub(crate) fn new(page_budget: u64) -> Self {
        Self {
            dirty: Mutex::new(Vec::new()),
            round: Mutex::new(()),
            start_bytes: page_budget / START_DIVISOR,
            stall_bytes: page_budget / STALL_DIVISOR,
            signal: Mutex::new(Signal::default()),
            wake: Condvar::new(),
            thread: Mutex::new(None),
        }
    }

    fn hurry(&self) {
        self.signal.lock().hurry = true;
        self.wake.notify_one();
    }
}

impl Ext4 {
    /// Puts an inode with something newer in memory on the flusher's list.
    pub(crate) fn queue(&self, inode: &Arc<Inode>) {
        if !inode.queued.swap(true, std::sync::atomic::Ordering::AcqRel) {
            self.flusher.dirty.lock().push(Arc::clone(inode));
        }
    }

    /// Called by writers after they let go of the file: slows down those that outrun the device.
    pub(crate) fn balance(&self, inode: &Arc<Inode>) -> Result<()> {
        let dirty = self.pages.dirty_bytes();
        if dirty > self.flusher.stall_bytes {
            self.write_back(inode)?;
            if self.pages.dirty_bytes() > self.flusher.stall_bytes {
                self.write_all_dirty()?;
            }
        } else if dirty > self.flusher.start_bytes {
            self.flusher.hurry();
        }
        Ok(())
    }

    /// Writes back every file on the list, pages and attributes. The first error comes back after all
    /// have been tried.
    pub(crate) fn write_all_dirty(&self) -> Result<()> {
        // Whoever comes while a round is under way must find its files written when he is through.
        let _round = self.flusher.round.lock();
        let list = std::mem::take(&mut *self.flusher.dirty.lock());
        let mut first = Ok(());
        for inode in list {
            inode.queued.store(false, std::sync::atomic::Ordering::Release);
            let result = self.write_back(&inode).and_then(|()| self.save_attributes(&inode));
            if first.is_ok() {
                first = result;
            }
        }
        first
    }

    /// Everything that is newer in memory reaches the journal or its place.
    pub(crate) fn write_everything(&self) -> Result<()> {
        self.write_all_dirty()?;
        self.commit_all()
    }

    pub(crate) fn start_flusher(self: &Arc<Self>) {
        let engine = Arc::downgrade(self);
        let interval = self.options.commit_interval;
        let thread = std::thread::Builder::new()
            .name("onggi-flusher".into())
            .spawn(move || run(&engine, interval))
            .expect("the system gives a thread");
        *self.flusher.thread.lock() = Some(thread);
    }

    pub(crate) fn stop_flusher(&self) {
        self.flusher.signal.lock().stop = true;
        self.flusher.wake.notify_all();
        let thread = self.flusher.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    fn background_round(&self, timed: bool) -> Result<()> {
        if timed || self.pages.dirty_bytes() > self.flusher.start_bytes {
            self.write_all_dirty()?;
        }
        if timed {
            self.commit_all()?;
        }
        let pressure = self.volume.journal.log_pressure();
        if pressure.used > pressure.total / 2 {
            self.volume.journal.checkpoint(Goal::Free(pressure.total / 4 * 3))?;
        }
        Ok(())
    }
}

fn run(engine: &Weak<Ext4>, interval: Duration) {
    // However often writers hurry it on, the whole round comes once per interval.
    let mut due = Instant::now() + interval;
    loop {
        let Some(engine) = engine.upgrade() else { return };
        let timed = {
            let mut signal = engine.flusher.signal.lock();
            if !signal.stop && !signal.hurry {
                engine.flusher.wake.wait_until(&mut signal, due);
            }
            if signal.stop {
                return;
            }
            signal.hurry = false;
            Instant::now() >= due
        };
        if timed {
            due = Instant::now() + interval;
        }
        if let Err(error) = engine.background_round(timed) {
            tracing::error!(%error, "background writeback");
            if engine.volume.journal.aborted().is_some() {
                return;
            }
        }
    }
}

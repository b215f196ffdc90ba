//! Writing a frozen transaction.

use onggi_disk_format::{DiskBlock, Tid};

use crate::error::JournalError;
use crate::home::write_blocks;
use crate::journal::Journal;
use crate::log::Log;
use crate::transaction::{Image, Logged, Pending};

/// When a transaction commits, as its commit block says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitTime {
    /// Seconds since 1970.
    pub sec: u64,
    /// Nanoseconds of that second.
    pub nsec: u32,
}

/// A durable transaction.
#[derive(Debug)]
pub struct Committed<P> {
    /// Its number.
    pub tid: Tid,
    /// What the engine put into it.
    pub payload: P,
}

/// A frozen transaction in the hands of its leader, who starts no handle and locks no other transaction
/// before writing it. Dropped unwritten it stops the journal.
#[must_use = "a locked transaction must be written"]
pub struct Locked<'j, P> {
    journal: &'j Journal<P>,
    tid: Tid,
    serial: u64,
    /// Sorted by block.
    images: Vec<Image>,
    revoked: Vec<DiskBlock>,
    /// `None` once written.
    payload: Option<P>,
}

impl<'j, P> Locked<'j, P> {
    pub(crate) fn new(
        journal: &'j Journal<P>,
        tid: Tid,
        serial: u64,
        images: Vec<Image>,
        revoked: Vec<DiskBlock>,
        payload: P,
    ) -> Self {
        Self { journal, tid, serial, images, revoked, payload: Some(payload) }
    }

    /// The transaction's number.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// The engine's payload, for instance to see which file data must be on the device first.
    pub fn payload(&mut self) -> &mut P {
        self.payload.as_mut().expect("taken only by write, which consumes the value")
    }

    /// Logs the transaction. When this returns it is durable, and so is every write that completed
    /// before the call; blocks that it revoked are no longer written home by any checkpoint.
    ///
    /// # Errors
    /// A failed write or flush, which stops the journal.
    pub fn write(mut self, now: CommitTime) -> Result<Committed<P>, JournalError> {
        let journal = self.journal;
        let written = match &journal.log {
            Some(log) => self.write_log(log, now),
            None => self.write_home(),
        };
        let payload = self.payload.take();
        let blocks = match written {
            Ok(blocks) => blocks,
            Err(error) => {
                let first = journal.stop(error);
                journal.state.lock().committing = None;
                journal.changed.notify_all();
                return Err(first);
            }
        };
        self.publish(blocks);
        let payload = payload.expect("taken only here");
        Ok(Committed { tid: self.tid, payload })
    }

    /// Returns the number of log blocks written.
    fn write_log(&self, log: &Log, now: CommitTime) -> Result<u64, JournalError> {
        let journal = self.journal;
        let device = journal.buffers().device().as_ref();
        let blocks = log.encode(self.tid, &self.images, &self.revoked)?;
        let needed = blocks.len() as u64 + 1;
        let head = self.room_at(log, needed)?;
        // The superblock must find this transaction before anybody is told that it is durable. Written
        // here it is durable before the commit block even exists, and until then it points at a place
        // that holds no transaction of this number: to recovery the log is as empty as before.
        log.begin(device, head, self.tid)?;
        log.write(device, head, &blocks)?;
        // One flush covers the log and the file data that the engine wrote before. Only then may the
        // commit block exist: without checksums nothing else tells a torn transaction from a whole one.
        device.flush().map_err(Journal::<P>::device_failed("flushing the log"))?;
        log.write_commit(device, head + needed - 1, self.tid, now)?;
        Ok(needed)
    }

    /// The log's head, with room for `needed` blocks behind it. Handles reserve room when they start; only
    /// revoke records can outgrow it.
    fn room_at(&self, log: &Log, needed: u64) -> Result<u64, JournalError> {
        if needed >= u64::from(log.ring()) {
            return Err(JournalError::Overgrown { tid: self.tid, blocks: needed, ring: log.ring() });
        }
        loop {
            let state = self.journal.state.lock();
            state.check()?;
            if self.journal.free(&state) >= needed {
                return Ok(state.head);
            }
            drop(state);
            self.journal.make_room(needed)?;
        }
    }

    fn write_home(&self) -> Result<u64, JournalError> {
        let buffers = self.journal.buffers();
        let blocks: Vec<(DiskBlock, &[u8])> =
            self.images.iter().map(|image| (image.nr, &image.bytes[..])).collect();
        write_blocks(buffers.device().as_ref(), buffers.block_size(), &blocks)
            .map_err(Journal::<P>::device_failed("writing metadata home"))?;
        buffers.device().flush().map_err(Journal::<P>::device_failed("flushing metadata"))?;
        self.journal.count_by(|counts| &counts.home_blocks, blocks.len() as u64);
        Ok(0)
    }

    /// Hands the durable transaction to the checkpointer and wakes who waits for it.
    fn publish(&mut self, log_blocks: u64) {
        let journal = self.journal;
        journal.count(|counts| &counts.commits);
        journal.count_by(|counts| &counts.logged_blocks, log_blocks);
        let mut state = journal.state.lock();
        if journal.log.is_some() {
            for nr in &self.revoked {
                state.pending.remove(nr);
            }
            let blocks = self.images.iter().map(|image| image.nr).collect();
            let start = state.head;
            state.logged.push_back(Logged { tid: self.tid, serial: self.serial, start, blocks });
            for image in self.images.drain(..) {
                state.pending.insert(image.nr, Pending { serial: self.serial, image });
            }
            state.head += log_blocks;
        }
        state.durable = self.tid;
        state.committing = None;
        journal.changed.notify_all();
        // The engine gives freed blocks to new owners as soon as this returns.
        while self.revoked.iter().any(|nr| state.in_flight.contains(nr)) {
            journal.changed.wait(&mut state);
        }
    }
}

impl<P> Drop for Locked<'_, P> {
    fn drop(&mut self) {
        if self.payload.is_some() {
            self.journal.stop(JournalError::Abandoned(self.tid));
            self.journal.state.lock().committing = None;
            self.journal.changed.notify_all();
        }
    }
}

impl<P> std::fmt::Debug for Locked<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Locked({}, {} images, {} revoked)", self.tid, self.images.len(), self.revoked.len())
    }
}

//! A handle: one operation's share of the running transaction.

use std::sync::Arc;

use onggi_disk_format::{DiskBlock, Tid};

use crate::buffer::Buffer;
use crate::error::JournalError;
use crate::journal::Journal;
use crate::transaction::Transaction;

/// One operation's share of the running transaction. All its changes commit together; the transaction
/// cannot be locked before the handle ends.
#[must_use = "a handle that ends at once protects nothing"]
pub struct Handle<'j, P> {
    journal: &'j Journal<P>,
    transaction: Arc<Transaction<P>>,
    /// Buffers that joined the transaction through this handle.
    joined: Vec<Arc<Buffer>>,
    credits: u32,
    revokes: u32,
}

impl<'j, P> Handle<'j, P> {
    pub(crate) fn new(journal: &'j Journal<P>, transaction: Arc<Transaction<P>>, credits: u32) -> Self {
        Self { journal, transaction, joined: Vec::new(), credits, revokes: 0 }
    }

    /// The transaction that the handle's changes commit with.
    #[must_use]
    pub fn tid(&self) -> Tid {
        self.transaction.tid
    }

    /// Changes a block within the transaction. The first change of a block in a transaction costs a
    /// credit, later ones nothing. A handle without credits is given one more where there is room.
    ///
    /// # Errors
    /// [`JournalError::NoCredits`], [`JournalError::FreedBuffer`], [`JournalError::OutsideVolume`],
    /// [`JournalError::InsideJournal`], or why the journal has stopped; nothing is changed then.
    pub fn modify<R>(
        &mut self,
        buffer: &Arc<Buffer>,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, JournalError> {
        self.journal.check_stopped()?;
        if buffer.is_dead() {
            return Err(JournalError::FreedBuffer(buffer.nr()));
        }
        let serial = self.transaction.serial;
        if !buffer.has_joined(serial) {
            self.journal.admit_block(buffer.nr())?;
            if self.credits == 0 && !self.overdraw() {
                return Err(JournalError::NoCredits { nr: buffer.nr(), tid: self.tid() });
            }
        }
        let (first, result) = buffer.change(serial, change);
        if first {
            // Another handle may have joined it since the look above; then the credit is kept.
            self.credits = self.credits.saturating_sub(1);
            self.joined.push(Arc::clone(buffer));
            self.transaction.touch();
        }
        Ok(result)
    }

    /// The block, which held metadata or journaled data, is freed in this transaction: its change in
    /// this transaction is dropped, no older image of it is replayed or checkpointed once the transaction
    /// is durable, and it leaves the cache. Changed again in this transaction through a fresh buffer, it is
    /// not revoked after all.
    pub fn revoke(&mut self, nr: DiskBlock) {
        let mut contents = self.transaction.contents.lock();
        self.journal.buffers().forget(nr);
        contents.buffers.remove(&nr);
        if contents.revoked.insert(nr) {
            self.revokes += 1;
        }
        self.transaction.touch();
    }

    /// The engine's payload of the transaction; `f` runs under the transaction's lock.
    pub fn payload<R>(&self, f: impl FnOnce(&mut P) -> R) -> R {
        self.transaction.touch();
        f(&mut self.transaction.contents.lock().payload)
    }

    /// Blocks that the handle may still bring into the transaction.
    #[must_use]
    pub fn credits_left(&self) -> u32 {
        self.credits
    }

    /// Asks for more credits; `false` when the transaction has no room: end this handle at a consistent
    /// point and start another.
    #[must_use]
    pub fn extend(&mut self, credits: u32) -> bool {
        let granted = self.journal.claim_more(credits);
        if granted {
            self.credits += credits;
        }
        granted
    }

    /// Ends the handle, as dropping it does.
    pub fn stop(self) {}

    fn overdraw(&mut self) -> bool {
        self.journal.count(|counters| &counters.overdrafts);
        self.extend(1)
    }
}

impl<P> Drop for Handle<'_, P> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The operation stands half done; committed, it would be so for good.
            self.journal.abort(JournalError::Stopped("an operation panicked".into()));
        }
        self.transaction.merge(&mut self.joined);
        self.journal.end_handle(self.credits, self.revokes);
    }
}

impl<P> std::fmt::Debug for Handle<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Handle({}, {} credits left)", self.transaction.tid, self.credits)
    }
}

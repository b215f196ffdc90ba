//! Writing durable images home, so that their log blocks can be used again.

use onggi_disk_format::DiskBlock;

use crate::error::JournalError;
use crate::home::write_blocks;
use crate::journal::Journal;
use crate::log::Log;
use crate::transaction::{Image, State};

/// Blocks in one batch of writes.
const BATCH: usize = 4096;

/// How far a checkpoint goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Everything that is durable.
    All,
    /// Until this many log blocks are free, or as many as there can be.
    Free(u64),
}

impl<P> Journal<P> {
    /// Writes durable images home, oldest transaction first, and moves the log's tail behind them. Images
    /// of a transaction that is not durable stay in memory. One thread at a time; others wait their turn.
    ///
    /// # Errors
    /// A failed write or flush, which stops the journal.
    pub fn checkpoint(&self, goal: Goal) -> Result<(), JournalError> {
        let Some(log) = &self.log else { return self.check_stopped() };
        let _turn = self.checkpointing.lock();
        let (images, transactions) = {
            let mut state = self.state.lock();
            state.check()?;
            let (images, transactions) = choose(&state, goal, u64::from(log.ring()));
            state.in_flight = images.iter().map(|image| image.nr).collect();
            (images, transactions)
        };
        if transactions == 0 {
            return Ok(());
        }
        let written = self.write_images(&images);
        self.state.lock().in_flight.clear();
        self.changed.notify_all();
        let outcome = written.and_then(|()| self.release_log(log, transactions));
        self.or_stop(outcome)?;
        self.count_by(|counts| &counts.home_blocks, images.len() as u64);
        Ok(())
    }

    fn write_images(&self, images: &[Image]) -> Result<(), JournalError> {
        let buffers = self.buffers();
        for batch in images.chunks(BATCH) {
            let blocks: Vec<(DiskBlock, &[u8])> =
                batch.iter().map(|image| (image.nr, &image.bytes[..])).collect();
            write_blocks(buffers.device().as_ref(), buffers.block_size(), &blocks)
                .map_err(Self::device_failed("checkpointing"))?;
        }
        Ok(())
    }

    /// Makes the written images durable, then gives up the log of the oldest `transactions`. Only the
    /// checkpointer takes from the list's front, so these are the ones chosen before.
    fn release_log(&self, log: &Log, transactions: usize) -> Result<(), JournalError> {
        let device = self.buffers().device().as_ref();
        device.flush().map_err(Self::device_failed("flushing a checkpoint"))?;
        let (tail, tid) = {
            let mut state = self.state.lock();
            let State { logged, pending, head, durable, .. } = &mut *state;
            for transaction in logged.drain(..transactions) {
                for nr in transaction.blocks {
                    if pending.get(&nr).is_some_and(|pending| pending.serial == transaction.serial) {
                        pending.remove(&nr);
                    }
                }
            }
            logged.front().map_or((*head, durable.next()), |oldest| (oldest.start, oldest.tid))
        };
        log.move_tail(device, tail, tid)?;
        self.state.lock().tail = tail;
        self.changed.notify_all();
        Ok(())
    }
}

/// The images to write for a goal, sorted by block, and how many of the oldest transactions they free.
fn choose<P>(state: &State<P>, goal: Goal, ring: u64) -> (Vec<Image>, usize) {
    // The tail must get this far.
    let wanted = match goal {
        Goal::All => state.head,
        Goal::Free(blocks) => (state.head + blocks.saturating_add(1)).saturating_sub(ring).min(state.head),
    };
    let chosen = state.logged.iter().take_while(|transaction| transaction.start < wanted);
    let mut images: Vec<Image> = Vec::new();
    let mut transactions = 0;
    for transaction in chosen {
        transactions += 1;
        let own = transaction.blocks.iter().filter_map(|nr| state.pending.get(nr));
        images.extend(
            own.filter(|pending| pending.serial == transaction.serial).map(|pending| pending.image.clone()),
        );
    }
    images.sort_unstable_by_key(|image| image.nr);
    (images, transactions)
}

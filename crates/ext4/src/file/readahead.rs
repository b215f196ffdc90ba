//! Reading ahead of sequential readers, so that they copy while the device works.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::Ext4;
use crate::inode::Inode;

/// Requests that wait; more are dropped, the reader then reads for himself.
const MOST_WAITING: usize = 64;

/// The thread that fills pages before they are asked for.
#[derive(Default)]
pub(crate) struct ReadAhead {
    queue: Mutex<Queue>,
    wake: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    open: bool,
    waiting: VecDeque<Weak<Inode>>,
}

impl Ext4 {
    /// Has the `window` pages from `from` on filled, when the reader has used half of those before.
    pub(super) fn prefetch(&self, inode: &Arc<Inode>, from: u64, window: u64, size: u64) {
        let last = size.div_ceil(super::PAGE);
        let range = from..(from + window).min(last);
        let middle = from + window / 2;
        if window == 0 || range.is_empty() || inode.pages.contains(middle.min(range.end - 1)) {
            return;
        }
        let mut planned = inode.prefetch.range.lock();
        if planned.is_some() {
            return;
        }
        let mut queue = self.read_ahead.queue.lock();
        if queue.open && queue.waiting.len() < MOST_WAITING {
            *planned = Some(range);
            queue.waiting.push_back(Arc::downgrade(inode));
            self.read_ahead.wake.notify_one();
        }
    }

    /// Waits for a fill under way that covers `page`; false where there is none to wait for.
    pub(super) fn wait_for_prefetch(&self, inode: &Inode, page: u64) -> bool {
        {
            let mut planned = inode.prefetch.range.lock();
            if !planned.as_ref().is_some_and(|range| range.contains(&page)) {
                return false;
            }
            if inode.prefetch.under_way.try_lock().is_some() {
                // Not begun yet: the reader is there first.
                *planned = None;
                return false;
            }
        }
        drop(inode.prefetch.under_way.lock());
        inode.pages.contains(page)
    }

    pub(crate) fn start_read_ahead(self: &Arc<Self>) {
        self.read_ahead.queue.lock().open = true;
        let engine = Arc::downgrade(self);
        let thread = std::thread::Builder::new()
            .name("onggi-readahead".into())
            .spawn(move || run(&engine))
            .expect("the system gives a thread");
        *self.read_ahead.thread.lock() = Some(thread);
    }

    pub(crate) fn stop_read_ahead(&self) {
        self.read_ahead.queue.lock().open = false;
        self.read_ahead.wake.notify_all();
        let thread = self.read_ahead.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }

    /// The next inode to read ahead in; `None` when reading ahead has ended, or for a while nobody asked.
    fn next_prefetch(&self) -> Next {
        let mut queue = self.read_ahead.queue.lock();
        loop {
            if !queue.open {
                return Next::Stop;
            }
            if let Some(inode) = queue.waiting.pop_front() {
                return Next::Fill(inode);
            }
            if self.read_ahead.wake.wait_for(&mut queue, std::time::Duration::from_secs(1)).timed_out() {
                return Next::Idle;
            }
        }
    }

    fn fill_ahead(&self, inode: &Inode) {
        let _under_way = inode.prefetch.under_way.lock();
        let range = inode.prefetch.range.lock().clone();
        // A writer may wait for readers that wait for us: do not queue behind it.
        if let (Some(range), Some(_ops)) = (range, inode.ops.try_read()) {
            let size = inode.state.read().size;
            let range = range.start..range.end.min(size.div_ceil(super::PAGE));
            if let Some(missing) = inode.pages.first_missing(range) {
                // The reader meets the error himself when he gets there.
                let _ = self.fill(inode, missing, size);
            }
        }
        *inode.prefetch.range.lock() = None;
    }
}

enum Next {
    Fill(Weak<Inode>),
    Idle,
    Stop,
}

fn run(engine: &Weak<Ext4>) {
    // Between rounds the volume is not held: who drops it without unmounting ends this thread too.
    while let Some(engine) = engine.upgrade() {
        match engine.next_prefetch() {
            Next::Fill(inode) => {
                if let Some(inode) = inode.upgrade() {
                    engine.fill_ahead(&inode);
                }
            }
            Next::Idle => {}
            Next::Stop => return,
        }
    }
}

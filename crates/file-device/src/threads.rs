//! Batches without io_uring: the requests of a batch on a small pool of threads.

use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use onggi_block_device::{DeviceError, Read, Write};
use parking_lot::Mutex;
use rayon_core::{ThreadPool, ThreadPoolBuilder};

use crate::vectored;

/// Most threads in a pool.
const MOST_THREADS: usize = 16;

/// A pool that starts with the first batch of more than one request. Where no thread can be started
/// the requests go one after the other.
pub(crate) struct Threads {
    count: usize,
    pool: OnceLock<Option<ThreadPool>>,
}

impl Threads {
    pub(crate) fn new(queue_depth: u32) -> Self {
        Self { count: (queue_depth as usize).clamp(1, MOST_THREADS), pool: OnceLock::new() }
    }

    fn pool(&self) -> Option<&ThreadPool> {
        self.pool
            .get_or_init(|| {
                let builder = ThreadPoolBuilder::new().num_threads(self.count);
                builder.thread_name(|i| format!("onggi-io-{i}")).build().ok()
            })
            .as_ref()
    }

    pub(crate) fn read(&self, file: BorrowedFd<'_>, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        let pool = if batch.len() > 1 { self.pool() } else { None };
        let Some(pool) = pool else {
            return batch.iter_mut().try_for_each(|request| vectored::read(file, request, 0));
        };
        let first_error = Mutex::new(None);
        let keep = |result: Result<(), DeviceError>| {
            if let Err(error) = result {
                first_error.lock().get_or_insert(error);
            }
        };
        pool.in_place_scope(|scope| {
            if let Some((own, others)) = batch.split_first_mut() {
                for request in others {
                    scope.spawn(|_| keep(vectored::read(file, request, 0)));
                }
                keep(vectored::read(file, own, 0));
            }
        });
        first_error.into_inner().map_or(Ok(()), Err)
    }

    pub(crate) fn write(&self, file: BorrowedFd<'_>, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        let pool = if batch.len() > 1 { self.pool() } else { None };
        let Some(pool) = pool else {
            return batch.iter().try_for_each(|request| vectored::write(file, request, 0));
        };
        let first_error = Mutex::new(None);
        let keep = |result: Result<(), DeviceError>| {
            if let Err(error) = result {
                first_error.lock().get_or_insert(error);
            }
        };
        pool.in_place_scope(|scope| {
            if let Some((own, others)) = batch.split_first() {
                for request in others {
                    scope.spawn(|_| keep(vectored::write(file, request, 0)));
                }
                keep(vectored::write(file, own, 0));
            }
        });
        first_error.into_inner().map_or(Ok(()), Err)
    }
}

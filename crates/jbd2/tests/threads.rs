//! Many threads over one journal: every power cut leaves one transaction prefix for all of them.

mod rig;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use onggi_block_device::{Attributes, BlockDevice, ByteRange, DeviceError, MemoryDevice, Read, Write};
use onggi_disk_format::{DiskBlock, Tid};
use onggi_fault_device::{Bounds, Explorer, Prng, Recorder, Snapshot, crash_points, marks, overlaps};
use onggi_jbd2::{Goal, Handle, Journal, StartError};
use rig::model::{State, Use, matching, pattern};
use rig::{NOW, Payload, Rig};

const THREADS: u64 = 4;
/// Blocks of a thread: the last of them goes back and forth between metadata and data.
const OWN: u64 = 4;

/// What one thread did in one handle.
struct Operation {
    tid: Tid,
    changes: Vec<(u64, Use)>,
}

struct Shared {
    device: Arc<Recorder<Snapshot>>,
    journal: Journal<Payload>,
    /// Freed blocks whose transaction's leader has returned from writing it.
    released: Mutex<HashSet<DiskBlock>>,
}

impl Shared {
    fn commit(&self, tid: Tid) {
        while let Some(locked) = self.journal.lock(tid).unwrap() {
            let done = locked.write(NOW).unwrap();
            self.released.lock().unwrap().extend(done.payload);
        }
    }

    fn start(&self, credits: u32) -> Handle<'_, Payload> {
        loop {
            match self.journal.start(credits) {
                Ok(handle) => return handle,
                Err(StartError::Full(tid)) => self.commit(tid),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// One thread's life: rewrites its blocks together, frees and reuses the last one, syncs now and then.
fn work(shared: &Shared, rig: &Rig, thread: u64, seed: u64) -> Vec<Operation> {
    let mut prng = Prng::new(seed * 100 + thread);
    let mut done = Vec::new();
    let first = thread * OWN;
    let last = first + OWN - 1;
    let mut last_use = Use::Free;
    for _ in 0..14 {
        let mut handle = shared.start(OWN as u32);
        let mut changes = Vec::new();
        for nr in first..last {
            let bytes = pattern(rig, &mut prng);
            let buffer = shared.journal.buffers().read(DiskBlock(nr)).unwrap();
            handle.modify(&buffer, |block| block.copy_from_slice(&bytes)).unwrap();
            changes.push((nr, Use::Metadata(bytes)));
        }
        last_use = match last_use {
            Use::Free if shared.released.lock().unwrap().remove(&DiskBlock(last)) => {
                let bytes = pattern(rig, &mut prng);
                if prng.chance(1, 2) {
                    shared.device.write_at(rig.byte(DiskBlock(last)), &bytes).unwrap();
                    Use::Data(bytes)
                } else {
                    let buffer = shared.journal.buffers().fresh(DiskBlock(last));
                    handle.modify(&buffer, |block| block.copy_from_slice(&bytes)).unwrap();
                    Use::Metadata(bytes)
                }
            }
            Use::Free => Use::Free,
            used => {
                if matches!(used, Use::Metadata(_)) {
                    handle.revoke(DiskBlock(last));
                }
                handle.payload(|freed| freed.push(DiskBlock(last)));
                Use::Free
            }
        };
        changes.push((last, last_use.clone()));
        let tid = handle.tid();
        handle.stop();
        done.push(Operation { tid, changes });
        if prng.chance(1, 3) {
            shared.commit(tid);
            shared.device.mark(u64::from(tid.0));
        }
    }
    done
}

/// The state after each transaction; what no operation touched yet is free.
fn history(mut operations: Vec<Operation>) -> Vec<State> {
    operations.sort_by_key(|operation| operation.tid.0);
    let newest = operations.last().map_or(0, |operation| operation.tid.0);
    let mut states = vec![State::new()];
    let mut rest = operations.into_iter().peekable();
    for tid in 1..=newest {
        let mut state = states.last().unwrap().clone();
        while let Some(operation) = rest.next_if(|operation| operation.tid.0 == tid) {
            state.extend(operation.changes);
        }
        states.push(state);
    }
    states
}

#[test]
fn threads_and_a_checkpointer_survive_every_power_cut() {
    let rig = Rig { journal: 97, ..Rig::default() };
    let mut tried = 0;
    for seed in 0..12 {
        let base: Arc<dyn BlockDevice> = Arc::new(rig.device());
        let device = Arc::new(Recorder::new(Snapshot::over(Arc::clone(&base))));
        let journal = rig.open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let free = (0..THREADS).map(|thread| DiskBlock(thread * OWN + OWN - 1)).collect();
        let shared = Shared { device, journal, released: Mutex::new(free) };
        let ended = AtomicBool::new(false);
        let operations: Vec<Operation> = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    shared.journal.checkpoint(Goal::All).unwrap();
                    std::thread::sleep(Duration::from_micros(300));
                }
            });
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let (shared, rig) = (&shared, &rig);
                    scope.spawn(move || work(shared, rig, thread, seed))
                })
                .collect();
            let operations = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
            ended.store(true, Ordering::Relaxed);
            operations
        });
        let states = history(operations);
        let log = shared.device.log();
        assert_eq!(overlaps(&log), [], "seed {seed}");
        let mut explorer = Explorer::new(base, &log[..]);
        for position in crash_points(&log) {
            let acknowledged = marks(&log, position).max().unwrap_or(0) as usize;
            let point = explorer.at(position).unwrap();
            for plan in point.plans(Bounds { exhaustive: 4, random: 8, seed }) {
                tried += 1;
                let image = point.image(&plan).unwrap();
                rig.recover(&image).unwrap();
                assert!(
                    matching(&rig, &image, &states, acknowledged).is_some(),
                    "seed {seed}, position {position}, {plan:?}, acknowledged {acknowledged}"
                );
            }
        }
    }
    println!("{tried} power cuts");
    assert!(tried > 1000);
}

/// Holds writes to one block back until it is opened.
struct Gate {
    inner: MemoryDevice,
    block: ByteRange,
    /// Whether a write waits, and whether it may go on.
    state: Mutex<(bool, bool)>,
    moved: Condvar,
}

impl BlockDevice for Gate {
    fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }
    fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        self.inner.read(batch)
    }
    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        let ByteRange { offset, len } = self.block;
        if batch.iter().any(|write| write.offset < offset + len && offset < write.offset + write.bytes()) {
            let mut state = self.state.lock().unwrap();
            state.0 = true;
            self.moved.notify_all();
            while !state.1 {
                state = self.moved.wait(state).unwrap();
            }
        }
        self.inner.write(batch)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        self.inner.discard(ranges)
    }
    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.inner.write_zeroes(range, may_unmap)
    }
}

#[test]
fn a_freed_block_is_handed_back_only_after_its_checkpoint_write_has_ended() {
    let rig = Rig::default();
    let block = ByteRange { offset: rig.byte(DiskBlock(1)), len: 1024 };
    let gate = Arc::new(Gate { inner: rig.device(), block, state: Mutex::default(), moved: Condvar::new() });
    let journal = rig.open(Arc::clone(&gate) as Arc<dyn BlockDevice>);
    rig::fill(&journal, &[(1, 1)]);
    let mut handle = journal.start(1).unwrap();
    handle.revoke(DiskBlock(1));
    let tid = handle.tid();
    handle.stop();
    std::thread::scope(|scope| {
        let checkpoint = scope.spawn(|| journal.checkpoint(Goal::All));
        let mut state = gate.state.lock().unwrap();
        while !state.0 {
            state = gate.moved.wait(state).unwrap();
        }
        drop(state);
        let write = scope.spawn(|| journal.lock(tid).unwrap().unwrap().write(NOW).map(|done| done.tid));
        while !journal.is_durable(tid) {
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_millis(50));
        let early = write.is_finished();
        gate.state.lock().unwrap().1 = true;
        gate.moved.notify_all();
        assert!(!early, "the block was handed back while an old image of it was on its way home");
        assert_eq!(write.join().unwrap(), Ok(tid));
        checkpoint.join().unwrap().unwrap();
    });
    // The tail may move on over both; a second checkpoint writes nothing home.
    let before = journal.counters().home_blocks;
    journal.checkpoint(Goal::All).unwrap();
    assert_eq!(journal.counters().home_blocks, before);
}

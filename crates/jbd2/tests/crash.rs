//! Every legal power cut of random histories, recovered and compared with a model; power cuts during
//! recovery; and new histories on top of recovered volumes.

mod rig;

use std::collections::HashSet;
use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_disk_format::DiskBlock;
use onggi_fault_device::{Bounds, Event, Explorer, Prng, Recorder, Snapshot, crash_points, marks, overlaps};
use onggi_jbd2::{Goal, Journal, StartError};
use rig::model::{State, Use, matching, pattern};
use rig::{NOW, Payload, Rig};

/// Toy blocks in all three gaps of the rig.
fn toy_blocks(rig: &Rig) -> Vec<u64> {
    let third = 2 * Rig::GAP + u64::from(rig.journal);
    (0..8)
        .chain(Rig::GAP + u64::from(rig.journal / 3)..Rig::GAP + u64::from(rig.journal / 3) + 6)
        .chain(third..third + 4)
        .collect()
}

/// The toy engine over one life of the volume.
struct Engine<'a> {
    rig: &'a Rig,
    device: Arc<Recorder<Arc<dyn BlockDevice>>>,
    journal: Arc<Journal<Payload>>,
    /// The state as of the running transaction, and after each locked one; index 0 is the start.
    now: State,
    history: Vec<State>,
    /// Blocks freed by a durable transaction (or never used): data may go there.
    reusable: Vec<u64>,
    /// Blocks given out in the running transaction: freed in it again, they are as free as before.
    born: HashSet<u64>,
}

impl<'a> Engine<'a> {
    fn new(rig: &'a Rig, base: Arc<dyn BlockDevice>, state: State) -> Self {
        let device = Arc::new(Recorder::new(base));
        let journal = Arc::new(rig.open(Arc::clone(&device) as Arc<dyn BlockDevice>));
        let free = state.iter().filter(|(_, block)| **block == Use::Free).map(|(nr, _)| *nr).collect();
        Self {
            rig,
            device,
            journal,
            now: state.clone(),
            history: vec![state],
            reusable: free,
            born: HashSet::new(),
        }
    }

    fn commit(&mut self) {
        let Some(tid) = self.journal.running() else { return };
        let locked = self.journal.lock(tid).unwrap().unwrap();
        self.born.clear();
        self.history.push(self.now.clone());
        let done = locked.write(NOW).unwrap();
        self.reusable.extend(done.payload.iter().map(|nr| nr.0));
        self.device.mark(self.history.len() as u64 - 1);
    }

    /// A few changes in one handle.
    fn operation(&mut self, prng: &mut Prng) {
        let journal = Arc::clone(&self.journal);
        let mut handle = match journal.start(4) {
            Ok(handle) => handle,
            Err(StartError::Full(_)) => return self.commit(),
            Err(error) => panic!("{error}"),
        };
        for _ in 0..=prng.below(3) {
            let of = |wanted: fn(&Use) -> bool| -> Vec<u64> {
                self.now.iter().filter(|(_, block)| wanted(block)).map(|(nr, _)| *nr).collect()
            };
            let pick =
                |from: &[u64], prng: &mut Prng| from.get(prng.below(from.len() as u64) as usize).copied();
            match prng.below(10) {
                0..5 => {
                    let Some(nr) = pick(&of(|block| matches!(block, Use::Metadata(_))), prng) else {
                        continue;
                    };
                    let bytes = pattern(self.rig, prng);
                    let buffer = journal.buffers().read(DiskBlock(nr)).unwrap();
                    handle.modify(&buffer, |block| block.copy_from_slice(&bytes)).unwrap();
                    self.now.insert(nr, Use::Metadata(bytes));
                }
                5..7 => {
                    let Some(nr) = pick(&self.reusable, prng) else { continue };
                    self.reusable.retain(|block| *block != nr);
                    self.born.insert(nr);
                    let bytes = pattern(self.rig, prng);
                    if prng.chance(1, 2) {
                        let buffer = journal.buffers().fresh(DiskBlock(nr));
                        handle.modify(&buffer, |block| block.copy_from_slice(&bytes)).unwrap();
                        self.now.insert(nr, Use::Metadata(bytes));
                    } else {
                        // Something journaled must refer to the data for it to count.
                        let root = journal.buffers().read(DiskBlock(0)).unwrap();
                        let word = prng.bits().to_le_bytes();
                        handle.modify(&root, |block| block[8..16].copy_from_slice(&word)).unwrap();
                        if let Some(Use::Metadata(root)) = self.now.get_mut(&0) {
                            root[8..16].copy_from_slice(&word);
                        }
                        self.device.write_at(self.rig.byte(DiskBlock(nr)), &bytes).unwrap();
                        self.now.insert(nr, Use::Data(bytes));
                    }
                }
                _ => {
                    let Some(nr) = pick(&of(|block| *block != Use::Free), prng).filter(|nr| *nr != 0) else {
                        continue;
                    };
                    if matches!(self.now[&nr], Use::Metadata(_)) {
                        handle.revoke(DiskBlock(nr));
                    }
                    if self.born.remove(&nr) {
                        self.reusable.push(nr);
                    } else {
                        handle.payload(|freed| freed.push(DiskBlock(nr)));
                    }
                    self.now.insert(nr, Use::Free);
                }
            }
        }
    }

    fn life(&mut self, prng: &mut Prng, steps: u32) {
        for _ in 0..steps {
            match prng.below(12) {
                0..8 => self.operation(prng),
                8..10 => self.commit(),
                10 => self.journal.checkpoint(Goal::All).unwrap(),
                _ => self.journal.checkpoint(Goal::Free(1 + prng.below(40))).unwrap(),
            }
        }
        if prng.chance(1, 2) {
            self.commit();
            self.journal.close().unwrap();
        }
    }
}

/// Tries every crash point of a recorded life; returns the volumes of a few, recovered, with their states.
fn crash_everywhere(
    rig: &Rig,
    base: &Arc<dyn BlockDevice>,
    log: &[Event],
    history: &[State],
    seed: u64,
) -> (u64, Vec<(Snapshot, State)>) {
    let mut prng = Prng::new(seed ^ 0xdead);
    let mut explorer = Explorer::new(Arc::clone(base), log);
    let bounds = Bounds { exhaustive: 4, random: 12, seed };
    let again = Bounds { exhaustive: 2, random: 2, seed };
    let (mut tried, mut survivors) = (0, Vec::new());
    for position in crash_points(log) {
        let acknowledged = marks(log, position).last().unwrap_or(0) as usize;
        let point = explorer.at(position).unwrap();
        for plan in point.plans(bounds) {
            tried += 1;
            let image: Arc<dyn BlockDevice> = Arc::new(point.image(&plan).unwrap());
            let second = Recorder::new(Snapshot::over(Arc::clone(&image)));
            let place = || format!("seed {seed}, position {position}, {plan:?}, acknowledged {acknowledged}");
            rig.recover(&second).unwrap_or_else(|error| panic!("{}: {error}", place()));
            let Some(found) = matching(rig, &second, history, acknowledged) else {
                panic!("{}: the volume is in no state that it may be in", place());
            };
            if prng.chance(1, 8) {
                let (_, log) = second.into_parts();
                let mut explorer = Explorer::new(Arc::clone(&image), &log[..]);
                for position in crash_points(&log) {
                    let point = explorer.at(position).unwrap();
                    for plan in point.plans(again) {
                        tried += 1;
                        let third = point.image(&plan).unwrap();
                        rig.recover(&third).unwrap();
                        let held = matching(rig, &third, &history[..=found], found);
                        assert_eq!(held, Some(found), "{}, then {position} {plan:?}", place());
                    }
                }
            } else if prng.chance(1, 40) {
                survivors.push((second.into_parts().0, history[found].clone()));
            }
        }
    }
    (tried, survivors)
}

fn histories(rig: &Rig, seeds: std::ops::Range<u64>, steps: u32) {
    let mut tried = 0;
    for seed in seeds {
        let mut prng = Prng::new(seed);
        let device = rig.device();
        let mut state = State::new();
        for nr in toy_blocks(rig) {
            let bytes = pattern(rig, &mut prng);
            device.write_at(rig.byte(DiskBlock(nr)), &bytes).unwrap();
            state.insert(nr, if nr == 0 || prng.chance(2, 3) { Use::Metadata(bytes) } else { Use::Free });
        }
        let mut base: Arc<dyn BlockDevice> = Arc::new(device);
        for _life in 0..3 {
            // The base of the crash states must stand still, so the engine works on a view of it.
            let mut engine = Engine::new(rig, Arc::new(Snapshot::over(Arc::clone(&base))), state.clone());
            engine.life(&mut prng, steps);
            let (log, history) = (engine.device.log(), engine.history);
            assert_eq!(overlaps(&log), [], "seed {seed}");
            let (count, mut survivors) = crash_everywhere(rig, &base, &log, &history, seed);
            tried += count;
            if survivors.is_empty() {
                break;
            }
            let (next, held) = survivors.swap_remove(prng.below(survivors.len() as u64) as usize);
            base = Arc::new(next);
            state = held;
        }
    }
    println!("{tried} power cuts");
    assert!(tried > 1000);
}

#[test]
fn every_power_cut_leaves_a_transaction_prefix() {
    histories(&Rig::default(), 0..30, 60);
}

#[test]
fn without_checksums_too() {
    histories(&Rig { checksum_v3: false, sixty_four_bit: false, ..Rig::default() }, 100..130, 60);
}

#[test]
fn with_four_kilobyte_blocks_too() {
    histories(&Rig { block_size: 4096, journal: 49, ..Rig::default() }, 200..212, 60);
}

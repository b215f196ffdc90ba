//! The crash states are the legal ones, all of them, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::Arc;

use onggi_block_device::{BlockDevice, ByteRange, MemoryDevice, Write};
use onggi_fault_device::{
    Bounds, CrashPoint, Event, Explorer, Prng, Recorder, Request, Snapshot, Survivors, crash_points, marks,
    overlaps,
};

const SECTOR: u64 = 512;

fn put(device: &impl BlockDevice, sector: u64, bytes: &[u8], fua: bool) {
    device.write(&[Write { offset: sector * SECTOR, bufs: &[IoSlice::new(bytes)], fua }]).unwrap();
}

fn base(size: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(size))
}

/// A random change of `device`.
fn act(device: &impl BlockDevice, prng: &mut Prng) {
    let sectors = device.attributes().size / SECTOR;
    let at = prng.below(sectors);
    let len = (1 + prng.below(20)).min(sectors - at);
    let range = ByteRange { offset: at * SECTOR, len: len * SECTOR };
    match prng.below(10) {
        0 => device.discard(&[range]).unwrap(),
        1 => device.write_zeroes(range, prng.chance(1, 2)).unwrap(),
        2 => device.flush().unwrap(),
        kind => {
            let bytes: Vec<u8> = (0..range.len).map(|_| prng.bits() as u8).collect();
            let (head, tail) = bytes.split_at(prng.below(range.len) as usize);
            let bufs = [IoSlice::new(head), IoSlice::new(tail)];
            device.write(&[Write { offset: range.offset, bufs: &bufs, fua: kind == 3 }]).unwrap();
        }
    }
}

#[test]
fn all_is_the_device_and_none_after_a_flush_is_too() {
    for seed in 0..30 {
        let mut prng = Prng::new(seed);
        let start: Vec<u8> = (0..(64 << 10) - 512).map(|_| prng.bits() as u8).collect();
        let before: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&start));
        let recorder = Recorder::new(MemoryDevice::from_bytes(&start));
        let mut contents = BTreeMap::from([(0, (start.clone(), true))]);
        for _ in 0..60 {
            act(&recorder, &mut prng);
            let flushed = matches!(
                recorder.log()[recorder.len() - 2],
                Event::Submitted { request: Request::Flush, .. }
            );
            contents.insert(recorder.len(), (recorder.inner().to_bytes(), flushed));
        }
        let mut explorer = Explorer::new(before.clone(), recorder.log());
        for (&position, (content, flushed)) in &contents {
            let point = explorer.at(position).unwrap();
            assert!(point.image(&Survivors::All).unwrap().to_bytes().unwrap() == *content, "seed {seed}");
            let whole = Survivors::Prefix(point.open());
            assert!(point.image(&whole).unwrap().to_bytes().unwrap() == *content);
            if *flushed {
                assert_eq!(point.open(), 0);
                assert!(point.image(&Survivors::None).unwrap().to_bytes().unwrap() == *content);
                assert_eq!(point.plans(Bounds::default()).count(), 1, "one state, one plan");
            }
            let alone = CrashPoint::new(before.clone(), &recorder.log(), position).unwrap();
            let plan = Survivors::Random { seed: seed * 7 };
            let (a, b) = (alone.image(&plan).unwrap(), point.image(&plan).unwrap());
            assert!(a.to_bytes().unwrap() == b.to_bytes().unwrap(), "a walked point is a fresh point");
        }
    }
}

#[test]
fn a_flush_covers_only_what_completed_before_it_was_submitted() {
    let submit = |id, sector: u64, byte, fua| Event::Submitted {
        id,
        request: Request::Write { offset: sector * SECTOR, data: vec![byte; 512].into(), fua },
    };
    let done = |id| Event::Completed { id, ok: true };
    let flush = |id| Event::Submitted { id, request: Request::Flush };
    let log = [
        submit(0, 0, 1, false), // completes before the flush
        submit(1, 1, 2, false), // completes while the flush is in flight
        submit(2, 2, 3, true),  // FUA
        done(0),
        flush(3),
        done(1),
        submit(4, 3, 4, false),
        done(2),
        done(3),
        flush(5),
        Event::Completed { id: 5, ok: false },
    ];
    let open = |position| CrashPoint::new(base(4096), &log, position).unwrap().open();
    assert_eq!([0, 1, 3, 4, 6, 7, 8, 9, 11].map(open), [0, 1, 3, 3, 3, 4, 3, 2, 2]);
    let none = CrashPoint::new(base(4096), &log, log.len()).unwrap().image(&Survivors::None).unwrap();
    let firsts: Vec<_> = none.to_bytes().unwrap().chunks(512).map(|sector| sector[0]).collect();
    assert_eq!(firsts, [1, 0, 3, 0, 0, 0, 0, 0]);
    assert_eq!(crash_points(&log), [7, 8, 11]);
}

/// A log of single writes to few sectors, many in flight together.
fn tangled_log(prng: &mut Prng, events: usize, sectors: u64) -> Vec<Event> {
    let (mut log, mut in_flight, mut next) = (Vec::new(), Vec::new(), 0u64);
    while log.len() < events {
        if !in_flight.is_empty() && prng.chance(1, 2) {
            let id = in_flight.swap_remove(prng.below(in_flight.len() as u64) as usize);
            log.push(Event::Completed { id, ok: prng.chance(19, 20) });
            continue;
        }
        let request = if prng.chance(1, 5) {
            Request::Flush
        } else {
            let at = prng.below(sectors);
            let len = 1 + prng.below(sectors - at);
            let data: Vec<u8> = (0..len).flat_map(|_| [next as u8 + 1; 512]).collect();
            Request::Write { offset: at * SECTOR, data: data.into(), fua: prng.chance(1, 8) }
        };
        log.push(Event::Submitted { id: next, request });
        in_flight.push(next);
        next += 1;
    }
    log
}

struct Seen {
    value: u8,
    range: ByteRange,
    submitted: usize,
    completed: usize,
    durable: bool,
}

/// The rules of a power cut once more, the slow way: each write with whether it is durable at the end.
fn judge(log: &[Event]) -> Vec<Seen> {
    let end = |wanted: u64| {
        let at = log.iter().position(|event| matches!(event, Event::Completed { id, .. } if *id == wanted));
        let ok = at.is_some_and(|at| matches!(log[at], Event::Completed { ok: true, .. }));
        (at.unwrap_or(usize::MAX), ok)
    };
    let flushes: Vec<usize> = (0..log.len())
        .filter(|&at| match &log[at] {
            Event::Submitted { id, request: Request::Flush } => end(*id).1,
            _ => false,
        })
        .collect();
    let mut seen = Vec::new();
    for (submitted, event) in log.iter().enumerate() {
        let Event::Submitted { id, request: request @ Request::Write { fua, .. } } = event else { continue };
        let (completed, ok) = end(*id);
        let durable = ok && (*fua || flushes.iter().any(|&flush| completed < flush));
        seen.push(Seen { value: *id as u8 + 1, range: request.range(), submitted, completed, durable });
    }
    seen
}

#[test]
fn every_state_is_legal_and_every_legal_sector_comes_up() {
    const SECTORS: u64 = 6;
    let mut reordered = 0;
    for seed in 0..150 {
        let mut prng = Prng::new(seed);
        let log = tangled_log(&mut prng, 6 + (seed % 20) as usize, SECTORS);
        let judged = judge(&log);
        let point = CrashPoint::new(base(SECTORS * SECTOR), &log, log.len()).unwrap();
        assert_eq!(point.open(), judged.iter().filter(|write| !write.durable).count(), "seed {seed}");
        let mut come_up = vec![BTreeSet::new(); SECTORS as usize];
        for plan in point.plans(Bounds { exhaustive: 8, random: 400, seed }) {
            let bytes = point.image(&plan).unwrap().to_bytes().unwrap();
            for (sector, bytes) in bytes.chunks(512).enumerate() {
                assert!(bytes.iter().all(|&b| b == bytes[0]), "seed {seed}: a sector is never torn");
                come_up[sector].insert(bytes[0]);
            }
        }
        for (sector, come_up) in come_up.iter().enumerate() {
            let at = sector as u64 * SECTOR;
            let here: Vec<_> = judged
                .iter()
                .filter(|write| write.range.offset <= at && at < write.range.offset + write.range.len)
                .collect();
            let hidden =
                |write: &Seen| here.iter().any(|other| other.durable && write.completed < other.submitted);
            let mut legal: BTreeSet<u8> =
                here.iter().filter(|write| !hidden(write)).map(|write| write.value).collect();
            if !here.iter().any(|write| write.durable) {
                legal.insert(0);
            }
            assert!(come_up.is_subset(&legal), "seed {seed} sector {sector}: {come_up:?} not in {legal:?}");
            // Of durable writes that were in flight together, the one that completed last has won.
            let last = here.iter().filter(|write| write.durable).map(|write| write.completed).max();
            let certain: BTreeSet<u8> = here
                .iter()
                .filter(|write| !hidden(write) && (!write.durable || Some(write.completed) == last))
                .map(|write| write.value)
                .collect();
            assert!(
                certain.is_subset(come_up),
                "seed {seed} sector {sector}: {certain:?} not in {come_up:?}"
            );
            reordered += usize::from(certain.len() > 2);
        }
    }
    assert!(reordered > 50, "the logs are tangled enough: {reordered}");
}

#[test]
fn few_open_writes_are_enumerated_and_many_are_named() {
    let recorder = Recorder::new(MemoryDevice::new(64 << 10));
    for sector in 0..3 {
        put(&recorder, sector, &[sector as u8 + 1; 512], false);
    }
    let log = recorder.log();
    let point = CrashPoint::new(base(64 << 10), &log, log.len()).unwrap();
    let bounds = Bounds { random: 0, ..Bounds::default() };
    let states: BTreeSet<Vec<u8>> = point
        .plans(bounds)
        .map(|plan| point.image(&plan).unwrap().to_bytes().unwrap()[..1536].to_vec())
        .collect();
    assert_eq!((point.plans(bounds).count(), states.len()), (8, 8));

    for sector in 3..20 {
        put(&recorder, sector, &[sector as u8 + 1; 512], false);
    }
    let log = recorder.log();
    let point = CrashPoint::new(base(64 << 10), &log, log.len()).unwrap();
    let plans: Vec<_> = point.plans(bounds).collect();
    let states: BTreeSet<Vec<u8>> =
        plans.iter().map(|plan| point.image(plan).unwrap().to_bytes().unwrap()).collect();
    for named in [
        Survivors::All,
        Survivors::None,
        Survivors::AllButOne(19),
        Survivors::OnlyOne(0),
        Survivors::Prefix(2),
        Survivors::ReversedPrefix(18),
    ] {
        assert!(plans.contains(&named), "{named:?}");
    }
    assert_eq!(states.len(), 2 + 20 + 20 + 17 + 17, "no state is missing");
    assert_eq!(point.plans(Bounds::default()).count(), plans.len() + 64);
    let count_first =
        |plan| point.image(&plan).unwrap().to_bytes().unwrap().chunks(512).filter(|s| s[0] != 0).count();
    assert_eq!(count_first(Survivors::ReversedPrefix(5)), 5);
    assert_eq!(count_first(Survivors::AllButOne(7)), 19);
}

#[test]
fn random_plans_tear_between_physical_sectors_only() {
    for (physical, expect_torn) in [(512, true), (4096, false)] {
        let recorder = Recorder::new(MemoryDevice::new(64 << 10));
        recorder.write_at(8192, &[7; 4096]).unwrap();
        let log = recorder.log();
        let base: Arc<dyn BlockDevice> = Arc::new(Coarse(MemoryDevice::new(64 << 10), {
            let mut attributes = recorder.attributes().clone();
            attributes.physical_sector = physical;
            attributes
        }));
        let point = CrashPoint::new(base, &log, log.len()).unwrap();
        let counts: BTreeSet<usize> = point
            .plans(Bounds { exhaustive: 0, random: 200, seed: 3 })
            .map(|plan| {
                point.image(&plan).unwrap().to_bytes().unwrap().chunks(512).filter(|s| s[0] == 7).count()
            })
            .collect();
        assert_eq!(counts.iter().any(|count| (1..8).contains(count)), expect_torn, "{counts:?}");
        assert!(counts.contains(&0) && counts.contains(&8));
    }
}

/// A device with other attributes.
struct Coarse(MemoryDevice, onggi_block_device::Attributes);

impl BlockDevice for Coarse {
    fn attributes(&self) -> &onggi_block_device::Attributes {
        &self.1
    }
    fn read(
        &self,
        batch: &mut [onggi_block_device::Read<'_, '_>],
    ) -> Result<(), onggi_block_device::DeviceError> {
        self.0.read(batch)
    }
    fn write(&self, batch: &[Write<'_>]) -> Result<(), onggi_block_device::DeviceError> {
        self.0.write(batch)
    }
    fn flush(&self) -> Result<(), onggi_block_device::DeviceError> {
        self.0.flush()
    }
    fn discard(&self, ranges: &[ByteRange]) -> Result<(), onggi_block_device::DeviceError> {
        self.0.discard(ranges)
    }
    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), onggi_block_device::DeviceError> {
        self.0.write_zeroes(range, may_unmap)
    }
}

#[test]
fn marks_and_overlaps_are_read_from_the_log() {
    let recorder = Recorder::new(MemoryDevice::new(4096));
    assert!(recorder.is_empty());
    recorder.mark(11);
    put(&recorder, 0, &[1; 512], true);
    recorder.mark(12);
    let log = recorder.log();
    assert_eq!(marks(&log, log.len()).collect::<Vec<_>>(), [11, 12]);
    assert_eq!(marks(&log, 3).collect::<Vec<_>>(), [11]);
    assert!(overlaps(&log).is_empty());
    let two = [1; 1024];
    let bufs = [IoSlice::new(&two)];
    let write = |offset| Write { offset, bufs: &bufs, fua: false };
    recorder.write(&[write(0), write(512), write(2048)]).unwrap();
    assert_eq!(overlaps(&recorder.log()), [(1, 2)]);
    assert!(recorder.write_at(4096, &two).is_err());
    assert_eq!(recorder.log(), recorder.into_parts().1, "a refused request is not recorded");
}

/// A toy with recovery: sector 0 names the round whose copy in sectors 8.. is whole and must be put in
/// place at sectors 16..; recovery copies, flushes, then clears sector 0.
fn recover(device: &impl BlockDevice) {
    let mut head = [0; 512];
    device.read_at(0, &mut head).unwrap();
    if head[0] != 0 {
        let mut copy = [0; 4096];
        device.read_at(8 * SECTOR, &mut copy).unwrap();
        device.write_at(16 * SECTOR, &copy).unwrap();
        device.flush().unwrap();
        put(device, 0, &[0; 512], true);
    }
}

#[test]
fn a_recovery_can_crash_again() {
    let recorder = Recorder::new(MemoryDevice::new(64 << 10));
    for round in 1..4u8 {
        recorder.write_at(8 * SECTOR, &[round; 4096]).unwrap();
        recorder.flush().unwrap();
        put(&recorder, 0, &[round; 512], true);
        recorder.mark(u64::from(round));
        recover(&recorder);
    }
    let log = recorder.log();
    let bounds = Bounds { random: 20, ..Bounds::default() };
    let mut states = 0;
    let mut explorer = Explorer::new(base(64 << 10), log.clone());
    for position in crash_points(&log) {
        let acknowledged = marks(&log, position).last().unwrap_or(0) as u8;
        let point = explorer.at(position).unwrap();
        for plan in point.plans(bounds) {
            let cut: Arc<dyn BlockDevice> = Arc::new(point.image(&plan).unwrap());
            let again = Recorder::new(Snapshot::over(Arc::clone(&cut)));
            recover(&again);
            let log = again.log();
            let mut second = Explorer::new(cut, log.clone());
            for position in crash_points(&log) {
                let point = second.at(position).unwrap();
                for plan in point.plans(bounds) {
                    let device = point.image(&plan).unwrap();
                    recover(&device);
                    let mut home = [0; 4096];
                    device.read_at(16 * SECTOR, &mut home).unwrap();
                    assert!(home.iter().all(|&b| b == home[0]), "whole");
                    assert!(home[0] == acknowledged || home[0] == acknowledged + 1, "{position} {plan:?}");
                    states += 1;
                }
            }
        }
    }
    assert!(states > 1000, "{states}");
}

#[test]
fn a_snapshot_changes_alone() {
    let bytes: Vec<u8> = (0..20_480u32 - 512).map(|i| (i / 100) as u8).collect();
    let base: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::from_bytes(&bytes));
    let first = Snapshot::over(Arc::clone(&base));
    put(&first, 7, &[1; 1024], false);
    assert_eq!(first.changed_pages(), 2);
    let second = first.fork();
    put(&second, 0, &[2; 512], false);
    second.write_zeroes(ByteRange { offset: 4096, len: 8192 }, true).unwrap();
    let mut want = bytes.clone();
    assert!(base.read_at(0, &mut want[..]).is_ok() && want == bytes);
    want[3584..4608].fill(1);
    assert!(first.to_bytes().unwrap() == want);
    want[..512].fill(2);
    want[4096..12288].fill(0);
    assert!(second.to_bytes().unwrap() == want);
    let (mut a, mut b) = ([0; 700], [0; 4420]);
    let mut bufs = [std::io::IoSliceMut::new(&mut a), std::io::IoSliceMut::new(&mut b)];
    second.read(&mut [onggi_block_device::Read { offset: 512, bufs: &mut bufs }]).unwrap();
    assert!(a == want[512..1212] && b == want[1212..5632]);
}

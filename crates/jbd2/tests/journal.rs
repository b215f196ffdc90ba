//! Transactions: credits, grouping, laps around a tiny log, superseding, stopping.

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onggi_block_device::{BlockDevice, ByteRange, Operation};
use onggi_disk_format::jbd2::{Header, Incompat, MAGIC, parse_descriptor};
use onggi_disk_format::{DiskBlock, Tid};
use onggi_fault_device::{Fault, Faults, Prng, Recorder};
use onggi_jbd2::{Goal, Journal, JournalError, StartError};
use rig::{NOW, Payload, Rig, commit, fill};

fn arc(device: impl BlockDevice + 'static) -> Arc<dyn BlockDevice> {
    Arc::new(device)
}

#[test]
fn credits_are_bounded_spent_once_a_block_and_given_back() {
    let rig = Rig::default();
    let journal = rig.open(arc(rig.device()));
    let most = journal.max_credits();
    assert!(most > 4 && most < 16, "{most}");
    assert!(matches!(journal.start(most + 1), Err(StartError::TooBig { .. })));
    let mut handle = journal.start(most).unwrap();
    let tid = handle.tid();
    let buffer = journal.buffers().read(DiskBlock(1)).unwrap();
    for _ in 0..5 {
        handle.modify(&buffer, |bytes| bytes[0] += 1).unwrap();
    }
    assert_eq!((handle.credits_left(), buffer.snapshot()[0]), (most - 1, 5));
    assert!(!handle.extend(most));
    assert!(matches!(journal.start(most), Err(StartError::Full(full)) if full == tid));
    handle.stop();
    // One credit stays spent; the block it paid for costs nothing more.
    let mut handle = journal.start(most - 1).unwrap();
    handle.modify(&buffer, |bytes| bytes[0] += 1).unwrap();
    assert_eq!((handle.tid(), handle.credits_left()), (tid, most - 1));
    handle.stop();
    assert_eq!(journal.running(), Some(tid));
}

#[test]
fn a_handle_past_its_credits_is_helped_only_while_there_is_room() {
    let rig = Rig::default();
    let journal = rig.open(arc(rig.device()));
    let mut handle = journal.start(0).unwrap();
    let mut refused = None;
    for nr in 0..64 {
        let buffer = journal.buffers().read(DiskBlock(nr)).unwrap();
        if let Err(error) = handle.modify(&buffer, |bytes| bytes[0] = 1) {
            assert_eq!(buffer.snapshot()[0], 0, "refused and unchanged");
            refused = Some(error);
            break;
        }
    }
    assert!(matches!(refused, Some(JournalError::NoCredits { .. })), "{refused:?}");
    assert!(journal.counters().overdrafts >= u64::from(journal.max_credits()));
    handle.stop();
    commit(&journal);
}

#[test]
fn blocks_that_must_not_be_journaled_are_refused() {
    let rig = Rig::default();
    let journal = rig.open(arc(rig.device()));
    let mut handle = journal.start(4).unwrap();
    let inside = journal.buffers().read(DiskBlock(Rig::GAP + 2)).unwrap();
    assert_eq!(handle.modify(&inside, |_| ()), Err(JournalError::InsideJournal(inside.nr())));
    let outside = journal.buffers().fresh(DiskBlock(rig.volume_blocks()));
    assert!(matches!(handle.modify(&outside, |_| ()), Err(JournalError::OutsideVolume { .. })));
    let freed = journal.buffers().read(DiskBlock(1)).unwrap();
    handle.revoke(DiskBlock(1));
    assert_eq!(handle.modify(&freed, |_| ()), Err(JournalError::FreedBuffer(DiskBlock(1))));
    assert_eq!(handle.credits_left(), 4);
}

#[test]
fn an_untouched_transaction_is_not_committed() {
    let rig = Rig::default();
    let journal = rig.open(arc(rig.device()));
    let tid = journal.start(3).unwrap().tid();
    assert_eq!(journal.running(), None);
    assert!(journal.lock(tid).unwrap().is_none());
    assert!(!journal.is_durable(tid));
    let begun = journal.lock(tid.next()).map(|locked| locked.is_some());
    assert_eq!(begun, Err(JournalError::NotBegun { tid: tid.next(), running: tid }));
    fill(&journal, &[(1, 1)]);
    assert!(journal.is_durable(tid) && journal.lock(tid).unwrap().is_none());
    assert_eq!((journal.durable(), journal.counters().commits), (tid, 1));
}

#[test]
fn thousands_of_laps_around_a_tiny_log() {
    for (checksum_v3, sixty_four_bit) in [(true, true), (false, false), (false, true)] {
        let rig = Rig { journal: 41, checksum_v3, sixty_four_bit, ..Rig::default() };
        let device = arc(rig.device());
        let journal = rig.open(Arc::clone(&device));
        let mut prng = Prng::new(1);
        let mut model = vec![0u8; 30];
        for _ in 0..20_000 {
            let changes: Vec<_> = (0..4).map(|_| (prng.below(30), prng.bits() as u8)).collect();
            for &(nr, byte) in &changes {
                model[nr as usize] = byte;
            }
            fill(&journal, &changes);
        }
        let laps = journal.counters().logged_blocks / 40;
        assert!(laps > 2000, "{laps}");
        assert!(journal.counters().foreground_checkpoints > 1000);
        drop(journal);
        let recovery = rig.recover(&device).unwrap();
        assert!(recovery.was_dirty && recovery.transactions > 0 && recovery.damaged.is_none());
        for (nr, byte) in (0..).zip(model) {
            assert_eq!(rig.block(&device, DiskBlock(nr)), vec![byte; 1024], "block {nr}");
        }
    }
}

#[test]
fn transaction_numbers_wrap() {
    let rig = Rig::default();
    let device = arc(rig.device());
    let superblock = rig.superblock(&device).with(|raw| raw.s_sequence.set(u32::MAX - 2)).unwrap();
    rig.put_superblock(&device, &superblock);
    let journal = rig.open(Arc::clone(&device));
    for byte in 1..=6 {
        fill(&journal, &[(byte, byte as u8)]);
    }
    assert_eq!(journal.durable(), Tid(2));
    assert!(journal.is_durable(Tid(u32::MAX)) && !journal.is_durable(Tid(3)));
    drop(journal);
    assert_eq!(rig.recover(&device).unwrap().transactions, 6);
    assert_eq!(rig.block(&device, DiskBlock(6))[0], 6);
}

#[test]
fn a_superseded_image_is_never_written_home() {
    let rig = Rig { journal: 200, ..Rig::default() };
    let device = Arc::new(Recorder::new(rig.device()));
    let journal = rig.open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    for byte in 1..=9 {
        fill(&journal, &[(1, byte), (2, byte)]);
    }
    assert_eq!(rig.block(&device, DiskBlock(1))[0], 0, "not home before a checkpoint");
    journal.checkpoint(Goal::All).unwrap();
    assert_eq!(journal.counters().home_blocks, 2);
    assert_eq!(journal.log_pressure().used, 0);
    assert_eq!(rig.block(&device, DiskBlock(1))[0], 9);
    // A change of the running transaction stays in memory though an older image of its block goes home.
    fill(&journal, &[(1, 10)]);
    let handle = &mut journal.start(1).unwrap();
    let buffer = journal.buffers().read(DiskBlock(1)).unwrap();
    handle.modify(&buffer, |bytes| bytes.fill(77)).unwrap();
    assert!(journal.log_pressure().used > 0);
    journal.checkpoint(Goal::All).unwrap();
    assert_eq!(rig.block(&device, DiskBlock(1))[0], 10);
}

#[test]
fn a_magic_number_in_a_block_is_escaped_in_the_log_and_in_no_other_place() {
    let rig = Rig::default();
    let device = arc(rig.device());
    let journal = rig.open(Arc::clone(&device));
    let mut handle = journal.start(1).unwrap();
    let buffer = journal.buffers().read(DiskBlock(1)).unwrap();
    handle.modify(&buffer, |bytes| bytes[..4].copy_from_slice(&MAGIC.to_be_bytes())).unwrap();
    handle.stop();
    commit(&journal);
    let block = |nr| rig.block(&device, rig.map().locate(nr).unwrap());
    let (_, tags) = parse_descriptor(&rig.superblock(&device).layout(), &block(1)).unwrap();
    assert!(tags.len() == 1 && tags[0].escaped);
    assert!(Header::parse(&block(2)).is_none());
    assert_eq!(buffer.snapshot()[..4], MAGIC.to_be_bytes());
    journal.close().unwrap();
    assert_eq!(rig.block(&device, DiskBlock(1))[..4], MAGIC.to_be_bytes());
}

#[test]
fn closing_marks_the_log_empty_and_demands_that_all_is_committed() {
    let rig = Rig::default();
    let device = arc(rig.device());
    let journal = rig.open(Arc::clone(&device));
    fill(&journal, &[(1, 1)]);
    assert_ne!(rig.superblock(&device).start(), 0);
    let again = Journal::<Payload>::open(rig.buffers(Arc::clone(&device)), rig.map(), rig.settings());
    assert!(matches!(again, Err(JournalError::NotRecovered { start: 1 })));
    let handle = journal.start(1).unwrap();
    assert!(matches!(journal.close(), Err(JournalError::Uncommitted(_))));
    handle.payload(|freed| freed.push(DiskBlock(3)));
    handle.stop();
    assert!(matches!(journal.close(), Err(JournalError::Uncommitted(_))));
    let locked = journal.lock(journal.running().unwrap()).unwrap().unwrap();
    assert_eq!(locked.write(NOW).unwrap().payload, [DiskBlock(3)]);
    journal.close().unwrap();
    let superblock = rig.superblock(&device);
    assert_eq!((superblock.start(), superblock.sequence()), (0, Tid(3)));
    assert!(superblock.incompat().contains(Incompat::CSUM_V3 | Incompat::BIT64 | Incompat::REVOKE));
    assert!(!rig.recover(&device).unwrap().was_dirty);
    // Closed is empty, not over.
    fill(&journal, &[(1, 2)]);
    assert_eq!(rig.recover(&device).unwrap().transactions, 1);
    assert_eq!(rig.block(&device, DiskBlock(1))[0], 2);
}

#[test]
fn revokes_beyond_the_reservation_make_their_own_room() {
    let rig = Rig { journal: 41, ..Rig::default() };
    let device = arc(rig.device());
    let journal = rig.open(Arc::clone(&device));
    for round in 0..50 {
        fill(&journal, &[(round % 5, round as u8)]);
        let mut handle = journal.start(1).unwrap();
        for nr in 0..2500 {
            handle.revoke(DiskBlock(1000 + nr));
        }
        handle.stop();
        commit(&journal);
        assert!(journal.log_pressure().used < 40);
    }
    assert_eq!(rig.recover(&device).unwrap().damaged, None);
    assert_eq!(rig.block(&device, DiskBlock(4))[0], 49);
    let mut handle = journal.start(1).unwrap();
    for nr in 0..6000 {
        handle.revoke(DiskBlock(1000 + nr));
    }
    handle.stop();
    let locked = journal.lock(journal.running().unwrap()).unwrap().unwrap();
    assert!(matches!(locked.write(NOW), Err(JournalError::Overgrown { .. })));
}

#[test]
fn the_first_error_stops_the_journal_for_good() {
    let rig = Rig::default();
    for (operation, failing) in
        [(Operation::Write, 0), (Operation::Write, 1), (Operation::Write, 2), (Operation::Flush, 0)]
    {
        let device = Arc::new(Faults::new(rig.device()));
        let journal = rig.open(Arc::clone(&device) as Arc<dyn BlockDevice>);
        let mut handle = journal.start(1).unwrap();
        let buffer = journal.buffers().read(DiskBlock(1)).unwrap();
        handle.modify(&buffer, |bytes| bytes.fill(1)).unwrap();
        let tid = handle.tid();
        handle.stop();
        device.inject(Fault::on(operation).after(failing));
        let first = journal.lock(tid).unwrap().unwrap().write(NOW).unwrap_err();
        assert!(matches!(first, JournalError::Device { .. }), "{first:?}");
        assert!(!journal.is_durable(tid));
        assert_eq!(journal.aborted(), Some(first.clone()));
        assert_eq!(journal.start(1).unwrap_err(), StartError::Aborted(first.clone()));
        assert_eq!(journal.lock(tid).unwrap_err(), first);
        assert_eq!(journal.checkpoint(Goal::All).unwrap_err(), first);
        assert_eq!(journal.close().unwrap_err(), first);
        journal.abort(JournalError::Stopped("later".into()));
        assert_eq!(journal.aborted(), Some(first));
        assert_eq!(device.hits(), 1);
    }
}

#[test]
fn a_failed_checkpoint_stops_the_journal_and_records_the_error() {
    let rig = Rig::default();
    let device = Arc::new(Faults::new(rig.device()));
    let journal = rig.open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    fill(&journal, &[(1, 1), (2, 2)]);
    device.inject(Fault::on(Operation::Write).within(ByteRange { offset: 1024, len: 1024 }));
    let error = journal.checkpoint(Goal::All).unwrap_err();
    assert!(matches!(error, JournalError::Device { during: "checkpointing", .. }));
    assert_eq!(journal.aborted(), Some(error));
    // The log is untouched: recovery finds everything, and the recorded error.
    let recovery = rig.recover(&device).unwrap();
    assert_eq!((recovery.transactions, recovery.errno), (1, -5));
    assert_eq!(rig.block(&device, DiskBlock(1))[0], 1);
    let journal = rig.open(Arc::clone(&device) as Arc<dyn BlockDevice>);
    assert_eq!(journal.errno(), -5);
    journal.clear_errno().unwrap();
    assert_eq!((journal.errno(), rig.superblock(&device).errno()), (0, 0));
}

#[test]
fn a_locked_transaction_dropped_unwritten_stops_the_journal() {
    let rig = Rig::default();
    let journal = rig.open(arc(rig.device()));
    let handle = journal.start(1).unwrap();
    let tid = handle.tid();
    handle.payload(|_| ());
    handle.stop();
    drop(journal.lock(tid).unwrap());
    assert_eq!(journal.aborted(), Some(JournalError::Abandoned(tid)));
}

#[test]
fn an_operation_that_panics_is_never_committed() {
    let rig = Rig::default();
    let device = arc(rig.device());
    let journal = rig.open(Arc::clone(&device));
    let operation = std::thread::scope(|scope| {
        let operation = scope.spawn(|| {
            let mut handle = journal.start(2).unwrap();
            let buffer = journal.buffers().read(DiskBlock(1)).unwrap();
            handle.modify(&buffer, |bytes| bytes.fill(1)).unwrap();
            panic!("half way, on purpose");
        });
        operation.join()
    });
    assert!(operation.is_err());
    assert!(matches!(journal.aborted(), Some(JournalError::Stopped(_))));
    assert!(journal.lock(Tid(1)).is_err());
    assert_eq!(rig.recover(&device).unwrap().transactions, 0);
}

#[test]
fn without_a_log_a_commit_writes_home() {
    let rig = Rig::default();
    let device = Arc::new(Recorder::new(rig.device()));
    let shared = Arc::clone(&device) as Arc<dyn BlockDevice>;
    let journal: Journal<Payload> = Journal::without_log(rig.buffers(shared));
    for byte in 1..=50 {
        let mut handle = journal.start(3).unwrap();
        for nr in [3, 4] {
            let buffer = journal.buffers().read(DiskBlock(nr)).unwrap();
            handle.modify(&buffer, |bytes| bytes.fill(byte)).unwrap();
        }
        let freed = journal.buffers().read(DiskBlock(5)).unwrap();
        handle.modify(&freed, |bytes| bytes.fill(byte)).unwrap();
        handle.revoke(DiskBlock(5));
        handle.payload(|freed| freed.push(DiskBlock(5)));
        let tid = handle.tid();
        handle.stop();
        assert_eq!(rig.block(&device, DiskBlock(3))[0], byte - 1);
        let done = journal.lock(tid).unwrap().unwrap().write(NOW).unwrap();
        assert_eq!((done.tid, done.payload), (tid, vec![DiskBlock(5)]));
        let home: Vec<u8> = [3, 4, 5].map(|nr| rig.block(&device, DiskBlock(nr))[7]).into();
        assert_eq!(home, [byte, byte, 0]);
    }
    assert_eq!(journal.log_pressure().total, 0);
    journal.checkpoint(Goal::All).unwrap();
    journal.close().unwrap();
}

#[test]
fn threads_share_commits() {
    let rig = Rig { journal: 300, ..Rig::default() };
    let journal = rig.open(arc(rig.device()));
    let synced = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (journal, synced) = (&journal, &synced);
            scope.spawn(move || {
                for round in 0..200u64 {
                    let mut handle = loop {
                        match journal.start(2) {
                            Ok(handle) => break handle,
                            Err(StartError::Full(tid)) => {
                                if let Some(locked) = journal.lock(tid).unwrap() {
                                    locked.write(NOW).unwrap();
                                }
                            }
                            Err(error) => panic!("{error}"),
                        }
                    };
                    for nr in [thread, 20] {
                        let buffer = journal.buffers().read(DiskBlock(nr)).unwrap();
                        handle.modify(&buffer, |bytes| bytes[nr as usize * 8] = round as u8).unwrap();
                    }
                    let tid = handle.tid();
                    handle.stop();
                    std::thread::sleep(Duration::from_micros(50));
                    while let Some(mut locked) = journal.lock(tid).unwrap() {
                        locked.payload().push(DiskBlock(thread));
                        locked.write(NOW).unwrap();
                    }
                    assert!(journal.is_durable(tid));
                    synced.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let commits = journal.counters().commits;
    assert_eq!(synced.into_inner(), 1600);
    assert!(commits < 1500, "{commits} commits for 1600 syncs");
    journal.close().unwrap();
    for nr in 0..8 {
        assert_eq!(rig.block(journal.buffers().device().as_ref(), DiskBlock(nr))[nr as usize * 8], 199);
    }
}

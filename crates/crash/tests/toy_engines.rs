//! A toy engine that keeps its promises passes; each of its broken brothers is caught.

mod toy;

use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_crash::{Campaign, Engine, Failure, campaign};
use onggi_model::{Check, Profile};
use toy::{Bug, Toy};

fn caught(bug: Bug) -> Box<Failure> {
    for seed in 0..8 {
        if let Err(failure) = campaign(&Toy(bug), seed, 120, 300) {
            println!("{bug:?}: {failure}");
            return failure;
        }
    }
    panic!("{bug:?} was not noticed");
}

#[test]
fn a_good_engine_passes() {
    for seed in 0..4 {
        let report = campaign(&Toy(Bug::None), seed, 150, 250).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(report.states >= 100 && report.nested > 10, "{report:?}");
        assert!(report.acknowledged > 10, "{report:?}");
    }
    let big_sectors = Campaign {
        physical_sector: 4096,
        fua: false,
        ..Campaign::new(Profile::crash(Toy(Bug::None).limits()))
    };
    big_sectors.run(&Toy(Bug::None), 9, 100, 100).unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn what_was_unmounted_comes_back() {
    let remount = |bug| {
        let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(Toy(bug).size()));
        Toy(bug).mkfs(&*device).unwrap();
        let profile = Profile { hostile: false, ..Profile::full(Toy(bug).limits()) };
        let check = Check { profile, ..Check::ext4(4096) };
        check.run_remounting(&mut || Toy(bug).mount(Arc::clone(&device)).unwrap(), 1, 2000, 150)
    };
    remount(Bug::None).unwrap_or_else(|failure| panic!("{failure}"));
    let failure = remount(Bug::NoXattrs).unwrap_err();
    assert!(failure.what.contains("after a mount"), "{failure}");
}

#[test]
fn a_digest_may_stand_for_a_flush() {
    for seed in 0..4 {
        let result = campaign(&Toy(Bug::HeaderBeforePayload), seed, 120, 300);
        result.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

#[test]
fn a_campaign_is_the_same_every_time() {
    let first = campaign(&Toy(Bug::None), 3, 80, 60).unwrap_or_else(|failure| panic!("{failure}"));
    assert_eq!(first, campaign(&Toy(Bug::None), 3, 80, 60).unwrap());
    let (one, two) = (caught(Bug::NoLastFlush), caught(Bug::NoLastFlush));
    assert_eq!(one.to_string(), two.to_string());
}

#[test]
fn an_fsync_that_does_nothing_is_caught() {
    let failure = caught(Bug::FsyncDoesNothing);
    assert_eq!(failure.cuts.len(), 1);
    assert!(!failure.acknowledged.is_empty());
}

#[test]
fn a_missing_last_flush_is_caught() {
    caught(Bug::NoLastFlush);
}

#[test]
fn stale_data_is_caught() {
    let failure = caught(Bug::ContentsAfterCommit);
    assert!(failure.what.contains(" at byte "), "{failure}");
}

#[test]
fn an_operation_in_two_halves_is_caught() {
    let failure = caught(Bug::RenameInTwo);
    assert!(failure.what.contains("the names are those of no moment"), "{failure}");
}

#[test]
fn lost_attributes_are_caught() {
    caught(Bug::NoXattrs);
}

#[test]
fn a_panic_in_recovery_is_caught() {
    let failure = caught(Bug::PanicsOnTorn);
    assert!(failure.what.contains("panicked: a torn slot"), "{failure}");
}

#[test]
fn a_recovery_that_destroys_is_caught_by_cutting_it_off() {
    let failure = caught(Bug::RecoveryDestroys);
    assert_eq!(failure.cuts.len(), 2, "{failure}");
}

#[test]
fn a_failing_run_is_made_small() {
    let failure = caught(Bug::FsyncDoesNothing);
    let toy = Toy(Bug::FsyncDoesNothing);
    let campaign = Campaign::new(Profile::crash(toy.limits()));
    let small = campaign.minimise(&toy, &failure, 300);
    assert!(small.steps.len() <= 4, "{small}");
}

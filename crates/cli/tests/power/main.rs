//! The mount's server killed at a random moment while the device holds unflushed writes, which the kill
//! loses but for a random part: recovery succeeds, both checkers are content, and nothing acknowledged is
//! lost. `ONGGI_SEED` runs one seed again, `ONGGI_SOAK` a thousand.

#![allow(missing_docs)]

mod diary;
mod run;
mod work;

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use run::{Room, Tally, run};

/// The seeds asked for.
fn seeds() -> Range<u64> {
    match std::env::var("ONGGI_SEED").ok().and_then(|seed| seed.trim().parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None if std::env::var_os("ONGGI_SOAK").is_some() => 0..1000,
        None => 0..40,
    }
}

/// Takes seeds until there are none, or one fails.
fn take_seeds(seeds: &Range<u64>, next: &AtomicU64) -> Result<Tally, String> {
    let room = Room::new();
    let mut tally = Tally::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return Ok(tally);
        }
        tally += run(&room, seed).map_err(|what| {
            // The others need not go on.
            next.store(seeds.end, Ordering::Relaxed);
            let kept = std::env::temp_dir().join(format!("onggi-power-{seed}.img"));
            let _ = std::fs::copy(room.path("cut.img"), &kept);
            format!("seed {seed} (run again with ONGGI_SEED={seed}, cut image {}): {what}", kept.display())
        })?;
    }
}

#[test]
fn killed_servers_lose_nothing_acknowledged() {
    if !Path::new("/dev/fuse").exists() {
        return println!("skipped: no /dev/fuse here");
    }
    if Command::new("e2fsck").arg("-V").output().is_err() {
        return println!("skipped: no e2fsck here to judge");
    }
    let seeds = seeds();
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().min(4));
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| take_seeds(&seeds, &next))).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut all = Tally::default();
    for tally in tallies {
        all += tally.unwrap_or_else(|failure| panic!("{failure}"));
    }
    println!("seeds {seeds:?}: {all}");
    assert_eq!(all.runs, seeds.end - seeds.start);
}

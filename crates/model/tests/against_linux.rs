//! The model against the ext4 of the running kernel.

mod host;

use host::{HostFs, LoopMount};
use onggi_model::{Check, Compare, Limits, Profile, seed_or};

/// Runs on a fresh loop-mounted ext4, or says why it cannot.
fn on_linux(block_size: u32, keep_times: bool, seed: u64, steps: usize) {
    let mount = match LoopMount::new(block_size) {
        Ok(mount) => mount,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let limits = Limits::ext4(block_size);
    let profile = Profile { revive: false, crtime: false, durable_percent: 1, ..Profile::full(limits) };
    let check = Check {
        profile,
        compare: Compare { times: keep_times, crtime: keep_times },
        tree_every: 500,
        exact_seek: false,
        leak_check: false,
    };
    let host = HostFs::new(&mount.path(), keep_times);
    let result = check.run(&host, seed_or(seed), steps);
    drop(host);
    drop(mount);
    result.unwrap_or_else(|failure| panic!("{failure}"));
}

#[test]
fn answers_and_contents() {
    on_linux(4096, false, 1, 25_000);
}

#[test]
fn answers_and_contents_with_small_blocks() {
    on_linux(1024, false, 2, 10_000);
}

#[test]
fn times() {
    on_linux(4096, true, 3, 4000);
}

//! Random operations give the same results on the engine and on the in-memory model.

mod support;

use onggi_ext4::{DataMode, MountOptions};
use onggi_model::{Check, seed_or};
use onggi_vfs::FileSystem;
use support::{assert_e2fsck_clean, mount, options, volume};

fn run(
    block_size: u32,
    seed: u64,
    steps: usize,
    options: MountOptions,
    change: fn(&mut onggi_ext4_mkfs::Options),
) {
    let device = volume(512 << 20, |options| {
        options.block_size = Some(block_size);
        change(options);
    });
    let fs = mount(&device, options);
    if let Err(failure) = Check::ext4(block_size).run(&*fs, seed_or(seed), steps) {
        panic!("{failure}");
    }
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
}

#[test]
fn ordered_4k() {
    run(4096, 1, 20_000, options(), |_| {});
}

#[test]
fn ordered_1k_small_cache() {
    run(1024, 2, 20_000, MountOptions { cache_bytes: 4 << 20, ..options() }, |_| {});
}

#[test]
fn journaled_data() {
    run(4096, 3, 20_000, MountOptions { data: DataMode::Journal, ..options() }, |_| {});
}

#[test]
fn with_the_flusher_running() {
    let options = MountOptions {
        background: true,
        commit_interval: std::time::Duration::from_millis(5),
        cache_bytes: 8 << 20,
        ..MountOptions::default()
    };
    run(4096, 4, 20_000, options, |_| {});
}

#[test]
fn without_a_journal_or_checksums() {
    run(2048, 5, 20_000, options(), |options| {
        options.parse_features("^has_journal,^metadata_csum,^64bit").unwrap();
    });
}

#[test]
fn everything_comes_back_after_each_unmount() {
    for (seed, block_size) in [(2, 4096), (3, 1024)] {
        let device = volume(512 << 20, |options| options.block_size = Some(block_size));
        let mut remount = || {
            assert_e2fsck_clean(&device);
            mount(&device, options()) as std::sync::Arc<dyn FileSystem>
        };
        let check = Check::ext4(block_size);
        if let Err(failure) = check.run_remounting(&mut remount, seed_or(seed), 5_000, 250) {
            panic!("{failure}");
        }
    }
}

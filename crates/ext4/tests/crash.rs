//! Power cuts: every run is cut off at many points, recovered, checked and compared with what was promised.

mod support;

use std::sync::Arc;

use onggi_block_device::BlockDevice;
use onggi_crash::{Engine, Found, Promise, campaign};
use onggi_ext4::{DataMode, Ext4, MountOptions};
use onggi_ext4_check::Mode;
use onggi_model::{Limits, seed_or};
use onggi_vfs::FileSystem;

struct Subject {
    block_size: u32,
    features: &'static str,
    data: DataMode,
}

impl Engine for Subject {
    fn size(&self) -> u64 {
        48 << 20
    }

    fn limits(&self) -> Limits {
        Limits::ext4(self.block_size)
    }

    fn promise(&self) -> Promise {
        match self.data {
            DataMode::Ordered => Promise::Ordered,
            DataMode::Journal if self.block_size == 4096 => Promise::WholeBlocks,
            DataMode::Journal => Promise::Ordered,
            DataMode::Writeback => Promise::Writeback,
        }
    }

    fn mkfs(&self, device: &dyn BlockDevice) -> Result<(), String> {
        let mut options = onggi_ext4_mkfs::Options::new([7; 16], [9; 16], 1_700_000_000);
        options.block_size = Some(self.block_size);
        options.discard = false;
        options.parse_features(self.features).map_err(|error| error.to_string())?;
        onggi_ext4_mkfs::format(device, &options).map(drop).map_err(|error| error.to_string())
    }

    fn mount(&self, device: Arc<dyn BlockDevice>) -> Result<Arc<dyn FileSystem>, String> {
        let options = MountOptions {
            data: self.data,
            background: false,
            cache_bytes: 8 << 20,
            ..MountOptions::default()
        };
        let fs = Ext4::mount(device, options, support::NOW).map_err(|error| error.to_string())?;
        Ok(fs)
    }

    fn check(&self, device: Arc<dyn BlockDevice>, found: Found) -> Result<(), String> {
        let report =
            onggi_ext4_check::check(&*device, Mode::ReadOnly, &|_| {}).map_err(|error| error.to_string())?;
        if found == Found::AfterUnmount && report.replay.is_some() {
            return Err("an unmounted volume has a journal to replay".into());
        }
        if report.is_clean() { Ok(()) } else { Err(format!("{:?}", report.problems)) }
    }
}

/// Several seeds, so that a failure names a small one.
fn cut(subject: &Subject, first_seed: u64, seeds: u64, states: usize) {
    let (seeds, states) =
        if std::env::var_os("ONGGI_SOAK").is_some() { (seeds * 20, states * 5) } else { (seeds, states) };
    let mut total = 0;
    let first_seed = seed_or(first_seed);
    for seed in first_seed..first_seed + seeds {
        match campaign(subject, seed, 120, states) {
            Ok(report) => total += report.states,
            Err(failure) => panic!("{failure}"),
        }
    }
    println!("{total} states recovered and judged");
}

#[test]
fn ordered() {
    cut(&Subject { block_size: 4096, features: "", data: DataMode::Ordered }, 1, 10, 400);
}

#[test]
fn ordered_1k_blocks() {
    cut(&Subject { block_size: 1024, features: "", data: DataMode::Ordered }, 100, 10, 400);
}

#[test]
fn orphan_file() {
    cut(&Subject { block_size: 1024, features: "orphan_file", data: DataMode::Ordered }, 200, 6, 300);
}

#[test]
fn journaled_data() {
    cut(&Subject { block_size: 4096, features: "", data: DataMode::Journal }, 300, 10, 400);
}

#[test]
fn without_checksums() {
    cut(
        &Subject { block_size: 2048, features: "^metadata_csum,^64bit", data: DataMode::Ordered },
        400,
        6,
        300,
    );
}

#[test]
fn writeback() {
    cut(&Subject { block_size: 4096, features: "", data: DataMode::Writeback }, 500, 6, 300);
}

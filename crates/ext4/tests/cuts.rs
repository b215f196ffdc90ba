//! A thousand random runs, each cut off at a random moment with a random legal subset of the unflushed
//! writes left: recovery succeeds, both checkers are content, and nothing acknowledged is lost.

use std::fs::OpenOptions;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use onggi_block_device::BlockDevice;
use onggi_crash::{Campaign, Engine, Found, Promise};
use onggi_ext4::{DataMode, Ext4, MountOptions};
use onggi_ext4_check::Mode;
use onggi_model::{Limits, Profile, Random};
use onggi_vfs::{FileSystem, Timestamp};

const NOW: Timestamp = Timestamp { sec: 1_700_000_000, nsec: 0 };
const RUNS: u64 = 1000;
/// A cut at a random moment, and one after the unmount.
const STATES: usize = 2;

/// One run's volume: its seed picks the format and the mode.
struct Subject {
    block_size: u32,
    features: &'static str,
    data: DataMode,
    /// Where e2fsck finds the volume; `None` where there is no e2fsck.
    image: Option<PathBuf>,
    /// Volumes that e2fsck replayed itself.
    replayed: AtomicUsize,
}

impl Subject {
    fn of_seed(seed: u64, image: Option<PathBuf>) -> Self {
        let mut random = Random::new(seed ^ 0x0073_7562);
        Self {
            block_size: *random.pick(&[1024, 4096]),
            features: *random.pick(&["", "", "orphan_file", "^metadata_csum,^64bit"]),
            data: *random.pick(&[
                DataMode::Ordered,
                DataMode::Ordered,
                DataMode::Journal,
                DataMode::Writeback,
            ]),
            image,
            replayed: AtomicUsize::new(0),
        }
    }

    /// Runs e2fsck on the device's contents; passes where its code is at most `most`.
    fn e2fsck(&self, image: &Path, option: &str, most: i32) -> Result<(), String> {
        let output = Command::new("e2fsck").arg(option).arg(image).output();
        let output = output.map_err(|error| format!("e2fsck: {error}"))?;
        match output.status.code() {
            Some(code) if code <= most => Ok(()),
            _ => Err(format!(
                "e2fsck {option}: {}\n{}{}",
                output.status,
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}

impl Engine for Subject {
    fn size(&self) -> u64 {
        16 << 20
    }

    fn limits(&self) -> Limits {
        Limits::ext4(self.block_size)
    }

    fn promise(&self) -> Promise {
        match self.data {
            DataMode::Journal if self.block_size == 4096 => Promise::WholeBlocks,
            DataMode::Ordered | DataMode::Journal => Promise::Ordered,
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
        let fs = Ext4::mount(device, options, NOW).map_err(|error| error.to_string())?;
        Ok(fs)
    }

    fn check(&self, device: Arc<dyn BlockDevice>, found: Found) -> Result<(), String> {
        let report = onggi_ext4_check::check(&*device, Mode::ReadOnly, &|_| {});
        let report = report.map_err(|error| error.to_string())?;
        if !report.is_clean() {
            return Err(format!("{:?}", report.problems));
        }
        let Some(image) = &self.image else { return Ok(()) };
        let write = || -> Result<(), String> {
            let mut bytes = vec![0; self.size() as usize];
            device.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
            let file = OpenOptions::new().create(true).truncate(false).write(true).open(image);
            file.and_then(|file| file.write_all_at(&bytes, 0)).map_err(|error| error.to_string())
        };
        match found {
            Found::AfterUnmount if report.replay.is_some() => {
                Err("an unmounted volume has a journal to replay".into())
            }
            Found::AfterUnmount => {
                write()?;
                self.e2fsck(image, "-fn", 0)
            }
            // It recovers by itself, which may count as a repair; then there is nothing to repair. That
            // an orphan file's volume was in use it forgets only in a whole check.
            Found::AfterCut if report.replay.is_some() => {
                write()?;
                self.e2fsck(image, if self.features == "orphan_file" { "-fp" } else { "-p" }, 1)?;
                self.replayed.fetch_add(1, Ordering::Relaxed);
                self.e2fsck(image, "-fn", 0)
            }
            Found::AfterCut => Ok(()),
        }
    }
}

/// What a thread's runs came to.
#[derive(Clone, Copy, Default)]
struct Tally {
    runs: usize,
    states: usize,
    replayed: usize,
}

/// Takes seeds until there are none, or one fails.
fn take_seeds(seeds: &Range<u64>, next: &AtomicU64, image: Option<PathBuf>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return Ok(tally);
        }
        let subject = Subject::of_seed(seed, image.clone());
        let mut campaign = Campaign::new(Profile::crash(subject.limits()));
        campaign.nested_every = 16;
        let steps = 20 + Random::new(seed).below(100) as usize;
        let report = campaign.run(&subject, seed, steps, STATES).map_err(|failure| {
            // The others need not go on.
            next.store(seeds.end, Ordering::Relaxed);
            let Subject { block_size, features, data, .. } = &subject;
            format!("blocks of {block_size}, features {features:?}, {data:?}: {failure}")
        })?;
        tally.runs += 1;
        tally.states += report.states;
        tally.replayed += subject.replayed.load(Ordering::Relaxed);
    }
}

#[test]
fn a_thousand_random_cuts_lose_nothing() {
    let seeds = match std::env::var("ONGGI_SEED").ok().and_then(|seed| seed.trim().parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None if std::env::var_os("ONGGI_SOAK").is_some() => 0..RUNS * 20,
        None => 0..RUNS,
    };
    let judge = Command::new("e2fsck").arg("-V").output().is_ok();
    if !judge {
        println!("skipped: no e2fsck here; our own checker alone judges");
    }
    let shared = Path::new("/dev/shm");
    let room = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
    let room = room.expect("a temporary directory");
    let next = AtomicU64::new(seeds.start);
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get().min(4));
    let tallies: Vec<_> = std::thread::scope(|scope| {
        let run = |thread: usize| {
            let image = judge.then(|| room.path().join(format!("{thread}.img")));
            let (seeds, next) = (&seeds, &next);
            scope.spawn(move || take_seeds(seeds, next, image))
        };
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut all = Tally::default();
    for tally in tallies {
        let tally = tally.unwrap_or_else(|failure| panic!("{failure}"));
        all.runs += tally.runs;
        all.states += tally.states;
        all.replayed += tally.replayed;
    }
    println!(
        "seeds {seeds:?}: {} runs cut off, {} states recovered and judged, {} journals replayed by e2fsck too",
        all.runs, all.states, all.replayed
    );
    assert_eq!(all.runs as u64, seeds.end - seeds.start);
}

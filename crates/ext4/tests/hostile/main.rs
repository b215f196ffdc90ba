//! Hostile images: an error that names structure and rule; never a panic, a hang or unbounded memory.
//!
//! Every failure names recipe, seed and what was done to the image. `ONGGI_SOAK=1` runs fifty times as many
//! seeds, `ONGGI_SEED=N` starts at another one.

mod change;
#[path = "../support/mod.rs"]
mod support;
mod walk;
mod watch;
mod whole;

use std::sync::{Arc, OnceLock};

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_corpus::golden::{self, RECIPES};
use onggi_ext4::{Ext4, MountError, MountOptions};
use onggi_ext4_check::{CheckError, Mode, check};
use onggi_vfs::FileSystem;
use support::NOW;
use watch::{Case, Watched};

/// Seeds for each recipe.
const SEEDS: u64 = 80;
/// One case in so many is judged by e2fsck too.
const SAMPLE: u64 = 8;

fn env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = env("ONGGI_SEED").unwrap_or(0);
    let count = env("ONGGI_SEEDS").unwrap_or(count);
    let factor = if std::env::var_os("ONGGI_SOAK").is_some() { 50 } else { 1 };
    first..first + count * factor
}

/// A recipe's name and its image.
type Image = (&'static str, Arc<Vec<u8>>);

/// The recipes' images; empty where e2fsprogs is missing.
fn images() -> &'static [Image] {
    static IMAGES: OnceLock<Vec<Image>> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let made = |recipe| Some(Arc::new(golden::make(recipe, folder.path())?));
        RECIPES.iter().filter_map(|recipe| Some((recipe.name, made(recipe)?))).collect()
    })
}

fn cases(count: u64, kind: Option<&'static str>) -> Vec<Case> {
    let mut cases = Vec::new();
    for seed in seeds(count) {
        for (recipe, image) in images() {
            let image = Arc::clone(image);
            let work = move |watched: &mut Watched| {
                let mut image = image.to_vec();
                let mutation = match kind {
                    None => onggi_corpus::mutate(&mut image, seed),
                    Some(kind) => match onggi_corpus::mutate_kind(&mut image, kind, seed) {
                        Some(mutation) => mutation,
                        None => return,
                    },
                };
                image.truncate(mutation.length);
                watched.name(&format!(" ({})", mutation.description));
                whole_way(watched, &image, seed);
            };
            cases.push(Case { label: format!("{recipe}, seed {seed}"), work: Box::new(work) });
        }
    }
    cases
}

#[test]
fn mutations_of_valid_volumes() {
    watch::run(cases(SEEDS, None));
}

#[test]
fn forged_journals() {
    watch::run(cases(SEEDS / 4, Some("forged transaction")));
}

#[test]
fn directories_that_lie_in_themselves() {
    watch::run(cases(SEEDS / 4, Some("directory cycle")));
}

/// Mounts, walks, changes, checks and repairs `image`.
pub(crate) fn whole_way(watched: &mut Watched, image: &[u8], seed: u64) {
    let device = Arc::new(MemoryDevice::from_bytes(image));
    watched.step("mount read-only and walk", |watched| walk_read_only(watched, &device));
    // A dirty journal was replayed: start anew.
    let device = Arc::new(MemoryDevice::from_bytes(image));
    let leave = !seed.is_multiple_of(3);
    watched.step("mount and change", |watched| mount_and_change(watched, &device, leave));
    watched.step("mount and walk what was left", |watched| walk_read_only(watched, &device));
    watched.step("check what was left", |watched| {
        judge_check(watched, check(&*device, Mode::ReadOnly, &|_| {}).err());
    });
    watched.step("mount again and change", |watched| mount_and_change(watched, &device, true));
    let device = Arc::new(MemoryDevice::from_bytes(image));
    watched.step("check", |watched| {
        judge_check(watched, check(&*device, Mode::ReadOnly, &|_| {}).err());
    });
    repair(watched, &device, seed);
}

fn options(read_only: bool) -> MountOptions {
    MountOptions { read_only, cache_bytes: 8 << 20, ..support::options() }
}

fn mount(watched: &Watched, device: &Arc<MemoryDevice>, read_only: bool) -> Option<Arc<Ext4>> {
    match Ext4::mount(Arc::clone(device) as Arc<dyn BlockDevice>, options(read_only), NOW) {
        Ok(fs) => Some(fs),
        Err(error) => {
            let text = error.to_string();
            if text.len() < 12 {
                watched.fail(format!("mount: an error that says little: {text:?}"), String::new());
            }
            if text.contains("runs past the device") || matches!(error, MountError::Device(_)) {
                watched.fail("mount: the device was asked for what it does not have".into(), text);
            }
            None
        }
    }
}

fn walk_read_only(watched: &Watched, device: &Arc<MemoryDevice>) -> Vec<String> {
    let Some(fs) = mount(watched, device, true) else { return vec!["it cannot be mounted".into()] };
    let broken = walk::everything(watched, &*fs);
    let _ = fs.unmount();
    broken
}

fn mount_and_change(watched: &Watched, device: &Arc<MemoryDevice>, leave: bool) {
    let Some(fs) = mount(watched, device, false) else { return };
    change::script(watched, &*fs);
    if leave && let Err(error) = fs.unmount() {
        walk::judge(watched, "unmount", &error);
    }
}

fn judge_check(watched: &Watched, error: Option<CheckError>) {
    let Some(error) = error else { return };
    let text = error.to_string();
    if text.len() < 12 {
        watched.fail(format!("check: an error that says little: {text:?}"), String::new());
    }
    if matches!(error, CheckError::Device(_)) {
        watched.fail("check: the device was asked for what it does not have".into(), text);
    }
}

/// Repairs; what was said to be fixed is fixed, and then mounts and reads without an error.
fn repair(watched: &mut Watched, device: &Arc<MemoryDevice>, seed: u64) {
    let repaired = watched.step("repair", |watched| {
        let result = check(&**device, Mode::Yes, &|_| {});
        judge_check(watched, result.as_ref().err().cloned());
        result.ok()
    });
    let Some(Some(report)) = repaired else { return };
    if report.has_unfixed() {
        return;
    }
    watched.step("check what was repaired", |watched| match check(&**device, Mode::ReadOnly, &|_| {}) {
        Ok(again) if again.is_clean() => {}
        Ok(again) => {
            watched
                .fail(format!("a repair leaves {}", again.problems[0].code), again.problems[0].to_string());
        }
        Err(error) => watched.fail("a repair leaves what cannot be checked".into(), error.to_string()),
    });
    watched.step("walk what was repaired", |watched| {
        let Some(fs) = mount(watched, device, true) else { return };
        for error in walk::everything(watched, &*fs) {
            if !expected(&error) {
                watched.fail("what was repaired cannot be read".into(), error);
            }
        }
    });
    if seed.is_multiple_of(SAMPLE) {
        watched.step("e2fsck of what was repaired", |watched| {
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            support::write_sparse(file.path(), device);
            let output = std::process::Command::new("e2fsck").arg("-fn").arg(file.path()).output();
            let output = output.expect("e2fsck runs");
            if !output.status.success() {
                let text = String::from_utf8_lossy(&output.stdout).into_owned();
                watched.fail("e2fsck finds more in what was repaired".into(), text);
            }
        });
    }
}

/// Errors that a whole volume gives too: names that are not there, the end of a file, an attribute of a
/// symbolic link that only regular files can show, what is not supported here.
fn expected(error: &str) -> bool {
    use onggi_vfs::Errno;
    let unsupported = error.ends_with("is not supported here");
    unsupported
        || [Errno::NOENT, Errno::NXIO, Errno::NODATA].iter().any(|errno| error.ends_with(&errno.to_string()))
}

//! One server killed, its volume recovered and judged.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::ops::AddAssign;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use onggi_ext4::{Ext4, MountOptions};
use onggi_file_device::{FileDevice, OpenOptions};
use onggi_model::{Node, Random, tree};
use onggi_vfs::{FileSystem, Timestamp};

use crate::diary::Diary;
use crate::work::{Shared, work};

/// Directories of the volume, one for each worker.
const DIRS: [&str; 3] = ["a", "b", "c"];
const BLOCK_SIZES: [&str; 2] = ["1024", "4096"];

/// Empty volumes, and a place to mount a copy of one.
pub(crate) struct Room(tempfile::TempDir);

impl Room {
    pub(crate) fn new() -> Self {
        let shared = Path::new("/dev/shm");
        let dir = if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
        let room = Self(dir.expect("a temporary directory"));
        fs::create_dir(room.path("mnt")).expect("a mount point");
        for block_size in BLOCK_SIZES {
            room.passes(0, &["mkfs", "-q", "-s", "16M", "-b", block_size, block_size]).expect("mkfs");
            for dir in DIRS {
                room.passes(0, &["mkdir", &format!("{block_size}:/{dir}")]).expect("mkdir");
            }
        }
        room
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn onggi(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onggi"));
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs `onggi`, whose exit code may be at most `most`.
    fn passes(&self, most: i32, args: &[&str]) -> Result<Output, String> {
        judge_exit(&mut self.onggi(args), most)
    }

    fn e2fsck(&self, option: &str, most: i32) -> Result<Output, String> {
        judge_exit(Command::new("e2fsck").arg(option).arg(self.path("cut.img")), most)
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mount table");
        mounts.contains(&format!(" {} fuse.onggi ", self.path("mnt").display()))
    }

    fn start(&self, options: &str) -> Result<Child, String> {
        let mut server = self.onggi(&["mount", "-f", "-o", options, "cut.img", "mnt"]);
        let mut server = server.spawn().map_err(|error| error.to_string())?;
        let start = Instant::now();
        while !self.is_mounted() {
            if let Ok(Some(status)) = server.try_wait() {
                return Err(format!("mount -o {options}: {status}"));
            }
            if start.elapsed() > Duration::from_secs(60) {
                kill(&mut server);
                return Err("waited a minute for the mount".into());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(server)
    }

    /// Takes a dead mount away.
    fn unmount(&self) -> Result<(), String> {
        while self.is_mounted() {
            self.passes(0, &["umount", "-l", "mnt"])?;
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let _ = self.unmount();
    }
}

fn judge_exit(command: &mut Command, most: i32) -> Result<Output, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if output.status.code().is_some_and(|code| code <= most) {
        return Ok(output);
    }
    let (said, complained) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("{command:?}: {}\n{said}{complained}", output.status))
}

fn kill(server: &mut Child) {
    // SIGKILL.
    server.kill().expect("it was not waited for");
    server.wait().expect("it was killed");
}

/// What runs came to.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) runs: u64,
    operations: u64,
    promises: u64,
    /// Volumes that had a journal to replay.
    dirty: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.runs += other.runs;
        self.operations += other.operations;
        self.promises += other.promises;
        self.dirty += other.dirty;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} servers killed after {} operations with {} promises; {} journals replayed",
            self.runs, self.operations, self.promises, self.dirty
        )
    }
}

/// One run, all of which `seed` decides but for the moment of the kill and how the workers take turns.
pub(crate) fn run(room: &Room, seed: u64) -> Result<Tally, String> {
    let mut random = Random::new(seed);
    let volume = room.path(random.pick::<&str>(&BLOCK_SIZES));
    fs::copy(volume, room.path("cut.img")).map_err(|error| error.to_string())?;
    let options = format!(
        "power-cut={seed},data={},cache={},commit={}",
        *random.pick(&["ordered", "ordered", "journal"]),
        *random.pick(&["2M", "64M"]),
        *random.pick(&["1", "5"]),
    );
    let mut server = room.start(&options)?;
    let (operations, diaries) = kill_at_work(room, &mut server, &mut random);
    room.unmount()?;
    let diaries = diaries.map_err(|what| format!("at work, -o {options}: {what}"))?;
    let dirty = recover(room, &mut random).map_err(|what| format!("-o {options}: {what}"))?;
    judge(room, &diaries).map_err(|what| format!("-o {options}, after {operations} operations: {what}"))?;
    let promises = diaries.iter().map(|diary| diary.promises).sum();
    Ok(Tally { runs: 1, operations, promises, dirty: u64::from(dirty) })
}

/// Lets some workers work, and kills the server under them.
fn kill_at_work(room: &Room, server: &mut Child, random: &mut Random) -> (u64, Result<Vec<Diary>, String>) {
    let shared = Shared::default();
    let workers = 1 + random.below(DIRS.len() as u64);
    let seeds: Vec<_> =
        DIRS.iter().take(workers as usize).map(|dir| (*dir, random.next_u64() >> 32)).collect();
    let enough = 20 + random.below(300);
    let pause = Duration::from_micros(random.below(3000));
    std::thread::scope(|scope| {
        let working: Vec<_> = seeds
            .iter()
            .map(|&(dir, seed)| {
                let (path, shared) = (room.path("mnt").join(dir), &shared);
                scope.spawn(move || work(&path, seed, shared))
            })
            .collect();
        let start = Instant::now();
        while shared.done.load(Ordering::Relaxed) < enough
            && shared.ended.load(Ordering::Relaxed) == 0
            && start.elapsed() < Duration::from_secs(30)
        {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(pause);
        shared.killed.store(true, Ordering::SeqCst);
        kill(server);
        let diaries = working.into_iter().map(|worker| worker.join().expect("no panic")).collect();
        (shared.done.load(Ordering::Relaxed), diaries)
    })
}

/// Checks the volume as it is, lets one of three recover it, and lets both checkers look at the outcome;
/// tells whether there was a journal to replay.
fn recover(room: &Room, random: &mut Random) -> Result<bool, String> {
    let before = room.passes(0, &["check", "-n", "cut.img"])?;
    let dirty = String::from_utf8_lossy(&before.stdout).contains("replayed");
    match random.below(3) {
        0 => room.passes(1, &["check", "-p", "cut.img"]).map(drop)?,
        1 => room.e2fsck("-p", 1).map(drop)?,
        _ => {
            let fs = open(room, false)?;
            fs.unmount().map_err(|error| format!("unmount after recovery: {error:?}"))?;
        }
    }
    let after = room.passes(0, &["check", "-n", "cut.img"])?;
    if String::from_utf8_lossy(&after.stdout).contains("replayed") {
        return Err("a journal is left to replay after recovery".into());
    }
    room.e2fsck("-fn", 0)?;
    Ok(dirty)
}

fn open(room: &Room, read_only: bool) -> Result<Arc<Ext4>, String> {
    let device = FileDevice::open(room.path("cut.img"), OpenOptions { read_only, ..OpenOptions::default() })
        .map_err(|error| error.to_string())?;
    let options = MountOptions { read_only, background: false, ..MountOptions::default() };
    Ext4::mount(Arc::new(device), options, Timestamp { sec: 2_000_000_000, nsec: 0 })
        .map_err(|error| format!("mount after the cut: {error}"))
}

/// Compares what came back with what was promised.
fn judge(room: &Room, diaries: &[Diary]) -> Result<(), String> {
    let fs = open(room, true)?;
    for (dir, diary) in DIRS.iter().zip(diaries) {
        let top = fs.lookup(fs.root(), dir.as_bytes()).map_err(|error| format!("{dir}: {error:?}"))?;
        let found = tree(&*fs, top.ino).map_err(|error| format!("{dir}: {error}"))?;
        let named = |(path, node): (Vec<u8>, Node)| (String::from_utf8_lossy(&path).into_owned(), node);
        let mut found: BTreeMap<_, _> = found.nodes.into_iter().map(named).collect();
        // The directory itself.
        found.remove("");
        diary.judge(&found).map_err(|what| format!("directory {dir}: {what}"))?;
    }
    fs.unmount().map_err(|error| format!("unmount: {error:?}"))
}

//! Linux and e2fsprogs as judges: they replay our log, we replay theirs.

mod rig;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_disk_format::jbd2::{JournalSuperblock, MAGIC};
use onggi_disk_format::{DiskBlock, Tid};
use onggi_fault_device::Prng;
use onggi_jbd2::{Buffers, Goal, Journal, JournalMap, Recovery, Settings, recover};
use rig::Payload;

/// An ext4 image made by mke2fs.
struct Image {
    folder: tempfile::TempDir,
    block_size: u32,
    metadata_csum: bool,
    sixty_four_bit: bool,
}

/// Runs a tool; its standard output and exit code, `None` where there is no such tool.
fn tool(program: &str, arguments: &[&str]) -> Option<(String, i32)> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
    Some((String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code().unwrap_or(-1)))
}

fn have(program: &str) -> bool {
    let found = tool(program, &["-V"]).is_some();
    if !found {
        println!("skipped: no {program} here");
    }
    found
}

impl Image {
    fn make(block_size: u32, metadata_csum: bool, sixty_four_bit: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let image = Self { folder, block_size, metadata_csum, sixty_four_bit };
        let sign = |on| if on { "" } else { "^" };
        let features = format!("{}metadata_csum,{}64bit", sign(metadata_csum), sign(sixty_four_bit));
        let (size, journal) = (format!("{}k", 16 * block_size), format!("size={}", block_size / 1024));
        let block_size = block_size.to_string();
        let path = image.path("img");
        let arguments =
            ["-q", "-t", "ext4", "-b", &block_size, "-J", &journal, "-O", &features, text(&path), &size];
        assert_eq!(tool("mke2fs", &arguments).unwrap().1, 0);
        image
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Runs debugfs commands on an image.
    fn debugfs(&self, name: &str, commands: &[String]) -> String {
        let script = self.path("commands");
        std::fs::write(&script, commands.join("\n") + "\n").unwrap();
        let (out, code) = tool("debugfs", &["-w", "-f", text(&script), text(&self.path(name))]).unwrap();
        assert_eq!(code, 0, "{out}");
        out
    }

    fn copy(&self, from: &str, to: &str) {
        std::fs::copy(self.path(from), self.path(to)).unwrap();
    }

    fn load(&self, name: &str) -> MemoryDevice {
        MemoryDevice::from_bytes(&std::fs::read(self.path(name)).unwrap())
    }

    fn store(&self, name: &str, device: &MemoryDevice) {
        std::fs::write(self.path(name), device.to_bytes()).unwrap();
    }

    /// The disk blocks of a file, in order.
    fn runs(&self, file: &str) -> Vec<(DiskBlock, u32)> {
        let listing = self.debugfs("img", &[format!("dump_extents -l {file}")]);
        // Columns: level, entries, logical range, physical range, length.
        let extent = |line: &str| {
            let line = line.replace(['-', '/'], " ");
            let words: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
            let words = words.filter(|words| words.len() == 9)?;
            Some((DiskBlock(words[6]), words[8] as u32))
        };
        let runs: Vec<_> = listing.lines().filter_map(extent).collect();
        assert!(!runs.is_empty(), "{listing}");
        runs
    }

    fn map(&self) -> JournalMap {
        JournalMap::new(self.runs("<8>"))
    }

    fn volume_blocks(&self) -> u64 {
        std::fs::metadata(self.path("img")).unwrap().len() / u64::from(self.block_size)
    }

    /// Puts a file of `blocks` blocks onto the volume and returns where they lie.
    fn put_file(&self, blocks: usize) -> Vec<DiskBlock> {
        std::fs::write(self.path("file"), vec![0xee; blocks * self.block_size as usize]).unwrap();
        self.debugfs("img", &[format!("write {} file", text(&self.path("file")))]);
        let runs = self.runs("file");
        let places: Vec<_> =
            runs.iter().flat_map(|&(at, count)| (at.0..at.0 + u64::from(count)).map(DiskBlock)).collect();
        assert_eq!(places.len(), blocks);
        places
    }

    fn replay(&self, name: &str) -> Recovery {
        let device = self.load(name);
        let recovery = recover(&device, self.block_size, &self.map(), self.volume_blocks()).unwrap();
        self.store(name, &device);
        recovery
    }

    /// The file as debugfs reads it.
    fn read_file(&self, name: &str) -> Vec<u8> {
        let out = self.path("out");
        let _ = std::fs::remove_file(&out);
        self.debugfs(name, &[format!("dump file {}", text(&out))]);
        std::fs::read(out).unwrap()
    }

    fn fsck(&self, name: &str, mode: &str) -> (String, i32) {
        tool("e2fsck", &["-f", mode, text(&self.path(name))]).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A loop mount that ends with the value.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, options: &str) -> Option<Self> {
        let point = image.with_extension("mnt");
        std::fs::create_dir_all(&point).unwrap();
        let options = format!("loop,{options}");
        match tool("mount", &["-t", "ext4", "-o", &options, text(image), text(&point)]) {
            Some((_, 0)) => Some(Self(point)),
            other => {
                println!("skipped: no loop mount here ({other:?})");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Whoever looks at all mounts just now may hold it for a moment.
        if tool("umount", &[text(&self.0)]).is_some_and(|(_, code)| code != 0) {
            tool("umount", &["-l", text(&self.0)]);
        }
    }
}

const SHAPES: [(u32, bool, bool); 4] =
    [(1024, true, true), (1024, false, false), (4096, true, false), (4096, false, true)];

/// Random transactions on the file's blocks, some revoked and then written in place; leaves the log dirty.
/// Returns what the file must hold.
fn our_transactions(image: &Image, places: &[DiskBlock], seed: u64) -> Vec<u8> {
    let mut prng = Prng::new(seed);
    let size = image.block_size as usize;
    let memory = Arc::new(image.load("img"));
    let device = Arc::clone(&memory) as Arc<dyn BlockDevice>;
    let settings = Settings {
        checksum_v3: image.metadata_csum,
        sixty_four_bit: image.sixty_four_bit,
        volume_blocks: image.volume_blocks(),
    };
    let journal: Journal<Payload> =
        Journal::open(Buffers::new(device, image.block_size, 1 << 20), image.map(), settings).unwrap();
    let mut content: Vec<Vec<u8>> = vec![vec![0xee; size]; places.len()];
    let mut in_place = vec![false; places.len()];
    for round in 0..160 {
        let mut handle = journal.start(24).unwrap();
        for _ in 0..20 {
            let at = prng.below(places.len() as u64) as usize;
            let mut bytes = vec![prng.bits() as u8; size];
            if prng.chance(1, 3) {
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
            }
            let was_data = std::mem::replace(&mut in_place[at], false);
            let buffers = journal.buffers();
            let buffer = if was_data { buffers.fresh(places[at]) } else { buffers.read(places[at]).unwrap() };
            handle.modify(&buffer, |block| block.copy_from_slice(&bytes)).unwrap();
            content[at] = bytes;
        }
        let freed = prng.below(places.len() as u64) as usize;
        handle.revoke(places[freed]);
        drop(handle);
        rig::commit(&journal);
        // Freed for good: its next owner writes in place.
        content[freed] = vec![prng.bits() as u8; size];
        in_place[freed] = true;
        memory.write_at(places[freed].0 * size as u64, &content[freed]).unwrap();
        if round % 9 == 8 {
            journal.checkpoint(Goal::Free(prng.below(1000))).unwrap();
        }
    }
    assert!(journal.log_pressure().used > 0, "the log is dirty");
    assert!(journal.counters().logged_blocks > u64::from(image.map().len()), "the log wrapped");
    drop(journal);
    image.store("img", &memory);
    image.debugfs("img", &["feature needs_recovery".into()]);
    content.concat()
}

#[test]
fn e2fsck_and_linux_replay_our_log() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    for (nth, (block_size, metadata_csum, sixty_four_bit)) in SHAPES.into_iter().enumerate() {
        let image = Image::make(block_size, metadata_csum, sixty_four_bit);
        let places = image.put_file(60);
        let wanted = our_transactions(&image, &places, nth as u64);
        assert!(image.read_file("img") != wanted, "something is left to replay");

        image.copy("img", "e2fsck");
        let (out, code) = image.fsck("e2fsck", "-y");
        assert!(code <= 1 && out.contains("recovering journal"), "{code}: {out}");
        assert!(
            image.read_file("e2fsck") == wanted,
            "e2fsck, {block_size}, {metadata_csum}, {sixty_four_bit}"
        );

        image.copy("img", "ours");
        let recovery = image.replay("ours");
        assert!(
            recovery.was_dirty && recovery.damaged.is_none() && recovery.transactions > 1,
            "{recovery:?}"
        );
        assert!(image.read_file("ours") == wanted, "ours");

        image.copy("img", "linux");
        let Some(mount) = Mount::new(&image.path("linux"), "rw") else { continue };
        let held = std::fs::read(mount.0.join("file")).unwrap();
        drop(mount);
        assert!(held == wanted, "Linux, {block_size}, {metadata_csum}, {sixty_four_bit}");
        let (out, code) = image.fsck("linux", "-n");
        assert_eq!(code, 0, "{out}");
    }
}

#[test]
fn we_replay_the_logs_that_debugfs_writes() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    for (block_size, metadata_csum, sixty_four_bit) in SHAPES {
        for open in ["jo", "jo -c -v 2", "jo -c -v 3"] {
            let image = Image::make(block_size, metadata_csum, sixty_four_bit);
            let places = image.put_file(12);
            let size = block_size as usize;
            let mut commands = vec![open.to_string()];
            for round in 0..3u8 {
                let mut bytes: Vec<u8> = (0..4).flat_map(|nth| vec![16 * round + nth; size]).collect();
                bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
                let path = image.path(&format!("blocks{round}"));
                std::fs::write(&path, bytes).unwrap();
                let list: Vec<String> =
                    (0..4).map(|nth| places[usize::from(3 * round) + nth].0.to_string()).collect();
                commands.push(format!("jw -b {} {}", list.join(","), text(&path)));
            }
            commands.push(format!("jw -r {},{}", places[0], places[5]));
            commands.extend(["jc".into()]);
            let out = image.debugfs("img", &commands);
            assert!(!out.to_lowercase().contains("error"), "{out}");
            image.copy("img", "ours");
            image.copy("img", "theirs");
            let (out, code) = image.fsck("theirs", "-y");
            assert!(code <= 1 && out.contains("recovering journal"), "{code}: {out}");
            let recovery = image.replay("ours");
            let found = (recovery.transactions, recovery.blocks, recovery.revoked, recovery.damaged);
            // debugfs 1.47.0 gives revoke blocks a wrong checksum; e2fsck and we must both refuse it.
            let refused = out.contains("transaction 4 was corrupt");
            assert!(!refused || open != "jo", "{out}");
            let wanted = if refused { (3, 10, 0, Some(Tid(4))) } else { (4, 8, 2, None) };
            assert_eq!(found, wanted, "{open}: {out}");
            let (ours, theirs) = (image.read_file("ours"), image.read_file("theirs"));
            assert!(ours == theirs, "{open}, {block_size}, {metadata_csum}, {sixty_four_bit}");
            assert!(refused || ours[..4] == [0xee; 4], "revoked");
            assert!(!refused || ours[..8] == [&MAGIC.to_be_bytes()[..], &[0; 4]].concat(), "unescaped");
            assert_eq!(
                ours[3 * size..3 * size + 8],
                [&MAGIC.to_be_bytes()[..], &[16; 4]].concat(),
                "unescaped"
            );
        }
    }
}

/// Works on a mounted volume and copies its image while the log is dirty.
fn dirty_copy(image: &Image, options: &str) -> Option<()> {
    let mount = Mount::new(&image.path("img"), &format!("{options},commit=300,noinit_itable"))?;
    for nth in 0..40 {
        let folder = mount.0.join(format!("d{}", nth % 7));
        std::fs::create_dir_all(&folder).unwrap();
        let mut bytes = vec![nth as u8; 3000 + 500 * nth];
        bytes[..4].copy_from_slice(&MAGIC.to_be_bytes());
        std::fs::write(folder.join(format!("f{nth}")), bytes).unwrap();
        // An fsync commits; syncfs would also write the blocks home.
        if nth % 8 == 7 {
            std::fs::File::open(&folder).unwrap().sync_all().unwrap();
            std::fs::remove_dir_all(&folder).unwrap();
        }
    }
    std::fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    // Linux may write in the background; a copy that was not taken at one instant is no crash state.
    for _ in 0..10 {
        image.copy("img", "dirty");
        if std::fs::read(image.path("img")).unwrap() == std::fs::read(image.path("dirty")).unwrap() {
            return Some(());
        }
    }
    panic!("Linux does not come to rest");
}

#[test]
fn we_replay_the_logs_that_linux_writes() {
    if !have("mke2fs") || !have("debugfs") {
        return;
    }
    let modes = ["data=ordered", "data=journal", "data=writeback,journal_async_commit", "journal_checksum"];
    let (mut replayed, mut blocks) = (0, 0);
    for (nth, (block_size, metadata_csum, sixty_four_bit)) in SHAPES.into_iter().enumerate() {
        for options in [modes[nth], modes[(nth + 1) % modes.len()]] {
            let image = Image::make(block_size, metadata_csum, sixty_four_bit);
            if dirty_copy(&image, options).is_none() {
                return;
            }
            image.copy("dirty", "ours");
            image.copy("dirty", "theirs");
            let path = image.path("theirs");
            let arguments = ["-y", "-E", "journal_only", text(&path)];
            let (out, code) = tool("e2fsck", &arguments).unwrap();
            assert!(code <= 1 && out.contains("recovering journal"), "{code}: {out}");
            let recovery = image.replay("ours");
            assert!(
                recovery.was_dirty && recovery.transactions > 0 && recovery.damaged.is_none(),
                "{recovery:?}"
            );
            replayed += recovery.transactions;
            // A sync by anybody on the machine may have left next to nothing to replay.
            blocks += recovery.blocks;
            let size = block_size as usize;
            let (ours, theirs) = (image.load("ours").to_bytes(), image.load("theirs").to_bytes());
            let map = image.map();
            let differ: Vec<usize> = (0..ours.len() / size)
                .filter(|at| ours[at * size..(at + 1) * size] != theirs[at * size..(at + 1) * size])
                .filter(|at| !map.contains(DiskBlock(*at as u64)))
                .collect();
            // e2fsck also notes in the superblock that it recovered, and sums up the groups behind it.
            let first = usize::from(size == 1024);
            assert!(differ.iter().all(|at| *at <= first + 1), "{options}: {differ:?}");
            // Preening may finish a deletion that the log begins; it refuses to repair anything.
            image.debugfs("ours", &["feature ^needs_recovery".into()]);
            let (out, code) = image.fsck("ours", "-p");
            assert!(code <= 1, "{options}, {block_size}: {out}");
            assert_eq!(image.fsck("ours", "-n").1, 0);
        }
    }
    println!("{replayed} transactions of Linux replayed, {blocks} blocks");
    assert!(blocks > 0);
}

#[test]
fn a_clean_journal_stays_clean_for_everybody() {
    if !have("mke2fs") || !have("e2fsck") || !have("debugfs") {
        return;
    }
    let image = Image::make(1024, true, true);
    let places = image.put_file(20);
    let memory = Arc::new(image.load("img"));
    let device = Arc::clone(&memory) as Arc<dyn BlockDevice>;
    let settings = Settings { checksum_v3: true, sixty_four_bit: true, volume_blocks: image.volume_blocks() };
    let journal: Journal<Payload> =
        Journal::open(Buffers::new(device, 1024, 1 << 20), image.map(), settings).unwrap();
    rig::fill(&journal, &[(places[0].0, 7), (places[9].0, 8)]);
    journal.close().unwrap();
    image.store("img", &memory);
    let held = image.read_file("img");
    assert_eq!((held[0], held[9 * 1024], held[1024]), (7, 8, 0xee));
    assert_eq!(image.fsck("img", "-n").1, 0);
    let start = image.map().locate(0).unwrap().0 as usize * 1024;
    let superblock = JournalSuperblock::parse(&memory.to_bytes()[start..start + 1024]).unwrap();
    assert_eq!((superblock.start(), superblock.sequence().0), (0, 2));
}

//! Each replays the other's journal.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_ext4::{DataMode, Ext4, MountOptions};
use onggi_fault_device::{CrashPoint, Explorer, Recorder, Snapshot, Survivors, crash_points};
use onggi_model::{Compare, Tree, pattern, tree};
use onggi_vfs::{FileSystem, Node, SetAttr};

use crate::grow::{Limits, alter, grow};
use crate::image::{Image, skip};
use crate::sight::{assert_none, host, sight_of_engine, sight_of_linux};
use crate::soak;
use crate::support::{self, CX, NOW, assert_image_clean};

const SEED: u64 = 30_000;

/// An engine on a volume whose every change is recorded.
struct Run {
    base: Arc<MemoryDevice>,
    device: Arc<Recorder<Snapshot>>,
    fs: Arc<Ext4>,
}

impl Run {
    fn new(options: MountOptions, change: impl FnOnce(&mut onggi_ext4_mkfs::Options)) -> Self {
        let base = support::volume(192 << 20, change);
        let over = Snapshot::over(Arc::clone(&base) as Arc<dyn BlockDevice>);
        let device = Arc::new(Recorder::new(over));
        support::log();
        let fs = Ext4::mount(Arc::clone(&device) as Arc<dyn BlockDevice>, options, NOW).expect("mount");
        Self { base, device, fs }
    }

    fn block_size(&self) -> u64 {
        u64::from(self.fs.statfs().expect("statfs").block_size)
    }

    /// The volume after a power cut at `position`.
    fn cut(&self, position: usize, survivors: &Survivors) -> Image {
        let base = Arc::clone(&self.base) as Arc<dyn BlockDevice>;
        let point = CrashPoint::new(base, &self.device.log(), position).expect("a crash point");
        Image::of_bytes(&point.image(survivors).expect("an image").to_bytes().expect("its bytes"))
    }
}

/// e2fsck, Linux and the engine each replay a copy; all must come to `expected`.
fn assert_all_replay(image: &Image, expected: &Tree, what: &str) {
    assert!(image.needs_recovery(), "{what}: the journal is not dirty");
    let by_e2fsck = image.copy();
    by_e2fsck.e2fsck_mends();
    assert_image_clean(&by_e2fsck.path);
    let seen = sight_of_engine(&by_e2fsck);
    assert_none(&seen.tree.diff(expected, Compare::ALL), &format!("{what}, replayed by e2fsck"));

    let by_engine = image.copy();
    let fs = by_engine.mount_here(|_| {}).expect("the engine replays");
    let seen = tree(&*fs, fs.root()).expect("the tree");
    fs.unmount().expect("unmount");
    drop(fs);
    assert_none(&seen.diff(expected, Compare::ALL), &format!("{what}, replayed by the engine"));
    assert_image_clean(&by_engine.path);

    // A writable mount, which finishes orphans too.
    let by_linux = image.copy();
    let Some(mounted) = by_linux.mount_by_linux("noatime") else { return };
    drop(mounted);
    assert_image_clean(&by_linux.path);
    let Some(seen) = sight_of_linux(&by_linux) else { return };
    assert_none(&seen.tree.diff(expected, Compare::ALL), &format!("{what}, replayed by Linux"));
}

/// Changes with syncs between them; after each the power goes.
fn linux_replays_ours(data: DataMode, change: fn(&mut onggi_ext4_mkfs::Options)) {
    let run = Run::new(MountOptions { data, ..support::options() }, change);
    let fs = &*run.fs;
    let limits = Limits { block_size: run.block_size(), old_inodes: false, early: true, entries: 600 };
    grow(fs, SEED, limits).expect("grow");
    fs.sync().expect("sync");
    let grown = tree(fs, fs.root()).expect("the tree");
    assert_all_replay(&run.cut(run.device.len(), &Survivors::None), &grown, "grown");

    let kinds: BTreeMap<_, _> = grown.nodes.iter().map(|(path, node)| (path.clone(), node.kind)).collect();
    alter(fs, &kinds, SEED, limits).expect("alter");
    // Files without a name that somebody still uses: replay ends their lives.
    for index in 0..40u32 {
        let name = format!("retained-{index}");
        let attr = fs.create(&CX, fs.root(), name.as_bytes(), Node::Regular, 0o600).expect("create");
        fs.write(&CX, attr.ino, u64::from(index) << 14, &pattern(7, 0, 50_000)).expect("write");
        fs.retain(attr.ino, attr.generation).expect("retain");
        fs.unlink(&CX, fs.root(), name.as_bytes()).expect("unlink");
    }
    fs.tmpfile(&CX, fs.root(), 0o600).expect("tmpfile");
    fs.sync().expect("sync");
    let altered = tree(fs, fs.root()).expect("the tree");
    assert_all_replay(&run.cut(run.device.len(), &Survivors::None), &altered, "altered");

    // One file made durable by itself.
    let attr = fs.create(&CX, fs.root(), b"last", Node::Regular, 0o640).expect("create");
    fs.write(&CX, attr.ino, 0, &pattern(1, 0, 300_000)).expect("write");
    fs.fsync(attr.ino, false).expect("fsync");
    let last = tree(fs, fs.root()).expect("the tree");
    assert_all_replay(&run.cut(run.device.len(), &Survivors::None), &last, "one fsync");
}

#[test]
fn linux_replays_our_journal() {
    linux_replays_ours(DataMode::Ordered, |_| {});
}

#[test]
fn linux_replays_our_journal_in_small_blocks() {
    linux_replays_ours(DataMode::Ordered, |options| options.block_size = Some(1024));
}

#[test]
fn linux_replays_our_journal_of_data() {
    linux_replays_ours(DataMode::Journal, |options| options.block_size = Some(4096));
}

#[test]
fn linux_replays_our_journal_without_checksums() {
    linux_replays_ours(DataMode::Writeback, |options| {
        options.block_size = Some(2048);
        options.parse_features("^metadata_csum,^64bit").expect("features");
    });
}

#[test]
fn linux_replays_our_journal_with_an_orphan_file() {
    linux_replays_ours(DataMode::Ordered, |options| {
        options.parse_features("orphan_file,metadata_csum_seed").expect("features");
    });
}

const WHOLE: u64 = 5999 * 2048 + 1024;
const CUT: u64 = 5000;

/// A volume and its log, with the truncation and the removal of files with deep trees from `start` on
/// while another thread commits without a pause.
fn truncate_while_committing() -> (Run, usize) {
    let run = Run::new(support::options(), |options| {
        options.block_size = Some(1024);
        options.journal = onggi_ext4_mkfs::JournalSize::Bytes(1 << 20);
    });
    let fs = &*run.fs;
    let make = |name: &str| {
        let ino = fs.create(&CX, fs.root(), name.as_bytes(), Node::Regular, 0o600).expect("create").ino;
        for block in 0..6000 {
            fs.write(&CX, ino, block * 2048, &pattern(1, block, 1024)).expect("write");
        }
        ino
    };
    let shortened = make("file-shortened");
    make("file-removed");
    fs.sync().expect("sync");
    let start = run.device.len();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                fs.sync().expect("sync");
            }
        });
        let size = Some(CUT);
        fs.setattr(&CX, shortened, &SetAttr { size, ..SetAttr::default() }).expect("truncate");
        fs.unlink(&CX, fs.root(), b"file-removed").expect("unlink");
        done.store(true, Ordering::Release);
    });
    (run, start)
}

/// Whether recovery finds an inode to finish with.
fn has_orphan(image: Snapshot) -> bool {
    let image: Arc<dyn BlockDevice> = Arc::new(image);
    let options = MountOptions { read_only: true, ..support::options() };
    Ext4::mount(Arc::clone(&image), options, NOW).expect("the engine replays");
    let mut superblock = [0; 1024];
    image.read_at(1024, &mut superblock).expect("the superblock");
    superblock[0xe8..0xec] != [0; 4]
}

/// The power goes amid the truncation of files with deep trees.
#[test]
fn interrupted_truncations_are_finished() {
    let mut interrupted = 0;
    // A commit comes into the middle of a truncation by chance only.
    for round in 0..50 {
        let (run, start) = truncate_while_committing();
        let log = run.device.log();
        let mut explorer = Explorer::new(Arc::clone(&run.base) as Arc<dyn BlockDevice>, log.clone());
        let points: Vec<_> = crash_points(&log).into_iter().filter(|&at| at > start).collect();
        let last = points.len() - 1;
        for (index, at) in points.into_iter().enumerate() {
            let point = explorer.at(at).expect("a crash point");
            let orphan = has_orphan(point.image(&Survivors::None).expect("an image"));
            interrupted += usize::from(orphan);
            if (orphan && interrupted <= soak(4, 60)) || (round == 0 && [0, last].contains(&index)) {
                let survivors = if index % 2 == 0 { Survivors::None } else { Survivors::Random { seed: 5 } };
                assert_truncation_finished(&run.cut(at, &survivors));
            }
        }
        if interrupted > soak(1, 20) {
            return;
        }
    }
    assert!(interrupted > 0, "no cut came in the middle of a truncation");
}

/// e2fsck, the engine and Linux each finish what a copy of the volume is amid of.
fn assert_truncation_finished(image: &Image) {
    let by_e2fsck = image.copy();
    by_e2fsck.e2fsck_mends();
    assert_image_clean(&by_e2fsck.path);
    let by_engine = image.copy();
    by_engine.mount_here(|_| {}).expect("the engine replays").unmount().expect("unmount");
    assert_image_clean(&by_engine.path);
    let ours = sight_of_engine(&by_engine);
    for (path, node) in ours.tree.nodes.iter().filter(|(path, _)| path.starts_with(b"file-")) {
        let shortened = path == b"file-shortened" && node.size == CUT;
        assert!(shortened || node.size == WHOLE, "/{}: {}", path.escape_ascii(), node.size);
    }
    let Some(mounted) = image.mount_by_linux("noatime") else { return };
    drop(mounted);
    assert_image_clean(&image.path);
    let Some(linux) = sight_of_linux(image) else { return };
    assert_none(&ours.tree.diff(&linux.tree, Compare { times: false, crtime: true }), "after a cut");
}

/// Linux leaves a dirty journal, everything before the last sync in it.
fn we_replay_linux(mkfs: &str, options: &str, revokes: bool) {
    let Some(image) = Image::mke2fs(192 << 20, mkfs) else { return };
    let Some(mounted) = image.mount_by_linux(&format!("noatime,user_xattr,{options}")) else { return };
    let fs = host(&mounted);
    let block_size = u64::from(fs.statfs().expect("statfs").block_size);
    let limits = Limits { block_size, old_inodes: false, early: true, entries: 600 };
    fs.create(&CX, fs.root(), b"late", Node::Directory, 0o755).expect("mkdir");
    grow(&fs, SEED, limits).expect("Linux grows");
    fs.sync().expect("sync");
    let grown = tree(&fs, fs.root()).expect("the tree");
    let kinds: BTreeMap<_, _> = grown.nodes.iter().map(|(path, node)| (path.clone(), node.kind)).collect();
    alter(&fs, &kinds, SEED, limits).expect("Linux changes");
    // Blocks of metadata freed and used again for data.
    let many = fs.create(&CX, fs.root(), b"many", Node::Directory, 0o755).expect("mkdir").ino;
    let names: Vec<_> = (0..400).map(|index| format!("{index}{}", "n".repeat(200))).collect();
    for name in &names {
        fs.create(&CX, many, name.as_bytes(), Node::Regular, 0o644).expect("create");
    }
    fs.sync().expect("sync");
    for name in &names {
        fs.unlink(&CX, many, name.as_bytes()).expect("unlink");
    }
    fs.rmdir(&CX, fs.root(), b"many").expect("rmdir");
    fs.sync().expect("sync");
    let refill = fs.create(&CX, fs.root(), b"refill", Node::Regular, 0o644).expect("create").ino;
    fs.write(&CX, refill, 0, &pattern(3, 0, 1 << 20)).expect("write");
    fs.sync().expect("sync");
    // Files without a name that are still open when the power goes.
    for index in 0..30 {
        let orphan = fs.tmpfile(&CX, fs.root(), 0o600).expect("tmpfile").ino;
        fs.write(&CX, orphan, index << 15, &pattern(5, 0, 60_000)).expect("write");
    }
    fs.sync().expect("sync");
    let synced = tree(&fs, fs.root()).expect("the tree");
    for index in 0..50 {
        let late = fs.lookup(fs.root(), b"late").expect("lookup").ino;
        let name = format!("unsynced-{index}");
        let ino = fs.create(&CX, late, name.as_bytes(), Node::Regular, 0o644).expect("create").ino;
        fs.write(&CX, ino, 0, &pattern(4, 0, 5000)).expect("write");
    }
    let cut = mounted.cut_off(mkfs.contains("-b 1024"));
    drop(fs);
    drop(mounted);
    if let Err(why) = cut {
        return skip(&format!("the volume cannot be cut off: {why}"));
    }
    assert!(image.needs_recovery(), "{mkfs} {options}: Linux left a clean journal");
    if revokes {
        let log = image.logdump();
        assert!(log.contains("type 5"), "{mkfs} {options}: no revoke block in the journal:\n{log}");
    }

    let expected = without_late(synced);
    let by_linux = image.copy();
    drop(by_linux.mount_by_linux("noatime"));
    let linux = without_late(sight_of_linux(&by_linux).expect("mounted before").tree);
    assert_none(&linux.diff(&expected, Compare::ALL), &format!("{mkfs} {options}: replayed by Linux"));

    let fs = image.mount_here(|_| {}).expect("the engine replays");
    let ours = without_late(tree(&*fs, fs.root()).expect("the tree"));
    fs.unmount().expect("unmount");
    drop(fs);
    assert_image_clean(&image.path);
    assert_none(&ours.diff(&expected, Compare::ALL), &format!("{mkfs} {options}: replayed by the engine"));
    let linux = without_late(sight_of_linux(&image).expect("mounted before").tree);
    assert_none(&linux.diff(&expected, Compare::ALL), "replayed by the engine, read by Linux");
}

/// Without what was not synced.
fn without_late(mut tree: Tree) -> Tree {
    tree.nodes.retain(|path, _| !path.starts_with(b"late"));
    tree
}

#[test]
fn we_replay_the_journal_of_linux() {
    we_replay_linux("-b 4096", "data=ordered", true);
    we_replay_linux("-b 1024", "data=ordered", true);
}

#[test]
fn we_replay_the_journal_of_linux_with_data() {
    // Linux never revokes here: whatever a block becomes goes through the journal again.
    we_replay_linux("-b 4096", "data=journal", false);
    we_replay_linux("-b 2048 -O ^metadata_csum,^64bit", "data=journal", false);
}

#[test]
fn we_replay_older_journals_of_linux() {
    we_replay_linux("-b 4096 -O ^metadata_csum", "data=ordered", true);
    we_replay_linux("-b 4096 -O ^metadata_csum", "data=ordered,journal_checksum", true);
    we_replay_linux("-b 4096 -O ^64bit", "data=writeback", true);
}

#[test]
fn we_replay_journals_of_linux_committed_in_one_go() {
    we_replay_linux("-b 4096", "data=writeback,journal_async_commit", true);
    we_replay_linux("-b 4096 -O ^metadata_csum", "data=writeback,journal_async_commit", true);
    we_replay_linux("-b 4096 -O orphan_file", "data=writeback,journal_checksum", true);
}

/// Fast commits are replayed or refused by name, never left out in silence.
#[test]
fn fast_commits_of_linux_are_not_lost() {
    let Some(image) = Image::mke2fs(192 << 20, "-b 4096 -O fast_commit") else { return };
    let Some(mounted) = image.mount_by_linux("noatime") else { return };
    let fs = host(&mounted);
    fs.sync().expect("sync");
    for index in 0..20 {
        let name = format!("file-{index}");
        let ino = fs.create(&CX, fs.root(), name.as_bytes(), Node::Regular, 0o644).expect("create").ino;
        fs.write(&CX, ino, 0, &pattern(index, 0, 5000)).expect("write");
        fs.fsync(ino, false).expect("fsync");
    }
    let synced = tree(&fs, fs.root()).expect("the tree");
    let cut = mounted.cut_off(false);
    drop(fs);
    drop(mounted);
    if let Err(why) = cut {
        return skip(&format!("the volume cannot be cut off: {why}"));
    }
    match image.mount_here(|_| {}) {
        Ok(fs) => {
            let ours = tree(&*fs, fs.root()).expect("the tree");
            fs.unmount().expect("unmount");
            assert_none(&ours.diff(&synced, Compare { times: false, crtime: false }), "fast commits");
            assert_image_clean(&image.path);
        }
        Err(error) => {
            let said = error.to_string().replace(['-', '_'], " ").to_lowercase();
            assert!(said.contains("fast commit"), "{error}");
        }
    }
}

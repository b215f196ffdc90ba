//! Blocks and inodes of all kinds of volumes, judged by e2fsck.

mod made;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use made::{Dice, FIRST_FILE, close, commit, e2fsck, make, open, try_open, with_handle};
use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::group::{GroupDescriptor, GroupFlags};
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::ext4::superblock::{ROOT_INODE, Superblock};
use onggi_disk_format::{DiskBlock, FileBlock, GroupNr, InodeNr};
use onggi_ext4_volume::alloc::{CREDITS_ALLOCATE_INODE, CREDITS_FREE_INODE};
use onggi_ext4_volume::extents::{self, Progress};
use onggi_ext4_volume::{BlockRun, Handle, Volume, VolumeError, dir};
use onggi_jbd2::CommitTime;

const REGULAR: u8 = 1;
const DIRECTORY: u8 = 2;

/// Every kind of volume whose groups are laid out or initialised in a way of its own.
const KINDS: &[&[&str]] = &[
    &["-b", "1024", "-O", "^has_journal", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "1024", "-O", "^has_journal,^flex_bg", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "1024", "-O", "^has_journal,^metadata_csum,uninit_bg", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "1024", "-O", "^has_journal,^metadata_csum,^uninit_bg,^64bit"],
    &["-b", "1024", "-O", "^has_journal,meta_bg,^resize_inode", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "1024", "-O", "^has_journal,sparse_super2", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "1024", "-O", "^has_journal,^64bit", "-I", "128", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "1024", "-O", "^has_journal", "-g", "1024", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "2048", "-O", "^has_journal", "-G", "2", "-N", "4096", "-E", "nodiscard,lazy_itable_init=1"],
    &["-b", "4096", "-O", "^has_journal", "-g", "2048", "-E", "nodiscard,lazy_itable_init=1"],
];

struct Made {
    name: String,
    parent: InodeNr,
    nr: InodeNr,
    directory: bool,
}

/// Makes a file or a directory, files with some blocks near `goal`.
fn create(volume: &Volume, template: &Inode, made: &New<'_>) -> Result<InodeNr, VolumeError> {
    with_handle(volume, 200, |h| {
        let credits = h.credits_left();
        let nr = volume.alloc.allocate_inode(volume, h, made.parent, made.directory)?;
        assert!(credits - h.credits_left() <= CREDITS_ALLOCATE_INODE);
        let (slot, at) = volume.inode_buffer(nr)?;
        let slot = &slot.snapshot()[at..at + usize::from(volume.sb.inode_size())];
        assert!(slot.iter().all(|&byte| byte == 0), "inode {nr} is not cleared");
        let mut inode = template.clone();
        inode.generation = made.generation;
        extents::init(&mut inode);
        let mut above = volume.read_inode(made.parent)?;
        if made.directory {
            (inode.mode, inode.links_count) = (0o40755, 2);
            dir::init(volume, h, nr, &mut inode, made.parent)?;
            above.links_count += 1;
        }
        volume.write_new_inode(h, nr, &inode)?;
        let kind = if made.directory { DIRECTORY } else { REGULAR };
        dir::insert(volume, h, made.parent, &mut above, made.name.as_bytes(), nr, kind)?;
        volume.write_inode(h, made.parent, &above)?;
        Ok(nr)
    })
}

struct New<'a> {
    name: &'a str,
    parent: InodeNr,
    directory: bool,
    generation: u32,
}

fn write(volume: &Volume, nr: InodeNr, goal: DiskBlock, blocks: u32) -> Result<(), VolumeError> {
    let mut inode = volume.read_inode(nr)?;
    let mut at = 0;
    while at < blocks {
        let run = volume.alloc.take(volume, goal, blocks - at)?;
        with_handle(volume, 100, |h| {
            let block = FileBlock(at);
            let extent = Extent { block, len: run.len as u16, start: run.start, unwritten: false };
            volume.alloc.mark_used(volume, h, run)?;
            extents::insert(volume, h, nr, &mut inode, extent)?;
            inode.size = u64::from(at + run.len) * u64::from(volume.block_size());
            volume.write_inode(h, nr, &inode)
        })?;
        at += run.len;
    }
    Ok(())
}

fn delete(volume: &Volume, made: &Made) -> Result<(), VolumeError> {
    let mut inode = volume.read_inode(made.nr)?;
    loop {
        let done = with_handle(volume, 400, |h| {
            let progress = extents::remove(volume, h, made.nr, &mut inode, 0..u32::MAX, made.directory)?;
            inode.size = 0;
            volume.write_inode(h, made.nr, &inode)?;
            Ok::<_, VolumeError>(progress == Progress::Done)
        })?;
        if done {
            break;
        }
    }
    with_handle(volume, 100, |h| {
        let mut above = volume.read_inode(made.parent)?;
        dir::remove(volume, h, made.parent, &mut above, made.name.as_bytes())?;
        above.links_count -= u16::from(made.directory);
        volume.write_inode(h, made.parent, &above)?;
        inode.links_count = 0;
        inode.dtime = 1_700_000_000;
        volume.write_inode(h, made.nr, &inode)?;
        let credits = h.credits_left();
        volume.alloc.free_inode(volume, h, made.nr, made.directory)?;
        assert!(credits - h.credits_left() <= CREDITS_FREE_INODE);
        Ok(())
    })
}

fn groups_with_inodes_are_written(image: &[u8], options: &[&str]) {
    let sb = Superblock::parse(&image[1024..]).unwrap();
    for group in (0..sb.groups()).map(GroupNr) {
        let descriptor = descriptor(image, group);
        let never = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
        let used = descriptor.free_inodes < sb.inodes_per_group();
        assert!(!used || !descriptor.flags.intersects(never), "{options:?}: group {group} has inodes");
    }
}

fn descriptor(image: &[u8], group: GroupNr) -> GroupDescriptor {
    let sb = Superblock::parse(&image[1024..]).unwrap();
    let (block, at) = sb.descriptor_location(group);
    let place = block.0 as usize * sb.block_size() as usize + at;
    GroupDescriptor::parse(&sb, group, &image[place..]).unwrap()
}

fn fill_and_empty(options: &[&str]) -> Option<()> {
    let image = make(options, 40 * 1024, 1)?;
    let (volume, device) = open(&image);
    let template = volume.read_inode(FIRST_FILE).unwrap();
    let start = volume.alloc.totals();
    let mut dice = Dice::new(5);
    let mut all: Vec<Made> = Vec::new();
    for step in 0..400u32 {
        let parents: Vec<InodeNr> = all.iter().filter(|made| made.directory).map(|made| made.nr).collect();
        let parent = match dice.below(parents.len() as u64 + 1) {
            0 => ROOT_INODE,
            at => parents[at as usize - 1],
        };
        let directory = dice.below(5) == 0;
        let name = format!("n{step}");
        let nr =
            create(&volume, &template, &New { name: &name, parent, directory, generation: step }).unwrap();
        if !directory {
            let goal = if step % 2 == 0 {
                volume.alloc.inode_goal(nr).0
            } else {
                dice.below(volume.sb.blocks_count())
            };
            write(&volume, nr, DiskBlock(goal), dice.below(60) as u32).unwrap();
        }
        all.push(Made { name, parent, nr, directory });
        if dice.below(4) == 0
            && let Some(at) = all.iter().rposition(|made| !made.directory)
        {
            delete(&volume, &all.remove(at)).unwrap();
        }
        if step % 37 == 0 {
            commit(&volume);
        }
    }
    let image = close(volume, &device);
    let said = e2fsck(&image);
    assert!(said.is_empty(), "filled {options:?}: {said}");
    groups_with_inodes_are_written(&image, options);
    // On with a fresh mind: what is in memory came from the disk.
    let (volume, device) = open(&image);
    while let Some(made) = all.pop() {
        delete(&volume, &made).unwrap();
    }
    commit(&volume);
    let grown = volume.read_inode(ROOT_INODE).unwrap().blocks * 512 / u64::from(volume.block_size());
    let end = volume.alloc.totals();
    assert_eq!((end.free_inodes, end.directories), (start.free_inodes, start.directories), "{options:?}");
    assert!(end.free_blocks + grown > start.free_blocks, "{options:?}");
    let said = e2fsck(&close(volume, &device));
    assert!(said.is_empty(), "emptied {options:?}: {said}");
    Some(())
}

#[test]
fn every_kind_of_volume_fills_and_empties() {
    for options in KINDS {
        if fill_and_empty(options).is_none() {
            return;
        }
    }
}

#[test]
fn every_block_and_every_inode_can_be_had() {
    let options = &[
        "-b",
        "1024",
        "-O",
        "^has_journal",
        "-g",
        "1024",
        "-N",
        "256",
        "-E",
        "nodiscard,lazy_itable_init=1",
    ];
    let Some(image) = make(options, 8192, 1) else { return };
    let (volume, device) = open(&image);
    let template = volume.read_inode(FIRST_FILE).unwrap();
    let mut all = Vec::new();
    while volume.alloc.free_inodes() > 0 {
        let name = format!("n{}", all.len());
        let made = New { name: &name, parent: ROOT_INODE, directory: false, generation: 1 };
        let nr = create(&volume, &template, &made).unwrap();
        all.push(Made { name: name.clone(), parent: ROOT_INODE, nr, directory: false });
    }
    commit(&volume);
    groups_with_inodes_are_written(&device.to_bytes(), options);
    let made = New { name: "more", parent: ROOT_INODE, directory: false, generation: 1 };
    assert!(matches!(create(&volume, &template, &made), Err(VolumeError::NoSpace)));
    let mut dice = Dice::new(1);
    let error = loop {
        let goal = DiskBlock(dice.below(8192));
        if let Err(error) = write_more(&volume, FIRST_FILE, goal, 1 + dice.below(300) as u32) {
            break error;
        }
    };
    assert!(matches!(error, VolumeError::NoSpace), "{error}");
    assert!(volume.alloc.free_blocks() < 2);
    let image = close(volume, &device);
    let said = e2fsck(&image);
    assert!(said.is_empty(), "{said}");
    let (volume, device) = open(&image);
    for made in all {
        delete(&volume, &made).unwrap();
    }
    let said = e2fsck(&close(volume, &device));
    assert!(said.is_empty(), "{said}");
}

/// Appends one run.
fn write_more(volume: &Volume, nr: InodeNr, goal: DiskBlock, blocks: u32) -> Result<(), VolumeError> {
    let mut inode = volume.read_inode(nr)?;
    let at = (inode.size / u64::from(volume.block_size())) as u32;
    let run = volume.alloc.take(volume, goal, blocks)?;
    with_handle(volume, 100, |h| {
        let extent = Extent { block: FileBlock(at), len: run.len as u16, start: run.start, unwritten: false };
        if let Err(error) = extents::insert(volume, h, nr, &mut inode, extent) {
            volume.alloc.give_back(run);
            return Err(error);
        }
        volume.alloc.mark_used(volume, h, run)?;
        inode.size += u64::from(run.len) * u64::from(volume.block_size());
        volume.write_inode(h, nr, &inode)
    })
}

#[test]
fn directories_spread_and_files_stay_near() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal", "-G", "2", "-N", "4096"], 128 * 1024, 1)
    else {
        return;
    };
    let (volume, _) = open(&image);
    let template = volume.read_inode(FIRST_FILE).unwrap();
    let group = |nr: InodeNr| volume.sb.inode_location(nr).unwrap().group.0;
    let mut top = HashSet::new();
    for at in 0..8 {
        let name = format!("d{at}");
        let made = New { name: &name, parent: ROOT_INODE, directory: true, generation: 1 };
        let nr = create(&volume, &template, &made).unwrap();
        top.insert(group(nr) / 2);
        let file = New { name: "file", parent: nr, directory: false, generation: 1 };
        assert_eq!(group(create(&volume, &template, &file).unwrap()), group(nr));
        let below = New { name: "below", parent: nr, directory: true, generation: 1 };
        assert_eq!(group(create(&volume, &template, &below).unwrap()) / 2, group(nr) / 2);
    }
    assert!(top.len() >= 6, "eight directories in {} of eight flexible groups", top.len());
}

#[test]
fn freed_blocks_wait_for_their_transaction() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal", "-N", "16"], 2048, 1) else { return };
    let (volume, _) = open(&image);
    let mut runs: Vec<BlockRun> = Vec::new();
    while let Ok(run) = volume.alloc.take(&volume, DiskBlock(1), 100) {
        with_handle(&volume, 10, |h| volume.alloc.mark_used(&volume, h, run)).unwrap();
        runs.push(run);
    }
    commit(&volume);
    let freed = runs.pop().unwrap();
    with_handle(&volume, 10, |h| volume.alloc.mark_free(&volume, h, freed)).unwrap();
    assert_eq!(volume.alloc.pending_blocks(), u64::from(freed.len));
    assert_eq!(volume.alloc.free_blocks(), u64::from(freed.len));
    assert!(matches!(volume.alloc.take(&volume, freed.start, 1), Err(VolumeError::NoSpace)));
    assert!(matches!(volume.alloc.promise_privileged(1), Err(VolumeError::NoSpace)));
    commit(&volume);
    assert_eq!(volume.alloc.pending_blocks(), 0);
    assert_eq!(volume.alloc.take(&volume, freed.start, freed.len).unwrap(), freed);
}

#[test]
fn what_is_given_back_is_found_again() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal", "-N", "16", "-g", "2048"], 8192, 1) else {
        return;
    };
    let (volume, _) = open(&image);
    let group = |run: &BlockRun| volume.sb.group_of_block(run.start).unwrap().0;
    let mut runs: Vec<BlockRun> = Vec::new();
    while let Ok(run) = volume.alloc.take(&volume, DiskBlock(1), 100) {
        runs.push(run);
    }
    runs.sort_by_key(|run| run.start);
    let whole = |nr: u32| *runs.iter().find(|run| group(run) == nr && run.len == 100).unwrap();
    let last = *runs.iter().rfind(|run| group(run) == 1).unwrap();
    // A single block, so that the group is known to hold no longer run.
    volume.alloc.give_back(BlockRun { start: last.start, len: 1 });
    assert_eq!(volume.alloc.take(&volume, DiskBlock(3000), 64).unwrap().len, 1);
    volume.alloc.give_back(BlockRun { start: last.start, len: 1 });
    // In two parts: together they are one run, nearer than the other.
    let (near, far) = (whole(1), whole(3));
    volume.alloc.give_back(far);
    volume.alloc.give_back(BlockRun { start: DiskBlock(near.start.0 + 50), len: 50 });
    volume.alloc.give_back(BlockRun { start: near.start, len: 50 });
    let goal = volume.sb.first_block_of_group(GroupNr(1));
    assert_eq!(volume.alloc.take(&volume, goal, 100).unwrap(), near);
    while volume.alloc.take(&volume, DiskBlock(1), 100).is_ok() {}
    volume.alloc.give_back(runs[0]);
    assert_eq!(volume.alloc.take(&volume, DiskBlock(8000), 1).unwrap().start, runs[0].start);
}

#[test]
fn wrong_frees_and_uses_are_refused() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal"], 8192, 1) else { return };
    let (volume, device) = open(&image);
    let run = volume.alloc.take(&volume, DiskBlock(5000), 10).unwrap();
    let corrupt =
        |result: Result<(), VolumeError>| assert!(matches!(result, Err(VolumeError::Corrupt { .. })));
    with_handle(&volume, 50, |h| {
        let alloc = &volume.alloc;
        corrupt(alloc.mark_free(&volume, h, run));
        alloc.mark_used(&volume, h, run).unwrap();
        corrupt(alloc.mark_used(&volume, h, run));
        corrupt(alloc.mark_free(&volume, h, BlockRun { start: DiskBlock(1), len: 1 }));
        corrupt(alloc.mark_free(&volume, h, BlockRun { start: alloc.inode_table(GroupNr(0)), len: 1 }));
        corrupt(alloc.mark_free(&volume, h, BlockRun { start: DiskBlock(8190), len: 5 }));
        corrupt(alloc.mark_free(&volume, h, BlockRun { start: DiskBlock(u64::MAX), len: 5 }));
        alloc.mark_free(&volume, h, run).unwrap();
        corrupt(alloc.mark_free(&volume, h, run));
        corrupt(alloc.free_inode(&volume, h, InodeNr(7), false));
        corrupt(alloc.free_inode(&volume, h, InodeNr(100), false));
        corrupt(alloc.free_inode(&volume, h, InodeNr(0), false));
        corrupt(alloc.free_inode(&volume, h, InodeNr(u32::MAX), false));
    });
    commit(&volume);
    let said = e2fsck(&close(volume, &device));
    assert!(said.is_empty(), "{said}");
}

#[test]
fn damaged_bitmaps_and_descriptors_are_refused() {
    for features in ["^has_journal,metadata_csum", "^has_journal,^metadata_csum,^uninit_bg"] {
        let Some(image) = make(&["-b", "1024", "-O", features], 8192, 1) else { return };
        let sb = Superblock::parse(&image[1024..]).unwrap();
        let (block, at) = sb.descriptor_location(GroupNr(0));
        let place = block.0 as usize * 1024 + at;
        let descriptor = GroupDescriptor::parse(&sb, GroupNr(0), &image[place..]).unwrap();
        let bitmap = descriptor.block_bitmap.0 as usize * 1024;
        let check = |image: &[u8], what: &str| {
            let taken = try_open(image).and_then(|(volume, _)| volume.alloc.take(&volume, DiskBlock(1), 1));
            assert!(matches!(taken, Err(VolumeError::Corrupt { .. })), "{features}: {what}: {taken:?}");
        };
        let mut copy = image.clone();
        copy[bitmap + 1020] ^= 1;
        check(&copy, "one bit of the block bitmap");
        // The counts stay right, but a block of the inode table is free.
        let mut copy = image.clone();
        let table = descriptor.inode_table.0 as usize - 1;
        copy[bitmap + table / 8] &= !(1 << (table % 8));
        copy[bitmap + 900] |= 1;
        check(&copy, "an inode table marked free");
        let mut copy = image.clone();
        copy[place..place + 4].copy_from_slice(&(descriptor.inode_table.0 as u32).to_le_bytes());
        check(&copy, "a bitmap in the inode table");
        let mut copy = image.clone();
        copy[place..place + 4].copy_from_slice(&100_000u32.to_le_bytes());
        check(&copy, "a bitmap outside the volume");
        let inodes = descriptor.inode_bitmap.0 as usize * 1024;
        let mut copy = image.clone();
        copy[inodes + 10] ^= 1;
        let (volume, _) = open(&copy);
        let got = with_handle(&volume, 50, |h| volume.alloc.allocate_inode(&volume, h, ROOT_INODE, false));
        assert!(matches!(got, Err(VolumeError::Corrupt { .. })), "{features}: inode bitmap");
    }
}

#[test]
fn protected_blocks_belong_to_nobody() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal"], 8192, 1) else { return };
    let (mut volume, _) = open(&image);
    let run = BlockRun { start: DiskBlock(4000), len: 100 };
    volume.alloc.protect(&[run]);
    assert!(volume.alloc.is_system(DiskBlock(4099), 1) && !volume.alloc.is_system(DiskBlock(4100), 10));
    assert!(!volume.alloc.is_system(DiskBlock(3990), 10) && volume.alloc.is_system(DiskBlock(3990), 11));
    let freed = with_handle(&volume, 50, |h| volume.alloc.mark_free(&volume, h, run));
    assert!(matches!(freed, Err(VolumeError::Corrupt { .. })));
    let mut inode = volume.read_inode(FIRST_FILE).unwrap();
    let extent = Extent { block: FileBlock(0), len: 2, start: DiskBlock(4050), unwritten: false };
    let mapped = with_handle(&volume, 50, |h| extents::insert(&volume, h, FIRST_FILE, &mut inode, extent));
    assert!(matches!(mapped, Err(VolumeError::Corrupt { .. })));
}

#[test]
fn promises_never_exceed_what_is_free() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal", "-m", "5"], 8192, 1) else { return };
    let (volume, _) = open(&image);
    let alloc = &volume.alloc;
    let available = alloc.available_blocks();
    assert!(alloc.promise(available + 1).is_err());
    alloc.promise(available).unwrap();
    assert_eq!(alloc.available_blocks(), 0);
    assert!(alloc.promise(1).is_err());
    alloc.promise_privileged(volume.sb.reserved_blocks()).unwrap();
    assert!(alloc.promise_privileged(1).is_err());
    alloc.unpromise(volume.sb.reserved_blocks());
    let run = alloc.take(&volume, DiskBlock(1), 100).unwrap();
    alloc.unpromise(u64::from(run.len));
    assert!(alloc.promise(1).is_err(), "what was taken cannot be promised again");
    alloc.give_back(run);
    alloc.promise(u64::from(run.len)).unwrap();
    assert!(alloc.promise(u64::MAX).is_err());
}

#[test]
fn threads_never_share_a_block() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal", "-g", "1024"], 16384, 1) else { return };
    let (volume, device) = open(&image);
    let owned: Vec<AtomicU8> = (0..16384).map(|_| AtomicU8::new(0)).collect();
    let change = |run: BlockRun, from: u8, to: u8| {
        for block in run.start.0..run.end().0 {
            let was = owned[block as usize].swap(to, Ordering::SeqCst);
            assert_eq!(was, from, "block {block}");
        }
    };
    let commit_all = || {
        let Some(tid) = volume.journal.running() else { return };
        while let Some(locked) = volume.journal.lock(tid).unwrap() {
            let done = locked.write(CommitTime { sec: 0, nsec: 0 }).unwrap();
            for run in done.payload.freed {
                change(run, 2, 0);
                volume.alloc.release(run);
            }
        }
    };
    let free = volume.alloc.totals().free_blocks;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..6)
            .map(|worker| {
                let (volume, change) = (&volume, &change);
                scope.spawn(move || {
                    let mut dice = Dice::new(100 + worker);
                    let (mut taken, mut used): (Vec<BlockRun>, Vec<BlockRun>) = (Vec::new(), Vec::new());
                    for _ in 0..4000 {
                        match dice.below(10) {
                            0..=3 => {
                                let goal = DiskBlock(dice.below(17000));
                                if let Ok(run) = volume.alloc.take(volume, goal, 1 + dice.below(80) as u32) {
                                    change(run, 0, 1);
                                    taken.push(run);
                                }
                            }
                            4 => {
                                if let Some(run) = taken.pop() {
                                    change(run, 1, 0);
                                    volume.alloc.give_back(run);
                                }
                            }
                            5..=7 => {
                                if let Some(run) = taken.pop() {
                                    let mark = |h: &mut Handle<'_>| volume.alloc.mark_used(volume, h, run);
                                    with_handle_or(volume, mark).unwrap();
                                    used.push(run);
                                }
                            }
                            _ => {
                                if !used.is_empty() {
                                    let run = used.swap_remove(dice.below(used.len() as u64) as usize);
                                    change(run, 1, 2);
                                    let mark = |h: &mut Handle<'_>| volume.alloc.mark_free(volume, h, run);
                                    with_handle_or(volume, mark).unwrap();
                                }
                            }
                        }
                    }
                    for run in taken {
                        change(run, 1, 0);
                        volume.alloc.give_back(run);
                    }
                    for run in used {
                        change(run, 1, 2);
                        let mark = |h: &mut Handle<'_>| volume.alloc.mark_free(volume, h, run);
                        with_handle_or(volume, mark).unwrap();
                    }
                })
            })
            .collect();
        let committer = scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                commit_all();
                std::thread::yield_now();
            }
        });
        let results: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        stop.store(true, Ordering::SeqCst);
        committer.join().unwrap();
        results.into_iter().for_each(|result| result.unwrap());
    });
    commit_all();
    assert_eq!(volume.alloc.totals().free_blocks, free);
    assert_eq!(volume.alloc.free_blocks(), free);
    let run = volume.alloc.take(&volume, DiskBlock(1), 1).unwrap();
    volume.alloc.give_back(run);
    let said = e2fsck(&close(volume, &device));
    assert!(said.is_empty(), "{said}");
}

/// A handle of its own; the committing thread makes room where a transaction is full.
fn with_handle_or<R>(volume: &Volume, change: impl FnOnce(&mut Handle<'_>) -> R) -> R {
    loop {
        match volume.journal.start(10) {
            Ok(mut handle) => return change(&mut handle),
            Err(onggi_jbd2::StartError::Full(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

//! Directories against a model, e2fsck and the kernel.

mod image;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;

use image::{Image, Mounted, REGULAR, ROOT, Random, e2fsck, mke2fs, with_hash};
use onggi_disk_format::ext4::{Extent, Inode, InodeFlags};
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};
use onggi_ext4_volume::{BlockRun, VolumeError, dir, extents};

const CHECKSUMS: &[&str] = &["-b", "1024"];
const PLAIN: &[&str] = &["-b", "1024", "-O", "^metadata_csum,^64bit"];
const NO_INDEX: &[&str] = &["-b", "1024", "-O", "^dir_index"];
const LEGACY: u8 = 0;
const TEA: u8 = 2;
const NO_TYPE: &[&str] = &["-b", "1024", "-O", "^filetype,^metadata_csum"];

fn long_name(nr: u64, random: &mut Random) -> Vec<u8> {
    let mut name = format!("{nr:x}-").into_bytes();
    let len = if random.below(4) == 0 { name.len() + random.below(20) } else { 180 + random.below(76) };
    // Bytes past 127 too: their sign matters to the hash.
    while name.len() < len {
        name.push([b'a', b'z', 0xc3, 0xff][random.below(4)]);
    }
    name
}

/// The kernel lists exactly these names, and finds each.
fn kernel_agrees(bytes: &[u8], path: &str, names: &BTreeMap<Vec<u8>, InodeNr>) {
    let Some(mounted) = Mounted::mount(bytes) else { return };
    let path = mounted.path().join(path);
    let listed: BTreeSet<Vec<u8>> =
        std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_vec()).collect();
    assert!(listed.iter().eq(names.keys()), "the kernel lists {} names, not {}", listed.len(), names.len());
    for (name, nr) in names {
        let found = std::fs::symlink_metadata(path.join(OsStr::from_bytes(name))).unwrap();
        assert_eq!(found.ino(), u64::from(nr.0));
    }
}

/// Random changes against a map; returns the deepest index seen.
fn against_a_map(args: &[&str], seed: u64, steps: usize) -> Option<u8> {
    println!("seed {seed} {args:?}");
    against_a_map_on(&mke2fs("64M", args)?, args == NO_TYPE, seed, steps)
}

fn against_a_map_on(bytes: &[u8], no_type: bool, seed: u64, steps: usize) -> Option<u8> {
    let image = Image::open(bytes);
    let mut random = Random::new(seed);
    let (nr, mut inode) = image.make_dir(b"d");
    let targets: Vec<InodeNr> = (0..3).map(|_| image.create(nr, false).0).collect();
    let mut model: BTreeMap<Vec<u8>, InodeNr> = BTreeMap::new();
    let mut deepest = 0;
    for step in 0..steps {
        let growing = step % 4000 < 3000;
        let target = targets[random.below(3)];
        let existing = if model.is_empty() {
            None
        } else {
            let from = long_name(random.below(steps) as u64, &mut random);
            model.range(from..).next().or_else(|| model.iter().next()).map(|(name, _)| name.clone())
        };
        match (random.below(10), existing) {
            (0..=6, _) if growing => {
                let name = long_name(step as u64, &mut random);
                image.insert(nr, &mut inode, &name, target).unwrap();
                model.insert(name, target);
            }
            (7, Some(name)) => {
                let old = image
                    .with(dir::CREDITS_CHANGE, |h| {
                        dir::replace(&image.volume, h, nr, &mut inode, &name, target, REGULAR)
                    })
                    .unwrap();
                assert_eq!(Some(old.inode), model.insert(name, target));
            }
            (_, Some(name)) => {
                let old = image.remove(nr, &mut inode, &name).unwrap();
                assert_eq!(Some(old.inode), model.remove(&name));
                assert!(matches!(image.remove(nr, &mut inode, &name), Err(VolumeError::Missing)));
            }
            (_, None) => {}
        }
        deepest = deepest.max(image.levels(nr, &inode).unwrap_or(0));
        if step % 1000 == 999 {
            assert_eq!(image.names(nr, &inode), model);
            image.commit();
        }
    }
    for (name, target) in &model {
        let found = dir::lookup(&image.volume, nr, &inode, name).unwrap().unwrap();
        assert_eq!(found.inode, *target);
        let kind = if no_type { 0 } else { REGULAR };
        assert_eq!(found.kind, kind);
    }
    assert_eq!(dir::lookup(&image.volume, nr, &inode, b"no such name").unwrap(), None);
    assert_eq!(dir::parent(&image.volume, nr, &inode).unwrap(), ROOT);
    assert!(!dir::is_empty(&image.volume, nr, &inode).unwrap());
    for &target in &targets {
        image.set_links(target, model.values().filter(|&&found| found == target).count() as u16);
    }
    let bytes = image.bytes();
    e2fsck(&bytes);
    kernel_agrees(&bytes, "d", &model);

    // Opened again from what is on the device, and emptied.
    let image = Image::open(&bytes);
    let mut inode = image.volume.read_inode(nr).unwrap();
    assert_eq!(image.names(nr, &inode), model);
    for name in model.keys() {
        image.remove(nr, &mut inode, name).unwrap();
    }
    assert!(dir::is_empty(&image.volume, nr, &inode).unwrap());
    assert!(image.names(nr, &inode).is_empty());
    Some(deepest)
}

#[test]
fn random_changes_with_checksums_reach_two_levels() {
    if let Some(deepest) = against_a_map(CHECKSUMS, 1, 16_000) {
        assert_eq!(deepest, 1, "one level of nodes below the root");
    }
}

#[test]
fn random_changes_without_checksums() {
    if let Some(deepest) = against_a_map(PLAIN, 2, 8_000) {
        assert_eq!(deepest, 1);
    }
}

#[test]
fn random_changes_without_an_index() {
    against_a_map(NO_INDEX, 3, 1_500);
}

#[test]
fn random_changes_without_file_types() {
    against_a_map(NO_TYPE, 4, 3_000);
}

#[test]
fn random_changes_with_other_hashes() {
    for (seed, version) in [(5, LEGACY), (6, TEA)] {
        println!("seed {seed}");
        let Some(bytes) = mke2fs("64M", CHECKSUMS) else { return };
        against_a_map_on(&with_hash(bytes, version), false, seed, 3_000);
    }
}

/// Fills until the format or the volume says no; then nothing may have changed.
fn fill_up(size: &str, args: &[&str], name_len: usize) {
    let Some(bytes) = mke2fs(size, args) else { return };
    let image = Image::open(&bytes);
    let (nr, mut inode) = image.make_dir(b"d");
    let mut targets = vec![image.create(nr, false).0];
    let mut model = BTreeMap::new();
    let mut refused = None;
    for step in 0..200_000u64 {
        let mut name = format!("{step}-").into_bytes();
        name.resize(name_len, b'n');
        if step % 30_000 == 29_999 {
            image.set_links(*targets.last().unwrap(), 30_000 - u16::from(targets.len() == 1));
            targets.push(image.create(nr, false).0);
        }
        let target = *targets.last().unwrap();
        let before = (inode.clone(), image.volume.alloc.totals().free_blocks);
        match image.insert(nr, &mut inode, &name, target) {
            Ok(()) => model.insert(name, target),
            Err(VolumeError::NoSpace) => {
                assert_eq!((inode.clone(), image.volume.alloc.totals().free_blocks), before);
                refused = Some(name);
                break;
            }
            Err(error) => panic!("{error}"),
        };
    }
    let refused = refused.expect("it never filled up");
    println!("{size} {args:?}: full with {} names, {} blocks", model.len(), inode.size / 1024);
    assert_eq!(dir::lookup(&image.volume, nr, &inode, &refused).unwrap(), None);
    assert_eq!(image.names(nr, &inode), model);
    // What leaves a gap in the right leaf lets the name in.
    let all: Vec<_> = model.keys().cloned().collect();
    for name in &all {
        image.remove(nr, &mut inode, name).unwrap();
        model.remove(name);
        if image.insert(nr, &mut inode, &refused, targets[0]).is_ok() {
            model.insert(refused.clone(), targets[0]);
            break;
        }
    }
    assert!(model.contains_key(&refused));
    for &target in &targets {
        image.set_links(target, model.values().filter(|&&found| found == target).count() as u16);
    }
    let bytes = image.bytes();
    e2fsck(&bytes);
    kernel_agrees(&bytes, "d", &model);
}

#[test]
fn a_full_index_refuses_and_stays_whole() {
    fill_up("64M", &["-b", "1024", "-N", "64"], 255);
}

#[test]
fn a_full_volume_refuses_and_leaves_the_directory_alone() {
    fill_up("2M", &["-b", "1024", "-N", "64", "-O", "^has_journal"], 200);
}

#[test]
fn every_lasting_name_is_listed_once_while_others_come_and_go() {
    for (args, seed) in [(CHECKSUMS, 11), (PLAIN, 12), (NO_INDEX, 13)] {
        println!("seed {seed}");
        let Some(bytes) = mke2fs("64M", args) else { return };
        let image = Image::open(&bytes);
        let mut random = Random::new(seed);
        let (nr, mut inode) = image.make_dir(b"d");
        let target = image.create(nr, false).0;
        let mut lasting = BTreeSet::new();
        let mut passing: Vec<Vec<u8>> = Vec::new();
        for round in 0..40u64 {
            // The directory grows from one block to an index of two levels between the rounds.
            for step in 0..round * 4 {
                let name = long_name(round << 32 | step, &mut random);
                image.insert(nr, &mut inode, &name, target).unwrap();
                lasting.insert(name);
            }
            let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
            let mut cookie = 0;
            loop {
                let entries = dir::read(&image.volume, nr, &inode, cookie, 1 + random.below(40)).unwrap();
                if entries.is_empty() {
                    break;
                }
                // A reader may take only a part of what it was given.
                let taken = 1 + random.below(entries.len());
                cookie = entries[taken - 1].next;
                for entry in entries.into_iter().take(taken) {
                    *seen.entry(entry.name).or_default() += 1;
                }
                for step in 0..random.below(30) as u64 {
                    if random.below(2) == 0 && !passing.is_empty() {
                        let name = passing.swap_remove(random.below(passing.len()));
                        image.remove(nr, &mut inode, &name).unwrap();
                    } else {
                        let name = long_name(1 << 63 | random.next() << 8 | step, &mut random);
                        image.insert(nr, &mut inode, &name, target).unwrap();
                        passing.push(name);
                    }
                }
                if passing.len() > 400 {
                    for name in passing.drain(..300) {
                        image.remove(nr, &mut inode, &name).unwrap();
                    }
                }
            }
            for name in &lasting {
                assert_eq!(seen.get(name), Some(&1), "round {round}: {}", String::from_utf8_lossy(name));
            }
        }
        image.commit();
    }
}

/// Names that all have one legacy hash: the last character but one is solved for.
fn colliding_names(count: usize) -> Vec<Vec<u8>> {
    const FACTOR: u32 = 7_152_373;
    // Newton's iteration for the inverse of an odd number.
    let inverse = (0..5).fold(FACTOR, |x, _| x.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(x))));
    assert_eq!(inverse.wrapping_mul(FACTOR), 1);
    let step = |(last, before): (u32, u32), byte: u8| {
        let mixed = before.wrapping_add(last ^ u32::from(byte).wrapping_mul(FACTOR));
        (if mixed >> 31 == 1 { mixed.wrapping_sub(0x7fff_ffff) } else { mixed }, last)
    };
    let start = [b'x'; 240].iter().fold((0x12a3_fe2d_u32, 0x37ab_e8f9_u32), |state, &byte| step(state, byte));
    let wanted = 0x1234_5678_u32;
    let usable = |byte: u32| byte > 0x20 && byte < 0x7f && byte != u32::from(b'/');
    let mut names = Vec::new();
    let mut nr = 0u64;
    while names.len() < count {
        nr += 1;
        let digits: Vec<u8> = (0..8).map(|digit| b'a' + (nr >> (4 * digit) & 15) as u8).collect();
        let (last, before) = digits.iter().fold(start, |state, &byte| step(state, byte));
        for second in (0x21..0x7fu8).filter(|&byte| byte != b'/') {
            // wanted = last + (middle ^ second * FACTOR), middle = before + (last ^ first * FACTOR)
            for wrapped in [0, 0x7fff_ffff_u32] {
                let middle =
                    wanted.wrapping_add(wrapped).wrapping_sub(last) ^ u32::from(second).wrapping_mul(FACTOR);
                for folded in [0, 0x7fff_ffff_u32] {
                    let first =
                        (middle.wrapping_add(folded).wrapping_sub(before) ^ last).wrapping_mul(inverse);
                    if !usable(first) {
                        continue;
                    }
                    let state = step(step((last, before), first as u8), second);
                    if state.0 == wanted {
                        let mut name = vec![b'x'; 240];
                        name.extend_from_slice(&digits);
                        name.extend_from_slice(&[first as u8, second]);
                        names.push(name);
                    }
                }
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn names_of_one_hash_run_through_many_leaves() {
    let Some(bytes) = mke2fs("16M", CHECKSUMS) else { return };
    let image = Image::open(&with_hash(bytes, LEGACY));
    let (nr, mut inode) = image.make_dir(b"d");
    let target = image.create(nr, false).0;
    let mut model = BTreeMap::new();
    for (step, name) in colliding_names(24).into_iter().enumerate() {
        for extra in 0..8 {
            let other = format!("other-{step}-{extra}-{}", "o".repeat(100)).into_bytes();
            image.insert(nr, &mut inode, &other, target).unwrap();
            model.insert(other, target);
        }
        image.insert(nr, &mut inode, &name, target).unwrap();
        model.insert(name, target);
    }
    for name in model.keys() {
        assert!(dir::lookup(&image.volume, nr, &inode, name).unwrap().is_some());
    }
    assert_eq!(image.names(nr, &inode), model);
    for max in [1, 2, 7] {
        let all = image.list(nr, &inode, max);
        assert_eq!(all.len(), model.len() + 2, "in pieces of {max}");
    }
    image.set_links(target, model.len() as u16);
    let bytes = image.bytes();
    e2fsck(&bytes);
    kernel_agrees(&bytes, "d", &model);
    let names: Vec<_> = model.keys().cloned().collect();
    for name in names.iter().step_by(2) {
        image.remove(nr, &mut inode, name).unwrap();
        model.remove(name);
    }
    assert_eq!(image.names(nr, &inode), model);
}

#[test]
fn reads_and_changes_what_the_kernel_made() {
    for (args, counts) in [(&["-b", "4096"][..], &[1, 100, 10_000][..]), (&["-b", "1024"], &[5, 3000])] {
        let Some(bytes) = mke2fs("256M", args) else { return };
        let Some(mounted) = Mounted::mount(&bytes) else { return };
        for count in counts {
            let path = mounted.path().join(count.to_string());
            std::fs::create_dir(&path).unwrap();
            for nr in 0..*count {
                std::fs::write(path.join(format!("file-{nr:07}")), "").unwrap();
            }
        }
        let image = Image::open(&mounted.unmount());
        let root = image.volume.read_inode(ROOT).unwrap();
        for count in counts {
            let name = count.to_string();
            let nr = dir::lookup(&image.volume, ROOT, &root, name.as_bytes()).unwrap().unwrap().inode;
            let mut inode = image.volume.read_inode(nr).unwrap();
            let names = image.names(nr, &inode);
            assert_eq!(names.len(), *count as usize);
            for file in 0..*count {
                let name = format!("file-{file:07}").into_bytes();
                assert_eq!(
                    dir::lookup(&image.volume, nr, &inode, &name).unwrap().unwrap().inode,
                    names[&name]
                );
            }
            // Every third name moves to a longer one.
            for file in (0..*count).step_by(3) {
                let old = format!("file-{file:07}").into_bytes();
                let target = image.remove(nr, &mut inode, &old).unwrap().inode;
                let new = format!("{}-{file}", "renamed".repeat(20)).into_bytes();
                image.insert(nr, &mut inode, &new, target).unwrap();
            }
            let names = image.names(nr, &inode);
            assert_eq!(names.len(), *count as usize);
            let bytes = image.bytes();
            e2fsck(&bytes);
            kernel_agrees(&bytes, &count.to_string(), &names);
        }
    }
}

#[test]
fn the_parent_can_change() {
    let Some(bytes) = mke2fs("16M", CHECKSUMS) else { return };
    let image = Image::open(&bytes);
    for count in [0, 200] {
        let (nr, mut inode) = image.make_dir(format!("d{count}").as_bytes());
        let (other, _) = image.make_dir(format!("o{count}").as_bytes());
        let target = image.create(nr, false).0;
        for step in 0..count {
            image.insert(nr, &mut inode, format!("name-{step}").as_bytes(), target).unwrap();
        }
        assert_eq!(inode.flags.contains(InodeFlags::INDEX), count > 0);
        image.with(1, |h| dir::set_parent(&image.volume, h, nr, &mut inode, other)).unwrap();
        assert_eq!(dir::parent(&image.volume, nr, &inode).unwrap(), other);
        let again = Image::open(&image.bytes());
        assert_eq!(dir::parent(&again.volume, nr, &inode).unwrap(), other);
    }
}

#[test]
fn what_is_not_supported_is_named() {
    let Some(bytes) = mke2fs("16M", CHECKSUMS) else { return };
    let image = Image::open(&bytes);
    let (nr, inode) = image.make_dir(b"d");
    for (flag, name) in [
        (InodeFlags::CASEFOLD, "casefold"),
        (InodeFlags::ENCRYPT, "encrypt"),
        (InodeFlags::INLINE_DATA, "inline_data"),
    ] {
        let mut inode = inode.clone();
        inode.flags.insert(flag);
        let found = dir::lookup(&image.volume, nr, &inode, b"x");
        assert!(matches!(found, Err(VolumeError::Unsupported { feature }) if feature == name));
    }
    let mut short = inode;
    short.size = 0;
    assert!(matches!(dir::read(&image.volume, nr, &short, 0, 10), Err(VolumeError::Corrupt { .. })));
}

/// Leaves only single free blocks on the volume, each between two that a file holds.
fn fragment(image: &Image) -> InodeNr {
    let (nr, mut inode) = image.create(ROOT, false);
    let mut root = image.volume.read_inode(ROOT).unwrap();
    image.insert(ROOT, &mut root, b"holder", nr).unwrap();
    let mut at = 0;
    while let Ok(run) = image.volume.alloc.take(&image.volume, DiskBlock(1), 1) {
        let extent = Extent { block: FileBlock(at), len: 1, start: run.start, unwritten: false };
        let added = image.with(100, |h| {
            extents::insert(&image.volume, h, nr, &mut inode, extent)?;
            image.volume.alloc.mark_used(&image.volume, h, run)
        });
        if added.is_err() {
            image.volume.alloc.give_back(run);
            break;
        }
        at += 1;
    }
    for block in (0..at).step_by(2) {
        image
            .with(200, |h| {
                let done = extents::remove(&image.volume, h, nr, &mut inode, block..block + 1, false)?;
                assert_eq!(done, extents::Progress::Done);
                inode.size = u64::from(at) * 1024;
                image.volume.write_inode(h, nr, &inode)
            })
            .or_else(|error| if matches!(error, VolumeError::NoSpace) { Ok(()) } else { Err(error) })
            .unwrap();
        image.commit();
    }
    nr
}

#[test]
fn a_fragmented_volume_fills_to_its_last_block() {
    let Some(bytes) = mke2fs("3M", &["-b", "1024", "-N", "64", "-O", "^has_journal"]) else { return };
    let image = Image::open(&bytes);
    let (nr, mut inode) = image.make_dir(b"d");
    fragment(&image);
    let target = image.create(nr, false).0;
    let mut model = BTreeMap::new();
    let mut refusals = 0;
    for step in 0..40_000u64 {
        let mut name = format!("{step}-").into_bytes();
        name.resize(240, b'n');
        let before = inode.clone();
        let result = image.insert(nr, &mut inode, &name, target);
        image.commit();
        match result {
            Ok(()) => model.insert(name, target),
            Err(VolumeError::NoSpace) => {
                refusals += 1;
                assert_eq!(
                    (inode.size, inode.blocks, inode.flags, inode.i_block),
                    (before.size, before.blocks, before.flags, before.i_block)
                );
                if refusals == 40 {
                    break;
                }
                continue;
            }
            Err(error) => panic!("{error}"),
        };
    }
    println!("{} names in {} blocks", model.len(), inode.size / 1024);
    assert_eq!(refusals, 40);
    assert_eq!(image.names(nr, &inode), model);
    image.set_links(target, model.len() as u16);
    let bytes = image.bytes();
    e2fsck(&bytes);
    kernel_agrees(&bytes, "d", &model);
}

/// Takes every free block, in memory only.
fn take_all(image: &Image) -> Vec<BlockRun> {
    std::iter::from_fn(|| image.volume.alloc.take(&image.volume, DiskBlock(1), 4096).ok()).collect()
}

#[test]
fn blocks_go_back_when_the_last_of_several_cannot_be_mapped() {
    let Some(bytes) = mke2fs("16M", &["-b", "1024", "-N", "64", "-O", "^has_journal"]) else { return };
    let image = Image::open(&bytes);
    let (nr, mut inode) = image.make_dir(b"d");
    let target = image.create(nr, false).0;
    let mut model = BTreeMap::new();
    let mut step = 0u64;
    let mut add_until = |inode: &mut Inode, model: &mut BTreeMap<_, _>, size: u64| {
        while inode.size < size {
            let mut name = format!("{step}-").into_bytes();
            name.resize(240, b'n');
            image.insert(nr, inode, &name, target)?;
            model.insert(name, target);
            step += 1;
        }
        Ok::<_, VolumeError>(())
    };
    // A root with room for two more leaves, all blocks in one extent.
    add_until(&mut inode, &mut model, 122 * 1024).unwrap();
    let extent_count = |inode: &Inode| inode.i_block[2];
    assert_eq!((extent_count(&inode), image.levels(nr, &inode)), (1, Some(0)));
    let held = take_all(&image);
    let mut spare = held.iter().flat_map(|run| (run.start.0..run.end().0).step_by(2)).skip(100);
    let mut spared = BTreeSet::new();
    let mut give_back = || {
        let start = spare.next().unwrap();
        image.volume.alloc.give_back(BlockRun { start: DiskBlock(start), len: 1 });
        spared.insert(start);
    };
    for size in [123, 124] {
        give_back();
        add_until(&mut inode, &mut model, size * 1024).unwrap();
    }
    // The index grows by two blocks; the second one's extent needs a third for the tree.
    assert_eq!((extent_count(&inode), image.levels(nr, &inode)), (3, Some(0)));
    give_back();
    give_back();
    assert!(matches!(add_until(&mut inode, &mut model, 126 * 1024), Err(VolumeError::NoSpace)));
    assert_eq!((inode.size, inode.blocks, extent_count(&inode)), (124 * 1024, 124 * 2, 3));
    assert_eq!(image.names(nr, &inode), model);
    give_back();
    image.commit();
    add_until(&mut inode, &mut model, 126 * 1024).unwrap();
    assert_eq!(image.levels(nr, &inode), Some(1));
    for block in held.iter().flat_map(|run| run.start.0..run.end().0).filter(|block| !spared.contains(block))
    {
        image.volume.alloc.give_back(BlockRun { start: DiskBlock(block), len: 1 });
    }
    image.set_links(target, model.len() as u16);
    let bytes = image.bytes();
    e2fsck(&bytes);
    kernel_agrees(&bytes, "d", &model);
}

#[test]
#[ignore = "the kernel takes half a minute to make 200,000 files"]
fn finds_and_lists_200_000_names_of_the_kernel() {
    let Some(bytes) = mke2fs("1G", &["-N", "300000"]) else { return };
    let Some(mounted) = Mounted::mount(&bytes) else { return };
    let path = mounted.path().join("d");
    std::fs::create_dir(&path).unwrap();
    for file in 0..200_000 {
        std::fs::write(path.join(format!("file-{file:07}")), "").unwrap();
    }
    let image = Image::open(&mounted.unmount());
    let root = image.volume.read_inode(ROOT).unwrap();
    let nr = dir::lookup(&image.volume, ROOT, &root, b"d").unwrap().unwrap().inode;
    let inode = image.volume.read_inode(nr).unwrap();
    let names = image.names(nr, &inode);
    assert_eq!(names.len(), 200_000);
    for file in 0..200_000 {
        let name = format!("file-{file:07}").into_bytes();
        assert_eq!(dir::lookup(&image.volume, nr, &inode, &name).unwrap().unwrap().inode, names[&name]);
    }
}

//! Extent trees against a model, judged by e2fsck.

mod made;

use std::collections::BTreeMap;
use std::ops::Range;

use made::{
    Dice, FIRST_FILE, close, commit, e2fsck, make, open, try_open, with_handle, with_inode,
    with_inode_credits,
};
use onggi_disk_format::ext4::extent::Extent;
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};
use onggi_ext4_volume::alloc::CREDITS_MARK_USED;
use onggi_ext4_volume::extents::{self, Mapping, Progress};
use onggi_ext4_volume::{Volume, VolumeError};

/// Every mapped block: where it lies and whether it is unwritten.
type Model = BTreeMap<u32, (u64, bool)>;

fn depth(inode: &Inode) -> u16 {
    u16::from_le_bytes([inode.i_block[6], inode.i_block[7]])
}

/// Maps what it can of `range` near `goal`; the number of blocks mapped.
fn insert(
    volume: &Volume,
    nr: InodeNr,
    model: &mut Model,
    range: Range<u32>,
    goal: u64,
    unwritten: bool,
) -> Result<u32, VolumeError> {
    let inode = volume.read_inode(nr)?;
    let Mapping::Hole { len } = extents::lookup(volume, nr, &inode, FileBlock(range.start))? else {
        return Ok(0);
    };
    let most = if unwritten { 32767 } else { 32768 };
    let run = volume.alloc.take(volume, DiskBlock(goal), len.min(range.len() as u32).min(most))?;
    let extent = Extent { block: FileBlock(range.start), len: run.len as u16, start: run.start, unwritten };
    let credits = extents::credits_for_insert(&inode, 1) + CREDITS_MARK_USED;
    let inserted = with_inode_credits(volume, nr, credits, |h, inode| {
        let before = inode.clone();
        let inserted = extents::insert(volume, h, nr, inode, extent);
        if inserted.is_err() {
            assert_eq!(*inode, before, "a failed insertion changed the inode");
        } else {
            volume.alloc.mark_used(volume, h, run).unwrap();
        }
        inserted
    });
    if let Err(error) = inserted {
        volume.alloc.give_back(run);
        return Err(error);
    }
    for at in 0..run.len {
        assert!(model.insert(range.start + at, (run.start.0 + u64::from(at), unwritten)).is_none());
    }
    Ok(run.len)
}

fn remove(
    volume: &Volume,
    nr: InodeNr,
    model: &mut Model,
    range: Range<u32>,
    credits: u32,
) -> Result<(), VolumeError> {
    let mut end = range.end;
    loop {
        let mut inode = volume.read_inode(nr)?;
        let credits = if credits == 0 { extents::credits_for_remove(volume, &inode) } else { credits };
        let progress = with_handle(volume, credits + 1, |h| {
            let progress =
                extents::remove(volume, h, nr, &mut inode, range.start..end, nr.0.is_multiple_of(2));
            volume.write_inode(h, nr, &inode).unwrap();
            progress
        });
        match progress? {
            Progress::Done => break,
            Progress::More(next) => {
                assert!(next <= end, "no way ahead");
                end = next;
            }
        }
    }
    model.retain(|block, _| !range.contains(block));
    Ok(())
}

fn convert(volume: &Volume, nr: InodeNr, model: &mut Model, range: Range<u32>, to_unwritten: bool) {
    let mut from = range.start;
    loop {
        let credits = extents::credits_for_convert(&volume.read_inode(nr).unwrap());
        let progress = with_inode_credits(volume, nr, credits, |h, inode| {
            extents::convert(volume, h, nr, inode, from..range.end, to_unwritten).unwrap()
        });
        match progress {
            Progress::Done => break,
            Progress::More(next) => {
                assert!(next > from);
                from = next;
            }
        }
    }
    model.range_mut(range).for_each(|(_, mapped)| mapped.1 = to_unwritten);
}

/// Walks the whole file by look-ups and by the extents, and compares both with the model.
fn compare(volume: &Volume, nr: InodeNr, model: &Model) {
    let inode = volume.read_inode(nr).unwrap();
    let mut found = Model::new();
    let mut at = 0;
    while at < u32::MAX {
        match extents::lookup(volume, nr, &inode, FileBlock(at)).unwrap() {
            Mapping::Hole { len } => at += len,
            Mapping::Mapped { start, len, unwritten } => {
                found.extend((0..len).map(|n| (at + n, (start.0 + u64::from(n), unwritten))));
                at += len;
            }
        }
    }
    assert!(found == *model, "look-ups differ from the model");
    let mut walked = Model::new();
    let mut from = 0;
    while let Some(e) = extents::next_extent(volume, nr, &inode, FileBlock(from)).unwrap() {
        let mapped = (0..u32::from(e.len)).map(|n| (e.block.0 + n, (e.start.0 + u64::from(n), e.unwritten)));
        walked.extend(mapped);
        from = e.end() as u32;
    }
    assert!(walked == *model, "extents differ from the model");
    let listed =
        extents::list(&volume.sb, nr, &inode, |block| Ok(volume.buffers.read(block)?.snapshot().to_vec()));
    let blocks: u32 = listed.unwrap().iter().map(|extent| u32::from(extent.len)).sum();
    assert_eq!(blocks as usize, model.len());
}

/// Sets the size to the end of what is mapped and closes; what e2fsck says must be nothing.
fn judge(volume: Volume, device: &onggi_block_device::MemoryDevice, files: &[(InodeNr, &Model)], what: &str) {
    for (nr, model) in files {
        let end = model.last_key_value().map_or(0, |(&block, _)| u64::from(block) + 1);
        with_inode(&volume, *nr, |_, inode| inode.size = end * u64::from(volume.block_size()));
    }
    let free = volume.alloc.free_blocks();
    commit(&volume);
    assert_eq!(
        volume.journal.counters().overdrafts,
        0,
        "{what}: a handle needed more credits than it asked for"
    );
    assert_eq!(volume.alloc.pending_blocks(), 0);
    assert_eq!(volume.alloc.free_blocks(), free);
    let said = e2fsck(&close(volume, device));
    assert!(said.is_empty(), "{what}: {said}");
}

fn random_run(seed: u64, options: &[&str], steps: u32) -> Option<()> {
    let image = make(options, 16384, 2)?;
    let (volume, device) = open(&image);
    let mut dice = Dice::new(seed);
    let mut models = [Model::new(), Model::new()];
    let nrs = [FIRST_FILE, InodeNr(FIRST_FILE.0 + 1)];
    let mut full = 0;
    for step in 0..steps {
        let which = dice.below(2) as usize;
        let (nr, model) = (nrs[which], &mut models[which]);
        // Mostly a crowded stretch, sometimes the far end of what a file can hold.
        let base = if dice.below(20) == 0 { u32::MAX - 200 } else { 0 };
        let span = if base == 0 { 3000 } else { 200 };
        let start = base + dice.below(u64::from(span)) as u32;
        let len = if dice.below(4) == 0 { dice.below(600) } else { 1 + dice.below(6) } as u32;
        let range = start..(start + len.min(base + span - start));
        match dice.below(10) {
            0..=5 => {
                let goal = dice.below(16384);
                let unwritten = dice.below(3) == 0;
                match insert(&volume, nr, model, range, goal, unwritten) {
                    Ok(_) => {}
                    Err(VolumeError::NoSpace) => full += 1,
                    Err(error) => panic!("seed {seed}, step {step}: {error}"),
                }
            }
            6 | 7 => convert(&volume, nr, model, range, dice.below(2) == 0),
            _ => remove(&volume, nr, model, range, if dice.below(2) == 0 { 0 } else { 400 }).unwrap(),
        }
        if step % 64 == 0 {
            compare(&volume, nr, model);
        }
        if dice.below(50) == 0 {
            commit(&volume);
        }
    }
    println!("seed {seed}: {full} times full");
    nrs.iter().zip(&models).for_each(|(&nr, model)| compare(&volume, nr, model));
    judge(volume, &device, &[(nrs[0], &models[0]), (nrs[1], &models[1])], &format!("seed {seed}"));
    Some(())
}

#[test]
fn random_changes_agree_with_the_model() {
    let base = ["-b", "1024", "-O", "^has_journal,metadata_csum", "-N", "64"];
    let plain = ["-b", "1024", "-O", "^has_journal,^metadata_csum,^64bit,^flex_bg", "-N", "64"];
    for seed in 1..=6 {
        if random_run(seed, if seed % 3 == 0 { &plain } else { &base }, 3000).is_none() {
            return;
        }
    }
}

#[test]
fn a_fragmented_file_grows_to_depth_three_and_shrinks_again() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal,metadata_csum", "-N", "16"], 65536, 1) else {
        return;
    };
    let (volume, device) = open(&image);
    let mut model = Model::new();
    let mut dice = Dice::new(7);
    // Every other block, in an order that splits leaves everywhere.
    let count = 36_000;
    let mut order: Vec<u32> = (0..count).map(|at| at * 2).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, dice.below(at as u64 + 1) as usize);
    }
    for (step, &block) in order.iter().enumerate() {
        insert(&volume, FIRST_FILE, &mut model, block..block + 1, 100 + u64::from(block / 2), false).unwrap();
        if step % 5000 == 0 {
            commit(&volume);
        }
    }
    assert_eq!(depth(&volume.read_inode(FIRST_FILE).unwrap()), 3);
    compare(&volume, FIRST_FILE, &model);
    mapped_ranges_are_refused(&volume, &model);
    // Holes filled and punched, then everything gone but the first blocks.
    for block in (1..6000).step_by(2) {
        insert(&volume, FIRST_FILE, &mut model, block..block + 1, 40_000, true).unwrap();
    }
    remove(&volume, FIRST_FILE, &mut model, 10_001..30_000, 0).unwrap();
    compare(&volume, FIRST_FILE, &model);
    commit(&volume);
    let again = e2fsck_now(&volume, &device, &model);
    assert!(again.is_empty(), "{again}");
    remove(&volume, FIRST_FILE, &mut model, 3..u32::MAX, 200).unwrap();
    compare(&volume, FIRST_FILE, &model);
    let inode = volume.read_inode(FIRST_FILE).unwrap();
    assert_eq!(depth(&inode), 0, "the tree shrinks back into the inode");
    assert_eq!(inode.blocks, model.len() as u64 * 2);
    judge(volume, &device, &[(FIRST_FILE, &model)], "shrunk");
}

/// In a file whose every other block is mapped nothing longer than a block fits, at the ends of leaves too.
fn mapped_ranges_are_refused(volume: &Volume, model: &Model) {
    let mut inode = volume.read_inode(FIRST_FILE).unwrap();
    let before = inode.clone();
    let start = volume.alloc.take(volume, DiskBlock(60_000), 2).unwrap();
    with_handle(volume, 100, |h| {
        for &block in model.keys().take(model.len() - 1) {
            for (at, len) in [(block, 1), (block + 1, 2)] {
                let extent = Extent { block: FileBlock(at), len, start: start.start, unwritten: false };
                let refused = extents::insert(volume, h, FIRST_FILE, &mut inode, extent);
                assert!(matches!(refused, Err(VolumeError::Corrupt { .. })), "block {at}, {len} blocks");
            }
        }
    });
    assert_eq!(inode, before);
    volume.alloc.give_back(start);
}

/// e2fsck on the state as it is, the volume staying open.
fn e2fsck_now(volume: &Volume, device: &onggi_block_device::MemoryDevice, model: &Model) -> String {
    let end = model.last_key_value().map_or(0, |(&block, _)| u64::from(block) + 1);
    let totals = volume.alloc.totals();
    with_inode(volume, FIRST_FILE, |h, inode| {
        inode.size = end * u64::from(volume.block_size());
        volume
            .update_superblock(h, |raw| {
                raw.s_free_blocks_count_lo.set(totals.free_blocks as u32);
                raw.s_free_inodes_count.set(totals.free_inodes);
            })
            .unwrap();
    });
    commit(volume);
    e2fsck(&onggi_block_device::MemoryDevice::to_bytes(device))
}

#[test]
fn sequential_writes_make_one_extent_and_full_leaves() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal"], 65536, 2) else { return };
    let (volume, device) = open(&image);
    let mut model = Model::new();
    let mut at = 0;
    while at < 6000 {
        let goal = model.last_key_value().map_or(10_000, |(_, &(disk, _))| disk + 1);
        at += insert(&volume, FIRST_FILE, &mut model, at..at + 50, goal, false).unwrap();
    }
    let inode = volume.read_inode(FIRST_FILE).unwrap();
    assert_eq!((depth(&inode), inode.i_block[2]), (0, 1), "one extent");
    // An append-only file with a gap after every block leaves its leaves full, not half empty.
    let mut gaps = Model::new();
    let other = InodeNr(FIRST_FILE.0 + 1);
    for at in 0..84 * 8 {
        insert(&volume, other, &mut gaps, at * 2..at * 2 + 1, 30_000, false).unwrap();
    }
    let inode = volume.read_inode(other).unwrap();
    assert_eq!(inode.blocks / 2 - gaps.len() as u64, 9, "eight full leaves and an index");
    judge(volume, &device, &[(FIRST_FILE, &model), (other, &gaps)], "sequential");
}

#[test]
fn a_full_volume_fails_cleanly_and_has_all_its_space_back_after_deletion() {
    let Some(image) = make(&["-b", "1024", "-O", "^has_journal", "-N", "16"], 4096, 1) else { return };
    let (volume, device) = open(&image);
    let free = volume.alloc.free_blocks();
    let mut model = Model::new();
    let mut dice = Dice::new(3);
    let mut misses = 0;
    while misses < 200 {
        let at = dice.below(1 << 20) as u32;
        match insert(&volume, FIRST_FILE, &mut model, at..at + 1, dice.below(4096), false) {
            Ok(_) => {}
            Err(VolumeError::NoSpace) => misses += 1,
            Err(error) => panic!("{error}"),
        }
    }
    compare(&volume, FIRST_FILE, &model);
    assert!(volume.alloc.free_blocks() < 4, "{} blocks are left", volume.alloc.free_blocks());
    remove(&volume, FIRST_FILE, &mut model, 0..u32::MAX, 0).unwrap();
    assert!(matches!(volume.alloc.take(&volume, DiskBlock(1), 4000), Err(VolumeError::NoSpace) | Ok(_)));
    commit(&volume);
    assert_eq!(volume.alloc.totals().free_blocks, free);
    judge(volume, &device, &[(FIRST_FILE, &model)], "emptied");
}

#[test]
fn long_unwritten_and_written_extents_keep_to_their_limits() {
    let Some(image) = make(&["-b", "4096", "-O", "^has_journal"], 600 * 1024, 1) else { return };
    let (volume, device) = open(&image);
    let mut model = Model::new();
    let mut at = 0;
    while at < 100_000 {
        let goal = model.last_key_value().map_or(2000, |(_, &(disk, _))| disk + 1);
        at += insert(&volume, FIRST_FILE, &mut model, at..100_000, goal, true).unwrap();
    }
    compare(&volume, FIRST_FILE, &model);
    convert(&volume, FIRST_FILE, &mut model, 10..99_990, false);
    convert(&volume, FIRST_FILE, &mut model, 0..100_000, false);
    compare(&volume, FIRST_FILE, &model);
    convert(&volume, FIRST_FILE, &mut model, 0..100_000, true);
    compare(&volume, FIRST_FILE, &model);
    judge(volume, &device, &[(FIRST_FILE, &model)], "long");
}

#[test]
fn extents_across_many_groups_go_piece_by_piece() {
    let Some(image) = make(
        &["-b", "1024", "-O", "^has_journal,^resize_inode,sparse_super2", "-g", "256", "-G", "64"],
        32768,
        1,
    ) else {
        return;
    };
    let (volume, device) = open(&image);
    let free = volume.alloc.free_blocks();
    let mut model = Model::new();
    let mut at = 0;
    while at < 15_000 {
        let goal = model.last_key_value().map_or(17_000, |(_, &(disk, _))| disk + 1);
        at += insert(&volume, FIRST_FILE, &mut model, at..15_000, goal, false).unwrap();
    }
    let longest =
        extents::next_extent(&volume, FIRST_FILE, &volume.read_inode(FIRST_FILE).unwrap(), FileBlock(0));
    let longest = longest.unwrap().unwrap();
    assert!(longest.len > 5000, "{longest:?}");
    commit(&volume);
    remove(&volume, FIRST_FILE, &mut model, 4000..12_000, 0).unwrap();
    compare(&volume, FIRST_FILE, &model);
    commit(&volume);
    let inode = volume.read_inode(FIRST_FILE).unwrap();
    assert!(extents::credits_for_remove(&volume, &inode) < 30);
    remove(&volume, FIRST_FILE, &mut model, 0..u32::MAX, 20).unwrap();
    assert_eq!(volume.alloc.free_blocks(), free);
    judge(volume, &device, &[(FIRST_FILE, &model)], "many groups");
}

#[test]
fn damaged_trees_give_errors_and_nothing_else() {
    let Some(image) =
        make(&["-b", "1024", "-O", "^has_journal,^metadata_csum,^uninit_bg", "-N", "16"], 4096, 1)
    else {
        return;
    };
    let (volume, device) = open(&image);
    let mut model = Model::new();
    for at in 0..700 {
        insert(&volume, FIRST_FILE, &mut model, at * 3..at * 3 + 1, 0, at % 5 == 0).unwrap();
    }
    let inode = volume.read_inode(FIRST_FILE).unwrap();
    let (buffer, slot) = volume.inode_buffer(FIRST_FILE).unwrap();
    let slot = buffer.nr().0 as usize * 1024 + slot + 0x28;
    let root =
        u32::from_le_bytes([inode.i_block[16], inode.i_block[17], inode.i_block[18], inode.i_block[19]]);
    drop(buffer);
    let image = close(volume, &device);
    let leaf = root as usize * 1024;
    let mut broken = 0;
    for seed in 0..3000 {
        let mut dice = Dice::new(seed);
        let mut copy = image.clone();
        for _ in 0..=dice.below(3) {
            let at = if dice.below(2) == 0 {
                slot + dice.below(60) as usize
            } else {
                leaf + dice.below(1024) as usize
            };
            copy[at] = dice.below(256) as u8;
        }
        let Ok((volume, _)) = try_open(&copy) else { continue };
        let Ok(mut inode) = volume.read_inode(FIRST_FILE) else { continue };
        let mut from = 0;
        for _ in 0..5000 {
            match extents::next_extent(&volume, FIRST_FILE, &inode, FileBlock(from)) {
                Ok(Some(found)) => from = found.end() as u32,
                Ok(None) => break,
                Err(_) => {
                    broken += 1;
                    break;
                }
            }
            assert!(from > 0);
        }
        with_handle(&volume, 500, |h| {
            let free = Extent { block: FileBlock(1), len: 1, start: DiskBlock(4000), unwritten: false };
            let _ = extents::insert(&volume, h, FIRST_FILE, &mut inode, free);
            let _ = extents::convert(&volume, h, FIRST_FILE, &mut inode, 0..u32::MAX, true);
            for _ in 0..10 {
                if !matches!(
                    extents::remove(&volume, h, FIRST_FILE, &mut inode, 0..u32::MAX, true),
                    Ok(Progress::More(_))
                ) {
                    break;
                }
            }
        });
    }
    assert!(broken > 100, "the damage was seen only {broken} times");
}

//! Broken directories and attributes get errors: no panic, no endless loop.

mod image;

use image::{Image, ROOT, Random, mke2fs};
use onggi_disk_format::ext4::Inode;
use onggi_disk_format::{FileBlock, InodeNr};
use onggi_ext4_volume::xattr::{self, SetMode};
use onggi_ext4_volume::{VolumeError, dir, extents};

const NO_CHECKSUMS: &[&str] = &["-b", "1024", "-N", "64", "-O", "^metadata_csum,^64bit,^has_journal"];

/// A volume with a directory of so many names, its bytes, and where the directory's blocks lie in them.
fn prepared(names: u32) -> Option<(Vec<u8>, InodeNr, Vec<usize>)> {
    let image = Image::open(&mke2fs("4M", NO_CHECKSUMS)?);
    let (nr, mut inode) = image.make_dir(b"d");
    let target = image.create(nr, false).0;
    for step in 0..names {
        let name = format!("{step}-{}", "n".repeat(150));
        image.insert(nr, &mut inode, name.as_bytes(), target).unwrap();
    }
    let places = (0..(inode.size / 1024) as u32)
        .map(|block| match extents::lookup(&image.volume, nr, &inode, FileBlock(block)).unwrap() {
            extents::Mapping::Mapped { start, .. } => start.0 as usize * 1024,
            extents::Mapping::Hole { .. } => panic!("a hole"),
        })
        .collect();
    Some((image.bytes(), nr, places))
}

fn use_it(image: &Image, nr: InodeNr, inode: &mut Inode, random: &mut Random) -> Vec<VolumeError> {
    let mut errors = Vec::new();
    let mut cookie = 0;
    // More calls than there can be names mean that the listing runs in circles.
    for call in 0.. {
        assert!(call < 20_000, "the listing never ends");
        match dir::read(&image.volume, nr, inode, cookie, 1 + random.below(50)) {
            Ok(entries) => match entries.last() {
                Some(last) => cookie = last.next,
                None => break,
            },
            Err(error) => {
                errors.push(error);
                break;
            }
        }
    }
    errors.extend(dir::is_empty(&image.volume, nr, inode).err());
    errors.extend(dir::parent(&image.volume, nr, inode).err());
    for _ in 0..40 {
        let name = format!("{}-{}", random.below(1000), "n".repeat(150));
        errors.extend(dir::lookup(&image.volume, nr, inode, name.as_bytes()).err());
        let other = format!("{}-{}", random.below(1000), "o".repeat(100));
        errors.extend(image.insert(nr, inode, other.as_bytes(), ROOT).err());
        errors.extend(image.remove(nr, inode, name.as_bytes()).err());
    }
    errors
}

#[test]
fn broken_directories_get_errors() {
    for (names, rounds) in [(3, 150), (40, 300), (900, 300)] {
        let Some((bytes, nr, places)) = prepared(names) else { return };
        let mut refused = 0;
        for seed in 0..rounds {
            println!("{names} names, seed {seed}");
            let mut random = Random::new(seed);
            let mut bytes = bytes.clone();
            for _ in 0..1 + random.below(4) {
                // The root and the nodes are few and matter most.
                let block = if random.below(2) == 0 { 0 } else { random.below(places.len()) };
                let span = [48, 1024][random.below(2)];
                let at = places[block] + random.below(span);
                match random.below(4) {
                    0 => bytes[at] = random.next() as u8,
                    1 => bytes[at] ^= 1 << random.below(8),
                    2 => bytes[at..at + 1].fill([0, 0xff][random.below(2)]),
                    _ => {
                        // A block that stands for another.
                        let from = places[random.below(places.len())];
                        bytes.copy_within(from..from + 1024, places[block]);
                    }
                }
            }
            let image = Image::open(&bytes);
            let mut inode = image.volume.read_inode(nr).unwrap();
            if random.below(8) == 0 {
                inode.size = random.next() >> random.below(64);
            }
            let errors = use_it(&image, nr, &mut inode, &mut random);
            refused += u32::from(errors.iter().any(|error| matches!(error, VolumeError::Corrupt { .. })));
        }
        println!("{names} names: {refused} of {rounds} were refused");
        assert!(refused > 0);
    }
}

#[test]
fn an_index_that_names_one_empty_leaf_again_and_again_ends() {
    let Some((mut bytes, nr, places)) = prepared(900) else { return };
    // Every leaf is empty and every entry of every index block names the same one, with the bit that says
    // that the hash goes on.
    let root = places[0];
    for &place in &places[1..] {
        bytes[place..place + 1024].fill(0);
        bytes[place + 4..place + 6].copy_from_slice(&1024u16.to_le_bytes());
    }
    bytes[root + 30] = 0;
    let limit = u16::from_le_bytes([bytes[root + 32], bytes[root + 33]]);
    bytes[root + 34..root + 36].copy_from_slice(&limit.to_le_bytes());
    for entry in 0..usize::from(limit) {
        let at = root + 32 + 8 * entry;
        if entry > 0 {
            bytes[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
        }
        bytes[at + 4..at + 8].copy_from_slice(&1u32.to_le_bytes());
    }
    let image = Image::open(&bytes);
    let inode = image.volume.read_inode(nr).unwrap();
    let entries = dir::read(&image.volume, nr, &inode, 2, 100);
    assert!(matches!(entries, Ok(ref entries) if entries.is_empty()), "{entries:?}");
    assert!(dir::lookup(&image.volume, nr, &inode, b"x").unwrap().is_none());
}

#[test]
fn broken_attributes_get_errors() {
    let Some(bytes) = mke2fs("4M", NO_CHECKSUMS) else { return };
    let image = Image::open(&bytes);
    let (nr, mut inode) = image.create(ROOT, false);
    image
        .with(xattr::CREDITS, |h| {
            for (name, len) in [(&b"small"[..], 30), (b"large", 400), (b"more", 300)] {
                xattr::set(&image.volume, h, nr, &mut inode, 1, name, Some(&vec![1; len]), SetMode::Set)?;
            }
            image.volume.write_inode(h, nr, &inode)
        })
        .unwrap();
    let (buffer, byte) = image.volume.inode_buffer(nr).unwrap();
    let area = buffer.nr().0 as usize * 1024 + byte + 128 + usize::from(inode.extra_isize);
    let block = inode.file_acl.0 as usize * 1024;
    let bytes = image.bytes();
    let mut refused = 0;
    for seed in 0..600 {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let mut bytes = bytes.clone();
        for _ in 0..1 + random.below(3) {
            let at = if random.below(2) == 0 { area + random.below(96) } else { block + random.below(200) };
            bytes[at] = if random.below(2) == 0 { random.next() as u8 } else { [0, 0xff][random.below(2)] };
        }
        let image = Image::open(&bytes);
        let mut inode = image.volume.read_inode(nr).unwrap();
        let mut errors = Vec::new();
        errors.extend(xattr::list(&image.volume, nr, &inode).err());
        errors.extend(xattr::get(&image.volume, nr, &inode, 1, b"large").err());
        for (index, name) in [(1, &b"small"[..]), (1, b"large"), (4, b"new"), (1, b"more")] {
            let value = vec![2; random.below(500)];
            let value = (random.below(3) > 0).then_some(&value[..]);
            let done = image.with(xattr::CREDITS, |h| {
                xattr::set(&image.volume, h, nr, &mut inode, index, name, value, SetMode::Set)
            });
            errors.extend(done.err());
        }
        let released = image.with(xattr::CREDITS, |h| xattr::release_block(&image.volume, h, nr, &mut inode));
        errors.extend(released.err());
        refused += u32::from(errors.iter().any(|error| matches!(error, VolumeError::Corrupt { .. })));
    }
    assert!(refused > 100, "{refused} refused");
}

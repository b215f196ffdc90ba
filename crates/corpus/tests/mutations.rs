//! Mutations are deterministic, say what they did, reach every kind, and pass the checksums.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::OnceLock;

use onggi_corpus::golden::{RECIPES, make};
use onggi_corpus::{kinds, mutate, mutate_kind};
use onggi_disk_format::GroupNr;
use onggi_disk_format::ext4::superblock::SuperblockError;
use onggi_disk_format::ext4::{GroupDescriptor, Superblock, group::GroupError};

fn made() -> Vec<(&'static str, Vec<u8>)> {
    let folder = tempfile::tempdir().unwrap();
    RECIPES.iter().filter_map(|recipe| Some((recipe.name, make(recipe, folder.path())?))).collect()
}

fn images() -> &'static [(&'static str, Vec<u8>)] {
    static IMAGES: OnceLock<Vec<(&str, Vec<u8>)>> = OnceLock::new();
    IMAGES.get_or_init(made)
}

#[test]
fn the_same_seed_does_the_same() {
    for (name, image) in images() {
        for seed in 0..100 {
            let (mut one, mut two) = (image.clone(), image.clone());
            assert_eq!(mutate(&mut one, seed), mutate(&mut two, seed), "{name} {seed}");
            assert!(one == two, "{name} {seed}");
        }
    }
}

#[test]
fn every_kind_is_found_on_some_image_and_changes_it() {
    let images = images();
    if images.is_empty() {
        return;
    }
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for kind in kinds() {
        for (name, image) in images {
            for seed in 0..30 {
                let mut changed = image.clone();
                let Some(mutation) = mutate_kind(&mut changed, kind, seed) else { continue };
                assert!(!mutation.description.is_empty());
                if changed != *image || mutation.length != image.len() {
                    seen.entry(kind).or_default().insert(format!("{name}: {mutation}"));
                }
            }
        }
    }
    for kind in kinds() {
        let different = seen.get(kind).map_or(0, BTreeSet::len);
        assert!(different > 20, "{kind}: {different} different mutations");
    }
}

#[test]
fn the_rich_images_hold_what_their_recipe_says() {
    for (name, image) in images() {
        let has = |kind| (0..40).any(|seed| mutate_kind(&mut image.clone(), kind, seed).is_some());
        for kind in ["attribute block", "attribute in inode", "directory index", "journal log"] {
            assert!(has(kind), "{name}: {kind}");
        }
        assert_eq!(has("extent node"), *name != "pointers", "{name}");
        assert!(has("pointer"), "{name}");
    }
}

#[test]
fn checksums_are_right_after_structured_changes() {
    for (name, image) in images() {
        for seed in 0..150 {
            let mut changed = image.clone();
            let Some(mutation) = mutate_kind(&mut changed, "superblock", seed) else { continue };
            if let Err(SuperblockError::Checksum { .. }) = Superblock::parse(&changed[1024..]) {
                // The feature itself may have been switched on where it was off.
                assert!(*name == "plain", "{name} {seed}: {mutation}");
            }
        }
        let sb = Superblock::parse(&image[1024..]).unwrap();
        for (kind, seed) in ["group descriptor", "group placement", "block bitmap", "inode bitmap"]
            .into_iter()
            .flat_map(|kind| (0..100).map(move |seed| (kind, seed)))
        {
            let mut changed = image.clone();
            let Some(mutation) = mutate_kind(&mut changed, kind, seed) else { continue };
            for group in (0..sb.groups()).map(GroupNr) {
                let (place, at) = sb.descriptor_location(group);
                let start = place.byte_offset(sb.block_size()).unwrap() as usize + at;
                let parsed = GroupDescriptor::parse(&sb, group, &changed[start..]);
                assert!(!matches!(parsed, Err(GroupError::Checksum { .. })), "{name} {seed}: {mutation}");
            }
        }
    }
}

#[test]
fn e2fsck_notices_without_crying_about_checksums() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let sealed =
        ["extent root", "extent node", "directory entry", "directory index", "attribute block", "inode type"];
    for (name, image) in images() {
        let (mut noticed, mut total, mut about_checksums) = (0, 0, 0);
        for (kind, seed) in sealed.into_iter().flat_map(|kind| (0..12).map(move |seed| (kind, seed))) {
            let mut changed = image.clone();
            if mutate_kind(&mut changed, kind, seed).is_none() {
                continue;
            }
            std::fs::write(&path, &changed).unwrap();
            let output = Command::new("e2fsck").args(["-fn"]).arg(&path).output().unwrap();
            let says = String::from_utf8_lossy(&output.stdout).into_owned();
            total += 1;
            noticed += u32::from(output.status.code() != Some(0));
            // A block whose header hides the place of its checksum cannot be sealed.
            about_checksums += u32::from(says.contains("checksum"));
        }
        println!("{name}: {noticed} of {total} noticed, {about_checksums} mention a checksum");
        assert!(noticed * 2 > total, "{name}: {noticed} of {total}");
        assert!(about_checksums * 4 < total, "{name}: {about_checksums} of {total}");
    }
}

#[test]
fn anything_can_be_mutated() {
    for len in [0, 1, 511, 1024, 2048, 5000] {
        for seed in 0..50 {
            let mutation = mutate(&mut vec![0x55; len], seed);
            assert!(mutation.length <= len);
        }
    }
}

#[test]
fn our_own_volumes_can_be_mutated_too() {
    let device = onggi_block_device::MemoryDevice::new(4 << 20);
    let mut options = onggi_ext4_mkfs::Options::new([3; 16], [4; 16], 1_700_000_000);
    options.parse_features("orphan_file").unwrap();
    onggi_ext4_mkfs::format(&device, &options).unwrap();
    let image = device.to_bytes();
    for kind in ["superblock", "forged transaction", "orphans", "directory entry", "extent root"] {
        assert!((0..20).any(|seed| mutate_kind(&mut image.clone(), kind, seed).is_some()), "{kind}");
    }
}

/// A seed is of use on another machine only if the recipe gives the same image there.
#[test]
fn a_recipe_gives_the_same_image_each_time() {
    for ((name, one), (_, two)) in made().iter().zip(images()) {
        let differ: Vec<usize> = (0..one.len()).filter(|&at| one[at] != two[at]).take(20).collect();
        assert!(differ.is_empty(), "{name}: differs at {differ:x?}");
    }
}

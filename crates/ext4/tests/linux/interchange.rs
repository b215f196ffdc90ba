//! Each reads what the other wrote.

use onggi_model::{Compare, tree};
use onggi_vfs::FileSystem;

use crate::grow::{Limits, alter, grow};
use crate::image::Image;
use crate::sight::{assert_none, host, model_sight, sight_of_engine, sight_of_linux, without_clock};
use crate::soak;
use crate::support::assert_image_clean;

const SEED: u64 = 20_000;

const ALL: usize = 20_000;

/// Entries for one more kind of volume.
fn some() -> usize {
    soak(1500, ALL)
}

fn ours_to_linux(size: u64, entries: usize, change: impl FnOnce(&mut onggi_ext4_mkfs::Options)) {
    let image = Image::empty(size);
    let mut options = onggi_ext4_mkfs::Options::new([7; 16], [9; 16], 1_700_000_000);
    change(&mut options);
    let block_size = u64::from(onggi_ext4_mkfs::format(&*image.device(), &options).expect("mkfs").block_size);
    let limits = Limits { block_size, old_inodes: options.inode_size == 128, early: false, entries };

    let fs = image.mount_here(|_| {}).expect("mount");
    grow(&*fs, SEED, limits).expect("grow");
    let first = tree(&*fs, fs.root()).expect("the tree");
    fs.unmount().expect("unmount");
    drop(fs);
    assert_image_clean(&image.path);
    assert!(first.nodes.len() >= entries);

    let model = model_sight(limits, |model| grow(model, SEED, limits).expect("the model grows"));
    assert_none(&without_clock(&first, &model), "the engine against the model");
    let ours = sight_of_engine(&image);
    assert_none(&ours.tree.diff(&first, Compare::ALL), "the engine before and after the unmount");
    let Some(linux) = sight_of_linux(&image) else { return };
    ours.assert_same(&linux, "the engine against Linux");
    assert_image_clean(&image.path);
}

#[test]
fn linux_reads_twenty_thousand_of_ours() {
    ours_to_linux(1 << 30, ALL, |_| {});
}

#[test]
fn linux_reads_ours_in_small_blocks() {
    ours_to_linux(512 << 20, some(), |options| options.block_size = Some(1024));
}

#[test]
fn linux_reads_ours_without_checksums() {
    ours_to_linux(512 << 20, some(), |options| {
        options.block_size = Some(2048);
        options.parse_features("^metadata_csum,^64bit,^has_journal").expect("features");
    });
}

#[test]
fn linux_reads_ours_in_old_inodes() {
    ours_to_linux(512 << 20, some(), |options| options.inode_size = 128);
}

/// Linux grows the tree, the engine reads it, changes half of it, and Linux reads that.
fn linux_to_ours(size: u64, mkfs: &str, entries: usize) {
    let Some(image) = Image::mke2fs(size, mkfs) else { return };
    let Some(mounted) = image.mount_by_linux("user_xattr") else { return };
    let fs = host(&mounted);
    let block_size = u64::from(fs.statfs().expect("statfs").block_size);
    let limits = Limits { block_size, old_inodes: mkfs.contains("-I 128"), early: false, entries };
    grow(&fs, SEED, limits).expect("Linux grows");
    drop(fs);
    drop(mounted);

    let grown = model_sight(limits, |model| grow(model, SEED, limits).expect("the model grows"));
    let linux = sight_of_linux(&image).expect("mounted before");
    assert_none(&without_clock(&linux.tree, &grown), "Linux against the model");
    let ours = sight_of_engine(&image);
    ours.assert_same(&linux, "the engine against Linux");

    let kinds = linux.kinds();
    let fs = image.mount_here(|_| {}).expect("mount");
    alter(&*fs, &kinds, SEED, limits).expect("the engine changes it");
    fs.unmount().expect("unmount");
    drop(fs);
    assert_image_clean(&image.path);
    let altered = model_sight(limits, |model| {
        grow(model, SEED, limits).expect("the model grows");
        alter(model, &kinds, SEED, limits).expect("the model changes");
    });
    let ours = sight_of_engine(&image);
    assert_none(&without_clock(&ours.tree, &altered), "the changed volume against the model");
    let linux = sight_of_linux(&image).expect("mounted before");
    ours.assert_same(&linux, "the changed volume, the engine against Linux");
    assert_image_clean(&image.path);
}

#[test]
fn we_read_and_change_twenty_thousand_of_linux() {
    linux_to_ours(1 << 30, "", ALL);
}

#[test]
fn we_read_and_change_small_blocks_of_linux() {
    linux_to_ours(512 << 20, "-b 1024", some());
    linux_to_ours(512 << 20, "-b 2048", some());
}

#[test]
fn we_read_and_change_old_kinds_of_volumes() {
    linux_to_ours(512 << 20, "-b 4096 -O ^metadata_csum", some());
    linux_to_ours(512 << 20, "-b 4096 -O ^metadata_csum,uninit_bg,^64bit,^flex_bg", some());
    linux_to_ours(512 << 20, "-b 4096 -O ^has_journal", some());
    linux_to_ours(512 << 20, "-b 4096 -I 128", some());
}

#[test]
fn we_read_and_change_new_kinds_of_volumes() {
    linux_to_ours(512 << 20, "-b 4096 -O orphan_file,metadata_csum_seed", some());
    linux_to_ours(512 << 20, "-b 4096 -I 512 -O ^resize_inode", some());
    linux_to_ours(512 << 20, "-b 4096 -O sparse_super2,stable_inodes -G 4", some());
}

#[test]
fn features_beyond_us_are_refused_by_name() {
    for (options, name) in [
        ("-O inline_data", "inline_data"),
        ("-O bigalloc", "bigalloc"),
        ("-O casefold", "casefold"),
        ("-O encrypt", "encrypt"),
        ("-O ea_inode", "ea_inode"),
        ("-O large_dir", "large_dir"),
        ("-O meta_bg,^resize_inode", "meta_bg"),
        ("-O mmp", "mmp"),
        ("-O quota", "quota"),
        ("-O quota,project", "project"),
        ("-O verity", "verity"),
        ("-O ^extent,^64bit", "extent"),
    ] {
        let Some(image) = Image::mke2fs(64 << 20, options) else { continue };
        match image.mount_here(|_| {}) {
            Ok(_) => panic!("{options}: mounted"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains(name), "{options}: {said}");
            }
        }
        assert_image_clean(&image.path);
    }
}

//! The kernel mounts what we make, fills it, and e2fsck finds nothing afterwards; resize2fs grows it.

mod judge;

use std::fs;
use std::path::Path;

use judge::*;
use onggi_ext4_mkfs::{LazyTables, Options};

const MIB: u64 = 1 << 20;

fn mounted(image: &Path, folder: &Path, work: impl FnOnce(&Path)) -> bool {
    let at = folder.join("mnt");
    fs::create_dir_all(&at).unwrap();
    let output = run("mount", &["-o", "loop", "-t", "ext4", image.to_str().unwrap(), at.to_str().unwrap()]);
    if !output.status.success() {
        let why = text(&output);
        // A broken volume is a failure, a machine without loop devices is not.
        let lacking =
            why.contains("permission") || why.contains("loop device") || why.contains("must be superuser");
        assert!(lacking, "the kernel does not mount it: {why}");
        println!("skipped: cannot mount: {why}");
        return false;
    }
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&at)));
    let output = run("umount", &[at.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output));
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
    true
}

fn fill(at: &Path) {
    for number in 0..40 {
        let folder = at.join(format!("folder-{number}"));
        fs::create_dir(&folder).unwrap();
        for file in 0..20 {
            fs::write(folder.join(format!("file-{file}")), vec![file as u8; 700 * file]).unwrap();
        }
    }
    fs::write(at.join("large"), vec![7; 6 << 20]).unwrap();
    for number in (0..40).step_by(3) {
        fs::remove_dir_all(at.join(format!("folder-{number}"))).unwrap();
    }
}

#[test]
fn the_kernel_writes_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image");
    for (bytes, block_size, features, lazy) in [
        (32 * MIB, None, "", LazyTables::Auto),
        (600 * MIB, None, "", LazyTables::Lazy),
        (64 * MIB, Some(4096), "^flex_bg", LazyTables::Auto),
        (300 * MIB, Some(1024), "orphan_file", LazyTables::Lazy),
        (64 * MIB, Some(2048), "^has_journal", LazyTables::Auto),
        (64 * MIB, None, "^64bit,^extent", LazyTables::Auto),
        (64 * MIB, None, "^metadata_csum,uninit_bg", LazyTables::Lazy),
        (64 * MIB, None, "^metadata_csum", LazyTables::Auto),
        (64 * MIB, None, "^resize_inode,^sparse_super,metadata_csum_seed,large_dir", LazyTables::Auto),
        (64 << 30, None, "", LazyTables::Lazy),
    ] {
        let what = format!("{bytes} bytes, blocks of {block_size:?}, {features:?}, {lazy:?}");
        let mut chosen = Options { block_size, lazy_tables: lazy, ..options() };
        chosen.parse_features(features).unwrap();
        // What was on the device before must not show.
        if bytes < 1 << 30 {
            fs::write(&path, vec![0xa5; bytes as usize]).unwrap();
            let device =
                onggi_file_device::FileDevice::open(&path, onggi_file_device::OpenOptions::default())
                    .unwrap();
            chosen.discard = false;
            onggi_ext4_mkfs::format(&device, &chosen).unwrap_or_else(|error| panic!("{what}: {error}"));
        } else {
            make(&path, bytes, &chosen).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        assert_clean(&path, &what);
        if !mounted(&path, folder.path(), fill) {
            return;
        }
        assert_clean(&path, &what);
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn resize2fs_grows_it() {
    if !has("resize2fs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image");
    for (before, after, features) in [
        (16 * MIB, 900 * MIB, ""),
        (600 * MIB, 40 << 30, ""),
        (600 * MIB, 9 << 30, "^64bit"),
        (600 * MIB, 2 << 30, "^resize_inode"),
    ] {
        let mut chosen = options();
        chosen.parse_features(features).unwrap();
        make(&path, before, &chosen).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_len(after).unwrap();
        let output = run("resize2fs", &["-f", path.to_str().unwrap()]);
        assert!(output.status.success(), "{features}: {}", text(&output));
        assert_clean(&path, &format!("{before} grown to {after}, {features:?}"));
        let shown = fields(&path);
        let bytes =
            shown["Block count"].parse::<u64>().unwrap() * shown["Block size"].parse::<u64>().unwrap();
        assert!(bytes > after * 9 / 10, "{bytes} of {after}");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn the_kernel_grows_it_while_mounted() {
    if !has("resize2fs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image");
    let chosen = Options { size_blocks: Some(100_000), block_size: Some(4096), ..options() };
    make(&path, 4 << 30, &chosen).unwrap();
    let mut grown = false;
    mounted(&path, folder.path(), |at| {
        fill(at);
        let source = run("findmnt", &["-no", "SOURCE", at.to_str().unwrap()]);
        let device = text(&source).trim().to_string();
        let output = run("resize2fs", &[&device]);
        if text(&output).contains("Permission denied") {
            println!("skipped: growing a mounted volume is not allowed here");
            return;
        }
        assert!(output.status.success(), "{}", text(&output));
        grown = true;
    });
    assert_clean(&path, "after it was mounted");
    if grown {
        assert_clean(&path, "grown online");
        assert_eq!(fields(&path)["Block count"], (1 << 20).to_string());
    }
}

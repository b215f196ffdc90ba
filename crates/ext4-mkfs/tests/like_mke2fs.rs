//! The same options to mke2fs and to us: e2fsck finds nothing, dumpe2fs shows the same fields.

mod judge;

use judge::*;
use onggi_ext4_mkfs::{JournalSize, LazyTables, Options};

/// Fields that differ for a reason: what was written by whom, and the checksum over that.
const DIFFER: [&str; 2] = ["Lifetime writes", "Checksum"];

struct Case {
    bytes: u64,
    args: &'static str,
    change: fn(&mut Options),
}

fn compare(cases: &[Case]) {
    if !has("mke2fs") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for case in cases {
        let what = format!("{} bytes, mke2fs {}", case.bytes, case.args);
        let (theirs, ours) = (image(folder.path(), "theirs"), image(folder.path(), "ours"));
        std::fs::File::create(&theirs).unwrap().set_len(case.bytes).unwrap();
        let (uuid, seed) = (dashed(UUID), format!("hash_seed={}", dashed(SEED)));
        let mut args = vec!["-q", "-F", "-t", "ext4", "-U", &uuid];
        let extended = format!("{seed},{}", case.args.split_once("-E ").map_or("discard", |(_, rest)| rest));
        args.extend(case.args.split("-E ").next().unwrap_or("").split_whitespace());
        args.extend(["-E", &extended, theirs.to_str().unwrap()]);
        let output = run("mke2fs", &args);
        assert!(output.status.success(), "{what}: {}", text(&output));

        let mut options = options();
        (case.change)(&mut options);
        let summary = make(&ours, case.bytes, &options).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_clean(&ours, &what);
        let (mut theirs_says, mut ours_says) = (fields(&theirs), fields(&ours));
        for field in DIFFER {
            theirs_says.remove(field);
            ours_says.remove(field);
        }
        assert_eq!(ours_says, theirs_says, "{what}");
        assert_eq!(ours_says["Free blocks"], summary.free_blocks.to_string(), "{what}");
        assert_eq!(ours_says["Inode count"], summary.inodes.to_string(), "{what}");
        std::fs::remove_file(&theirs).unwrap();
        std::fs::remove_file(&ours).unwrap();
    }
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn same(bytes: u64) -> Case {
    Case { bytes, args: "", change: |_| {} }
}

#[test]
fn default_volumes_of_every_size() {
    let sizes = [
        MIB,
        2 * MIB,
        3 * MIB,
        4 * MIB,
        8 * MIB,
        9 * MIB,
        16 * MIB,
        33 * MIB,
        64 * MIB,
        100 * MIB,
        257 * MIB,
        511 * MIB,
        512 * MIB,
        GIB,
        1025 * MIB,
        2 * GIB + 4096,
        7 * GIB,
        16 * GIB,
        100 * GIB,
        1024 * GIB,
    ];
    compare(&sizes.map(same));
}

#[test]
fn odd_sizes() {
    compare(
        &[5_000_000, 8_390_000, 17_000_960, 300_000_256, 550_000_128, 1_234_567_680].map(|b| same(b & !511)),
    );
}

#[test]
fn features_on_and_off() {
    macro_rules! features {
        ($($bytes:expr, $list:literal;)*) => {
            [$(Case {
                bytes: $bytes,
                args: concat!("-O ", $list),
                change: |options| options.parse_features($list).unwrap(),
            }),*]
        };
    }
    compare(&features![
        64 * MIB, "^has_journal";
        64 * MIB, "^metadata_csum";
        64 * MIB, "^metadata_csum,uninit_bg";
        700 * MIB, "^metadata_csum,uninit_bg";
        64 * MIB, "^64bit";
        3 * GIB, "^64bit";
        64 * MIB, "^64bit,^metadata_csum,uninit_bg";
        64 * MIB, "^flex_bg";
        3 * GIB, "^flex_bg";
        64 * MIB, "^resize_inode";
        64 * MIB, "^resize_inode,^sparse_super";
        3 * GIB, "^resize_inode,^sparse_super";
        64 * MIB, "^64bit,^extent,^resize_inode";
        64 * MIB, "^dir_index";
        64 * MIB, "^filetype";
        64 * MIB, "^large_file,^huge_file,^dir_nlink";
        64 * MIB, "^ext_attr,^extra_isize";
        64 * MIB, "orphan_file";
        700 * MIB, "orphan_file";
        20 * GIB, "orphan_file";
        64 * MIB, "metadata_csum_seed";
        64 * MIB, "large_dir";
        64 * MIB, "none";
        700 * MIB, "none";
        64 * MIB, "none,sparse_super,resize_inode,filetype";
        700 * MIB, "^metadata_csum,^flex_bg,^64bit,^has_journal";
    ]);
}

#[test]
fn block_and_inode_sizes() {
    compare(&[
        Case { bytes: 64 * MIB, args: "-b 4096", change: |o| o.block_size = Some(4096) },
        Case { bytes: 2 * MIB, args: "-b 4096", change: |o| o.block_size = Some(4096) },
        Case { bytes: 64 * MIB, args: "-b 2048", change: |o| o.block_size = Some(2048) },
        Case { bytes: 3 * GIB, args: "-b 2048", change: |o| o.block_size = Some(2048) },
        Case { bytes: 3 * GIB, args: "-b 1024", change: |o| o.block_size = Some(1024) },
        Case { bytes: 40 * GIB, args: "-b 1024", change: |o| o.block_size = Some(1024) },
        Case { bytes: 64 * MIB, args: "-I 128", change: |o| o.inode_size = 128 },
        Case { bytes: 64 * MIB, args: "-I 512", change: |o| o.inode_size = 512 },
        Case { bytes: 700 * MIB, args: "-I 4096", change: |o| o.inode_size = 4096 },
        Case { bytes: 64 * MIB, args: "-i 65536", change: |o| o.inode_ratio = Some(65536) },
        Case { bytes: 64 * MIB, args: "-i 1024", change: |o| o.inode_ratio = Some(1024) },
        Case { bytes: 700 * MIB, args: "-N 100", change: |o| o.inodes = Some(100) },
        Case { bytes: 700 * MIB, args: "-N 300000", change: |o| o.inodes = Some(300_000) },
    ]);
}

#[test]
fn the_rest() {
    compare(&[
        Case { bytes: 64 * MIB, args: "-L pot", change: |o| o.label = b"pot".to_vec() },
        Case {
            bytes: 64 * MIB,
            args: "-L sixteen-letters!",
            change: |o| o.label = b"sixteen-letters!".to_vec(),
        },
        Case { bytes: 64 * MIB, args: "-m 0", change: |o| o.reserved_percent = 0.0 },
        Case { bytes: 64 * MIB, args: "-m 12.5", change: |o| o.reserved_percent = 12.5 },
        Case { bytes: 64 * MIB, args: "-G 4", change: |o| o.groups_per_flex = 4 },
        Case { bytes: 700 * MIB, args: "-G 256", change: |o| o.groups_per_flex = 256 },
        Case { bytes: GIB, args: "-J size=100", change: |o| o.journal = JournalSize::Bytes(100 * MIB) },
        Case { bytes: 64 * MIB, args: "-E resize=1000000", change: |o| o.resize = Some(1_000_000) },
        Case {
            bytes: GIB,
            args: "-E stride=16,stripe_width=64",
            change: |o| (o.stride, o.stripe_width) = (16, 64),
        },
        Case { bytes: GIB, args: "-E lazy_itable_init=1", change: |o| o.lazy_tables = LazyTables::Lazy },
    ]);
}

#[test]
fn a_volume_smaller_than_its_device() {
    if !has("e2fsck") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = image(folder.path(), "image");
    let chosen = Options { size_blocks: Some(10_000), block_size: Some(4096), ..options() };
    let summary = make(&path, GIB, &chosen).unwrap();
    assert_eq!(summary.blocks, 10_000);
    assert_clean(&path, "10000 blocks");
    let chosen = Options { size_blocks: Some(10_000), ..options() };
    let summary = make(&path, GIB, &chosen).unwrap();
    assert_eq!((summary.blocks, summary.block_size), (10_000, 1024));
    assert_clean(&path, "10000 KiB");
}

#[test]
fn scattered_journals_get_a_tree() {
    if !has("e2fsck") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (bytes, journal, block_size, features) in [
        (2 * GIB, 400 * MIB, 1024, ""),
        (6 * GIB, 2 * GIB, 1024, "^flex_bg"),
        (6 * GIB, 2 * GIB, 4096, "^flex_bg"),
        (2 * GIB, 900 * MIB, 1024, "^64bit,^extent"),
        (64 * GIB, 9 * GIB, 1024, "^resize_inode,^sparse_super"),
    ] {
        let path = image(folder.path(), "image");
        let mut chosen =
            Options { block_size: Some(block_size), journal: JournalSize::Bytes(journal), ..options() };
        chosen.parse_features(features).unwrap();
        let what = format!("journal of {journal} bytes, {features:?}");
        make(&path, bytes, &chosen).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_clean(&path, &what);
        let shown = fields(&path);
        assert_eq!(shown["Total journal blocks"], (journal / u64::from(block_size)).to_string(), "{what}");
        std::fs::remove_file(&path).unwrap();
    }
}

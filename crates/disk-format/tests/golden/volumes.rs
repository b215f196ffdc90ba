//! Whole volumes, parsed and written again.

use std::process::Command;

use crate::images::{directory, mke2fs, mounted};
use crate::walk::Image;

const RECIPES: [&[&str]; 12] = [
    &["-b", "4096"],
    &["-b", "1024"],
    &["-b", "2048"],
    &["-b", "4096", "-I", "128", "-O", "^metadata_csum"],
    &["-b", "1024", "-I", "128"],
    &["-b", "4096", "-I", "512"],
    &["-b", "4096", "-O", "^metadata_csum"],
    &["-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    &["-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg,^flex_bg"],
    &["-b", "1024", "-O", "^64bit"],
    &["-b", "4096", "-O", "orphan_file,metadata_csum_seed"],
    &["-b", "1024", "-O", "meta_bg,^resize_inode,sparse_super2,^huge_file"],
];

#[test]
fn fresh_volumes() {
    let dir = directory();
    for (index, recipe) in RECIPES.iter().enumerate() {
        let path = dir.path().join(format!("{index}.img"));
        if mke2fs(&path, "64M", recipe).is_none() {
            return;
        }
        let image = Image::open(&path);
        let seen = image.walk();
        assert!(seen.inodes >= 3 && seen.directory_blocks >= 2, "{recipe:?}: {seen:?}");
        assert_eq!(seen.orphan_blocks > 0, recipe.contains(&"orphan_file,metadata_csum_seed"));
    }
}

/// Fills a mounted volume with every kind of thing the format has.
const FILL: &str = r#"
set -e
cd "$1"
mkdir -p many/deep/er
i=0; while [ $i -lt 4000 ]; do : > "many/a_rather_long_name_$i"; i=$((i+1)); done
for n in żółw 日本語 naïve; do i=0; while [ $i -lt 60 ]; do : > "many/$n$i"; i=$((i+1)); done; done
i=0; while [ $i -lt 4000 ]; do echo "many/a_rather_long_name_$i"; i=$((i+3)); done | xargs rm
for i in 1 2 3 4 5 6 7 8 9; do mkdir "many/deep/d$i"; echo $i > "many/deep/d$i/file"; done
ln -s short link; ln -s "$(printf 'x%.0s' $(seq 200))" longlink; ln link hardlink
mknod fifo p; mknod null c 1 3; mknod big b 300 70000
python3 - <<'P'
import os, socket
with open("sparse", "wb") as f:
    for i in range(1200):
        f.seek(i * 3 * 4096); f.write(b"x")
fd = os.open("prealloc", os.O_RDWR | os.O_CREAT)
os.posix_fallocate(fd, 0, 3 << 20); os.close(fd)
open("attrs", "w").close()
for i in range(3): os.setxattr("attrs", f"user.small{i}", b"v" * i)
os.setxattr("attrs", "user.large", b"L" * 700)
os.setxattr("attrs", "user.n\u00e4me", b"n" * 5)
os.setxattr("attrs", "trusted.more", b"t" * 61)
for i in range(5):
    open(f"same{i}", "w").close(); os.setxattr(f"same{i}", "user.shared", b"S" * 600)
os.utime("attrs", ns=(-10**18, 12345678901234567890 % 2**33 * 10**9))
os.chown("attrs", 100000, 200000)
s = socket.socket(socket.AF_UNIX); s.bind("sock")
P
sync -f .
"#;

#[test]
fn volumes_the_kernel_filled() {
    let dir = directory();
    for (index, recipe) in RECIPES.iter().enumerate() {
        let path = dir.path().join(format!("{index}.img"));
        if mke2fs(&path, "64M", &[recipe, &["-N", "8192"][..]].concat()).is_none() || !mounted(&path, FILL) {
            return;
        }
        let seen = Image::open(&path).walk();
        println!("{recipe:?}: {seen:?}");
        assert!(seen.hashed_names > 2000 && seen.index_blocks > 0, "{recipe:?}: {seen:?}");
        assert!(seen.extent_blocks > 0 && seen.unwritten > 0, "{recipe:?}: {seen:?}");
        assert_eq!(seen.inode_xattrs > 0, !recipe.contains(&"128"), "{recipe:?}: {seen:?}");
        assert!(seen.block_xattrs >= 5, "{recipe:?}: {seen:?}");
        assert!((1..=7).all(|kind| seen.kinds.contains_key(&kind)), "{recipe:?}: {seen:?}");
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn every_hash_version() {
    let dir = directory();
    for version in ["legacy", "half_md4", "tea"] {
        for flags in ["signed_directory_hash", "unsigned_directory_hash"] {
            let path = dir.path().join(format!("{version}-{flags}.img"));
            if mke2fs(&path, "32M", &["-b", "1024", "-N", "8192"]).is_none() {
                return;
            }
            let tune =
                Command::new("tune2fs").args(["-E", &format!("hash_alg={version}")]).arg(&path).output();
            assert!(tune.unwrap().status.success());
            let set = format!("set_super_value flags {}", if flags.starts_with('u') { 2 } else { 1 });
            let debugfs = Command::new("debugfs").args(["-w", "-R", &set]).arg(&path).output();
            assert!(debugfs.unwrap().status.success());
            if !mounted(&path, FILL) {
                return;
            }
            let image = Image::open(&path);
            assert_eq!(image.sb.hash_unsigned(), flags.starts_with('u'));
            let seen = image.walk();
            assert!(seen.hashed_names > 2000, "{version}: {seen:?}");
        }
    }
}

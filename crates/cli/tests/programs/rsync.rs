//! A tree with something of every kind there and back with rsync.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, XattrFlags};

use crate::disk::Disk;

fn grow(root: &Path) {
    fs::create_dir_all(root.join("deep/er/still")).unwrap();
    fs::write(root.join("plain"), b"contents\n").unwrap();
    fs::write(root.join("deep/empty"), b"").unwrap();
    fs::write(root.join("deep/er/big"), onggi_model::pattern(1, 0, 3_000_001)).unwrap();
    fs::hard_link(root.join("plain"), root.join("deep/hard")).unwrap();
    fs::hard_link(root.join("plain"), root.join("deep/er/harder")).unwrap();
    symlink("../plain", root.join("deep/soft")).unwrap();
    symlink("x".repeat(200), root.join("long-link")).unwrap();
    fs::write(root.join("name with spaces, and 김치"), b"odd").unwrap();
    fs::set_permissions(root.join("plain"), fs::Permissions::from_mode(0o640)).unwrap();
    fs::set_permissions(root.join("deep"), fs::Permissions::from_mode(0o1777)).unwrap();
    rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::from(0o600), 0).unwrap();
    for number in 0..300 {
        fs::write(root.join(format!("deep/er/still/{number}")), number.to_string()).unwrap();
    }
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    sparse.write_all_at(b"in the middle", 20 << 20).unwrap();
    sparse.write_all_at(b"near the end", (40 << 20) - 4096).unwrap();
}

/// Attributes from short to as long as blocks of 1 KiB take; false where this file system has none.
fn set_attributes(root: &Path) -> bool {
    [("plain", "user.short", 3), ("deep/er/big", "user.long", 700), ("deep", "user.of-a-directory", 40)]
        .iter()
        .all(|(file, name, len)| {
            rustix::fs::setxattr(root.join(file), *name, &vec![b'v'; *len], XattrFlags::empty()).is_ok()
        })
}

#[test]
fn rsync_brings_a_tree_back_as_it_was() {
    let Some(disk) = Disk::for_programs(&["rsync", "diff"]) else { return };
    let source = disk.path("source");
    grow(&source);
    disk.mount();
    let mut options = "-aH".to_string();
    if set_attributes(&source) {
        options.push('X');
    } else {
        println!("skipped: extended attributes, which this machine's temporary directory has not");
    }
    let acl = |path: &str, which: &str| {
        disk.command("setfacl", &["-m", which, path]).output().is_ok_and(|output| output.status.success())
    };
    fs::create_dir(disk.path("mnt/probe")).unwrap();
    if acl("source/plain", "u:1234:rw") && acl("source/deep", "d:g:99:rx") {
        if acl("mnt/probe", "u:1234:rwx") {
            options.push('A');
        } else {
            println!("skipped: ACLs, which the mount does not take");
        }
    } else {
        println!("skipped: ACLs, which this machine's temporary directory has not");
    }
    // What differs, nothing copied.
    let compare = |from: &str, to: &str| {
        let differs = disk.ok("rsync", &[&options, "-nic", "--delete", from, to]);
        assert_eq!(differs, "", "{options} {from} {to}");
    };
    disk.ok("rsync", &[&options, "-S", "source/", "mnt/tree/"]);
    compare("source/", "mnt/tree/");
    disk.unmount();
    disk.mount();
    compare("source/", "mnt/tree/");
    disk.ok("diff", &["-r", "--no-dereference", "-x", "pipe", "source", "mnt/tree"]);
    let sparse = fs::metadata(disk.path("mnt/tree/sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 1 << 20, "{} sectors for a hole", sparse.blocks());
    let links = fs::metadata(disk.path("mnt/tree/plain")).unwrap();
    assert_eq!(links.nlink(), 3);
    disk.ok("rsync", &[&options, "-S", "mnt/tree/", "back/"]);
    compare("source/", "back/");
    // Once more over what is there, with a change in the middle of a large file, in place.
    let big = File::options().write(true).open(source.join("deep/er/big")).unwrap();
    big.write_all_at(b"changed", 1_500_000).unwrap();
    disk.ok("rsync", &[&options, "--inplace", "--no-whole-file", "source/", "mnt/tree/"]);
    compare("source/", "mnt/tree/");
    disk.unmount();
    println!("rsync {options}");
}

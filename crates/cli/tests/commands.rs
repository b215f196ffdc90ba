//! The built program on real volumes, judged by e2fsck.

#![allow(missing_docs)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// A directory to work in.
struct Room(tempfile::TempDir);

impl Room {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onggi"));
        command.args(args).current_dir(self.0.path()).env("TZ", "UTC");
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs what must go well; gives what it wrote.
    fn ok(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && complaint.is_empty(), "{args:?}: {} {complaint}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs what must fail with this code; gives what it complained of.
    fn fails(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    }

    /// A fresh volume.
    fn volume(&self, name: &str) {
        self.ok(&["mkfs", "-q", "-s", "64M", name]);
    }

    /// What the tools of others think of it.
    fn fsck(&self, name: &str) {
        match Command::new("e2fsck").args(["-fn", name]).current_dir(self.0.path()).output() {
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
            }
            Err(error) => println!("skipped: e2fsck: {error}"),
        }
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A tree with something of every kind.
fn grow_tree(root: &Path) {
    fs::create_dir_all(root.join("deep/er/still")).unwrap();
    fs::write(root.join("plain"), b"contents\n").unwrap();
    fs::write(root.join("deep/empty"), b"").unwrap();
    fs::write(root.join("deep/er/big"), vec![0xa5; 3_000_000]).unwrap();
    fs::hard_link(root.join("plain"), root.join("deep/hard")).unwrap();
    symlink("../plain", root.join("deep/soft")).unwrap();
    symlink("x".repeat(200), root.join("long-link")).unwrap();
    fs::write(root.join("run me"), b"#!/bin/sh\n").unwrap();
    fs::set_permissions(root.join("run me"), fs::Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(root.join("deep"), fs::Permissions::from_mode(0o1777)).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.write_all_at(b"middle", 5 << 20).unwrap();
    sparse.set_len(9 << 20).unwrap();
    rustix::fs::mknodat(CWD, root.join("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    if is_root() {
        rustix::fs::mknodat(
            CWD,
            root.join("null"),
            FileType::CharacterDevice,
            Mode::RUSR,
            rustix::fs::makedev(1, 3),
        )
        .unwrap();
        std::os::unix::fs::lchown(root.join("deep/er"), Some(1234), Some(70_000)).unwrap();
    }
    if let Err(error) = rustix::fs::setxattr(root.join("plain"), "user.note", b"kept", XattrFlags::empty()) {
        println!("skipped: extended attributes on the host: {error}");
    }
    for (name, sec) in
        [("plain", 1_000_000_000), ("deep/er/big", -5), ("deep/soft", 77), ("deep", 4_000_000_000)]
    {
        let time = Timespec { tv_sec: sec, tv_nsec: 123_456_789 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, root.join(name), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
}

/// All that is to be kept of a tree, one line a file.
fn describe(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut names = std::collections::HashMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        let name = path.strip_prefix(root).unwrap().to_owned();
        let first = names.entry((meta.dev(), meta.ino())).or_insert_with(|| name.clone()).clone();
        let mut line = format!(
            "{} {:o} {}:{} {} {}.{:09} links {} as {}",
            name.display(),
            meta.mode(),
            meta.uid(),
            meta.gid(),
            if meta.is_dir() { 0 } else { meta.len() },
            meta.mtime(),
            meta.mtime_nsec(),
            if meta.is_dir() { 0 } else { meta.nlink() },
            first.display(),
        );
        if meta.is_dir() {
            let mut below: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
            below.sort();
            todo.extend(below.into_iter().rev());
        } else if meta.is_symlink() {
            line += &format!(" -> {}", fs::read_link(&path).unwrap().display());
        } else if meta.is_file() {
            let data = fs::read(&path).unwrap();
            let sum = data.iter().fold(7u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
            line += &format!(" sum {sum}");
            let mut value = [0; 64];
            if let Ok(len) = rustix::fs::getxattr(&path, "user.note", &mut value) {
                line += &format!(" note {:?}", &value[..len]);
            }
        }
        lines.push(line);
    }
    lines
}

#[test]
fn a_tree_goes_in_and_comes_out_as_it_was() {
    let room = Room::new();
    grow_tree(&room.path("tree"));
    room.volume("a.img");
    room.ok(&["cp", "-a", "tree", "a.img:/"]);
    room.fsck("a.img");
    room.ok(&["cp", "-a", "a.img:/tree", "back"]);
    assert_eq!(describe(&room.path("back")), describe(&room.path("tree")));
    assert!(fs::metadata(room.path("back/sparse")).unwrap().blocks() < 200, "holes stay holes");
    // From image to image, and within one.
    room.volume("b.img");
    room.ok(&["cp", "-a", "a.img:/tree/.", "b.img:/"]);
    room.ok(&["cp", "-a", "b.img:/deep", "b.img:/again"]);
    room.fsck("b.img");
    room.ok(&["cp", "-a", "b.img:/again", "again"]);
    let deep: Vec<_> = describe(&room.path("tree/deep"));
    let again: Vec<_> = describe(&room.path("again"));
    // The file with a name outside has lost that name.
    let without_links = |lines: &[String]| -> Vec<String> {
        lines.iter().filter(|line| !line.starts_with("hard")).cloned().collect()
    };
    assert_eq!(without_links(&again), without_links(&deep));
}

#[test]
fn a_volume_is_made_from_a_tree_the_same_each_time() {
    let room = Room::new();
    grow_tree(&room.path("tree"));
    let uuid = "0f6e6f0c-6d5e-4f0a-9a53-6e1f3a1f0a01";
    for image in ["one.img", "two.img"] {
        let out = room.ok(&[
            "mkfs",
            "-s",
            "64M",
            "-L",
            "fixed",
            "-U",
            uuid,
            "--timestamp",
            "@1700000000",
            "--from",
            "tree",
            image,
        ]);
        assert!(out.contains(uuid) && out.contains("copied 5 files"), "{out}");
        room.fsck(image);
    }
    assert!(fs::read(room.path("one.img")).unwrap() == fs::read(room.path("two.img")).unwrap());
    let info: serde_json::Value = serde_json::from_str(&room.ok(&["info", "--json", "one.img"])).unwrap();
    assert_eq!(
        (info["label"].as_str(), info["uuid"].as_str(), info["state"].as_str()),
        (Some("fixed"), Some(uuid), Some("clean"))
    );
    let stat: serde_json::Value =
        serde_json::from_str(&room.ok(&["stat", "--json", "one.img:/plain"])).unwrap();
    for time in ["accessed", "modified", "changed", "created"] {
        assert_eq!(stat[0][time], "2023-11-14T22:13:20Z", "{time}");
    }
    // With times kept it is the tree itself.
    room.ok(&["mkfs", "-q", "-s", "64M", "--from", "tree", "three.img"]);
    room.ok(&["cp", "-a", "three.img:/.", "back"]);
    let mut back = describe(&room.path("back"));
    back.retain(|line| !line.starts_with("lost+found"));
    assert_eq!(back[1..], describe(&room.path("tree"))[1..]);
}

#[test]
fn an_existing_volume_is_not_overwritten_by_accident() {
    let room = Room::new();
    room.volume("a.img");
    let complaint = room.fails(1, &["mkfs", "a.img"]);
    assert!(complaint.contains("ext4") && complaint.contains("-F"), "{complaint}");
    room.ok(&["mkfs", "-q", "-F", "-b", "4096", "a.img"]);
    room.fsck("a.img");
    assert!(room.ok(&["info", "a.img"]).contains("blocks of 4096 bytes"));
    let complaint = room.fails(1, &["mkfs", "-s", "1M", "-O", "nonsense", "b.img"]);
    assert!(complaint.contains("nonsense"), "{complaint}");
    assert!(!room.path("b.img").exists(), "nothing is left of what failed");
    assert!(room.fails(1, &["mkfs", "c.img"]).contains("c.img"));
}

#[test]
fn one_file_in_and_out() {
    let room = Room::new();
    room.volume("a.img");
    let data: Vec<u8> = (0..2_500_000u32).map(|n| (n % 251) as u8).collect();
    fs::write(room.path("file"), &data).unwrap();
    room.ok(&["put", "file", "a.img:/"]);
    room.ok(&["get", "a.img:/file", "copy"]);
    assert!(fs::read(room.path("copy")).unwrap() == data);
    assert!(room.command(&["get", "a.img:/file", "-"]).output().unwrap().stdout == data);
    let mut put =
        room.command(&["put", "-m", "600", "-", "a.img:/in"]).stdin(Stdio::piped()).spawn().unwrap();
    put.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert!(put.wait().unwrap().success());
    assert_eq!(room.ok(&["cat", "a.img:/in"]), "from a pipe");
    assert!(room.ok(&["ls", "-l", "a.img:/in"]).starts_with("-rw------- 1 "));
    // A shorter file leaves nothing of the longer one.
    fs::write(room.path("file"), b"short").unwrap();
    room.ok(&["put", "file", "a.img:/file"]);
    assert_eq!(room.ok(&["cat", "a.img:/file"]), "short");
    room.fsck("a.img");
    assert!(room.fails(1, &["get", "a.img:/nope"]).contains("a.img:/nope: No such file or directory"));
    assert!(room.fails(1, &["get", "a.img:/"]).contains("Is a directory"));
    assert!(room.fails(1, &["put", "nope", "a.img:/x"]).contains("nope: No such file or directory"));
}

#[test]
fn names_are_made_moved_and_removed() {
    let room = Room::new();
    room.volume("a.img");
    room.volume("b.img");
    room.ok(&["mkdir", "-p", "a.img:/x/y/z"]);
    fs::write(room.path("f"), b"f").unwrap();
    room.ok(&["cp", "f", "a.img:/x/f"]);
    room.ok(&["ln", "a.img:/x/f", "a.img:/x/hard"]);
    room.ok(&["ln", "-s", "f", "a.img:/x/soft"]);
    assert_eq!(room.ok(&["cat", "a.img:/x/soft", "a.img:/x/hard"]), "ff");
    room.ok(&["mv", "a.img:/x/hard", "a.img:/x/y"]);
    room.ok(&["mv", "a.img:/x/y", "a.img:/w"]);
    assert_eq!(room.ok(&["find", "a.img:/w"]), "a.img:/w\na.img:/w/hard\na.img:/w/z\n");
    room.ok(&["mv", "a.img:/w", "b.img:/"]);
    assert_eq!(room.ok(&["find", "b.img:/w", "-type", "f", "-name", "h*"]), "b.img:/w/hard\n");
    room.fails(1, &["ls", "a.img:/w"]);
    room.ok(&["mv", "b.img:/w/hard", "out"]);
    assert_eq!(fs::read(room.path("out")).unwrap(), b"f");
    room.ok(&["mv", "out", "b.img:/w/back"]);
    assert!(!room.path("out").exists());
    assert!(room.fails(1, &["rm", "a.img:/x"]).contains("a.img:/x: Is a directory"));
    room.ok(&["rm", "-r", "a.img:/x"]);
    assert_eq!(room.ok(&["ls", "a.img"]), "lost+found\n");
    room.ok(&["rm", "-f", "a.img:/x"]);
    assert!(room.fails(1, &["cp", "-r", "b.img:/w", "b.img:/w/z"]).contains("into itself"));
    assert!(room.fails(1, &["mv", "b.img:/w", "b.img:/w/z"]).contains("Invalid argument"));
    room.fsck("a.img");
    room.fsck("b.img");
}

#[test]
fn errors_say_what_and_why() {
    let room = Room::new();
    room.volume("a.img");
    for (args, expected) in [
        (&["ls", "a.img:/nope"][..], "onggi: ls: a.img:/nope: No such file or directory\n"),
        (&["ls", "nope.img"], "onggi: ls: nope.img: cannot open: No such file or directory\n"),
        (&["cat", "a.img:/"], "onggi: cat: a.img:/: Is a directory\n"),
        (&["cat", "a.img"], "onggi: cat: a.img: expected IMAGE:/path\n"),
        (&["cp", "one", "two"], "onggi: cp: one and two: neither is in an image; this is a job for cp(1)\n"),
        (&["cp", "nope", "a.img:/"], "onggi: cp: nope: No such file or directory\n"),
        (&["mkdir", "a.img:/lost+found"], "onggi: mkdir: a.img:/lost+found: File exists\n"),
    ] {
        assert_eq!(room.fails(1, args), expected);
    }
    fs::write(room.path("junk"), vec![0x55; 1 << 20]).unwrap();
    let complaint = room.fails(1, &["ls", "junk"]);
    assert!(complaint.starts_with("onggi: ls: junk: ") && complaint.contains("magic"), "{complaint}");
    fs::write(room.path("tiny"), b"x").unwrap();
    room.fails(1, &["info", "tiny"]);
    assert_eq!(room.run(&["frobnicate"]).status.code(), Some(2));
    assert_eq!(room.run(&["check", "--nonsense"]).status.code(), Some(16));
    assert_eq!(room.run(&["mount", "--nonsense"]).status.code(), Some(1));
    assert_eq!(room.run(&["--version"]).status.code(), Some(0));
}

#[test]
fn a_check_finds_repairs_and_says_so_in_its_exit_code() {
    let room = Room::new();
    room.volume("a.img");
    assert!(room.ok(&["check", "a.img"]).contains(": clean, 11/"));
    // A free block that the superblock does not know of.
    let image = fs::OpenOptions::new().write(true).open(room.path("a.img")).unwrap();
    room.ok(&["mkdir", "a.img:/d"]);
    let descriptors = 2 * 1024;
    let mut bytes = [0; 2];
    File::open(room.path("a.img")).unwrap().read_exact_at(&mut bytes, descriptors + 12).unwrap();
    let wrong = u16::from_le_bytes(bytes) ^ 1;
    image.write_all_at(&wrong.to_le_bytes(), descriptors + 12).unwrap();
    let output = room.run(&["check", "--json", "a.img"]);
    assert_eq!(output.status.code(), Some(4));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((report["clean"].as_bool(), report["exit_code"].as_u64()), (Some(false), Some(4)));
    assert!(!report["problems"].as_array().unwrap().is_empty());
    assert_eq!(room.run(&["check", "-y", "a.img"]).status.code(), Some(1));
    room.ok(&["check", "a.img"]);
    room.fsck("a.img");
    fs::write(room.path("junk"), vec![1; 1 << 20]).unwrap();
    assert!(room.fails(8, &["check", "junk"]).starts_with("onggi: check: junk: "));
}

#[test]
fn a_reader_that_goes_away_is_no_catastrophe() {
    let room = Room::new();
    room.volume("a.img");
    fs::write(room.path("file"), vec![b'x'; 4 << 20]).unwrap();
    room.ok(&["put", "file", "a.img:/file"]);
    let mut cat =
        room.command(&["cat", "a.img:/file"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(cat.stdout.take());
    let output = cat.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(141));
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn documents_come_from_the_same_source() {
    let room = Room::new();
    room.ok(&["man", "pages"]);
    let page = fs::read_to_string(room.path("pages/onggi-cp.1")).unwrap();
    assert!(page.contains("Copy into, out of, between and within volumes"), "{page}");
    assert!(room.path("pages/onggi.1").exists());
    for shell in ["bash", "zsh", "fish"] {
        assert!(room.ok(&["completions", shell]).contains("mkfs"));
    }
    assert!(room.ok(&["ls", "--help"]).contains("human-readable"));
}

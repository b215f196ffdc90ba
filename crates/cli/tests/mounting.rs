//! `onggi mount` and `onggi umount` with a real kernel.

#![allow(missing_docs)]

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// A volume and a directory to mount it on.
struct Disk {
    room: tempfile::TempDir,
}

impl Disk {
    /// `None`, said aloud, where this machine has no FUSE.
    fn new() -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: no /dev/fuse here");
            return None;
        }
        let disk = Self { room: tempfile::tempdir().unwrap() };
        fs::create_dir(disk.path("mnt")).unwrap();
        assert!(disk.onggi(&["mkfs", "-q", "-s", "64M", "a.img"]).status.success());
        Some(disk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.room.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_onggi"));
        command.args(args).current_dir(self.room.path()).stdin(Stdio::null());
        command
    }

    fn onggi(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    fn ok(&self, args: &[&str]) {
        let output = self.onggi(args);
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stderr.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn fsck(&self) {
        match Command::new("e2fsck").args(["-fn", "a.img"]).current_dir(self.room.path()).output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout)),
            Err(error) => println!("skipped: e2fsck: {error}"),
        }
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.contains(&format!(" {} fuse.onggi ", self.path("mnt").display()))
    }

    /// A server in the foreground, mounted.
    fn foreground(&self, options: &[&str]) -> Child {
        let args = [&["mount", "-f"], options, &["a.img", "mnt"]].concat();
        let child = self.command(&args).spawn().unwrap();
        wait_for("the mount", || self.is_mounted());
        child
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted() {
            self.onggi(&["umount", "-l", "mnt"]);
        }
    }
}

fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_is_written_is_there_after_umount() {
    let Some(disk) = Disk::new() else { return };
    disk.ok(&["mount", "a.img", "mnt"]);
    assert!(disk.is_mounted());
    let data: Vec<u8> = (0..5_000_000u32).map(|n| (n % 253) as u8).collect();
    fs::write(disk.path("mnt/big"), &data).unwrap();
    fs::create_dir(disk.path("mnt/dir")).unwrap();
    for number in 0..500 {
        fs::write(disk.path(&format!("mnt/dir/{number}")), number.to_string()).unwrap();
    }
    // Both tools at once would be a catastrophe.
    let output = disk.onggi(&["ls", "a.img"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("in use"));
    disk.ok(&["umount", "mnt"]);
    assert!(!disk.is_mounted());
    disk.fsck();
    assert!(disk.onggi(&["cat", "a.img:/big"]).stdout == data);
    let list = disk.onggi(&["ls", "a.img:/dir"]).stdout;
    assert_eq!(list.iter().filter(|&&byte| byte == b'\n').count(), 500);
    assert_eq!(disk.onggi(&["umount", "mnt"]).status.code(), Some(32));
}

#[test]
fn a_read_only_mount_leaves_the_image_alone() {
    let Some(disk) = Disk::new() else { return };
    let before = fs::read(disk.path("a.img")).unwrap();
    disk.ok(&["mount", "-o", "ro,defaults,nofail", "a.img", "mnt"]);
    let error = fs::write(disk.path("mnt/x"), b"x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    disk.ok(&["umount", "mnt"]);
    assert!(fs::read(disk.path("a.img")).unwrap() == before);
}

#[test]
fn a_mount_that_cannot_be_says_so_before_it_returns() {
    let Some(disk) = Disk::new() else { return };
    fs::write(disk.path("junk.img"), vec![1; 1 << 20]).unwrap();
    for (code, args, expected) in [
        (1, &["mount", "-o", "nonsense", "a.img", "mnt"][..], "\"nonsense\""),
        (32, &["mount", "a.img", "nowhere"], "nowhere: No such file or directory"),
        (32, &["mount", "nope.img", "mnt"], "nope.img"),
        (32, &["mount", "junk.img", "mnt"], "junk.img: "),
        (32, &["mount", "a.img", "a.img"], "not a directory"),
        (32, &["umount", "mnt"], "mnt: not mounted by onggi"),
    ] {
        let output = disk.onggi(args);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {complaint}");
        assert!(complaint.contains(expected), "{args:?}: {complaint}");
        assert!(!disk.is_mounted());
    }
    disk.fsck();
}

#[test]
fn signals_end_a_mount_cleanly() {
    let Some(disk) = Disk::new() else { return };
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = disk.foreground(&[]);
        fs::write(disk.path("mnt/file"), b"written").unwrap();
        kill_process(Pid::from_child(&server), signal).unwrap();
        assert!(server.wait().unwrap().success());
        assert!(!disk.is_mounted());
        disk.fsck();
        assert_eq!(disk.onggi(&["cat", "a.img:/file"]).stdout, b"written");
    }
}

#[test]
fn a_signal_to_a_busy_mount_waits_for_the_last_file_and_a_second_does_not() {
    let Some(disk) = Disk::new() else { return };
    let mut server = disk.foreground(&[]);
    let mut file = File::create(disk.path("mnt/file")).unwrap();
    file.write_all(b"before").unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    wait_for("the mount to leave the tree", || !disk.is_mounted());
    assert!(server.try_wait().unwrap().is_none(), "a file is open");
    file.write_all(b" after").unwrap();
    file.sync_all().unwrap();
    kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
    drop(file);
    disk.fsck();
    assert_eq!(disk.onggi(&["cat", "a.img:/file"]).stdout, b"before after");
}

#[test]
fn a_busy_directory_is_not_unmounted_but_lazily() {
    let Some(disk) = Disk::new() else { return };
    disk.ok(&["mount", "a.img", "mnt"]);
    let file = File::create(disk.path("mnt/file")).unwrap();
    let output = disk.onggi(&["umount", "mnt"]);
    assert_eq!(output.status.code(), Some(32));
    assert!(String::from_utf8_lossy(&output.stderr).contains("busy"));
    disk.ok(&["umount", "-l", "mnt"]);
    assert!(!disk.is_mounted());
    drop(file);
    wait_for("the image to be let go", || disk.onggi(&["ls", "a.img"]).status.success());
    disk.fsck();
}

#[test]
fn what_was_synced_survives_a_killed_server() {
    let Some(disk) = Disk::new() else { return };
    for round in 0..5 {
        let seed = format!("power-cut={round}");
        let mut server = disk.foreground(&["-o", &seed]);
        let path = disk.path(&format!("mnt/round-{round}"));
        let data = vec![b'a' + round; 300_000];
        let mut file = File::create(&path).unwrap();
        file.write_all(&data).unwrap();
        file.sync_all().unwrap();
        File::open(disk.path("mnt")).unwrap().sync_all().unwrap();
        // Not synced: may be there or not.
        fs::write(disk.path("mnt/loose"), vec![b'z'; 2_000_000]).unwrap();
        kill_process(Pid::from_child(&server), Signal::KILL).unwrap();
        server.wait().unwrap();
        drop(file);
        disk.onggi(&["umount", "-l", "mnt"]);
        wait_for("the dead mount to go", || !disk.is_mounted());
        for earlier in 0..=round {
            let output = disk.onggi(&["cat", &format!("a.img:/round-{earlier}")]);
            let complaint = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.stdout == vec![b'a' + earlier; 300_000],
                "round {round}: {earlier} is lost: {complaint}"
            );
        }
        disk.ok(&["mkdir", &format!("a.img:/replayed-{round}")]);
        disk.fsck();
    }
}

#[test]
fn mount8_calls_it_as_a_helper() {
    let Some(disk) = Disk::new() else { return };
    let helper = disk.path("mount.fuse.onggi");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_onggi"), &helper).unwrap();
    let status = Command::new(&helper)
        .args(["a.img", "mnt", "-n", "-o", "rw,noatime", "-t", "fuse.onggi"])
        .current_dir(disk.room.path())
        .status()
        .unwrap();
    assert!(status.success() && disk.is_mounted());
    disk.ok(&["umount", "mnt"]);
    // As mount.fuse does.
    disk.ok(&["a.img", "mnt", "-o", "rw,dev,suid"]);
    assert!(disk.is_mounted());
    disk.ok(&["umount", "mnt"]);
    disk.fsck();
}

#[test]
fn a_volume_in_memory_can_be_mounted() {
    let Some(disk) = Disk::new() else { return };
    disk.ok(&["mount", "mem:32M", "mnt"]);
    fs::write(disk.path("mnt/file"), b"for a while").unwrap();
    assert_eq!(fs::read(disk.path("mnt/file")).unwrap(), b"for a while");
    disk.ok(&["umount", "mnt"]);
}

#[test]
fn who_is_not_root_mounts_too() {
    let Some(disk) = Disk::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: the other tests run as who is not root already");
    }
    if fs::metadata("/dev/fuse").unwrap().mode() & 0o006 != 0o006 {
        return println!("skipped: /dev/fuse is not for everybody here");
    }
    // Nobody: fusermount3 wants a user with a name.
    let user = 65_534;
    for path in [".", "mnt", "a.img"] {
        std::os::unix::fs::chown(disk.path(path), Some(user), Some(user)).unwrap();
    }
    // Somewhere that everybody may look at.
    let program = disk.path("onggi");
    fs::copy(env!("CARGO_BIN_EXE_onggi"), &program).unwrap();
    let run = |args: &[&str]| {
        let id = user.to_string();
        Command::new("setpriv")
            .args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups", "--"])
            .arg(&program)
            .args(args)
            .current_dir(disk.room.path())
            .output()
    };
    let output = match run(&["mount", "a.img", "mnt"]) {
        Ok(output) => output,
        Err(error) => return println!("skipped: setpriv: {error}"),
    };
    let complaint = String::from_utf8_lossy(&output.stderr);
    if complaint.contains("fusermount3") && complaint.contains("No such file") {
        return println!("skipped: no fusermount3 here");
    }
    assert!(output.status.success(), "{complaint}");
    assert!(disk.is_mounted());
    let id = user.to_string();
    let looked = Command::new("setpriv")
        .args([&format!("--reuid={id}"), &format!("--regid={id}"), "--clear-groups", "--"])
        .args(["stat", "-f", "mnt"])
        .current_dir(disk.room.path())
        .output()
        .unwrap();
    assert!(looked.status.success(), "{}", String::from_utf8_lossy(&looked.stderr));
    let output = run(&["umount", "mnt"]).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!disk.is_mounted());
    disk.fsck();
    assert_eq!(fs::metadata(disk.path("a.img")).unwrap().uid(), user);
}

//! A volume that programs work on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A volume, a place to mount it, and room beside it.
pub(crate) struct Disk(tempfile::TempDir);

impl Disk {
    /// `None`, said aloud, where this machine lacks FUSE or one of `programs`.
    pub(crate) fn for_programs(programs: &[&str]) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: no /dev/fuse here");
            return None;
        }
        for program in ["e2fsck"].iter().chain(programs) {
            let there = std::env::var_os("PATH")
                .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).exists()));
            // e2fsck is often in a place that only root looks into.
            if !there && !Path::new("/sbin").join(program).exists() {
                println!("skipped: no {program} here");
                return None;
            }
        }
        let disk = Self(tempfile::tempdir().expect("a temporary directory"));
        fs::create_dir(disk.path("mnt")).expect("a mount point");
        disk.onggi(&["mkfs", "-q", "-s", "256M", "a.img"]);
        Some(disk)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A command that runs beside the volume.
    pub(crate) fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Runs what must go well; gives what it wrote.
    pub(crate) fn ok(&self, program: &str, args: &[&str]) -> String {
        succeed(&mut self.command(program, args))
    }

    fn onggi(&self, args: &[&str]) {
        self.ok(env!("CARGO_BIN_EXE_onggi"), args);
    }

    pub(crate) fn mount(&self) {
        self.onggi(&["mount", "a.img", "mnt"]);
    }

    /// A server in the foreground whose death loses what was not flushed, but for a part that `seed` picks.
    pub(crate) fn mount_with_power_cut(&self, seed: u64) -> Child {
        let options = format!("power-cut={seed}");
        let args = ["mount", "-f", "-o", &options, "a.img", "mnt"];
        let mut server = self.command(env!("CARGO_BIN_EXE_onggi"), &args).spawn().expect("onggi");
        wait_for("the mount", || {
            assert!(server.try_wait().expect("a child").is_none(), "the server ended");
            self.is_mounted()
        });
        server
    }

    /// Kills the server and takes the dead mount away.
    pub(crate) fn cut_power(&self, mut server: Child) {
        server.kill().expect("it was not waited for");
        server.wait().expect("it was killed");
        self.onggi(&["umount", "-l", "mnt"]);
        wait_for("the dead mount to go", || !self.is_mounted());
    }

    fn is_mounted(&self) -> bool {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("the mount table");
        mounts.contains(&format!(" {} fuse.onggi ", self.path("mnt").display()))
    }

    /// Unmounts; then both checkers must be content.
    pub(crate) fn unmount(&self) {
        self.onggi(&["umount", "mnt"]);
        assert!(!self.is_mounted());
        self.ok("e2fsck", &["-fn", "a.img"]);
        self.onggi(&["check", "-n", "a.img"]);
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_mounted() {
            let _ = self.command(env!("CARGO_BIN_EXE_onggi"), &["umount", "-l", "mnt"]).output();
        }
    }
}

/// Runs what must go well; gives what it wrote.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout);
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{complained}", output.status);
    said.into_owned()
}

pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! Programs that people use, on a mounted volume. What this machine lacks is skipped, and said to be.

#![allow(missing_docs)]

mod disk;
mod rsync;
mod sqlite;

use std::fs;
use std::path::Path;

use disk::{Disk, succeed};

/// Every way in which fio reads and writes, at once.
const FIO: &str = "
[global]
size=4m
verify=crc32c
do_verify=1
verify_fatal=1
thread=0
directory=mnt
[buffered]
ioengine=psync
rw=randwrite
bs=4k
fsync=64
numjobs=3
[odd]
ioengine=psync
rw=randwrite
bsrange=512-24k
fdatasync=32
[synchronous]
ioengine=psync
sync=1
rw=write
bs=32k
[mapped]
ioengine=mmap
rw=randwrite
bs=4k
fsync=64
numjobs=2
[direct]
ioengine=psync
direct=1
rw=randwrite
bs=8k
fsync=64
numjobs=2
[direct-many]
ioengine=libaio
iodepth=8
direct=1
rw=randwrite
bs=4k
[reserved]
ioengine=psync
fallocate=posix
rw=randwrite
bs=16k
";

#[test]
fn fio_reads_what_it_wrote() {
    let Some(disk) = Disk::for_programs(&["fio"]) else { return };
    fs::write(disk.path("jobs"), FIO).unwrap();
    disk.mount();
    disk.ok("fio", &["jobs"]);
    disk.unmount();
    // From the volume this time, not from a cache.
    disk.mount();
    disk.ok("fio", &["--verify_only", "jobs"]);
    disk.unmount();
}

#[test]
fn git_clones_checks_and_collects() {
    let Some(disk) = Disk::for_programs(&["git", "diff"]) else { return };
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    if !source.join(".git").exists() {
        return println!("skipped: these sources are no git repository");
    }
    let git = |args: &[&str]| {
        let mut command = disk.command("git", &["-c", "safe.directory=*", "-c", "gc.auto=0"]);
        for name in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
            command.env_remove(name);
        }
        command.env("GIT_CONFIG_GLOBAL", disk.path("gitconfig"));
        succeed(command.args(args))
    };
    // Which commands started by git read too.
    fs::write(disk.path("gitconfig"), "[safe]\n\tdirectory = *\n").unwrap();
    disk.mount();
    git(&["clone", "-q", "--no-hardlinks", &source.display().to_string(), "mnt/clone"]);
    git(&["-C", "mnt/clone", "fsck", "--full"]);
    git(&["clone", "-q", "--no-hardlinks", "mnt/clone", "host"]);
    disk.ok("diff", &["-r", "--exclude=.git", "mnt/clone", "host"]);
    git(&["-C", "mnt/clone", "gc", "-q"]);
    disk.unmount();
    disk.mount();
    git(&["-C", "mnt/clone", "fsck", "--full"]);
    git(&["-C", "mnt/clone", "rm", "-q", "-r", "--cached", "."]);
    git(&["-C", "mnt/clone", "reset", "-q", "--hard"]);
    assert_eq!(git(&["-C", "mnt/clone", "status", "--porcelain"]), "");
    disk.ok("diff", &["-r", "--exclude=.git", "mnt/clone", "host"]);
    disk.unmount();
}

#[test]
fn cargo_builds() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let Some(disk) = Disk::for_programs(&[]) else { return };
    if disk.command(&cargo, &["--version"]).output().is_err() {
        return println!("skipped: no cargo here");
    }
    disk.mount();
    let source = disk.path("mnt/small");
    fs::create_dir_all(source.join("src")).unwrap();
    let manifest = "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[workspace]\n";
    fs::write(source.join("Cargo.toml"), manifest).unwrap();
    fs::write(source.join("src/lib.rs"), "pub fn word() -> &'static str { \"onggi\" }\n").unwrap();
    let run = |main: &str| {
        fs::write(source.join("src/main.rs"), main).unwrap();
        let mut command = disk.command(&cargo, &["build", "--offline", "-q", "-j2"]);
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_") && name != "CARGO_HOME") {
                command.env_remove(name);
            }
        }
        succeed(command.env_remove("RUSTFLAGS").current_dir(&source));
        disk.ok(&source.join("target/debug/small").display().to_string(), &[])
    };
    assert_eq!(run("fn main() { println!(\"{}\", small::word()); }\n"), "onggi\n");
    // The second time finds on the volume what the first time left.
    assert_eq!(run("fn main() { println!(\"{}!\", small::word()); }\n"), "onggi!\n");
    disk.unmount();
}

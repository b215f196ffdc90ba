//! Images that mke2fs makes, the kernel fills, debugfs breaks and e2fsck judges.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;

use onggi_block_device::MemoryDevice;
use onggi_ext4_check::{CheckError, Code, Mode, Report, check};

pub(crate) const RECIPES: [&[&str]; 13] = [
    &["-b", "4096"],
    &["-b", "1024"],
    &["-b", "2048"],
    &["-b", "4096", "-I", "128", "-O", "^metadata_csum"],
    &["-b", "1024", "-I", "128"],
    &["-b", "4096", "-I", "512"],
    &["-b", "4096", "-O", "^metadata_csum,^has_journal"],
    &["-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    &["-b", "1024", "-O", "^64bit,^metadata_csum,uninit_bg,^flex_bg,^extent"],
    &["-b", "1024", "-O", "^64bit,ea_inode"],
    &["-b", "2048", "-O", "quota,project"],
    &["-b", "4096", "-O", "orphan_file,metadata_csum_seed"],
    &["-b", "1024", "-O", "meta_bg,^resize_inode,sparse_super2,^huge_file"],
];

/// Fills a mounted volume with every kind of thing the format has.
pub(crate) const FILL: &str = r#"
set -e
cd "$1"
mkdir -p many/deep/er
i=0; while [ $i -lt 4000 ]; do : > "many/a_rather_long_name_$i"; i=$((i+1)); done
i=0; while [ $i -lt 4000 ]; do echo "many/a_rather_long_name_$i"; i=$((i+3)); done | xargs rm
for i in 1 2 3 4 5 6 7 8 9; do mkdir "many/deep/d$i"; echo $i > "many/deep/d$i/file"; done
ln -s short link; ln -s "$(printf 'x%.0s' $(seq 200))" longlink; ln link hardlink
mknod fifo p; mknod null c 1 3; mknod big b 300 70000
python3 - <<'P'
import os, socket
with open("sparse", "wb") as f:
    for i in range(1200):
        f.seek(i * 3 * 4096); f.write(b"x")
with open("holes", "wb") as f:
    f.seek(5000 << 10); f.write(b"y" * 9000)
try:
    fd = os.open("prealloc", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, 3 << 20); os.close(fd)
except OSError: pass
open("attrs", "w").close()
for i in range(3): os.setxattr("attrs", f"user.small{i}", b"v" * i)
os.setxattr("attrs", "user.large", b"L" * 700)
for i in range(5):
    open(f"same{i}", "w").close(); os.setxattr(f"same{i}", "user.shared", b"S" * 600)
try: os.setxattr("same0", "user.huge", b"H" * 5000)
except OSError: pass
s = socket.socket(socket.AF_UNIX); s.bind("sock")
P
sync -f .
"#;

pub(crate) struct Image {
    _dir: tempfile::TempDir,
    path: PathBuf,
}

impl Image {
    /// Makes an image; `None`, with a word, where mke2fs is missing.
    pub(crate) fn make(size: &str, arguments: &[&str]) -> Option<Self> {
        let dir = directory();
        let path = dir.path().join("image");
        let mut command = Command::new("mke2fs");
        command.args(["-q", "-F", "-t", "ext4"]).args(arguments).arg(&path).arg(size);
        match command.output() {
            Err(error) => {
                println!("skipped: mke2fs does not run: {error}");
                None
            }
            Ok(output) => {
                assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                Some(Self { _dir: dir, path })
            }
        }
    }

    /// Runs a shell script on the mounted image; `false`, with a word, where it cannot be mounted.
    pub(crate) fn mounted(&self, script: &str) -> bool {
        let mount = tempfile::tempdir().unwrap();
        let target = mount.path();
        let ok = Command::new("mount").args(["-o", "loop"]).arg(&self.path).arg(target).status();
        if !ok.is_ok_and(|status| status.success()) {
            println!("skipped: no loop mount here (needs root, the kernel's ext4 and a loop device)");
            return false;
        }
        let run = Command::new("sh").args(["-c", script, "sh"]).arg(target).arg(&self.path).status().unwrap();
        assert!(Command::new("umount").arg(target).status().unwrap().success());
        assert!(run.success());
        true
    }

    /// The image that a script left beside this one.
    pub(crate) fn sibling(&self, suffix: &str) -> Self {
        let dir = directory();
        let path = dir.path().join("image");
        let mut name = self.path.clone().into_os_string();
        name.push(format!(".{suffix}"));
        std::fs::copy(&name, &path).unwrap();
        Self { _dir: dir, path }
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        std::fs::read(&self.path).unwrap()
    }

    pub(crate) fn restore(&self, bytes: &[u8]) {
        // Only what differs, which is little.
        let file = std::fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        let old = self.bytes();
        for (nr, (old, new)) in old.chunks(4096).zip(bytes.chunks(4096)).enumerate() {
            if old != new {
                file.write_all_at(new, nr as u64 * 4096).unwrap();
            }
        }
    }

    pub(crate) fn debugfs(&self, script: &str) -> String {
        let file = self.path.with_extension("debugfs");
        std::fs::write(&file, script).unwrap();
        let output = Command::new("debugfs").arg("-w").arg("-f").arg(&file).arg(&self.path).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The first block of a file, as debugfs tells it.
    pub(crate) fn first_block(&self, path: &str) -> String {
        let said = self.debugfs(&format!("blocks {path}"));
        let blocks = said.lines().last().unwrap();
        blocks.split_whitespace().next().unwrap().to_string()
    }

    pub(crate) fn e2fsck_output(&self) -> (i32, String) {
        let output = Command::new("e2fsck").args(["-f", "-n"]).arg(&self.path).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Our check; repairs go back into the file.
    pub(crate) fn check(&self, mode: Mode) -> Result<Report, CheckError> {
        let before = self.bytes();
        let device = MemoryDevice::from_bytes(&before);
        let report = check(&device, mode, &|_| ())?;
        let after = device.to_bytes();
        assert_eq!(after != before, report.modified, "the report says otherwise");
        if mode != Mode::ReadOnly {
            self.restore(&after);
        }
        Ok(report)
    }

    pub(crate) fn assert_clean(&self, recipe: &[&str]) -> Report {
        let (code, said) = self.e2fsck_output();
        assert_eq!(code, 0, "{recipe:?}: {said}");
        let report = self.check(Mode::ReadOnly).unwrap();
        assert!(report.is_clean(), "{recipe:?}: {:#?}", report.problems);
        assert_eq!(report.exit_code(), 0);
        report
    }

    /// Both checks see the damage (e2fsck unless `silent`); a repair ends as `repairable` says, and if so
    /// both call the volume clean.
    pub(crate) fn found_and_repaired(
        &self,
        code: Code,
        silent: bool,
        repairable: bool,
    ) -> Result<(), String> {
        let (judged, said) = self.e2fsck_output();
        let report = self.check(Mode::ReadOnly).map_err(|error| error.to_string())?;
        if !report.problems.iter().any(|problem| problem.code == code) || report.exit_code() != 4 {
            return Err(format!("not found: {}", list(&report)));
        }
        if (judged == 0) != silent {
            return Err(format!("e2fsck says {judged} {said}{}", list(&report)));
        }
        let repaired = self.check(Mode::Yes).map_err(|error| error.to_string())?;
        if repaired.exit_code() != if repairable { 1 } else { 4 } {
            return Err(format!("repair ended with {}: {}", repaired.exit_code(), list(&repaired)));
        }
        if repairable {
            let after = self.check(Mode::ReadOnly).map_err(|error| error.to_string())?;
            let (judged, said) = self.e2fsck_output();
            if !after.is_clean() || judged != 0 {
                return Err(format!("repaired, but e2fsck says {judged} {said}{}", list(&after)));
            }
        }
        Ok(())
    }
}

/// In memory where the system has such a place.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

fn list(report: &Report) -> String {
    let lines: Vec<String> = report.problems.iter().take(20).map(ToString::to_string).collect();
    format!("\n    {}", lines.join("\n    "))
}

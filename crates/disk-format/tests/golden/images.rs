//! Images that mke2fs makes and the kernel fills.

use std::path::Path;
use std::process::Command;

/// Makes an image of `size` (a suffix as mke2fs takes them); `None`, with a word, where mke2fs is missing.
pub(crate) fn mke2fs(path: &Path, size: &str, arguments: &[&str]) -> Option<()> {
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4"]).args(arguments).arg(path).arg(size);
    match command.output() {
        Err(error) => {
            println!("skipped: mke2fs does not run: {error}");
            None
        }
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(())
        }
    }
}

/// Runs a shell script on the mounted image; `false`, with a word, where it cannot be mounted.
pub(crate) fn mounted(image: &Path, script: &str) -> bool {
    let mount = tempfile::tempdir().unwrap();
    let target = mount.path();
    let ok = Command::new("mount").args(["-o", "loop"]).arg(image).arg(target).status();
    if !ok.is_ok_and(|status| status.success()) {
        println!("skipped: no loop mount here (needs root, the kernel's ext4 and a loop device)");
        return false;
    }
    let run = Command::new("sh").args(["-c", script, "sh"]).arg(target).status().unwrap();
    assert!(Command::new("umount").arg(target).status().unwrap().success());
    assert!(run.success());
    true
}

/// In memory where the system has such a place.
pub(crate) fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

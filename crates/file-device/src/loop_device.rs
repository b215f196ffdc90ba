//! Whether the kernel has an image file open through a loop device: it takes no lock of its own.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The loop device whose backing file has this device and inode number, if there is one.
pub(crate) fn attached_to(dev: u64, ino: u64) -> Option<PathBuf> {
    for entry in fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let Ok(file) = fs::metadata(backing.trim_end_matches('\n')) else { continue };
        if (file.dev(), file.ino()) == (dev, ino) {
            return Some(Path::new("/dev").join(entry.file_name()));
        }
    }
    None
}

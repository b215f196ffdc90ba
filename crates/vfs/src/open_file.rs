//! Open files: what a descriptor remembers.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Errno, FileSystem, Ino, Result};

/// One open of an inode. Holds a retain; [`OpenFile::close`] gives it back.
#[derive(Debug)]
pub struct OpenFile {
    /// The inode.
    pub ino: Ino,
    seen: AtomicU64,
}

impl OpenFile {
    /// Opens an inode.
    ///
    /// # Errors
    /// `ESTALE` when the inode is gone.
    pub fn open(fs: &dyn FileSystem, ino: Ino, generation: u32) -> Result<Self> {
        fs.retain(ino, generation)?;
        Ok(Self { ino, seen: AtomicU64::new(fs.write_errors(ino).count) })
    }

    /// fsync through this descriptor: also reports a failed writeback since the last one here.
    ///
    /// # Errors
    /// The fsync's own, or the latest writeback error that this descriptor has not reported yet.
    pub fn fsync(&self, fs: &dyn FileSystem, datasync: bool) -> Result<()> {
        let result = fs.fsync(self.ino, datasync);
        let errors = fs.write_errors(self.ino);
        let seen = self.seen.swap(errors.count, Ordering::AcqRel);
        result?;
        if errors.count == seen { Ok(()) } else { Err(Errno::from_raw_os_error(errors.errno).into()) }
    }

    /// Closes it.
    pub fn close(self, fs: &dyn FileSystem) {
        fs.release(self.ino, 1);
    }
}

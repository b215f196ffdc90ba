//! Open files, by the number that the kernel gives back.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use onggi_vfs::{Errno, FileSystem, Ino, OpenFile, Result};
use parking_lot::RwLock;

/// One open of a file.
pub(crate) struct Handle {
    pub(crate) file: OpenFile,
    pub(crate) writes: bool,
}

/// All opens.
#[derive(Default)]
pub(crate) struct Handles {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<Handle>>>,
}

impl Handles {
    /// Numbers an open.
    pub(crate) fn insert(&self, file: OpenFile, writes: bool) -> u64 {
        let number = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.write().insert(number, Arc::new(Handle { file, writes }));
        number
    }

    /// Finds an open; `EBADF`.
    pub(crate) fn get(&self, number: u64) -> Result<Arc<Handle>> {
        Ok(self.open.read().get(&number).cloned().ok_or(Errno::BADF)?)
    }

    /// Closes an open; says which inode it was and whether it could write.
    pub(crate) fn remove(&self, fs: &dyn FileSystem, number: u64) -> Option<(Ino, bool)> {
        let handle = self.open.write().remove(&number)?;
        Some(Self::close(fs, handle))
    }

    /// Closes everything: the kernel is gone.
    pub(crate) fn remove_all(&self, fs: &dyn FileSystem) {
        let all = std::mem::take(&mut *self.open.write());
        for handle in all.into_values() {
            Self::close(fs, handle);
        }
    }

    fn close(fs: &dyn FileSystem, handle: Arc<Handle>) -> (Ino, bool) {
        let (ino, writes) = (handle.file.ino, handle.writes);
        match Arc::into_inner(handle) {
            Some(handle) => handle.file.close(fs),
            // Another request still looks at it; the retain is ours to give back all the same.
            None => fs.release(ino, 1),
        }
        (ino, writes)
    }
}

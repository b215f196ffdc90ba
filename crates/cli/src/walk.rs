//! Finding one's way in a volume.

use onggi_vfs::{Attr, Errno, FileKind, FileSystem, Ino, Result, path};

/// Deepest directory that a command walks into.
pub(crate) const DEPTH_MAX: usize = 4096;
/// Entries asked for at once.
const BATCH: usize = 1024;

/// The inode that a path names; through a symbolic link at its end where `follow` says so.
pub(crate) fn find(fs: &dyn FileSystem, path: &[u8], follow: bool) -> Result<Attr> {
    path::resolve(fs, path, follow)
}

/// The directory that holds, or is to hold, a path's last name, and that name.
pub(crate) fn find_parent(fs: &dyn FileSystem, path: &[u8]) -> Result<(Ino, Vec<u8>)> {
    let (dir, name) = path::resolve_parent(fs, path)?;
    Ok((dir.ino, name))
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
}

/// All names in a directory but `.` and `..`, sorted.
pub(crate) fn names(fs: &dyn FileSystem, dir: Ino) -> Result<Vec<Name>> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let batch = fs.readdir(dir, cookie, BATCH)?;
        let Some(last) = batch.last() else { break };
        cookie = last.next;
        for entry in batch {
            if entry.name != b"." && entry.name != b".." {
                names.push(Name { name: entry.name, ino: entry.ino, kind: entry.kind });
            }
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// The directories above where a walk is: keeps it out of loops, which only a corrupt volume has.
#[derive(Default)]
pub(crate) struct Trail(Vec<Ino>);

impl Trail {
    /// Walks into a directory; `ELOOP` where it is above itself or too deep.
    pub(crate) fn enter(&mut self, dir: Ino) -> Result<()> {
        if self.0.len() >= DEPTH_MAX || self.0.contains(&dir) {
            return Err(Errno::LOOP.into());
        }
        self.0.push(dir);
        Ok(())
    }

    /// Walks out again.
    pub(crate) fn leave(&mut self) {
        self.0.pop();
    }

    /// Directories entered.
    pub(crate) fn depth(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trail_refuses_loops() {
        let mut trail = Trail::default();
        trail.enter(Ino(2)).unwrap();
        trail.enter(Ino(3)).unwrap();
        assert_eq!(trail.enter(Ino(2)).unwrap_err().errno(), Errno::LOOP);
        trail.leave();
        trail.enter(Ino(3)).unwrap();
        assert_eq!(trail.depth(), 2);
    }
}

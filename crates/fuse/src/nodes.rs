//! Which inodes the kernel holds, and under which ids.

use std::collections::HashMap;

use onggi_vfs::{Attr, Errno, FileSystem, Ino, Result};
use parking_lot::Mutex;

use crate::wire::ROOT_ID;

const SHARDS: usize = 16;

/// What is known of one inode that the kernel holds.
#[derive(Clone, Copy, Debug)]
struct Node {
    /// How many answers named it since it was last forgotten.
    lookups: u64,
    generation: u32,
    /// Opens for writing; the kernel may hold dirty pages while there are any.
    writers: u32,
}

/// The inodes that the kernel holds. Each is retained once in the engine.
///
/// The kernel's id of the root is always 1; the inode whose number is 1 takes the root's number.
pub(crate) struct Nodes {
    root: Ino,
    shards: [Mutex<HashMap<Ino, Node>>; SHARDS],
}

impl Nodes {
    pub(crate) fn new(root: Ino) -> Self {
        Self { root, shards: std::array::from_fn(|_| Mutex::default()) }
    }

    /// The kernel's id of an inode.
    pub(crate) fn id(&self, ino: Ino) -> u64 {
        if ino == self.root {
            ROOT_ID
        } else if ino.0 == ROOT_ID {
            self.root.0
        } else {
            ino.0
        }
    }

    /// The inode behind a kernel's id: the inverse of [`Nodes::id`].
    pub(crate) fn ino(&self, id: u64) -> Ino {
        Ino(self.id(Ino(id)))
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Node>> {
        &self.shards[usize::try_from(ino.0 % SHARDS as u64).expect("below the number of shards")]
    }

    /// Counts one more answer naming the inode; the first retains it. `ESTALE` when this life of the
    /// number is over.
    pub(crate) fn remember(&self, fs: &dyn FileSystem, attr: &Attr) -> Result<()> {
        let mut shard = self.shard(attr.ino).lock();
        match shard.get_mut(&attr.ino) {
            Some(node) if node.generation == attr.generation => node.lookups += 1,
            Some(_) => return Err(Errno::STALE.into()),
            None => {
                fs.retain(attr.ino, attr.generation)?;
                shard.insert(attr.ino, Node { lookups: 1, generation: attr.generation, writers: 0 });
            }
        }
        Ok(())
    }

    /// Counts the first answer naming an inode that the engine has already retained for us.
    pub(crate) fn adopt(&self, fs: &dyn FileSystem, attr: &Attr) {
        let node = Node { lookups: 1, generation: attr.generation, writers: 0 };
        if let Some(old) = self.shard(attr.ino).lock().insert(attr.ino, node) {
            tracing::error!(ino = attr.ino.0, ?old, "a new inode's number was still in use");
            fs.release(attr.ino, 1);
        }
    }

    /// Takes back `count` answers; the last releases the inode.
    pub(crate) fn forget(&self, fs: &dyn FileSystem, ino: Ino, count: u64) {
        {
            let mut shard = self.shard(ino).lock();
            let Some(node) = shard.get_mut(&ino) else { return };
            node.lookups = node.lookups.saturating_sub(count);
            if node.lookups > 0 {
                return;
            }
            shard.remove(&ino);
        }
        fs.release(ino, 1);
    }

    /// The generation of an inode that the kernel holds.
    pub(crate) fn generation(&self, ino: Ino) -> Option<u32> {
        self.shard(ino).lock().get(&ino).map(|node| node.generation)
    }

    /// Notes that one more open may write.
    pub(crate) fn add_writer(&self, ino: Ino) {
        if let Some(node) = self.shard(ino).lock().get_mut(&ino) {
            node.writers += 1;
        }
    }

    /// Takes back [`Nodes::add_writer`].
    pub(crate) fn remove_writer(&self, ino: Ino) {
        if let Some(node) = self.shard(ino).lock().get_mut(&ino) {
            node.writers = node.writers.saturating_sub(1);
        }
    }

    /// Whether the kernel may hold pages of it that have not been written here yet.
    pub(crate) fn may_be_dirty(&self, ino: Ino) -> bool {
        self.shard(ino).lock().get(&ino).is_some_and(|node| node.writers > 0)
    }

    /// Releases everything: the kernel is gone.
    pub(crate) fn forget_all(&self, fs: &dyn FileSystem) {
        for shard in &self.shards {
            let nodes = std::mem::take(&mut *shard.lock());
            for ino in nodes.into_keys() {
                fs.release(ino, 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_and_inode_one_change_places() {
        let nodes = Nodes::new(Ino(2));
        assert_eq!((nodes.id(Ino(2)), nodes.id(Ino(1)), nodes.id(Ino(11))), (1, 2, 11));
        assert_eq!((nodes.ino(1), nodes.ino(2), nodes.ino(11)), (Ino(2), Ino(1), Ino(11)));
        let nodes = Nodes::new(Ino(1));
        assert_eq!((nodes.id(Ino(1)), nodes.ino(1)), (1, Ino(1)));
    }
}

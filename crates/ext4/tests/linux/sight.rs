//! What a reader sees of a volume, and how two readers differ.

use std::collections::BTreeMap;

use onggi_model::{Compare, ModelFs, Tree, tree};
use onggi_vfs::{Errno, FileKind, FileSystem, Timestamp, Whence};

use crate::grow::Limits;
use crate::host::HostFs;
use crate::image::{Image, Mounted};
use crate::support;

/// What a reader sees of a volume.
pub(crate) struct Sight {
    pub(crate) tree: Tree,
    rest: BTreeMap<Vec<u8>, Rest>,
}

/// What a tree leaves out of an inode.
#[derive(Debug, PartialEq)]
struct Rest {
    atime: Timestamp,
    /// 512-byte units.
    blocks: u64,
    /// Where a regular file's data lies.
    stretches: Vec<(u64, u64)>,
}

impl Sight {
    /// Looks at stretches first: reading the contents makes Linux take unwritten blocks for data.
    pub(crate) fn of(fs: &dyn FileSystem) -> Self {
        let shape = onggi_model::shape(fs, fs.root()).expect("the shape");
        let rest = shape.nodes.iter().map(|(path, node)| {
            let attr = fs.getattr(node.ino).expect("getattr");
            let regular = node.kind == FileKind::Regular;
            let stretches = if regular { stretches(fs, node.ino, attr.size) } else { Vec::new() };
            (path.clone(), Rest { atime: attr.atime, blocks: attr.blocks, stretches })
        });
        let rest = rest.collect();
        Self { tree: tree(fs, fs.root()).expect("the tree"), rest }
    }

    #[track_caller]
    pub(crate) fn assert_same(&self, linux: &Self, what: &str) {
        let mut found = self.tree.diff(&linux.tree, Compare::ALL);
        for (path, node) in &self.tree.nodes {
            let name = path.escape_ascii();
            if linux.tree.nodes.get(path).is_some_and(|other| other.ino != node.ino) {
                found.push(format!("/{name}: another inode number"));
            }
            if self.rest.get(path) != linux.rest.get(path) {
                found.push(format!("/{name}: {:?}, Linux: {:?}", self.rest.get(path), linux.rest.get(path)));
            }
        }
        assert_none(&found, what);
    }

    pub(crate) fn kinds(&self) -> BTreeMap<Vec<u8>, FileKind> {
        self.tree.nodes.iter().map(|(path, node)| (path.clone(), node.kind)).collect()
    }
}

#[track_caller]
pub(crate) fn assert_none(found: &[String], what: &str) {
    let shown: Vec<_> = found.iter().take(15).map(String::as_str).collect();
    assert!(found.is_empty(), "{what}: {} differences:\n  {}", found.len(), shown.join("\n  "));
}

fn stretches(fs: &dyn FileSystem, ino: onggi_vfs::Ino, size: u64) -> Vec<(u64, u64)> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < size {
        let data = match fs.seek(ino, at, Whence::Data) {
            Ok(data) => data,
            Err(error) if error.errno() == Errno::NXIO => break,
            Err(error) => panic!("seek: {error:?}"),
        };
        let hole = fs.seek(ino, data, Whence::Hole).expect("seek for a hole");
        assert!(data >= at && hole > data, "a seek goes backwards");
        all.push((data, hole));
        at = hole;
    }
    all
}

pub(crate) fn host(mounted: &Mounted) -> HostFs {
    HostFs::by_name(mounted.path())
}

/// The volume as Linux sees it, mounted read-only.
pub(crate) fn sight_of_linux(image: &Image) -> Option<Sight> {
    let mounted = image.mount_by_linux("ro")?;
    let fs = host(&mounted);
    let sight = Sight::of(&fs);
    drop(fs);
    Some(sight)
}

pub(crate) fn sight_of_engine(image: &Image) -> Sight {
    let fs = image.mount_here(|options| options.read_only = true).expect("mount");
    let sight = Sight::of(&*fs);
    fs.unmount().expect("unmount");
    sight
}

/// The same tree on the model, after `change`. It has no lost+found.
pub(crate) fn model_sight(limits: Limits, change: impl FnOnce(&ModelFs)) -> Tree {
    let model = ModelFs::new(limits.block_size as u32);
    let cx = support::CX;
    model.create(&cx, model.root(), b"lost+found", onggi_vfs::Node::Directory, 0o700).expect("lost+found");
    change(&model);
    tree(&model, model.root()).expect("the model's tree")
}

/// Differences that the clock of the machine does not make.
pub(crate) fn without_clock(got: &Tree, model: &Tree) -> Vec<String> {
    let mut found = got.diff(model, Compare { times: false, crtime: false });
    for (path, node) in &got.nodes {
        let set = model.nodes.get(path).is_some_and(|model| model.mtime == node.mtime);
        if !set && !path.is_empty() && path != b"lost+found" {
            found.push(format!("/{}: mtime {:?}", path.escape_ascii(), node.mtime));
        }
    }
    found
}

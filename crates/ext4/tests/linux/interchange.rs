//! Both directions with Linux and e2fsprogs: each reads what the other wrote, and replays its journal.

#[path = "support/grow.rs"]
mod grow;
#[allow(dead_code)]
#[path = "../../model/tests/host/mod.rs"]
mod host;
#[path = "support/linux_volume.rs"]
mod linux_volume;
mod support;

use std::collections::BTreeMap;

use grow::{Limits, alter, grow};
use host::HostFs;
use linux_volume::{Image, Mounted};
use onggi_model::{Compare, ModelFs, Tree, tree};
use onggi_vfs::{Errno, FileKind, FileSystem, Timestamp, Whence};
use support::assert_image_clean;

/// What a reader sees of a volume.
struct Sight {
    tree: Tree,
    /// By path: access time, 512-byte units, and the stretches of data of regular files.
    rest: BTreeMap<Vec<u8>, (Timestamp, u64, Vec<(u64, u64)>)>,
}

impl Sight {
    /// Looks at stretches first: reading the contents makes Linux take unwritten blocks for data.
    fn of(fs: &dyn FileSystem) -> Self {
        let shape = onggi_model::shape(fs, fs.root()).expect("the shape");
        let rest = shape.nodes.iter().map(|(path, node)| {
            let attr = fs.getattr(node.ino).expect("getattr");
            let regular = node.kind == FileKind::Regular;
            let stretches = if regular { stretches(fs, node.ino, attr.size) } else { Vec::new() };
            (path.clone(), (attr.atime, attr.blocks, stretches))
        });
        let rest = rest.collect();
        Self { tree: tree(fs, fs.root()).expect("the tree"), rest }
    }

    #[track_caller]
    fn assert_same(&self, linux: &Self, what: &str) {
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

    fn kinds(&self) -> BTreeMap<Vec<u8>, FileKind> {
        self.tree.nodes.iter().map(|(path, node)| (path.clone(), node.kind)).collect()
    }
}

#[track_caller]
fn assert_none(found: &[String], what: &str) {
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

fn host(mounted: &Mounted) -> HostFs {
    HostFs::by_name(mounted.path())
}

/// The volume as Linux sees it, mounted read-only.
fn sight_of_linux(image: &Image) -> Option<Sight> {
    let mounted = image.mount_by_linux("ro")?;
    let fs = host(&mounted);
    let sight = Sight::of(&fs);
    drop(fs);
    Some(sight)
}

fn sight_of_engine(image: &Image) -> Sight {
    let fs = image.mount_here(|options| options.read_only = true).expect("mount");
    let sight = Sight::of(&*fs);
    fs.unmount().expect("unmount");
    sight
}

/// The same tree on the model, after `change`. It has no lost+found.
fn model_sight(limits: Limits, change: impl FnOnce(&ModelFs)) -> Tree {
    let model = ModelFs::new(limits.block_size as u32);
    let cx = support::CX;
    model.create(&cx, model.root(), b"lost+found", onggi_vfs::Node::Directory, 0o700).expect("lost+found");
    change(&model);
    tree(&model, model.root()).expect("the model's tree")
}

/// Differences that the clock of the machine does not make.
fn without_clock(got: &Tree, model: &Tree) -> Vec<String> {
    let mut found = got.diff(model, Compare { times: false, crtime: false });
    for (path, node) in &got.nodes {
        let set = model.nodes.get(path).is_some_and(|model| model.mtime == node.mtime);
        if !set && !path.is_empty() && path != b"lost+found" {
            found.push(format!("/{}: mtime {:?}", path.escape_ascii(), node.mtime));
        }
    }
    found
}

const SEED: u64 = 20_000;

fn entries() -> usize {
    20_000
}

fn ours_to_linux(size: u64, entries: usize, change: impl FnOnce(&mut onggi_ext4_mkfs::Options)) {
    let image = Image::empty(size);
    let mut options = onggi_ext4_mkfs::Options::new([7; 16], [9; 16], 1_700_000_000);
    change(&mut options);
    let block_size = u64::from(onggi_ext4_mkfs::format(&*image.device(), &options).expect("mkfs").block_size);
    let limits = Limits { block_size, old_inodes: options.inode_size == 128, entries };

    let fs = image.mount_here(|_| {}).expect("mount");
    grow(&*fs, SEED, limits).expect("grow");
    let first = tree(&*fs, fs.root()).expect("the tree");
    fs.unmount().expect("unmount");
    drop(fs);
    assert_image_clean(&image.path);
    assert!(first.nodes.len() >= entries);

    let model = model_sight(limits, |model| grow(model, SEED, limits).expect("the model grows"));
    assert_none(&without_clock(&first, &model), "the engine against the model");
    let ours = sight_of_engine(&image);
    assert_none(&ours.tree.diff(&first, Compare::ALL), "the engine before and after the unmount");
    let Some(linux) = sight_of_linux(&image) else { return };
    ours.assert_same(&linux, "the engine against Linux");
    assert_image_clean(&image.path);
}

#[test]
fn linux_reads_twenty_thousand_of_ours() {
    ours_to_linux(1 << 30, entries(), |_| {});
}

#[test]
fn linux_reads_ours_in_small_blocks() {
    ours_to_linux(512 << 20, 3000, |options| options.block_size = Some(1024));
}

#[test]
fn linux_reads_ours_without_checksums() {
    ours_to_linux(512 << 20, 3000, |options| {
        options.block_size = Some(2048);
        options.parse_features("^metadata_csum,^64bit,^has_journal").expect("features");
    });
}

#[test]
fn linux_reads_ours_in_old_inodes() {
    ours_to_linux(512 << 20, 3000, |options| options.inode_size = 128);
}

/// Linux grows the tree, the engine reads it, changes half of it, and Linux reads that.
fn linux_to_ours(size: u64, mkfs: &str, entries: usize) {
    let Some(image) = Image::mke2fs(size, mkfs) else { return };
    let Some(mounted) = image.mount_by_linux("user_xattr") else { return };
    let fs = host(&mounted);
    let block_size = u64::from(fs.statfs().expect("statfs").block_size);
    let limits = Limits { block_size, old_inodes: mkfs.contains("-I 128"), entries };
    grow(&fs, SEED, limits).expect("Linux grows");
    drop(fs);
    drop(mounted);

    let grown = model_sight(limits, |model| grow(model, SEED, limits).expect("the model grows"));
    let linux = sight_of_linux(&image).expect("mounted before");
    assert_none(&without_clock(&linux.tree, &grown), "Linux against the model");
    let ours = sight_of_engine(&image);
    ours.assert_same(&linux, "the engine against Linux");

    let kinds = linux.kinds();
    let fs = image.mount_here(|_| {}).expect("mount");
    alter(&*fs, &kinds, SEED, limits).expect("the engine changes it");
    fs.unmount().expect("unmount");
    drop(fs);
    assert_image_clean(&image.path);
    let altered = model_sight(limits, |model| {
        grow(model, SEED, limits).expect("the model grows");
        alter(model, &kinds, SEED, limits).expect("the model changes");
    });
    let ours = sight_of_engine(&image);
    assert_none(&without_clock(&ours.tree, &altered), "the changed volume against the model");
    let linux = sight_of_linux(&image).expect("mounted before");
    ours.assert_same(&linux, "the changed volume, the engine against Linux");
    assert_image_clean(&image.path);
}

#[test]
fn we_read_and_change_twenty_thousand_of_linux() {
    linux_to_ours(1 << 30, "", entries());
}

#[test]
fn we_read_and_change_small_blocks_of_linux() {
    linux_to_ours(512 << 20, "-b 1024", 3000);
    linux_to_ours(512 << 20, "-b 2048", 3000);
}

#[test]
fn we_read_and_change_old_kinds_of_volumes() {
    linux_to_ours(512 << 20, "-b 4096 -O ^metadata_csum", 3000);
    linux_to_ours(512 << 20, "-b 4096 -O ^metadata_csum,uninit_bg,^64bit,^flex_bg", 3000);
    linux_to_ours(512 << 20, "-b 4096 -O ^has_journal", 3000);
    linux_to_ours(512 << 20, "-b 4096 -I 128", 3000);
}

#[test]
fn we_read_and_change_new_kinds_of_volumes() {
    linux_to_ours(512 << 20, "-b 4096 -O orphan_file,metadata_csum_seed", 3000);
    linux_to_ours(512 << 20, "-b 4096 -I 512 -O ^resize_inode", 3000);
    linux_to_ours(512 << 20, "-b 4096 -O sparse_super2,stable_inodes -G 4", 3000);
}

#[test]
fn features_beyond_us_are_refused_by_name() {
    for (options, name) in [
        ("-O inline_data", "inline_data"),
        ("-O bigalloc", "bigalloc"),
        ("-O casefold", "casefold"),
        ("-O encrypt", "encrypt"),
        ("-O ea_inode", "ea_inode"),
        ("-O large_dir", "large_dir"),
        ("-O meta_bg,^resize_inode", "meta_bg"),
        ("-O mmp", "mmp"),
        ("-O quota", "quota"),
        ("-O quota,project", "project"),
        ("-O verity", "verity"),
        ("-O ^extent,^64bit", "extent"),
    ] {
        let Some(image) = Image::mke2fs(64 << 20, options) else { continue };
        match image.mount_here(|_| {}) {
            Ok(_) => panic!("{options}: mounted"),
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains(name), "{options}: {said}");
            }
        }
        assert_image_clean(&image.path);
    }
}

//! Extended attributes against a model, e2fsck and the kernel.

mod image;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use image::{Image, Mounted, ROOT, Random, e2fsck, mke2fs};
use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::Inode;
use onggi_disk_format::ext4::xattr::{full_name, split_name};
use onggi_ext4_volume::xattr::{self, SetMode};
use onggi_ext4_volume::{VolumeError, dir};

type Model = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

fn set(
    image: &Image,
    nr: InodeNr,
    inode: &mut Inode,
    name: &[u8],
    value: Option<&[u8]>,
    mode: SetMode,
) -> Result<(), VolumeError> {
    let (index, rest) = split_name(name).unwrap();
    image.with(xattr::CREDITS, |h| {
        xattr::set(&image.volume, h, nr, inode, index, rest, value, mode)?;
        image.volume.write_inode(h, nr, inode)
    })
}

fn get(image: &Image, nr: InodeNr, inode: &Inode, name: &[u8]) -> Result<Option<Vec<u8>>, VolumeError> {
    let (index, rest) = split_name(name).unwrap();
    xattr::get(&image.volume, nr, inode, index, rest)
}

/// Every attribute of an inode with its value.
fn all(image: &Image, nr: InodeNr, inode: &Inode) -> Model {
    let list = xattr::list(&image.volume, nr, inode).unwrap();
    let count = list.len();
    let all: Model = list
        .into_iter()
        .map(|(index, name)| {
            let value = xattr::get(&image.volume, nr, inode, index, &name).unwrap().unwrap();
            ((index, name), value)
        })
        .collect();
    assert_eq!(all.len(), count, "a name came twice");
    all
}

/// What the kernel finds on a file.
fn kernel_reads(path: &Path) -> Model {
    let mut names = vec![0u8; 65536];
    let len = rustix::fs::listxattr(path, &mut names).unwrap();
    names[..len]
        .split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0u8; 65536];
            let text = std::str::from_utf8(name).unwrap();
            let len = rustix::fs::getxattr(path, text, &mut value).unwrap();
            value.truncate(len);
            let (index, rest) = split_name(name).unwrap();
            ((index, rest.to_vec()), value)
        })
        .collect()
}

fn file(image: &Image, name: &str) -> (InodeNr, Inode) {
    let (nr, inode) = image.create(ROOT, false);
    let mut root = image.volume.read_inode(ROOT).unwrap();
    image.insert(ROOT, &mut root, name.as_bytes(), nr).unwrap();
    (nr, inode)
}

/// Finds a file in the root.
fn open(image: &Image, name: &str) -> (InodeNr, Inode) {
    let root = image.volume.read_inode(ROOT).unwrap();
    let nr = dir::lookup(&image.volume, ROOT, &root, name.as_bytes()).unwrap().unwrap().inode;
    (nr, image.volume.read_inode(nr).unwrap())
}

fn random_changes(args: &[&str], seed: u64) {
    println!("seed {seed} {args:?}");
    let Some(bytes) = mke2fs("16M", args) else { return };
    let image = Image::open(&bytes);
    let mut random = Random::new(seed);
    let mut files: Vec<(InodeNr, Inode, Model)> = (0..4)
        .map(|nr| {
            let (nr, inode) = file(&image, &format!("f{nr}"));
            (nr, inode, Model::new())
        })
        .collect();
    let mut full = 0;
    for step in 0..4000 {
        let (nr, inode, model) = &mut files[random.below(4)];
        let prefix = ["user.", "trusted.", "security."][random.below(3)];
        let name = format!("{prefix}{}", "n".repeat(1 + random.below(12) * random.below(4)));
        let (index, rest) = split_name(name.as_bytes()).unwrap();
        let key = (index, rest.to_vec());
        let value: Option<Vec<u8>> = (random.below(3) > 0).then(|| {
            let len =
                [random.below(8), random.below(90), random.below(500), random.below(4000)][random.below(4)];
            (0..len).map(|_| random.next() as u8).collect()
        });
        let mode = [SetMode::Set, SetMode::Set, SetMode::Create, SetMode::Replace][random.below(4)];
        let before = inode.clone();
        let result = set(&image, *nr, inode, name.as_bytes(), value.as_deref(), mode);
        match (model.contains_key(&key), mode, &value) {
            (true, SetMode::Create, _) => assert!(matches!(result, Err(VolumeError::Exists))),
            (false, SetMode::Replace, _) | (false, _, None) => {
                assert!(matches!(result, Err(VolumeError::Missing)));
            }
            (_, _, Some(value)) => match result {
                Ok(()) => {
                    model.insert(key, value.clone());
                }
                Err(VolumeError::NoSpace) => {
                    full += 1;
                    assert_eq!(*inode, before);
                }
                Err(error) => panic!("{error}"),
            },
            (true, _, None) => {
                result.unwrap();
                model.remove(&key);
            }
        }
        assert_eq!(all(&image, *nr, inode), *model, "step {step}");
    }
    assert!(full > 0, "nothing was ever refused");
    let bytes = image.bytes();
    e2fsck(&bytes);
    if let Some(mounted) = Mounted::mount(&bytes) {
        for (nr, (_, _, model)) in files.iter().enumerate() {
            assert_eq!(kernel_reads(&mounted.path().join(format!("f{nr}"))), *model);
        }
    }
    // A deleted inode gives its block back.
    for (nr, inode, _) in &mut files {
        image
            .with(xattr::CREDITS, |h| {
                xattr::release_block(&image.volume, h, *nr, inode)?;
                image.volume.write_inode(h, *nr, inode)
            })
            .unwrap();
        assert_eq!((inode.file_acl.0, inode.blocks), (0, 0));
    }
    e2fsck(&image.bytes());
}

#[test]
fn random_changes_in_both_places() {
    random_changes(&["-b", "1024"], 1);
    random_changes(&["-b", "4096", "-I", "512", "-O", "^metadata_csum,^64bit"], 2);
}

#[test]
fn random_changes_in_small_inodes() {
    random_changes(&["-b", "1024", "-I", "128", "-O", "^extra_isize"], 3);
}

#[test]
fn a_block_that_the_kernel_shared_is_copied_before_it_changes() {
    let Some(bytes) = mke2fs("16M", &["-b", "1024"]) else { return };
    let Some(mounted) = Mounted::mount(&bytes) else { return };
    let value = vec![7; 600];
    for nr in 0..5 {
        let path = mounted.path().join(format!("f{nr}"));
        std::fs::write(&path, "").unwrap();
        rustix::fs::setxattr(&path, "user.shared", &value, rustix::fs::XattrFlags::empty()).unwrap();
    }
    let image = Image::open(&mounted.unmount());
    let mut files: Vec<_> = (0..5).map(|nr| open(&image, &format!("f{nr}"))).collect();
    let block = files[0].1.file_acl;
    assert!(
        block.0 != 0 && files.iter().all(|(_, inode)| inode.file_acl == block),
        "the kernel shares a block"
    );

    // One changes its value, one goes without, one is deleted (of its attributes, at least).
    let (nr, inode) = &mut files[0];
    set(&image, *nr, inode, b"user.shared", Some(&[8; 500]), SetMode::Replace).unwrap();
    assert!(inode.file_acl != block && inode.file_acl.0 != 0);
    let (nr, inode) = &mut files[1];
    set(&image, *nr, inode, b"user.shared", None, SetMode::Set).unwrap();
    assert_eq!((inode.file_acl.0, inode.blocks), (0, 0));
    let (nr, inode) = &mut files[2];
    image
        .with(xattr::CREDITS, |h| {
            xattr::release_block(&image.volume, h, *nr, inode)?;
            image.volume.write_inode(h, *nr, inode)
        })
        .unwrap();
    // One grows its copy, so that the last has the block alone.
    let (nr, inode) = &mut files[3];
    set(&image, *nr, inode, b"user.more", Some(&[9; 200]), SetMode::Create).unwrap();
    let free = image.volume.alloc.totals().free_blocks;
    let (nr, inode) = &mut files[4];
    set(&image, *nr, inode, b"user.shared", Some(&[1; 610]), SetMode::Replace).unwrap();
    assert_eq!(inode.file_acl, block, "changed in place");
    assert_eq!(image.volume.alloc.totals().free_blocks, free);

    let bytes = image.bytes();
    e2fsck(&bytes);
    let mounted = Mounted::mount(&bytes).unwrap();
    for (at, expected) in
        [(0, Some(vec![8; 500])), (1, None), (2, None), (3, Some(value)), (4, Some(vec![1; 610]))]
    {
        let read = kernel_reads(&mounted.path().join(format!("f{at}")));
        assert_eq!(read.get(&(1, b"shared".to_vec())), expected.as_ref(), "f{at}");
        assert_eq!(read.len(), usize::from(expected.is_some()) + usize::from(at == 3));
    }
}

#[test]
fn access_control_lists_go_both_ways() {
    let Some(bytes) = mke2fs("16M", &["-b", "1024"]) else { return };
    let Some(mounted) = Mounted::mount(&bytes) else { return };
    let path = mounted.path().join("f");
    std::fs::write(&path, "").unwrap();
    std::fs::write(mounted.path().join("g"), "").unwrap();
    let status = Command::new("setfacl").args(["-m", "u:1000:rw,g:50:r,m::rwx"]).arg(&path).status();
    if !matches!(status, Ok(status) if status.success()) {
        println!("skipped: setfacl is missing");
        return;
    }
    let theirs = kernel_reads(&path);
    assert!(theirs.contains_key(&(2, Vec::new())), "{theirs:?}");
    let image = Image::open(&mounted.unmount());
    let (nr, inode) = open(&image, "f");
    assert_eq!(all(&image, nr, &inode), theirs);
    let list = get(&image, nr, &inode, b"system.posix_acl_access").unwrap().unwrap();

    let (nr, mut inode) = open(&image, "g");
    set(&image, nr, &mut inode, b"system.posix_acl_access", Some(&list), SetMode::Set).unwrap();
    let bad = set(&image, nr, &mut inode, b"system.posix_acl_access", Some(b"no list"), SetMode::Set);
    assert!(matches!(bad, Err(VolumeError::Invalid(_))));
    let bytes = image.bytes();
    e2fsck(&bytes);
    let mounted = Mounted::mount(&bytes).unwrap();
    assert_eq!(kernel_reads(&mounted.path().join("g")), theirs);
}

#[test]
fn values_in_inodes_of_their_own_are_refused_by_name() {
    let Some(bytes) = mke2fs("16M", &["-b", "1024", "-O", "ea_inode"]) else { return };
    let Some(mounted) = Mounted::mount(&bytes) else { return };
    let path = mounted.path().join("f");
    std::fs::write(&path, "").unwrap();
    rustix::fs::setxattr(&path, "user.large", &[5; 3000], rustix::fs::XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(&path, "user.small", b"small", rustix::fs::XattrFlags::empty()).unwrap();
    let image = Image::open(&mounted.unmount());
    let (nr, mut inode) = open(&image, "f");
    assert_eq!(get(&image, nr, &inode, b"user.small").unwrap().unwrap(), b"small");
    let unsupported = |error| matches!(error, VolumeError::Unsupported { feature: "ea_inode" });
    assert!(get(&image, nr, &inode, b"user.large").is_err_and(unsupported));
    assert!(set(&image, nr, &mut inode, b"user.large", None, SetMode::Set).is_err_and(unsupported));
    let large = [6; 3000];
    assert!(set(&image, nr, &mut inode, b"user.other", Some(&large), SetMode::Set).is_err_and(unsupported));
    // The others can still change.
    set(&image, nr, &mut inode, b"user.small", Some(b"changed"), SetMode::Replace).unwrap();
    let bytes = image.bytes();
    e2fsck(&bytes);
    let mounted = Mounted::mount(&bytes).unwrap();
    let read = kernel_reads(&mounted.path().join("f"));
    assert_eq!(read[&(1, b"large".to_vec())], [5; 3000]);
    assert_eq!(read[&(1, b"small".to_vec())], b"changed");
}

#[test]
fn names_of_the_index_come_back_whole() {
    for name in [&b"user.x"[..], b"system.posix_acl_default", b"security.selinux"] {
        let (index, rest) = split_name(name).unwrap();
        assert_eq!(full_name(index, rest).unwrap(), name);
    }
}

//! Volumes made by mke2fs, opened in memory, judged by e2fsck and by the kernel.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::superblock::Superblock;
use onggi_disk_format::ext4::{Inode, InodeFlags, Time};
use onggi_ext4_volume::alloc::Allocator;
use onggi_ext4_volume::{Effects, Handle, Volume, VolumeError, dir, extents};
use onggi_jbd2::{Buffers, CommitTime, Journal, StartError};

pub(crate) const ROOT: InodeNr = InodeNr(2);
pub(crate) const REGULAR: u8 = 1;
pub(crate) const DIRECTORY: u8 = 2;

/// A volume in memory and the device under it.
pub(crate) struct Image {
    pub(crate) volume: Volume,
    device: Arc<MemoryDevice>,
}

/// Numbers that repeat for a seed (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// Bytes of a volume that `mke2fs` makes with these arguments; `None` (said aloud) where it is missing.
pub(crate) fn mke2fs(size: &str, args: &[&str]) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut command = Command::new("mke2fs");
    command
        .args(["-q", "-F", "-t", "ext4", "-E", "nodiscard,lazy_itable_init=1"])
        .args(args)
        .arg(&path)
        .arg(size);
    match command.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(std::fs::read(path).unwrap())
        }
        Err(error) => {
            println!("skipped: mke2fs: {error}");
            None
        }
    }
}

/// The volume with another hash for new directories.
pub(crate) fn with_hash(mut bytes: Vec<u8>, version: u8) -> Vec<u8> {
    let mut sb = Superblock::parse(&bytes[1024..2048]).unwrap();
    sb.update(|raw| raw.s_def_hash_version = version).unwrap();
    bytes[1024..2048].copy_from_slice(&sb.encode());
    bytes
}

impl Image {
    pub(crate) fn open(bytes: &[u8]) -> Self {
        let device = Arc::new(MemoryDevice::from_bytes(bytes));
        let mut stored = [0; 1024];
        device.read_at(1024, &mut stored).unwrap();
        let sb = Superblock::parse(&stored).unwrap();
        let buffers = Buffers::new(device.clone(), sb.block_size(), 256 << 20);
        let alloc = Allocator::open(&sb, &buffers).unwrap();
        let journal = Journal::<Effects>::without_log(buffers.clone());
        Self { volume: Volume { sb, buffers, journal, alloc }, device }
    }

    /// Runs `change` in a handle of its own; commits when the transaction is full.
    pub(crate) fn with<R>(
        &self,
        credits: u32,
        change: impl FnOnce(&mut Handle<'_>) -> Result<R, VolumeError>,
    ) -> Result<R, VolumeError> {
        loop {
            match self.volume.journal.start(credits) {
                Ok(mut h) => return change(&mut h),
                Err(StartError::Full(_)) => self.commit(),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Makes all changes durable, as the engine does.
    pub(crate) fn commit(&self) {
        let Some(tid) = self.volume.journal.running() else { return };
        while let Some(locked) = self.volume.journal.lock(tid).unwrap() {
            let done = locked.write(CommitTime { sec: 1_700_000_000, nsec: 0 }).unwrap();
            for run in done.payload.freed {
                self.volume.alloc.release(run);
            }
        }
    }

    /// Commits, writes the superblock's counts and hands out the volume's bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let totals = self.volume.alloc.totals();
        self.with(4, |h| {
            self.volume.update_superblock(h, |raw| {
                raw.s_free_blocks_count_lo.set(totals.free_blocks as u32);
                raw.s_free_blocks_count_hi.set((totals.free_blocks >> 32) as u32);
                raw.s_free_inodes_count.set(totals.free_inodes);
            })
        })
        .unwrap();
        self.commit();
        self.device.to_bytes()
    }

    /// An inode with no data, one link, written to its table.
    pub(crate) fn create(&self, parent: InodeNr, directory: bool) -> (InodeNr, Inode) {
        self.with(16, |h| {
            let nr = self.volume.alloc.allocate_inode(&self.volume, h, parent, directory)?;
            let mut inode = empty_inode(&self.volume, directory);
            extents::init(&mut inode);
            self.volume.write_new_inode(h, nr, &inode)?;
            Ok((nr, inode))
        })
        .unwrap()
    }

    /// A directory below the root.
    pub(crate) fn make_dir(&self, name: &[u8]) -> (InodeNr, Inode) {
        let (nr, mut inode) = self.create(ROOT, true);
        let mut root = self.volume.read_inode(ROOT).unwrap();
        self.with(100, |h| {
            inode.links_count = 2;
            dir::init(&self.volume, h, nr, &mut inode, ROOT)?;
            self.volume.write_inode(h, nr, &inode)?;
            dir::insert(&self.volume, h, ROOT, &mut root, name, nr, DIRECTORY)?;
            root.links_count += 1;
            self.volume.write_inode(h, ROOT, &root)
        })
        .unwrap();
        (nr, inode)
    }

    /// Stores how many names an inode has.
    pub(crate) fn set_links(&self, nr: InodeNr, links: u16) {
        self.with(4, |h| {
            let mut inode = self.volume.read_inode(nr)?;
            inode.links_count = links;
            self.volume.write_inode(h, nr, &inode)
        })
        .unwrap();
    }

    /// Adds a name and writes the directory's inode.
    pub(crate) fn insert(
        &self,
        nr: InodeNr,
        inode: &mut Inode,
        name: &[u8],
        target: InodeNr,
    ) -> Result<(), VolumeError> {
        self.with(dir::credits_for_insert(inode) + 1, |h| {
            dir::insert(&self.volume, h, nr, inode, name, target, REGULAR)?;
            self.volume.write_inode(h, nr, inode)
        })
    }

    pub(crate) fn remove(
        &self,
        nr: InodeNr,
        inode: &mut Inode,
        name: &[u8],
    ) -> Result<dir::Found, VolumeError> {
        self.with(dir::CREDITS_CHANGE, |h| dir::remove(&self.volume, h, nr, inode, name))
    }

    /// Every name but `.` and `..`, read in pieces of `max`.
    pub(crate) fn list(&self, nr: InodeNr, inode: &Inode, max: usize) -> Vec<(Vec<u8>, InodeNr)> {
        let mut all = Vec::new();
        let mut cookie = 0;
        loop {
            let entries = dir::read(&self.volume, nr, inode, cookie, max).unwrap();
            let Some(last) = entries.last() else { return all };
            assert!(entries.len() <= max);
            cookie = last.next;
            all.extend(entries.into_iter().map(|entry| (entry.name, entry.inode)));
        }
    }

    /// Every name but `.` and `..`, sorted; fails on a name listed twice.
    pub(crate) fn names(&self, nr: InodeNr, inode: &Inode) -> BTreeMap<Vec<u8>, InodeNr> {
        let all = self.list(nr, inode, 100);
        assert_eq!((&all[0].0[..], &all[1].0[..]), (&b"."[..], &b".."[..]));
        let count = all.len() - 2;
        let names: BTreeMap<_, _> = all.into_iter().skip(2).collect();
        assert_eq!(names.len(), count, "a name came twice");
        names
    }

    /// Levels of index nodes below the root of an indexed directory.
    pub(crate) fn levels(&self, nr: InodeNr, inode: &Inode) -> Option<u8> {
        inode.flags.contains(InodeFlags::INDEX).then(|| {
            let found = extents::lookup(&self.volume, nr, inode, onggi_disk_format::FileBlock(0)).unwrap();
            let extents::Mapping::Mapped { start, .. } = found else { panic!("no block 0") };
            self.volume.buffers.read(start).unwrap().snapshot()[30]
        })
    }
}

fn empty_inode(volume: &Volume, directory: bool) -> Inode {
    let now = Time { sec: 1_700_000_000, nsec: 0 };
    Inode {
        mode: if directory { 0o40755 } else { 0o100_644 },
        uid: 0,
        gid: 0,
        size: 0,
        links_count: 1,
        blocks: 0,
        flags: InodeFlags::default(),
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        dtime: 0,
        generation: 7,
        file_acl: onggi_disk_format::DiskBlock(0),
        i_block: [0; 60],
        version: 1,
        extra_isize: volume.sb.want_extra_isize(),
        projid: 0,
    }
}

/// What e2fsck finds wrong with a volume; nothing where it is clean. Never rebuilds directories.
pub(crate) fn e2fsck(bytes: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    std::fs::write(&path, bytes).unwrap();
    match Command::new("e2fsck").args(["-fn"]).arg(&path).output() {
        Ok(output) => assert!(
            output.status.success(),
            "e2fsck: {}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        Err(error) => println!("skipped: e2fsck: {error}"),
    }
}

/// A volume mounted by the kernel.
pub(crate) struct Mounted {
    _dir: tempfile::TempDir,
    image: PathBuf,
    point: PathBuf,
    mounted: bool,
}

impl Mounted {
    /// `None` (said aloud) where this process may not mount.
    pub(crate) fn mount(bytes: &[u8]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, point) = (dir.path().join("image"), dir.path().join("mnt"));
        std::fs::write(&image, bytes).unwrap();
        std::fs::create_dir(&point).unwrap();
        let output =
            Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&image).arg(&point).output();
        match output {
            Ok(output) if output.status.success() => Some(Self { _dir: dir, image, point, mounted: true }),
            Ok(output) => {
                println!("skipped: mount: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                println!("skipped: mount: {error}");
                None
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.point
    }

    /// Unmounts and hands out the volume's bytes.
    pub(crate) fn unmount(mut self) -> Vec<u8> {
        self.end();
        std::fs::read(&self.image).unwrap()
    }

    fn end(&mut self) {
        if std::mem::take(&mut self.mounted) {
            let status = Command::new("umount").arg(&self.point).status().unwrap();
            assert!(status.success(), "umount");
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        } else {
            let _ = Command::new("umount").arg(&self.point).status();
        }
    }
}

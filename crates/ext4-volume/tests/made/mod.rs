//! Volumes made by mke2fs, changed by this crate in memory, judged by e2fsck.
#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::process::Command;
use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_disk_format::InodeNr;
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::ext4::superblock::Superblock;
use onggi_ext4_volume::alloc::Allocator;
use onggi_ext4_volume::{BlockRun, Handle, Volume, VolumeError};
use onggi_jbd2::{Buffers, CommitTime, Journal, StartError};

/// First inode of the files that [`make`] puts into the root directory.
pub(crate) const FIRST_FILE: InodeNr = InodeNr(12);

/// The image that mke2fs makes with `options`, `files` empty files in its root directory; `None`, said
/// aloud, where there is no mke2fs.
pub(crate) fn make(options: &[&str], kib: u64, files: usize) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for nr in 0..files {
        fs::write(tree.join(format!("f{nr:04}")), b"").unwrap();
    }
    let image = dir.path().join("image");
    if options.iter().any(|option| option.contains("lazy_itable_init=1")) {
        // What mke2fs leaves alone is not zero.
        fs::write(&image, vec![0xa5; kib as usize * 1024]).unwrap();
    }
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .args(options)
        .arg("-d")
        .arg(&tree)
        .arg(&image)
        .arg(format!("{kib}k"))
        .output();
    let Ok(made) = made else {
        println!("skipped: no mke2fs on this machine");
        return None;
    };
    assert!(made.status.success(), "mke2fs {options:?}: {}", String::from_utf8_lossy(&made.stderr));
    Some(fs::read(image).unwrap())
}

/// A volume without a log over `image`.
pub(crate) fn open(image: &[u8]) -> (Volume, Arc<MemoryDevice>) {
    let (volume, device) = try_open(image).unwrap();
    (volume, device)
}

/// As [`open`], for images that may be broken.
pub(crate) fn try_open(image: &[u8]) -> Result<(Volume, Arc<MemoryDevice>), VolumeError> {
    let device = Arc::new(MemoryDevice::from_bytes(image));
    let sb = Superblock::parse(&image[1024..]).unwrap();
    // A small cache: blocks are evicted and read again all the time.
    let buffers = Buffers::new(Arc::clone(&device) as Arc<dyn BlockDevice>, sb.block_size(), 1 << 19);
    let alloc = Allocator::open(&sb, &buffers)?;
    let journal = Journal::without_log(Arc::clone(&buffers));
    Ok((Volume { sb, buffers, journal, alloc }, device))
}

/// Makes everything so far durable and the blocks freed by it allocatable.
pub(crate) fn commit(volume: &Volume) {
    let Some(tid) = volume.journal.running() else { return };
    while let Some(locked) = volume.journal.lock(tid).unwrap() {
        let done = locked.write(CommitTime { sec: 0, nsec: 0 }).unwrap();
        done.payload.freed.into_iter().for_each(|run: BlockRun| volume.alloc.release(run));
    }
}

/// Runs `change` in a handle.
pub(crate) fn with_handle<R>(volume: &Volume, credits: u32, change: impl FnOnce(&mut Handle<'_>) -> R) -> R {
    loop {
        match volume.journal.start(credits) {
            Ok(mut handle) => return change(&mut handle),
            Err(StartError::Full(_)) => commit(volume),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads, changes and writes an inode in one handle.
pub(crate) fn with_inode<R>(
    volume: &Volume,
    nr: InodeNr,
    change: impl FnOnce(&mut Handle<'_>, &mut Inode) -> R,
) -> R {
    with_inode_credits(volume, nr, 600, change)
}

/// As [`with_inode`], with as many credits as `change` may need beside the inode's own.
pub(crate) fn with_inode_credits<R>(
    volume: &Volume,
    nr: InodeNr,
    credits: u32,
    change: impl FnOnce(&mut Handle<'_>, &mut Inode) -> R,
) -> R {
    let mut inode = volume.read_inode(nr).unwrap();
    with_handle(volume, credits + 1, |h| {
        let result = change(h, &mut inode);
        volume.write_inode(h, nr, &inode).unwrap();
        result
    })
}

/// Writes the superblock's counts, closes the volume and returns its image.
pub(crate) fn close(volume: Volume, device: &MemoryDevice) -> Vec<u8> {
    let totals = volume.alloc.totals();
    with_handle(&volume, 1, |h| {
        volume
            .update_superblock(h, |raw| {
                raw.s_free_blocks_count_lo.set(totals.free_blocks as u32);
                raw.s_free_inodes_count.set(totals.free_inodes);
            })
            .unwrap();
    });
    commit(&volume);
    volume.journal.close().unwrap();
    drop(volume);
    device.to_bytes()
}

/// What `e2fsck -fn` says, empty when it finds nothing wrong.
pub(crate) fn e2fsck(image: &[u8]) -> String {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), image).unwrap();
    let out = Command::new("e2fsck").args(["-fn"]).arg(file.path()).output().unwrap();
    if out.status.success() { String::new() } else { String::from_utf8_lossy(&out.stdout).into_owned() }
}

/// A small generator of numbers for long runs; the seed is printed by whoever fails.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

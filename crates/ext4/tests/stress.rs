//! Many threads at once, and volumes that fill up.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use onggi_ext4::MountOptions;
use onggi_vfs::{Errno, FallocateMode, FileSystem, Ino, Node, RenameMode, SetAttr};
use support::{CX, assert_e2fsck_clean, mount, options, volume};

struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % below
    }
}

/// Errors that a race with other threads, or a full volume, explains.
fn expected(error: &onggi_vfs::Error) -> bool {
    let known = [
        Errno::NOENT,
        Errno::EXIST,
        Errno::NOTDIR,
        Errno::ISDIR,
        Errno::NOTEMPTY,
        Errno::INVAL,
        Errno::NOSPC,
        Errno::STALE,
        Errno::BUSY,
        Errno::PERM,
        Errno::NODEV,
    ];
    known.contains(&error.errno())
}

fn one_operation(fs: &dyn FileSystem, dirs: &[Ino], random: &mut Random) -> onggi_vfs::Result<()> {
    let dir = dirs[random.next(dirs.len() as u64) as usize];
    let other = dirs[random.next(dirs.len() as u64) as usize];
    let name = format!("n{}", random.next(40)).into_bytes();
    let new_name = format!("n{}", random.next(40)).into_bytes();
    match random.next(16) {
        0 | 1 => fs.create(&CX, dir, &name, Node::Regular, 0o644).map(drop),
        2 => fs.create(&CX, dir, &name, Node::Directory, 0o755).map(drop),
        3 => fs.create(&CX, dir, &name, Node::Symlink(b"somewhere"), 0o777).map(drop),
        4 => fs.unlink(&CX, dir, &name),
        5 => fs.rmdir(&CX, dir, &name),
        6 => fs.rename(&CX, dir, &name, other, &new_name, RenameMode::Replace),
        7 => fs.rename(&CX, dir, &name, other, &new_name, RenameMode::Exchange),
        8 => {
            let attr = fs.lookup(dir, &name)?;
            fs.link(&CX, attr.ino, other, &new_name).map(drop)
        }
        9 => fs.readdir(dir, 0, 1000).map(drop),
        10 => {
            let attr = fs.lookup(dir, &name)?;
            fs.retain(attr.ino, attr.generation)?;
            let result = fs.fsync(attr.ino, random.next(2) == 0);
            fs.release(attr.ino, 1);
            result
        }
        11 => {
            let attr = fs.lookup(dir, &name)?;
            let size = random.next(300_000);
            fs.setattr(&CX, attr.ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
        }
        12 => {
            let attr = fs.lookup(dir, &name)?;
            let (offset, len) = (random.next(200_000), 1 + random.next(50_000));
            let mode = match random.next(3) {
                0 => FallocateMode::PunchHole,
                1 => FallocateMode::ZeroRange { keep_size: true },
                _ => FallocateMode::Allocate { keep_size: false },
            };
            fs.fallocate(&CX, attr.ino, offset, len, mode)
        }
        13 => {
            let attr = fs.lookup(dir, &name)?;
            fs.setxattr(&CX, attr.ino, b"user.x", &[1; 300], onggi_vfs::XattrMode::Set)
        }
        _ => {
            let attr = fs.lookup(dir, &name)?;
            let data = vec![random.next(256) as u8; 1 + random.next(70_000) as usize];
            let offset = random.next(300_000);
            fs.write(&CX, attr.ino, offset, &data)?;
            let mut back = vec![0; data.len()];
            fs.read(&CX, attr.ino, offset, &mut back).map(drop)
        }
    }
}

/// Eight threads on one tree while the flusher commits all the time.
fn storm(size: u64, operations: u64, options: MountOptions) {
    let device = volume(size, |_| {});
    let fs = mount(&device, options);
    let mut dirs = vec![fs.root()];
    for index in 0..5 {
        let name = format!("dir{index}");
        let parent = dirs[index / 2];
        dirs.push(fs.create(&CX, parent, name.as_bytes(), Node::Directory, 0o755).unwrap().ino);
    }
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (fs, dirs, done) = (&*fs, &dirs, &done);
            scope.spawn(move || {
                let mut random = Random(thread * 77 + 5);
                while done.fetch_add(1, Ordering::Relaxed) < operations {
                    if let Err(error) = one_operation(fs, dirs, &mut random) {
                        assert!(expected(&error), "{error:?}: {error}");
                    }
                }
            });
        }
    });
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
}

#[test]
fn eight_threads() {
    let options = MountOptions {
        commit_interval: Duration::from_millis(3),
        cache_bytes: 16 << 20,
        ..MountOptions::default()
    };
    storm(256 << 20, 20_000, options);
}

#[test]
fn eight_threads_on_a_full_volume() {
    let options = MountOptions { commit_interval: Duration::from_millis(3), ..MountOptions::default() };
    storm(8 << 20, 8_000, options);
}

#[test]
fn a_full_volume_takes_no_more_and_loses_nothing() {
    let device = volume(16 << 20, |_| {});
    let fs = mount(&device, options());
    let mut files = Vec::new();
    let full = loop {
        let name = format!("file {}", files.len());
        let ino = match fs.create(&CX, fs.root(), name.as_bytes(), Node::Regular, 0o644) {
            Ok(attr) => attr.ino,
            Err(error) => break error,
        };
        files.push((ino, 0));
        match fs.write(&CX, ino, 0, &vec![files.len() as u8; 300_000]) {
            Ok(written) => files.last_mut().unwrap().1 = written,
            Err(error) => break error,
        }
    };
    assert_eq!(full.errno(), Errno::NOSPC);
    fs.sync().unwrap();
    for (index, &(ino, len)) in files.iter().enumerate() {
        let mut bytes = vec![0; len + 1];
        assert_eq!(fs.read(&CX, ino, 0, &mut bytes).unwrap(), len);
        assert!(bytes[..len].iter().all(|&byte| byte == index as u8 + 1), "file {index}");
    }
    let free = fs.statfs().unwrap();
    assert!(free.available_blocks < 400, "{free:?}");
    // What is deleted can be written again at once.
    for index in 0..10 {
        fs.unlink(&CX, fs.root(), format!("file {index}").as_bytes()).unwrap();
    }
    let ino = fs.create(&CX, fs.root(), b"again", Node::Regular, 0o644).unwrap().ino;
    assert_eq!(fs.write(&CX, ino, 0, &vec![3; 2_500_000]).unwrap(), 2_500_000);
    fs.unmount().unwrap();
    assert_e2fsck_clean(&device);
}

/// sync() covers what other threads are in the middle of writing back or committing.
#[test]
fn sync_waits_for_the_flusher() {
    use onggi_block_device::BlockDevice;
    use onggi_fault_device::{CrashPoint, Recorder, Survivors};
    use std::sync::Arc;

    for round in 0..8u64 {
        let device = volume(32 << 20, |_| {});
        let recorder = Arc::new(Recorder::new(Arc::clone(&device)));
        let base: Arc<dyn BlockDevice> =
            Arc::new(onggi_block_device::MemoryDevice::from_bytes(&device.to_bytes()));
        let options = MountOptions { commit_interval: Duration::from_millis(1), ..MountOptions::default() };
        let slow = Arc::new(support::Slow(Arc::clone(&recorder), Duration::from_micros(400)));
        let fs = onggi_ext4::Ext4::mount(slow, options, support::NOW).unwrap();
        let mut random = Random(round);
        for step in 0..40u64 {
            let name = format!("f{step}").into_bytes();
            let ino = fs.create(&CX, fs.root(), &name, Node::Regular, 0o644).unwrap().ino;
            fs.write(&CX, ino, 0, &vec![step as u8 + 1; 9000]).unwrap();
            if random.next(4) == 0 {
                std::thread::sleep(Duration::from_micros(random.next(2000)));
            }
            fs.sync().unwrap();
            recorder.mark(step);
        }
        // Nothing but what was flushed survives, cut right behind each acknowledgement.
        let log = recorder.log();
        let marks = log.iter().enumerate().filter_map(|(position, event)| match event {
            onggi_fault_device::Event::Mark(step) => Some((position + 1, *step)),
            _ => None,
        });
        for (position, step) in marks.filter(|(_, step)| step % 7 == round % 7) {
            let cut = CrashPoint::new(Arc::clone(&base), &log, position).unwrap();
            let image = cut.image(&Survivors::None).unwrap();
            let after = onggi_ext4::Ext4::mount(Arc::new(image), support::options(), support::NOW).unwrap();
            for step in 0..=step {
                let name = format!("f{step}").into_bytes();
                let ino = after.lookup(after.root(), &name).expect("acknowledged by sync").ino;
                let mut bytes = vec![0; 9001];
                assert_eq!(after.read(&CX, ino, 0, &mut bytes).unwrap(), 9000, "round {round}, file {step}");
                assert!(
                    bytes[..9000].iter().all(|&byte| byte == step as u8 + 1),
                    "round {round}, file {step}"
                );
            }
        }
        drop(fs);
    }
}

//! The model mounted on a directory, used as any disk.

#![allow(missing_docs)]

mod probe;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use onggi_fuse::{Mount, MountOptions, Unmounter};
use onggi_vfs::FileSystem;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags, Timespec, Timestamps,
    XattrFlags,
};
use rustix::io::Errno;

use probe::{PANIC, Probe};

/// A mounted probe; unmounts and checks that nothing stays retained.
struct Mounted {
    fs: Arc<Probe>,
    dir: tempfile::TempDir,
    unmounter: Unmounter,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

impl Mounted {
    /// `None`, said aloud, where this machine has no FUSE.
    fn new() -> Option<Self> {
        if !Path::new("/dev/fuse").exists() {
            println!("skipped: no /dev/fuse here");
            return None;
        }
        let fs = Arc::new(Probe::new());
        let dir = tempfile::tempdir().unwrap();
        let options =
            MountOptions { fsname: "probe,with \\odd name".into(), dev: true, ..MountOptions::default() };
        let mount = match Mount::new(Arc::<Probe>::clone(&fs), &options, dir.path()) {
            Ok(mount) => mount,
            Err(error) => panic!("mounting: {error}"),
        };
        let unmounter = mount.unmounter();
        let server = Some(std::thread::spawn(move || mount.run()));
        Some(Self { fs, dir, unmounter, server })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.unmounter.unmount().unwrap();
        let result = self.server.take().unwrap().join().unwrap();
        if !std::thread::panicking() {
            result.unwrap();
            assert_eq!(self.fs.retained.load(Ordering::SeqCst), 0, "something stays retained");
            self.fs.unmount().unwrap();
        }
    }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| ((at * 31 + at / 4096 * 7 + seed) % 251) as u8).collect()
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap()
}

#[test]
fn files_are_written_read_and_removed() {
    let Some(mnt) = Mounted::new() else { return };
    let path = mnt.path("a");
    let data = pattern(3 << 20, 1);
    fs::write(&path, &data).unwrap();
    assert!(fs::read(&path).unwrap() == data);
    let meta = fs::metadata(&path).unwrap();
    assert_eq!((meta.len(), meta.nlink(), meta.permissions().mode() & 0o7777), (data.len() as u64, 1, 0o644));
    assert_eq!(fs::write(mnt.path("no/such"), b"x").unwrap_err().kind(), ErrorKind::NotFound);
    fs::remove_file(&path).unwrap();
    assert_eq!(fs::read(&path).unwrap_err().kind(), ErrorKind::NotFound);
    // The name that was just found missing can be made again.
    fs::write(&path, b"again").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"again");
    fs::write(&path, b"2").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"2");
}

#[test]
fn the_root_keeps_its_own_number() {
    let Some(mnt) = Mounted::new() else { return };
    assert_eq!(fs::metadata(mnt.dir.path()).unwrap().ino(), mnt.fs.root().0);
    fs::create_dir(mnt.path("d")).unwrap();
    let dots: Vec<_> = rustix::fs::Dir::new(File::open(mnt.path("d")).unwrap())
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name() == c"..")
        .map(|entry| entry.ino())
        .collect();
    assert_eq!(dots, [mnt.fs.root().0]);
}

#[test]
fn an_open_file_outlives_its_names() {
    let Some(mnt) = Mounted::new() else { return };
    let mut file =
        OpenOptions::new().read(true).write(true).create(true).truncate(true).open(mnt.path("f")).unwrap();
    file.write_all(b"first").unwrap();
    fs::hard_link(mnt.path("f"), mnt.path("g")).unwrap();
    assert_eq!(fs::metadata(mnt.path("f")).unwrap().nlink(), 2);
    fs::rename(mnt.path("g"), mnt.path("h")).unwrap();
    fs::remove_file(mnt.path("f")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    fs::remove_file(mnt.path("h")).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" second").unwrap();
    file.sync_all().unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut all = String::new();
    file.read_to_string(&mut all).unwrap();
    assert_eq!(all, "first second");
}

#[test]
fn renames_replace_refuse_and_exchange() {
    let Some(mnt) = Mounted::new() else { return };
    let (a, b) = (mnt.path("a"), mnt.path("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let rename = |from: &Path, to: &Path, flags| rustix::fs::renameat_with(CWD, from, CWD, to, flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".to_vec(), b"a".to_vec()));
    assert_eq!(rename(&a, &b, RenameFlags::WHITEOUT), Err(Errno::INVAL));
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    fs::create_dir_all(mnt.path("d/e")).unwrap();
    assert_eq!(errno(&fs::rename(mnt.path("d"), mnt.path("d/e/x")).unwrap_err()), Errno::INVAL);
    assert_eq!(errno(&fs::remove_dir(mnt.path("d")).unwrap_err()), Errno::NOTEMPTY);
    fs::rename(&b, mnt.path("d/e/b")).unwrap();
    assert_eq!(fs::read(mnt.path("d/e/b")).unwrap(), b"b");
    fs::remove_dir_all(mnt.path("d")).unwrap();
    assert_eq!(fs::read_dir(mnt.dir.path()).unwrap().count(), 0);
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let Some(mnt) = Mounted::new() else { return };
    let fd = rustix::fs::open(mnt.dir.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).unwrap();
    let file = File::from(fd);
    file.write_all_at(b"nameless", 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    rustix::fs::linkat(&file, "", CWD, mnt.path("named"), AtFlags::EMPTY_PATH).unwrap();
    assert_eq!(fs::read(mnt.path("named")).unwrap(), b"nameless");
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(rustix::fs::open(mnt.dir.path(), OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR).unwrap());
}

#[test]
fn special_files_and_symlinks() {
    let Some(mnt) = Mounted::new() else { return };
    symlink("some/where", mnt.path("link")).unwrap();
    assert_eq!(fs::read_link(mnt.path("link")).unwrap(), Path::new("some/where"));
    let mknod =
        |name: &str, kind, dev| rustix::fs::mknodat(CWD, mnt.path(name), kind, Mode::RUSR | Mode::WUSR, dev);
    mknod("fifo", FileType::Fifo, 0).unwrap();
    mknod("sock", FileType::Socket, 0).unwrap();
    if rustix::process::geteuid().is_root() {
        mknod("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)).unwrap();
        mknod("disk", FileType::BlockDevice, rustix::fs::makedev(259, 70_000)).unwrap();
        assert_eq!(fs::metadata(mnt.path("disk")).unwrap().rdev(), rustix::fs::makedev(259, 70_000));
        fs::write(mnt.path("null"), b"gone").unwrap();
        assert_eq!(fs::metadata(mnt.path("null")).unwrap().len(), 0);
    } else {
        println!("skipped: device files need root");
    }
    assert_eq!(fs::metadata(mnt.path("fifo")).unwrap().mode() & 0o170_777, 0o010_600);
}

#[test]
fn attributes_and_times() {
    let Some(mnt) = Mounted::new() else { return };
    let path = mnt.path("f");
    fs::write(&path, b"0123456789").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4751)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4751);
    for (sec, nsec) in [(1_600_000_000, 123_456_789), (-2, 800_000_000), (-1, 1), (0, 0)] {
        let time = Timespec { tv_sec: sec, tv_nsec: nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let attr = mnt.fs.lookup(mnt.fs.root(), b"f").unwrap();
        assert_eq!((attr.mtime.sec, i64::from(attr.mtime.nsec)), (sec, nsec));
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), (sec, nsec));
        assert_eq!((meta.atime(), meta.atime_nsec()), (sec, nsec));
    }
    File::options().write(true).open(&path).unwrap().set_len(3).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"012");
    let statx = rustix::fs::statx(CWD, &path, AtFlags::empty(), StatxFlags::BTIME | StatxFlags::ALL).unwrap();
    if statx.stx_mask & StatxFlags::BTIME.bits() == 0 {
        println!("skipped: this kernel asks no FUSE server for birth times");
    } else {
        assert!(statx.stx_btime.tv_sec > 1_600_000_000);
    }
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&path, Some(12), Some(34)).unwrap();
        let meta = fs::metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (12, 34, 0o751));
    }
}

#[test]
fn the_kernel_owns_the_times_of_what_it_caches() {
    let Some(mnt) = Mounted::new() else { return };
    let mut file = File::create(mnt.path("f")).unwrap();
    file.write_all(b"x").unwrap();
    let before = file.metadata().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(50));
    file.sync_all().unwrap();
    let attr = mnt.fs.lookup(mnt.fs.root(), b"f").unwrap();
    assert_eq!((attr.mtime.sec, i64::from(attr.mtime.nsec)), (before.mtime(), before.mtime_nsec()));
    assert_eq!((attr.ctime.sec, i64::from(attr.ctime.nsec)), (before.ctime(), before.ctime_nsec()));
}

#[test]
fn small_writes_gather_in_the_kernel() {
    let Some(mnt) = Mounted::new() else { return };
    let mut file = File::create(mnt.path("f")).unwrap();
    for _ in 0..10_000 {
        file.write_all(b"0123456789").unwrap();
    }
    drop(file);
    let writes = mnt.fs.writes.load(Ordering::SeqCst);
    assert!(writes <= 10, "{writes} requests for 10,000 writes");
    assert_eq!(fs::metadata(mnt.path("f")).unwrap().len(), 100_000);
}

#[test]
fn extended_attributes() {
    let Some(mnt) = Mounted::new() else { return };
    let path = mnt.path("f");
    fs::write(&path, b"").unwrap();
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    let get = |name: &str, buf: &mut [u8]| rustix::fs::getxattr(&path, name, buf);
    set("user.one", b"value", XattrFlags::empty()).unwrap();
    assert_eq!(set("user.one", b"other", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.two", b"other", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.two", b"", XattrFlags::CREATE).unwrap();
    let mut buf = [0; 64];
    assert_eq!(rustix::fs::getxattr_query(&path, "user.one"), Ok(5));
    assert_eq!(get("user.one", &mut buf[..4]), Err(Errno::RANGE));
    assert_eq!(get("user.one", &mut buf), Ok(5));
    assert_eq!(&buf[..5], b"value");
    let len = rustix::fs::listxattr(&path, &mut buf).unwrap();
    let mut names: Vec<_> = buf[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
    names.sort_unstable();
    assert_eq!(names, [b"user.one", b"user.two"]);
    rustix::fs::removexattr(&path, "user.one").unwrap();
    assert_eq!(get("user.one", &mut buf), Err(Errno::NODATA));
}

#[test]
fn ranges_are_allocated_punched_and_zeroed() {
    let Some(mnt) = Mounted::new() else { return };
    let path = mnt.path("f");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let data = pattern(64 << 10, 3);
    file.write_all_at(&data, 0).unwrap();
    let fallocate = |flags, offset, len| rustix::fs::fallocate(&file, flags, offset, len);
    fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 8192, 8192).unwrap();
    fallocate(FallocateFlags::ZERO_RANGE, 32768, 100).unwrap();
    let mut expected = data.clone();
    expected[8192..16384].fill(0);
    expected[32768..32868].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    fallocate(FallocateFlags::KEEP_SIZE, 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 64 << 10);
    fallocate(FallocateFlags::empty(), 1 << 20, 4096).unwrap();
    assert_eq!(file.metadata().unwrap().len(), (1 << 20) + 4096);
    assert_eq!(fallocate(FallocateFlags::COLLAPSE_RANGE, 0, 4096), Err(Errno::OPNOTSUPP));
}

#[test]
fn data_and_holes_are_found_also_before_they_are_written_back() {
    let Some(mnt) = Mounted::new() else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mnt.path("f")).unwrap();
    file.set_len(4 << 20).unwrap();
    file.write_all_at(&pattern(8192, 1), 1 << 20).unwrap();
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(0)), Ok(1 << 20));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1 << 20)), Ok((1 << 20) + 8192));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(2 << 20)), Err(Errno::NXIO));
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(0));
    // What was only in the cache is still there.
    let mut back = vec![0; 8192];
    file.read_exact_at(&mut back, 1 << 20).unwrap();
    assert!(back == pattern(8192, 1));
}

#[test]
fn ten_thousand_names_in_one_directory() {
    let Some(mnt) = Mounted::new() else { return };
    for number in 0..10_000 {
        File::create_new(mnt.path(&format!("file-{number:05}"))).unwrap();
    }
    let list = || {
        let mut names: Vec<_> =
            fs::read_dir(mnt.dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort_unstable();
        names
    };
    let names = list();
    assert_eq!(names.len(), 10_000);
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    assert_eq!(list(), names, "the second time, from the kernel's cache");
    for number in (0..10_000).step_by(2) {
        fs::remove_file(mnt.path(&format!("file-{number:05}"))).unwrap();
    }
    assert_eq!(list().len(), 5_000);
    // ls -l asks for names with attributes.
    for entry in fs::read_dir(mnt.dir.path()).unwrap() {
        assert!(entry.unwrap().metadata().unwrap().is_file());
    }
}

#[test]
fn fsync_reaches_the_engine_and_reports_each_failure_once_per_descriptor() {
    let Some(mnt) = Mounted::new() else { return };
    let (one, two) = (File::create(mnt.path("f")).unwrap(), File::create(mnt.path("f")).unwrap());
    one.write_all_at(b"x", 0).unwrap();
    one.sync_all().unwrap();
    assert!(mnt.fs.fsyncs.load(Ordering::SeqCst) >= 1);
    mnt.fs.write_errors.store(1, Ordering::SeqCst);
    assert_eq!(errno(&one.sync_data().unwrap_err()), Errno::NOSPC);
    one.sync_data().unwrap();
    assert_eq!(errno(&two.sync_all().unwrap_err()), Errno::NOSPC);
    two.sync_all().unwrap();
    File::open(mnt.dir.path()).unwrap().sync_all().unwrap();
}

#[test]
fn synchronous_writes_are_synced() {
    let Some(mnt) = Mounted::new() else { return };
    for flag in [OFlags::SYNC, OFlags::DSYNC, OFlags::SYNC | OFlags::DIRECT] {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(flag.bits().cast_signed());
        let file = options.open(mnt.path("f")).unwrap();
        let before = mnt.fs.fsyncs.load(Ordering::SeqCst);
        let page = vec![7; 8192];
        let start = page.as_ptr().align_offset(4096);
        file.write_all_at(&page[start..start + 4096], 0).unwrap();
        assert!(mnt.fs.fsyncs.load(Ordering::SeqCst) > before, "{flag:?}");
    }
}

#[test]
fn many_threads_at_once() {
    let Some(mnt) = Mounted::new() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mnt = &mnt;
            scope.spawn(move || {
                let dir = mnt.path(&format!("d{thread}"));
                fs::create_dir(&dir).unwrap();
                for round in 0..50 {
                    let (path, moved) = (dir.join(format!("f{round}")), dir.join(format!("g{round}")));
                    let data = pattern(10_000 + round * 1000, thread);
                    let mut file = File::create(&path).unwrap();
                    file.write_all(&data).unwrap();
                    if round % 5 == 0 {
                        file.sync_all().unwrap();
                    }
                    fs::rename(&path, &moved).unwrap();
                    assert!(fs::read(&moved).unwrap() == data);
                    if round % 2 == 0 {
                        fs::remove_file(&moved).unwrap();
                    }
                }
                assert_eq!(fs::read_dir(&dir).unwrap().count(), 25);
            });
        }
    });
}

#[test]
fn a_big_sparse_file() {
    let Some(mnt) = Mounted::new() else { return };
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(mnt.path("f")).unwrap();
    let chunk = pattern(5 << 20, 9);
    for place in [0, 3 << 30, 9 << 30] {
        file.write_all_at(&chunk, place).unwrap();
    }
    file.sync_all().unwrap();
    for place in [0, 3 << 30, 9 << 30] {
        let mut back = vec![0; chunk.len()];
        file.read_exact_at(&mut back, place).unwrap();
        assert!(back == chunk);
    }
    assert_eq!(file.metadata().unwrap().len(), (9 << 30) + chunk.len() as u64);
    assert!(file.metadata().unwrap().blocks() * 512 < 20 << 20);
}

#[test]
fn copy_file_range_copies() {
    let Some(mnt) = Mounted::new() else { return };
    let data = pattern(3 << 20, 4);
    fs::write(mnt.path("from"), &data).unwrap();
    assert_eq!(fs::copy(mnt.path("from"), mnt.path("to")).unwrap(), data.len() as u64);
    assert!(fs::read(mnt.path("to")).unwrap() == data);
    let (from, to) = (File::open(mnt.path("from")).unwrap(), File::create(mnt.path("part")).unwrap());
    let (mut at, mut into) = (100, 5);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 10_000).unwrap();
    assert!(fs::read(mnt.path("part")).unwrap()[5..] == data[100..100 + copied]);
}

#[test]
fn memory_maps_write_through() {
    let Some(mnt) = Mounted::new() else { return };
    let script = "import mmap,sys
f=open(sys.argv[1],'w+b'); f.truncate(1<<20); m=mmap.mmap(f.fileno(),1<<20)
m[5000:5005]=b'hello'; m[(1<<20)-1:]=b'!'; m.flush(); m.close(); f.close()";
    match Command::new("python3").arg("-c").arg(script).arg(mnt.path("f")).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return println!("skipped: python3: {error}"),
    }
    let attr = mnt.fs.lookup(mnt.fs.root(), b"f").unwrap();
    let cx = onggi_vfs::Context { uid: 0, gid: 0, now: attr.mtime };
    let mut all = vec![0; 1 << 20];
    assert_eq!(mnt.fs.read(&cx, attr.ino, 0, &mut all).unwrap(), 1 << 20);
    assert_eq!((&all[5000..5005], all[(1 << 20) - 1]), (&b"hello"[..], b'!'));
    assert_eq!(all.iter().filter(|&&byte| byte != 0).count(), 6);
}

#[test]
fn set_id_bits_fall_when_others_write() {
    let Some(mnt) = Mounted::new() else { return };
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: changing users needs root");
    }
    let path = mnt.path("f");
    fs::set_permissions(mnt.dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let reset = || {
        fs::write(&path, b"program").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
    };
    for command in ["printf x >> f", "truncate -s 3 f", ": > f", "fallocate -l 100 f"] {
        reset();
        let status = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups", "sh", "-c", command])
            .current_dir(mnt.dir.path())
            .status();
        match status {
            Ok(status) => assert!(status.success(), "{command}"),
            Err(error) => return println!("skipped: setpriv: {error}"),
        }
        assert_eq!(mnt.fs.lookup(mnt.fs.root(), b"f").unwrap().perm, 0o777, "{command}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{command}");
    }
}

#[test]
fn a_panic_is_an_error_and_no_more() {
    let Some(mnt) = Mounted::new() else { return };
    for _ in 0..40 {
        assert_eq!(errno(&fs::metadata(mnt.path(PANIC)).unwrap_err()), Errno::IO);
    }
    fs::write(mnt.path("f"), b"alive").unwrap();
    assert_eq!(fs::read(mnt.path("f")).unwrap(), b"alive");
}

#[test]
fn a_busy_mount_leaves_the_tree_and_ends_with_its_last_file() {
    let Some(mnt) = Mounted::new() else { return };
    let mut file = File::create(mnt.path("f")).unwrap();
    file.write_all(b"cached").unwrap();
    mnt.unmounter.unmount().unwrap();
    assert!(!mnt.unmounter.is_mounted());
    assert!(!mnt.path("f").exists());
    assert_eq!(mnt.fs.lookup(mnt.fs.root(), b"f").unwrap().size, 6, "written before it left");
    file.write_all(b" more").unwrap();
    assert!(!mnt.server.as_ref().unwrap().is_finished());
    drop(file);
    drop(mnt);
}

#[test]
fn a_mount_point_must_be_a_directory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let error = Mount::new(Arc::new(Probe::new()), &MountOptions::default(), file.path()).err().unwrap();
    assert!(error.to_string().contains("not a directory"), "{error}");
    let error =
        Mount::new(Arc::new(Probe::new()), &MountOptions::default(), Path::new("/no/such")).err().unwrap();
    assert!(error.to_string().contains("/no/such"), "{error}");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    if !Path::new("/dev/fuse").exists() {
        return println!("skipped: no /dev/fuse here");
    }
    let dir = tempfile::tempdir().unwrap();
    let options = MountOptions { read_only: true, ..MountOptions::default() };
    let mount = Mount::new(Arc::new(Probe::new()), &options, dir.path()).unwrap();
    let unmounter = mount.unmounter();
    let server = std::thread::spawn(move || mount.run());
    let error = fs::write(dir.path().join("f"), b"x").unwrap_err();
    unmounter.unmount().unwrap();
    server.join().unwrap().unwrap();
    assert_eq!(errno(&error), Errno::ROFS);
}

//! Image files and loop devices keep the device contract, through every way to the kernel.

use std::io::{IoSlice, IoSliceMut};
use std::path::{Path, PathBuf};

use onggi_block_device::{
    AfterDiscard, AlignedBuf, BlockDevice, ByteRange, DeviceError, Operation, Read, Write,
};
use onggi_file_device::{Backend, Direct, FileDevice, OpenError, OpenOptions};

const KIB: usize = 1024;
const MIB: usize = 1 << 20;

/// Every way to the kernel that this machine has.
fn ways() -> Vec<OpenOptions> {
    let mut ways = Vec::new();
    for direct in [Direct::Auto, Direct::Never] {
        for backend in [Backend::Uring, Backend::Threads] {
            ways.push(OpenOptions { direct, backend, queue_depth: 8, ..OpenOptions::default() });
        }
    }
    ways
}

/// Runs `test` on a fresh image of `size` bytes for every way.
fn on_every_way(size: usize, test: impl Fn(&FileDevice, &Path)) {
    for options in ways() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        let device = match FileDevice::create_with(&path, size as u64, options) {
            Err(OpenError::System { doing: "set up io_uring", source, .. }) => {
                println!("skipped: no io_uring here ({source})");
                continue;
            }
            device => device.unwrap(),
        };
        if options.direct == Direct::Auto && !device.is_direct() {
            println!("skipped: {} takes no O_DIRECT, ran buffered", path.display());
        }
        assert_eq!(device.backend(), options.backend);
        test(&device, &path);
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

fn read_back(device: &FileDevice, offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(offset as u64, &mut bytes).unwrap();
    bytes
}

#[test]
fn aligned_and_misaligned_memory_round_trip() {
    on_every_way(4 * MIB, |device, path| {
        let sector = device.attributes().logical_sector as usize;
        for (round, len) in [sector, 8 * sector, 64 * KIB, MIB + sector].into_iter().enumerate() {
            for skew in [0, 1, 8, 511] {
                let bytes = noise(len, (round * 1000 + skew) as u64);
                let mut memory = AlignedBuf::zeroed((len + 512).next_multiple_of(512));
                memory[skew..skew + len].copy_from_slice(&bytes);
                device.write_at(MIB as u64, &memory[skew..skew + len]).unwrap();
                memory.fill(0);
                device.read_at(MIB as u64, &mut memory[skew..skew + len]).unwrap();
                assert!(memory[skew..skew + len] == bytes[..], "{len} bytes skewed by {skew}");
                assert!(memory[..skew].iter().all(|&b| b == 0));
                assert!(memory[skew + len..].iter().all(|&b| b == 0));
                device.flush().unwrap();
                assert!(std::fs::read(path).unwrap()[MIB..MIB + len] == bytes[..]);
            }
        }
    });
}

#[test]
fn a_batch_mixes_aligned_skewed_and_split_memory() {
    on_every_way(4 * MIB, |device, _| {
        let aligned = AlignedBuf::copy_of(&noise(64 * KIB, 1));
        let skewed = AlignedBuf::copy_of(&noise(64 * KIB, 2));
        let odd = noise(8 * KIB, 3);
        let whole = [IoSlice::new(&aligned)];
        let shifted = [IoSlice::new(&skewed[3..3 + 32 * KIB])];
        let pieces: Vec<_> =
            [0, 100, 4097, 4097, 8000].windows(2).map(|w| IoSlice::new(&odd[w[0]..w[1]])).collect();
        let tail = [IoSlice::new(&odd[8000..])];
        let mut odds = pieces.clone();
        odds.push(tail[0]);
        device
            .write(&[
                Write { offset: 0, bufs: &whole, fua: false },
                Write { offset: MIB as u64, bufs: &shifted, fua: true },
                Write { offset: 2 * MIB as u64, bufs: &odds, fua: false },
            ])
            .unwrap();
        let (mut a, mut b, mut c) = (AlignedBuf::zeroed(64 * KIB), vec![0; 32 * KIB + 1], vec![0; 8 * KIB]);
        let (c1, c2) = c.split_at_mut(1234);
        let mut whole = [IoSliceMut::new(&mut a)];
        let mut shifted = [IoSliceMut::new(&mut b[1..])];
        let mut halves = [IoSliceMut::new(c1), IoSliceMut::new(c2)];
        device
            .read(&mut [
                Read { offset: 2 * MIB as u64, bufs: &mut halves },
                Read { offset: 0, bufs: &mut whole },
                Read { offset: MIB as u64, bufs: &mut shifted },
            ])
            .unwrap();
        assert_eq!(halves[0].len(), 1234, "the caller's slices stay as they were");
        assert!(*a == *aligned);
        assert!(b[1..] == skewed[3..3 + 32 * KIB]);
        assert!(c == odd);
    });
}

#[test]
fn big_batches_and_more_buffers_than_one_call_takes() {
    on_every_way(16 * MIB, |device, _| {
        let bytes = AlignedBuf::copy_of(&noise(8 * MIB, 4));
        let slices: Vec<_> = bytes.chunks(16 * KIB).map(|chunk| [IoSlice::new(chunk)]).collect();
        let batch: Vec<_> = slices
            .iter()
            .enumerate()
            .map(|(i, bufs)| Write { offset: (i * 16 * KIB) as u64, bufs, fua: false })
            .collect();
        assert_eq!(batch.len(), 512);
        device.write(&batch).unwrap();
        assert!(read_back(device, 0, 8 * MIB) == *bytes);

        let many: Vec<_> = bytes.chunks(4 * KIB).take(1500).map(IoSlice::new).collect();
        device.write(&[Write { offset: 8 * MIB as u64, bufs: &many, fua: true }]).unwrap();
        let mut back = AlignedBuf::zeroed(1500 * 4 * KIB);
        let mut many: Vec<_> = back.chunks_mut(4 * KIB).map(IoSliceMut::new).collect();
        device.read(&mut [Read { offset: 8 * MIB as u64, bufs: &mut many }]).unwrap();
        assert!(*back == bytes[..1500 * 4 * KIB]);
    });
}

#[test]
fn eight_threads_at_once() {
    on_every_way(16 * MIB, |device, _| {
        std::thread::scope(|scope| {
            for thread in 0..8usize {
                scope.spawn(move || {
                    for round in 0..20usize {
                        let offsets: Vec<_> =
                            (0..6).map(|i| ((round * 6 + i) * 8 + thread) * 16 * KIB).collect();
                        let written: Vec<_> = offsets.iter().map(|&o| noise(16 * KIB, o as u64)).collect();
                        let slices: Vec<_> = written.iter().map(|bytes| [IoSlice::new(bytes)]).collect();
                        let batch: Vec<_> = slices
                            .iter()
                            .zip(&offsets)
                            .map(|(bufs, &offset)| Write { offset: offset as u64, bufs, fua: round == 7 })
                            .collect();
                        device.write(&batch).unwrap();
                        if round % 8 == thread {
                            device.flush().unwrap();
                        }
                        for (offset, bytes) in offsets.iter().zip(&written) {
                            assert!(read_back(device, *offset, bytes.len()) == *bytes);
                        }
                    }
                });
            }
        });
        for block in 0..20 * 6 * 8 {
            assert!(
                read_back(device, block * 16 * KIB, 16 * KIB) == noise(16 * KIB, (block * 16 * KIB) as u64)
            );
        }
    });
}

#[test]
fn discards_and_zeroes() {
    on_every_way(4 * MIB, |device, path| {
        let bytes = noise(4 * MIB, 5);
        device.write_at(0, &bytes).unwrap();
        device.flush().unwrap();
        let blocks = || {
            use std::os::unix::fs::MetadataExt;
            std::fs::metadata(path).unwrap().blocks()
        };
        let full = blocks();
        let sector = u64::from(device.attributes().logical_sector);
        let mib = MIB as u64;
        device.write_zeroes(ByteRange { offset: sector, len: mib }, false).unwrap();
        device.write_zeroes(ByteRange { offset: 2 * mib, len: mib / 2 }, true).unwrap();
        device.write_zeroes(ByteRange { offset: 2 * mib, len: 0 }, true).unwrap();
        let have = read_back(device, 0, 4 * MIB);
        let end = sector as usize + MIB;
        assert!(have[..sector as usize] == bytes[..sector as usize]);
        assert!(have[sector as usize..end].iter().all(|&b| b == 0));
        assert!(have[end..2 * MIB] == bytes[end..2 * MIB]);
        assert!(have[2 * MIB..2 * MIB + MIB / 2].iter().all(|&b| b == 0));
        assert!(have[2 * MIB + MIB / 2..] == bytes[2 * MIB + MIB / 2..]);
        let Some(limits) = device.attributes().discard else {
            println!("skipped: no holes on this file system");
            return;
        };
        assert_eq!(limits.after, AfterDiscard::Zero);
        let ranges = [
            ByteRange { offset: 3 * mib, len: mib },
            ByteRange { offset: 5 * mib / 2 + sector, len: sector },
        ];
        device.discard(&ranges).unwrap();
        device.flush().unwrap();
        assert!(blocks() < full, "space is given back");
        assert_eq!(std::fs::metadata(path).unwrap().len(), 4 * mib);
        let have = read_back(device, 0, 4 * MIB);
        assert!(have[3 * MIB..].iter().all(|&b| b == 0));
        let (from, sector) = (5 * MIB / 2, sector as usize);
        assert!(have[from..from + sector] == bytes[from..from + sector]);
        assert!(have[from + sector..from + 2 * sector].iter().all(|&b| b == 0));
        assert!(have[from + 2 * sector..3 * MIB] == bytes[from + 2 * sector..3 * MIB]);
    });
}

#[test]
fn bad_requests_are_refused_before_any_is_done() {
    on_every_way(MIB, |device, _| {
        let bytes = [7; 512];
        let good = Write { offset: 0, bufs: &[IoSlice::new(&bytes)], fua: false };
        let beyond = Write { offset: MIB as u64, ..good };
        let skew = Write { offset: 100, ..good };
        assert!(matches!(device.write(&[good, beyond]), Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.write(&[good, skew]), Err(DeviceError::Misaligned { .. })));
        assert_eq!(read_back(device, 0, 512), [0; 512]);
        assert!(device.write(&[]).is_ok());
        assert!(device.read(&mut []).is_ok());
        assert!(device.write_at(MIB as u64, &[]).is_ok());
    });
}

#[test]
fn a_file_that_shrank_gives_an_error() {
    on_every_way(MIB, |device, path| {
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4096).unwrap();
        let mut bytes = [0; 4096];
        let error = device.read_at(8192, &mut bytes).unwrap_err();
        assert_eq!(error, DeviceError::Io { operation: Operation::Read, offset: 8192, len: 4096, errno: 5 });
        device.read_at(0, &mut bytes).unwrap();
    });
}

#[test]
fn a_full_host_is_an_error_and_a_failed_promise_stays_failed() {
    let Some(folder) = mounted_tmpfs("size=1m") else { return };
    for backend in [Backend::Uring, Backend::Threads] {
        let path = folder.join(format!("{backend:?}.img"));
        let options = OpenOptions { backend, ..OpenOptions::default() };
        let device = FileDevice::create_with(&path, 4 * MIB as u64, options).unwrap();
        let bytes = noise(2 * MIB, 6);
        let error = device.write_at(0, &bytes).unwrap_err();
        assert_eq!(error.errno(), 28);
        device.flush().unwrap();
        let write = Write { offset: 0, bufs: &[IoSlice::new(&bytes)], fua: true };
        assert_eq!(device.write(&[write]).unwrap_err().errno(), 28);
        assert_eq!(device.flush(), Err(DeviceError::Latched { errno: 28 }));
        let small = Write { offset: 0, bufs: &[IoSlice::new(&bytes[..512])], fua: true };
        assert_eq!(device.write(&[small]), Err(DeviceError::Latched { errno: 28 }));
        assert!(device.read_at(0, &mut [0; 512]).is_ok(), "reading goes on");
        std::fs::remove_file(path).unwrap();
    }
    run("umount", &[folder.to_str().unwrap()]);
    std::fs::remove_dir(folder).unwrap();
}

#[test]
fn two_devices_exclude_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let writer = FileDevice::create(&path, MIB as u64).unwrap();
    for options in [OpenOptions::default(), read_only] {
        let error = FileDevice::open(&path, options).unwrap_err();
        assert!(matches!(error, OpenError::InUse { .. }));
        assert_eq!(error.to_string(), format!("{} is in use by another process", path.display()));
    }
    assert!(matches!(FileDevice::create(&path, 2 * MIB as u64), Err(OpenError::InUse { .. })));
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB as u64, "a refused create changes nothing");
    drop(writer);
    let first = FileDevice::open(&path, read_only).unwrap();
    let second = FileDevice::open(&path, read_only).unwrap();
    assert!(matches!(FileDevice::open(&path, OpenOptions::default()), Err(OpenError::InUse { .. })));
    drop((first, second));
    FileDevice::open(&path, OpenOptions::default()).unwrap();
}

#[test]
fn another_process_excludes_us() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    drop(FileDevice::create(&path, MIB as u64).unwrap());
    let Ok(mut other) = std::process::Command::new("flock")
        .args(["--exclusive", "--no-fork", path.to_str().unwrap(), "sh", "-c", "echo held; read line"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
    else {
        println!("skipped: no flock(1)");
        return;
    };
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(other.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, "held\n");
    assert!(matches!(FileDevice::open(&path, OpenOptions::default()), Err(OpenError::InUse { .. })));
    drop(other.stdin.take());
    other.wait().unwrap();
    FileDevice::open(&path, OpenOptions::default()).unwrap();
}

#[test]
fn a_read_only_device_refuses_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    FileDevice::create(&path, MIB as u64).unwrap().write_at(0, &[1; 512]).unwrap();
    let mut permissions = std::fs::metadata(&path).unwrap().permissions();
    permissions.set_readonly(true);
    std::fs::set_permissions(&path, permissions).unwrap();
    for options in ways() {
        let device = FileDevice::open(&path, OpenOptions { read_only: true, ..options }).unwrap();
        assert!(device.attributes().read_only);
        assert_eq!(device.attributes().discard, None);
        let range = ByteRange { offset: 0, len: 512 };
        let refused = |operation| Err(DeviceError::ReadOnly { operation });
        assert_eq!(device.write_at(0, &[2; 512]), refused(Operation::Write));
        assert_eq!(device.discard(&[range]), refused(Operation::Discard));
        assert_eq!(device.write_zeroes(range, true), refused(Operation::WriteZeroes));
        assert!(device.flush().is_ok());
        assert_eq!(read_back(&device, 0, 512), [1; 512]);
    }
}

#[test]
fn creation_grows_keeps_and_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    let size = |device: &FileDevice| device.attributes().size;
    for bad in [0, 1000, u64::MAX - 511] {
        assert!(matches!(FileDevice::create(&path, bad), Err(OpenError::BadSize { .. })));
    }
    assert!(!path.exists());
    let device = FileDevice::create(&path, MIB as u64).unwrap();
    device.write_at(0, &[1; 512]).unwrap();
    drop(device);
    let grown = FileDevice::create(&path, 1 << 40).unwrap();
    assert_eq!(size(&grown), 1 << 40);
    assert_eq!(read_back(&grown, 0, 512), [1; 512]);
    drop(grown);
    assert_eq!(size(&FileDevice::create(&path, MIB as u64).unwrap()), 1 << 40, "nothing is cut off");

    std::fs::write(&path, [3; 5000]).unwrap();
    let buffered = OpenOptions { direct: Direct::Never, ..OpenOptions::default() };
    let device = FileDevice::open(&path, buffered).unwrap();
    assert_eq!(size(&device), 4608, "rounded down to whole sectors");
    drop(device);
    std::fs::write(&path, [3; 100]).unwrap();
    assert!(matches!(FileDevice::open(&path, buffered), Err(OpenError::Empty { size: 100, .. })));
    assert!(matches!(FileDevice::open(folder.path(), buffered), Err(OpenError::WrongKind { .. })));
    assert!(matches!(FileDevice::open("/dev/null", buffered), Err(OpenError::WrongKind { .. })));
    let missing = FileDevice::open(folder.path().join("no"), buffered).unwrap_err().to_string();
    assert!(missing.contains("/no: cannot open: No such file"), "{missing}");
}

fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn mounted_tmpfs(options: &str) -> Option<PathBuf> {
    let folder = tempfile::tempdir().unwrap().keep();
    let path = folder.to_str().unwrap().to_owned();
    if run("mount", &["-t", "tmpfs", "-o", options, "none", &path]).is_none() {
        println!("skipped: cannot mount a tmpfs");
        std::fs::remove_dir(folder).unwrap();
        return None;
    }
    Some(folder)
}

#[test]
fn a_loop_device_is_a_block_device_and_its_image_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    drop(FileDevice::create(&path, 4 * MIB as u64).unwrap());
    let Some(node) = run("losetup", &["--find", "--show", path.to_str().unwrap()]) else {
        println!("skipped: no loop device");
        return;
    };
    let taken = FileDevice::open(&path, OpenOptions::default());
    let checked = std::panic::catch_unwind(|| use_block_device(&node));
    run("losetup", &["--detach", &node]);
    let error = taken.unwrap_err();
    assert!(matches!(error, OpenError::InUseByLoop { .. }), "{error}");
    assert!(error.to_string().ends_with(&format!("is in use by {node}")), "{error}");
    checked.unwrap();
    FileDevice::open(&path, OpenOptions::default()).unwrap();
}

fn use_block_device(node: &str) {
    for options in ways() {
        let device = FileDevice::open(node, options).unwrap();
        assert_eq!(device.attributes().size, 4 * MIB as u64);
        if options == ways()[0] {
            assert!(matches!(FileDevice::open(node, options), Err(OpenError::InUse { .. })));
            assert!(matches!(FileDevice::create(node, 8 * MIB as u64), Err(OpenError::InUse { .. })));
        }
        let bytes = noise(MIB, 9);
        device.write_at(MIB as u64, &bytes).unwrap();
        let synchronous = Write { offset: 0, bufs: &[IoSlice::new(&bytes)], fua: true };
        device.write(&[synchronous]).unwrap();
        device.write_zeroes(ByteRange { offset: MIB as u64, len: 4096 }, false).unwrap();
        device.write_zeroes(ByteRange { offset: MIB as u64 + 4096, len: 4096 }, true).unwrap();
        if device.attributes().discard.is_none() {
            println!("skipped: {node} takes no discard");
        }
        device.discard(&[ByteRange { offset: 0, len: 64 * KIB as u64 }]).unwrap();
        device.flush().unwrap();
        let back = read_back(&device, MIB, MIB);
        assert!(back[..8192].iter().all(|&b| b == 0));
        assert!(back[8192..] == bytes[8192..]);
        assert!(read_back(&device, 64 * KIB, MIB - 64 * KIB) == bytes[64 * KIB..]);
        drop(device);
        assert!(matches!(FileDevice::create(node, 8 * MIB as u64), Err(OpenError::TooSmall { .. })));
    }
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let readers = [FileDevice::open(node, read_only).unwrap(), FileDevice::open(node, read_only).unwrap()];
    assert_eq!(readers[0].attributes().size, 4 * MIB as u64);
}

#[test]
fn a_device_with_large_sectors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.img");
    drop(FileDevice::create(&path, 4 * MIB as u64).unwrap());
    let arguments = ["--find", "--show", "--sector-size", "4096", path.to_str().unwrap()];
    let Some(node) = run("losetup", &arguments) else {
        println!("skipped: no loop device with 4096-byte sectors");
        return;
    };
    let checked = std::panic::catch_unwind(|| {
        for options in ways() {
            let device = FileDevice::open(&node, options).unwrap();
            assert_eq!(device.attributes().logical_sector, 4096);
            assert_eq!(device.attributes().physical_sector, 4096);
            assert!(matches!(
                device.write_at(512, &[1; 512]),
                Err(DeviceError::Misaligned { sector: 4096, .. })
            ));
            let bytes = noise(8192 + 16, 1);
            for skew in [0, 1, 16] {
                device.write_at(4096, &bytes[skew..skew + 8192]).unwrap();
                device.flush().unwrap();
                assert!(read_back(&device, 4096, 8192) == bytes[skew..skew + 8192]);
            }
        }
    });
    run("losetup", &["--detach", &node]);
    checked.unwrap();
}

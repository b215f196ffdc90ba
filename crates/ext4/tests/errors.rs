//! Errors of the device reach whoever must know, and are never taken back.

mod support;

use std::sync::Arc;

use onggi_block_device::{BlockDevice, MemoryDevice, Operation};
use onggi_ext4::Ext4;
use onggi_fault_device::{Fault, Faults};
use onggi_vfs::{Attr, Errno, FileSystem, Node, OpenFile};
use support::{CX, NOW, options, volume};

type Faulty = Faults<Arc<MemoryDevice>>;

fn faulty() -> (Arc<Faulty>, Arc<MemoryDevice>, Arc<Ext4>, Attr) {
    let device = volume(64 << 20, |_| {});
    let faults = Arc::new(Faults::new(Arc::clone(&device)));
    let fs = Ext4::mount(Arc::clone(&faults) as Arc<dyn BlockDevice>, options(), NOW).unwrap();
    let file = fs.create(&CX, fs.root(), b"file", Node::Regular, 0o644).unwrap();
    fs.sync().unwrap();
    (faults, device, fs, file)
}

#[test]
fn a_failed_data_write_reaches_every_descriptor_once_and_the_data_is_kept() {
    let (faults, device, fs, file) = faulty();
    let one = OpenFile::open(&*fs, file.ino, file.generation).unwrap();
    let two = OpenFile::open(&*fs, file.ino, file.generation).unwrap();
    fs.write(&CX, file.ino, 0, &[9; 10_000]).unwrap();
    faults.inject(Fault::on(Operation::Write));
    assert_eq!(one.fsync(&*fs, false).unwrap_err().errno(), Errno::IO);
    // The device works again: the data was kept and now gets there; the other descriptor still learns of
    // the failure that happened while it was open.
    one.fsync(&*fs, false).unwrap();
    assert_eq!(two.fsync(&*fs, false).unwrap_err().errno(), Errno::IO);
    two.fsync(&*fs, false).unwrap();
    one.close(&*fs);
    two.close(&*fs);
    fs.unmount().unwrap();
    support::assert_e2fsck_clean(&device);
    let fs = support::mount(&device, options());
    let mut bytes = vec![0; 10_001];
    assert_eq!(fs.read(&CX, file.ino, 0, &mut bytes).unwrap(), 10_000);
    assert!(bytes[..10_000].iter().all(|&byte| byte == 9));
}

#[test]
fn a_failed_flush_stops_the_volume_for_good() {
    let (faults, device, fs, file) = faulty();
    fs.write(&CX, file.ino, 0, &[9; 10_000]).unwrap();
    faults.inject(Fault::on(Operation::Flush));
    assert_eq!(fs.fsync(file.ino, false).unwrap_err().errno(), Errno::IO);
    // The device answers again, but what the failed flush covered may be lost: no fsync succeeds.
    for _ in 0..3 {
        assert!(fs.fsync(file.ino, false).is_err());
        assert!(fs.sync().is_err());
    }
    let refused = fs.create(&CX, fs.root(), b"other", Node::Regular, 0o644).unwrap_err();
    assert_eq!(refused.errno(), Errno::ROFS);
    let mut bytes = [0; 4];
    assert_eq!(fs.read(&CX, file.ino, 0, &mut bytes).unwrap(), 4, "reading goes on");
    assert!(fs.unmount().is_err());
    drop(fs);
    // The journal brings the volume back to what was durable before.
    let fs = support::mount(&device, options());
    assert!(fs.lookup(fs.root(), b"file").is_ok());
    fs.unmount().unwrap();
    support::assert_e2fsck_clean(&device);
}

#[test]
fn an_overwrite_in_place_is_not_durable_when_its_flush_failed() {
    let (faults, _device, fs, file) = faulty();
    fs.write(&CX, file.ino, 0, &[1; 8192]).unwrap();
    fs.fsync(file.ino, false).unwrap();
    fs.write(&CX, file.ino, 0, &[2; 4096]).unwrap();
    faults.inject(Fault::on(Operation::Flush));
    assert_eq!(fs.fsync(file.ino, true).unwrap_err().errno(), Errno::IO);
    assert!(fs.fsync(file.ino, true).is_err(), "the flush that failed is not made up for");
}

#[test]
fn a_failed_journal_write_stops_the_volume() {
    // The commit writes the log, the journal superblock (before the first commit) and the commit block.
    for after in 0..3 {
        let (faults, device, fs, file) = faulty();
        for index in 0..20 {
            fs.create(&CX, fs.root(), format!("n{index}").as_bytes(), Node::Directory, 0o755).unwrap();
        }
        fs.write(&CX, file.ino, 0, &[5; 5000]).unwrap();
        faults.inject(Fault::on(Operation::Write).after(after).forever().torn(after));
        let error = fs.sync().unwrap_err();
        assert_eq!(error.errno(), Errno::IO, "{error}");
        assert!(fs.sync().is_err());
        let _ = fs.unmount();
        drop(fs);
        faults.clear();
        let fs = support::mount(&device, options());
        fs.unmount().unwrap();
        support::assert_e2fsck_clean(&device);
    }
}

#[test]
fn a_read_that_fails_is_an_error_and_not_zeroes() {
    let (faults, device, fs, file) = faulty();
    fs.write(&CX, file.ino, 0, &[7; 100_000]).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    let fs = Ext4::mount(Arc::clone(&faults) as Arc<dyn BlockDevice>, options(), NOW).unwrap();
    fs.getattr(file.ino).unwrap();
    faults.inject(Fault::on(Operation::Read).forever());
    let mut bytes = vec![0; 100_000];
    assert_eq!(fs.read(&CX, file.ino, 0, &mut bytes).unwrap_err().errno(), Errno::IO);
    faults.clear();
    assert_eq!(fs.read(&CX, file.ino, 0, &mut bytes).unwrap(), 100_000);
    assert!(bytes.iter().all(|&byte| byte == 7));
    fs.unmount().unwrap();
    support::assert_e2fsck_clean(&device);
}

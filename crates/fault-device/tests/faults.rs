//! Chosen requests fail, the others do not.

use std::io::IoSlice;

use onggi_block_device::{BlockDevice, ByteRange, DeviceError, MemoryDevice, Operation, Write};
use onggi_fault_device::{Fault, Faults};

fn device() -> Faults<MemoryDevice> {
    Faults::new(MemoryDevice::new(64 << 10))
}

fn write(device: &Faults<MemoryDevice>, offset: u64, fua: bool) -> Result<(), DeviceError> {
    device.write(&[Write { offset, bufs: &[IoSlice::new(&[1; 512])], fua }])
}

#[test]
fn the_nth_request_fails_once_or_for_ever() {
    let device = device();
    device.inject(Fault::on(Operation::Write).after(2));
    let outcomes: Vec<_> = (0..5).map(|i| write(&device, i * 512, false).is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, true, true]);
    device.inject(Fault::on(Operation::Write).errno(Fault::ENOSPC).after(1).forever());
    let outcomes: Vec<_> = (0..4).map(|i| write(&device, i * 512, false).map_err(|e| e.errno())).collect();
    assert_eq!(outcomes, [Ok(()), Err(28), Err(28), Err(28)]);
    assert_eq!((device.hits(), device.seen(Operation::Write)), (4, 9));
    device.clear();
    assert!(write(&device, 0, false).is_ok());
}

#[test]
fn a_range_and_a_kind_choose() {
    let device = device();
    device.inject(Fault::on(Operation::Read).within(ByteRange { offset: 4096, len: 4096 }).times(2));
    let read = |offset| device.read_at(offset, &mut [0; 512]);
    assert!(read(0).is_ok() && read(3584).is_ok() && read(8192).is_ok());
    assert_eq!(
        read(4608),
        Err(DeviceError::Io { operation: Operation::Read, offset: 4608, len: 512, errno: Fault::EIO })
    );
    assert!(write(&device, 4096, false).is_ok());
    assert!(read(7680).is_err() && read(4096).is_ok());
    let range = ByteRange { offset: 0, len: 4096 };
    device.inject(Fault::on(Operation::Discard));
    device.inject(Fault::on(Operation::WriteZeroes));
    assert!(device.discard(&[range]).is_err() && device.discard(&[range]).is_ok());
    assert!(device.write_zeroes(range, false).is_err() && device.write_zeroes(range, false).is_ok());
}

#[test]
fn a_failed_flush_or_fua_write_is_never_made_good() {
    for fail_flush in [true, false] {
        let device = device();
        let operation = if fail_flush { Operation::Flush } else { Operation::Write };
        device.inject(Fault::on(operation));
        let first = if fail_flush { device.flush() } else { write(&device, 0, true) };
        assert_eq!(first.unwrap_err().errno(), Fault::EIO);
        device.clear();
        assert_eq!(device.flush(), Err(DeviceError::Latched { errno: Fault::EIO }));
        assert_eq!(write(&device, 0, true), Err(DeviceError::Latched { errno: Fault::EIO }));
        assert!(write(&device, 0, false).is_ok());
    }
}

#[test]
fn a_torn_write_leaves_some_sectors_and_its_neighbours_are_whole() {
    let mut counts = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let device = device();
        device.inject(Fault::on(Operation::Write).after(1).torn(seed));
        let bytes = [3; 4096];
        let bufs = [IoSlice::new(&bytes)];
        let write = |offset| Write { offset, bufs: &bufs, fua: false };
        assert!(device.write(&[write(0), write(8192), write(16384)]).is_err());
        let image = device.inner().to_bytes();
        let sectors = |from: usize| image[from..from + 4096].chunks(512).filter(|s| s == &[3; 512]).count();
        assert_eq!((sectors(0), sectors(16384)), (8, 8));
        counts.insert(sectors(8192));
    }
    assert!(counts.len() > 3 && !counts.contains(&usize::MAX), "{counts:?}");
    let device = device();
    device.inject(Fault::on(Operation::Write));
    assert!(write(&device, 0, false).is_err());
    assert!(device.inner().to_bytes().iter().all(|&b| b == 0), "without tearing nothing arrives");
}

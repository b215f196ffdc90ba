//! The in-memory device keeps the contract.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use onggi_block_device::{
    AlignedBuf, BlockDevice, ByteRange, DeviceError, ErrorLatch, MemoryDevice, Operation, Read, Write,
};

const MIB: u64 = 1 << 20;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

#[test]
fn a_write_across_stretches_reads_back() {
    let device = MemoryDevice::new(4 * MIB);
    let bytes = pattern(2 * MIB as usize + 1024, 7);
    device.write_at(MIB - 512, &bytes).unwrap();
    let mut back = vec![0; bytes.len()];
    device.read_at(MIB - 512, &mut back).unwrap();
    assert!(back == bytes);
    let mut around = [1; 512];
    device.read_at(MIB - 1024, &mut around).unwrap();
    assert_eq!(around, [0; 512]);
    assert!(device.to_bytes()[(MIB - 512) as usize..][..bytes.len()] == bytes);
}

#[test]
fn vectors_are_filled_in_order() {
    let device = MemoryDevice::from_bytes(&pattern(2048, 1));
    let (mut a, mut b, mut c) = ([0; 100], [0; 412], [0; 512]);
    let mut bufs = [IoSliceMut::new(&mut a), IoSliceMut::new(&mut b)];
    device
        .read(&mut [
            Read { offset: 512, bufs: &mut bufs },
            Read { offset: 0, bufs: &mut [IoSliceMut::new(&mut c)] },
        ])
        .unwrap();
    let want = pattern(2048, 1);
    assert_eq!(a[..], want[512..612]);
    assert_eq!(b[..], want[612..1024]);
    assert_eq!(c[..], want[..512]);

    let write = [IoSlice::new(&want[..12]), IoSlice::new(&want[12..512])];
    device.write(&[Write { offset: 1536, bufs: &write, fua: true }]).unwrap();
    device.read_at(1536, &mut c).unwrap();
    assert_eq!(c[..], want[..512]);
}

#[test]
fn bad_ranges_are_refused_by_name() {
    let device = MemoryDevice::new(MIB);
    assert_eq!(
        device.write_at(MIB - 512, &[0; 1024]),
        Err(DeviceError::OutOfRange { operation: Operation::Write, offset: MIB - 512, len: 1024, size: MIB })
    );
    assert!(matches!(device.read_at(100, &mut [0; 512]), Err(DeviceError::Misaligned { .. })));
    assert!(matches!(device.read_at(0, &mut [0; 100]), Err(DeviceError::Misaligned { .. })));
    let huge = ByteRange { offset: u64::MAX - 511, len: 1024 };
    assert!(matches!(device.discard(&[huge]), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(device.write_zeroes(huge, false), Err(DeviceError::OutOfRange { .. })));
    assert!(device.read_at(MIB, &mut []).is_ok());
}

#[test]
fn discarded_and_zeroed_ranges_read_zero() {
    let device = MemoryDevice::from_bytes(&pattern(3 * MIB as usize, 3));
    device.discard(&[ByteRange { offset: 512, len: 2 * MIB }]).unwrap();
    device.write_zeroes(ByteRange { offset: 3 * MIB - 512, len: 512 }, true).unwrap();
    let want = pattern(3 * MIB as usize, 3);
    let have = device.to_bytes();
    let end = 512 + 2 * MIB as usize;
    assert!(have[..512] == want[..512]);
    assert!(have[512..end].iter().all(|&b| b == 0));
    assert!(have[end..have.len() - 512] == want[end..want.len() - 512]);
    assert!(have[have.len() - 512..].iter().all(|&b| b == 0));
}

#[test]
fn an_image_is_padded_to_whole_sectors() {
    let device = MemoryDevice::from_bytes(&[9; 700]);
    assert_eq!(device.attributes().size, 1024);
    let bytes = device.to_bytes();
    assert_eq!(bytes[..700], [9; 700]);
    assert_eq!(bytes[700..], [0; 324]);
}

#[test]
fn a_read_only_device_admits_no_change() {
    let mut attributes = MemoryDevice::new(4096).attributes().clone();
    attributes.read_only = true;
    assert!(attributes.admit(Operation::Read, 0, 4096).is_ok());
    for operation in [Operation::Write, Operation::Discard, Operation::WriteZeroes] {
        assert_eq!(attributes.admit(operation, 0, 512), Err(DeviceError::ReadOnly { operation }));
    }
}

#[test]
fn the_latch_keeps_the_first_failure() {
    let latch = ErrorLatch::default();
    let fail =
        |errno| Err::<(), _>(DeviceError::Io { operation: Operation::Flush, offset: 0, len: 0, errno });
    assert_eq!(latch.note(Ok(7)), Ok(7));
    assert_eq!(latch.check(), Ok(()));
    assert_eq!(latch.note(fail(5)), fail(5));
    assert_eq!(latch.note(fail(28)), fail(28));
    assert_eq!(latch.check(), Err(DeviceError::Latched { errno: 5 }));
    assert_eq!(latch.check().unwrap_err().errno(), 5);
}

#[test]
fn buffers_are_aligned_and_pointers_are_devices() {
    for len in [0, 512, 4096, 512 * 33] {
        let buf = AlignedBuf::zeroed(len);
        assert_eq!(buf.len(), len);
        assert!(buf.as_ptr().addr().is_multiple_of(512) || len == 0);
    }
    let mut copy = AlignedBuf::copy_of(&pattern(1024, 5));
    assert_eq!(copy[..], pattern(1024, 5));
    copy[0] = 1;
    let device: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4096));
    fn first_byte(device: impl BlockDevice) -> u8 {
        let mut sector = [0; 512];
        device.read_at(0, &mut sector).unwrap();
        sector[0]
    }
    device.write_at(0, &copy).unwrap();
    assert_eq!(first_byte(&*device), 1);
    assert_eq!(first_byte(Arc::clone(&device)), 1);
}

#[test]
fn threads_share_a_device() {
    let device = MemoryDevice::new(8 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..64u64 {
                    let offset = (round * 8 + thread) * 4096;
                    device.write_at(offset, &[thread as u8 + 1; 4096]).unwrap();
                }
            });
        }
    });
    let bytes = device.to_bytes();
    for (block, chunk) in bytes.chunks(4096).take(512).enumerate() {
        assert!(chunk.iter().all(|&b| usize::from(b) == block % 8 + 1));
    }
}

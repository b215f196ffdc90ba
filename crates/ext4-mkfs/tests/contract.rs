//! Determinism, durability order, refusals.

use std::sync::Mutex;

use onggi_block_device::{Attributes, BlockDevice, ByteRange, DeviceError, MemoryDevice, Read, Write};
use onggi_ext4_mkfs::{JournalSize, MkfsError, Options, format};

const MIB: u64 = 1 << 20;

fn options() -> Options {
    Options::new([1; 16], [2; 16], 1_600_000_000)
}

/// Notes what is asked of the device.
struct Witness {
    inner: MemoryDevice,
    seen: Mutex<Vec<Asked>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Write { offset: u64, len: u64 },
    Flush,
}

impl BlockDevice for Witness {
    fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }
    fn read(&self, _: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
        panic!("nothing that was there before may matter")
    }
    fn write(&self, batch: &[Write<'_>]) -> Result<(), DeviceError> {
        let mut seen = self.seen.lock().unwrap();
        seen.extend(batch.iter().map(|write| Asked::Write { offset: write.offset, len: write.bytes() }));
        self.inner.write(batch)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.seen.lock().unwrap().push(Asked::Flush);
        self.inner.flush()
    }
    fn discard(&self, ranges: &[ByteRange]) -> Result<(), DeviceError> {
        self.inner.discard(ranges)
    }
    fn write_zeroes(&self, range: ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.inner.write_zeroes(range, may_unmap)
    }
}

#[test]
fn the_superblock_comes_last_and_alone() {
    for block_size in [1024, 4096] {
        let device = Witness { inner: MemoryDevice::new(64 * MIB), seen: Mutex::default() };
        format(&device, &Options { block_size: Some(block_size), ..options() }).unwrap();
        let seen = device.seen.into_inner().unwrap();
        let last = [Asked::Flush, Asked::Write { offset: 1024, len: 1024 }, Asked::Flush];
        assert!(seen.ends_with(&last), "{seen:?}");
        assert!(seen.len() < 200, "{} requests", seen.len());
        for asked in &seen[..seen.len() - 3] {
            let Asked::Write { offset, len } = *asked else { panic!("{asked:?}") };
            assert!(offset + len <= 1024 || offset >= 2048, "{asked:?}");
        }
    }
}

#[test]
fn the_same_options_give_the_same_bytes() {
    let image = |options: &Options| {
        let device = MemoryDevice::new(40 * MIB);
        device.write_at(0, &vec![0x5a; (40 * MIB) as usize]).unwrap();
        let summary = format(&device, options).unwrap();
        (device.to_bytes(), summary)
    };
    assert!(image(&options()) == image(&options()));
    assert!(image(&options()).0 != image(&Options { label: b"other".to_vec(), ..options() }).0);
}

#[test]
fn times_past_2038_and_2106_are_kept() {
    let now = (1 << 32) + 77;
    let device = MemoryDevice::new(16 * MIB);
    format(&device, &Options { now, ..options() }).unwrap();
    let bytes = device.to_bytes();
    let sb = onggi_disk_format::ext4::Superblock::parse(&bytes[1024..]).unwrap();
    assert_eq!((sb.raw().s_mkfs_time.get(), sb.raw().s_mkfs_time_hi), (77, 1));
}

#[test]
fn what_cannot_be_is_refused() {
    let refuse = |bytes: u64, change: &dyn Fn(&mut Options)| {
        let mut options = options();
        change(&mut options);
        let device = MemoryDevice::new(bytes);
        let error = format(&device, &options).unwrap_err();
        assert!(device.to_bytes().iter().all(|&byte| byte == 0), "{error}: something was written");
        error
    };
    let features = |list: &'static str| move |options: &mut Options| options.parse_features(list).unwrap();
    assert_eq!(refuse(MIB, &features("inline_data")), MkfsError::Unsupported("inline_data"));
    assert_eq!(
        refuse(MIB, &features("^extent")),
        MkfsError::FeatureNeeds { feature: "64bit", needs: "extent" }
    );
    assert_eq!(refuse(MIB, &|o| o.block_size = Some(8192)), MkfsError::BlockSize(8192));
    assert_eq!(refuse(MIB, &|o| o.block_size = Some(0)), MkfsError::BlockSize(0));
    assert_eq!(
        refuse(MIB, &|o| o.inode_size = 2048),
        MkfsError::InodeSize { inode_size: 2048, block_size: 1024 }
    );
    assert_eq!(
        refuse(MIB, &|o| o.size_blocks = Some(2048)),
        MkfsError::PastDevice { blocks: 2048, block_size: 1024, available: 1024 }
    );
    assert_eq!(refuse(0, &|_| ()), MkfsError::TooSmall(0));
    assert!(matches!(refuse(8192, &|_| ()), MkfsError::TooSmall(8)));
    assert_eq!(refuse(MIB, &|o| o.label = vec![b'x'; 17]), MkfsError::Label(17));
    assert!(refuse(MIB, &|o| o.reserved_percent = f64::NAN).to_string().contains("NaN"));
    assert_eq!(refuse(MIB, &|o| o.resize = Some(10)), MkfsError::Resize { resize: 10, blocks: 1024 });
    assert_eq!(refuse(MIB, &|o| o.groups_per_flex = 3), MkfsError::GroupsPerFlex(3));
    assert!(matches!(
        refuse(16 * MIB, &|o| o.journal = JournalSize::Bytes(12 * MIB)),
        MkfsError::JournalSize { blocks: 12288, .. }
    ));
    assert!(matches!(
        refuse(16 * MIB, &|o| o.journal = JournalSize::Bytes(MIB / 2)),
        MkfsError::JournalSize { blocks: 512, .. }
    ));
    assert!(matches!(refuse(16 * MIB, &|o| o.inodes = Some(u32::MAX)), MkfsError::TooManyInodes(_)));
}

#[test]
fn every_small_size_works_or_is_refused() {
    let mut made = 0;
    for kib in 0..700 {
        for block_size in [1024, 2048, 4096] {
            let device = MemoryDevice::new(kib << 10);
            match format(&device, &Options { block_size: Some(block_size), ..options() }) {
                Ok(summary) => {
                    made += 1;
                    assert!(summary.free_blocks < summary.blocks);
                }
                Err(MkfsError::TooSmall(_) | MkfsError::NoRoom(_)) => {}
                Err(error) => panic!("{kib} KiB, blocks of {block_size}: {error}"),
            }
        }
    }
    assert!(made > 1000, "{made}");
}

#[test]
fn a_device_error_comes_through() {
    struct Full(MemoryDevice);
    const ERROR: DeviceError =
        DeviceError::Io { operation: onggi_block_device::Operation::Write, offset: 0, len: 0, errno: 28 };
    impl BlockDevice for Full {
        fn attributes(&self) -> &Attributes {
            self.0.attributes()
        }
        fn read(&self, batch: &mut [Read<'_, '_>]) -> Result<(), DeviceError> {
            self.0.read(batch)
        }
        fn write(&self, _: &[Write<'_>]) -> Result<(), DeviceError> {
            Err(ERROR)
        }
        fn flush(&self) -> Result<(), DeviceError> {
            Ok(())
        }
        fn discard(&self, _: &[ByteRange]) -> Result<(), DeviceError> {
            Ok(())
        }
        fn write_zeroes(&self, _: ByteRange, _: bool) -> Result<(), DeviceError> {
            Ok(())
        }
    }
    assert_eq!(format(&Full(MemoryDevice::new(16 * MIB)), &options()), Err(MkfsError::Device(ERROR)));
}

//! Volumes for the engine's tests, and judges for what it leaves behind.

#![allow(dead_code, unreachable_pub)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use onggi_block_device::{BlockDevice, DeviceError, MemoryDevice};
use onggi_ext4::{Ext4, MountOptions};
use onggi_vfs::{Context, Timestamp};

pub const NOW: Timestamp = Timestamp { sec: 1_700_000_000, nsec: 123_456_789 };
pub const CX: Context = Context { uid: 0, gid: 0, now: NOW };

/// A fresh volume in memory.
pub fn volume(size: u64, change: impl FnOnce(&mut onggi_ext4_mkfs::Options)) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(size));
    let mut options = onggi_ext4_mkfs::Options::new([7; 16], [9; 16], 1_700_000_000);
    change(&mut options);
    onggi_ext4_mkfs::format(&*device, &options).expect("mkfs");
    device
}

/// Deterministic: no background thread.
pub fn options() -> MountOptions {
    MountOptions { background: false, ..MountOptions::default() }
}

pub fn mount(device: &Arc<MemoryDevice>, options: MountOptions) -> Arc<Ext4> {
    log();
    Ext4::mount(Arc::clone(device) as Arc<dyn BlockDevice>, options, NOW).expect("mount")
}

/// Engine messages on the test's output with `RUST_LOG=debug`.
pub fn log() {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
}

/// e2fsck finds nothing to say about the device's contents.
pub fn assert_e2fsck_clean(device: &MemoryDevice) {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    write_sparse(file.path(), device);
    assert_image_clean(file.path());
}

pub fn assert_image_clean(image: &Path) {
    let output = Command::new("e2fsck").arg("-fn").arg(image).output().expect("e2fsck runs");
    if !output.status.success() {
        let kept = PathBuf::from("/tmp/onggi-failed.img");
        let _ = std::fs::copy(image, &kept);
        panic!(
            "e2fsck -fn: {}\n{}\nimage kept as {}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            kept.display()
        );
    }
}

/// The device as an image with holes.
pub fn write_sparse(path: &Path, device: &MemoryDevice) {
    use std::os::unix::fs::FileExt;
    let bytes = device.to_bytes();
    let file = std::fs::File::create(path).expect("create");
    file.set_len(bytes.len() as u64).expect("size");
    for (index, piece) in bytes.chunks(1 << 16).enumerate() {
        if piece.iter().any(|&byte| byte != 0) {
            file.write_all_at(piece, (index << 16) as u64).expect("write");
        }
    }
}

/// A device that takes its time to write, so that threads meet in the middle of commits.
pub struct Slow<D>(pub D, pub std::time::Duration);

impl<D: BlockDevice> BlockDevice for Slow<D> {
    fn attributes(&self) -> &onggi_block_device::Attributes {
        self.0.attributes()
    }

    fn read(&self, batch: &mut [onggi_block_device::Read<'_, '_>]) -> Result<(), DeviceError> {
        self.0.read(batch)
    }

    fn write(&self, batch: &[onggi_block_device::Write<'_>]) -> Result<(), DeviceError> {
        std::thread::sleep(self.1);
        self.0.write(batch)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn discard(&self, ranges: &[onggi_block_device::ByteRange]) -> Result<(), DeviceError> {
        self.0.discard(ranges)
    }

    fn write_zeroes(&self, range: onggi_block_device::ByteRange, may_unmap: bool) -> Result<(), DeviceError> {
        self.0.write_zeroes(range, may_unmap)
    }
}

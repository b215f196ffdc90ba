//! The one door to devices and engines: everything else here knows only the contracts.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use onggi_block_device::{BlockDevice, MemoryDevice};
use onggi_ext4::{Ext4, MountError, MountOptions};
use onggi_fault_device::{PowerCut, Snapshot};
use onggi_file_device::{FileDevice, OpenOptions};
use onggi_vfs::{FileSystem, Timestamp};

use crate::quantity::{now, parse_size};

/// Opens a device: a path, or `mem:SIZE` for one in memory.
pub(crate) fn open_device(spec: &OsStr, read_only: bool) -> anyhow::Result<Arc<dyn BlockDevice>> {
    if let Some(size) = memory_size(spec)? {
        return Ok(Arc::new(MemoryDevice::new(size)));
    }
    let options = OpenOptions { read_only, ..OpenOptions::default() };
    Ok(Arc::new(FileDevice::open(Path::new(spec), options)?))
}

/// Opens a device for a new volume of `size` bytes; by its own size without one.
pub(crate) fn create_device(spec: &OsStr, size: Option<u64>) -> anyhow::Result<Arc<dyn BlockDevice>> {
    match (memory_size(spec)?, size) {
        (Some(size), _) => Ok(Arc::new(MemoryDevice::new(size))),
        (None, Some(size)) => Ok(Arc::new(FileDevice::create(Path::new(spec), size.next_multiple_of(512))?)),
        (None, None) => open_device(spec, false).context("without -s the file must be there"),
    }
}

/// The size of a device in memory; `None` where the text names something else.
pub(crate) fn memory_size(spec: &OsStr) -> anyhow::Result<Option<u64>> {
    let Some(size) = spec.to_str().and_then(|spec| spec.strip_prefix("mem:")) else { return Ok(None) };
    let size = parse_size(size).map_err(anyhow::Error::msg)?;
    anyhow::ensure!(size > 0 && size.is_multiple_of(512), "mem:{size}: not a size of one or more sectors");
    Ok(Some(size))
}

/// Holds unflushed writes in memory, so that killing the process loses them.
pub(crate) fn with_power_cut(device: Arc<dyn BlockDevice>, seed: u64) -> Arc<dyn BlockDevice> {
    Arc::new(PowerCut::new(device, seed))
}

/// Mounts the volume on a device. A journal that must be replayed, where nothing may be written, is
/// replayed in memory.
pub(crate) fn open_volume(
    device: Arc<dyn BlockDevice>,
    options: MountOptions,
) -> anyhow::Result<Arc<dyn FileSystem>> {
    match Ext4::mount(Arc::clone(&device), options.clone(), now()) {
        Err(MountError::DirtyJournal) if options.read_only => {
            Ok(Ext4::mount(Arc::new(Snapshot::over(device)), options, now())?)
        }
        mounted => Ok(mounted?),
    }
}

/// How file commands mount: they flush once, when they are done.
pub(crate) fn file_command_options(read_only: bool) -> MountOptions {
    MountOptions { read_only, ..MountOptions::default() }
}

/// Mounts a volume that was just made, to be filled by one thread: the same calls at the same `moment`
/// give the same bytes.
pub(crate) fn open_new_volume(
    device: Arc<dyn BlockDevice>,
    moment: Timestamp,
) -> anyhow::Result<Arc<dyn FileSystem>> {
    Ok(Ext4::mount(device, MountOptions { background: false, ..MountOptions::default() }, moment)?)
}

/// Makes an empty volume.
pub(crate) fn make_volume(
    device: &dyn BlockDevice,
    options: &onggi_ext4_mkfs::Options,
) -> anyhow::Result<onggi_ext4_mkfs::Summary> {
    Ok(onggi_ext4_mkfs::format(device, options)?)
}

/// Checks a volume, and repairs it as `mode` allows.
pub(crate) fn check_volume(
    device: &dyn BlockDevice,
    mode: onggi_ext4_check::Mode,
    progress: &dyn Fn(onggi_ext4_check::Progress),
) -> anyhow::Result<onggi_ext4_check::Report> {
    Ok(onggi_ext4_check::check(device, mode, progress)?)
}

//! Opening: what the path is, who else has it, how it takes I/O.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use onggi_block_device::{AfterDiscard, Attributes, DiscardLimits};
use rustix::fs::{AtFlags, FallocateFlags, FlockOperation, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::bounce::{BouncePool, PAGE};
use crate::loop_device;
use crate::queue::Queue;

/// The smallest logical sector.
const SECTOR: u32 = 512;

/// Times a device that is taken is tried again, [`PAUSE`] apart. The kernel lets go of a file a little
/// after the process that held it was killed (once its io_uring requests have ended) and a little after
/// a loop mount of it was unmounted.
const PATIENCE: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Whether I/O goes past the page cache of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direct {
    /// O_DIRECT where the file takes it. Its alignment becomes the logical sector.
    #[default]
    Auto,
    /// Always through the host's page cache, in sectors of 512 bytes.
    Never,
}

/// How batches reach the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// io_uring for direct I/O where the kernel has it, else threads.
    #[default]
    Auto,
    /// io_uring, or no device.
    Uring,
    /// preadv and pwritev on a pool of threads.
    Threads,
}

/// How to open a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Open for reading, sharing the device with other readers.
    pub read_only: bool,
    /// Whether to go past the page cache.
    pub direct: Direct,
    /// Requests in flight at once in one batch.
    pub queue_depth: u32,
    /// How batches reach the kernel.
    pub backend: Backend,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { read_only: false, direct: Direct::Auto, queue_depth: 64, backend: Backend::Auto }
    }
}

/// Why a device was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system said no.
    #[error("{}: cannot {doing}: {source}", .path.display())]
    System {
        /// What was being opened.
        path: PathBuf,
        /// The step that failed.
        doing: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A directory, a pipe, a character device or a socket.
    #[error("{} is neither a regular file nor a block device", .path.display())]
    WrongKind {
        /// What was being opened.
        path: PathBuf,
    },
    /// Another process holds the lock or has the block device mounted.
    #[error("{} is in use by another process", .path.display())]
    InUse {
        /// What was being opened.
        path: PathBuf,
    },
    /// The kernel has the image attached to a loop device.
    #[error("{} is in use by {}", .path.display(), .holder.display())]
    InUseByLoop {
        /// What was being opened.
        path: PathBuf,
        /// The loop device.
        holder: PathBuf,
    },
    /// Not one whole sector.
    #[error("{} holds {size} bytes, less than one sector", .path.display())]
    Empty {
        /// What was being opened.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// A size that no device has.
    #[error("{}: {size} is not a size of one or more 512-byte sectors", .path.display())]
    BadSize {
        /// What was to be made.
        path: PathBuf,
        /// The size asked for, in bytes.
        size: u64,
    },
    /// A block device cannot grow.
    #[error("{} has {have} bytes, {wanted} were asked for", .path.display())]
    TooSmall {
        /// The block device.
        path: PathBuf,
        /// Its size in bytes.
        have: u64,
        /// The size asked for, in bytes.
        wanted: u64,
    },
}

/// Says which step failed on which path.
struct At<'p>(&'p Path);

impl At<'_> {
    fn system(&self, doing: &'static str) -> impl FnOnce(Errno) -> OpenError {
        move |errno| self.error(doing, errno.into())
    }

    fn error(&self, doing: &'static str, source: io::Error) -> OpenError {
        OpenError::System { path: self.0.to_owned(), doing, source }
    }
}

/// An open, locked file and what is known of it.
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) attributes: Attributes,
    pub(crate) block_device: bool,
    /// Alignment of offset and length, and of memory, that O_DIRECT asks for; `None` without it.
    pub(crate) direct: Option<Alignment>,
}

/// What direct I/O asks of a request, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alignment {
    pub(crate) offset: u32,
    pub(crate) memory: u32,
}

/// Opens and locks `path`; with `grow_to` makes a regular file that large first.
pub(crate) fn open(path: &Path, options: OpenOptions, grow_to: Option<u64>) -> Result<Opened, OpenError> {
    let at = At(path);
    let file = open_file(path, options, grow_to.is_some())?;
    let meta = file.metadata().map_err(|error| at.error("inspect", error))?;
    let block_device = meta.file_type().is_block_device();
    lock(path, &file, options.read_only)?;
    if !block_device && !options.read_only {
        refuse_loop_devices(path, meta.dev(), meta.ino())?;
    }
    let mut size =
        rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(at.system("find the size"))?;
    if let Some(wanted) = grow_to
        && wanted > size
    {
        if block_device {
            return Err(OpenError::TooSmall { path: path.to_owned(), have: size, wanted });
        }
        rustix::fs::ftruncate(&file, wanted).map_err(at.system("grow"))?;
        size = wanted;
    }
    let direct = (options.direct == Direct::Auto).then(|| go_direct(&file)).flatten();
    let mut logical_sector = direct.map_or(SECTOR, |alignment| alignment.offset.max(SECTOR));
    let mut physical_sector = logical_sector;
    if block_device {
        let own = rustix::fs::ioctl_blksszget(&file).map_err(at.system("find the sector size"))?;
        logical_sector = logical_sector.max(own);
        physical_sector = rustix::fs::ioctl_blkpbszget(&file).unwrap_or(own).max(logical_sector);
    }
    let whole = size - size % u64::from(logical_sector);
    if whole == 0 {
        return Err(OpenError::Empty { path: path.to_owned(), size });
    }
    let Queue { volatile_cache, fua, discard } = if block_device {
        Queue::of(meta.rdev())
    } else {
        Queue { volatile_cache: true, fua: true, discard: hole_limits(&file, size, meta.blksize()) }
    };
    let attributes = Attributes {
        size: whole,
        logical_sector,
        physical_sector,
        volatile_cache,
        fua,
        queue_depth: options.queue_depth.max(1),
        discard: discard.filter(|_| !options.read_only),
        read_only: options.read_only,
    };
    Ok(Opened { file, attributes, block_device, direct })
}

fn open_file(path: &Path, options: OpenOptions, create: bool) -> Result<File, OpenError> {
    let at = At(path);
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    match path.metadata() {
        // Asked before opening: to open a pipe would block.
        Ok(meta) if meta.file_type().is_block_device() && !options.read_only => flags |= OFlags::EXCL,
        Ok(meta) if meta.is_file() || meta.file_type().is_block_device() => {}
        Ok(_) => return Err(OpenError::WrongKind { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound && create => flags |= OFlags::CREATE,
        Err(error) => return Err(at.error("open", error)),
    }
    for attempt in 0..=PATIENCE {
        match rustix::fs::open(path, flags, Mode::from_raw_mode(0o666)) {
            Ok(file) => return Ok(file.into()),
            Err(Errno::BUSY) if attempt < PATIENCE => std::thread::sleep(PAUSE),
            Err(Errno::BUSY) => break,
            Err(errno) => return Err(at.system("open")(errno)),
        }
    }
    Err(OpenError::InUse { path: path.to_owned() })
}

/// Takes the lock that keeps two mounts apart; it goes with the last descriptor.
fn lock(path: &Path, file: &File, read_only: bool) -> Result<(), OpenError> {
    let how = if read_only {
        FlockOperation::NonBlockingLockShared
    } else {
        FlockOperation::NonBlockingLockExclusive
    };
    for attempt in 0..=PATIENCE {
        match rustix::fs::flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) if attempt < PATIENCE => std::thread::sleep(PAUSE),
            Err(Errno::WOULDBLOCK) => break,
            Err(errno) => return Err(At(path).system("lock")(errno)),
        }
    }
    Err(OpenError::InUse { path: path.to_owned() })
}

fn refuse_loop_devices(path: &Path, dev: u64, ino: u64) -> Result<(), OpenError> {
    for attempt in 0..=PATIENCE {
        match loop_device::attached_to(dev, ino) {
            None => break,
            Some(_) if attempt < PATIENCE => std::thread::sleep(PAUSE),
            Some(holder) => return Err(OpenError::InUseByLoop { path: path.to_owned(), holder }),
        }
    }
    Ok(())
}

/// Turns O_DIRECT on where the file takes it, and says what it asks for.
fn go_direct(file: &File) -> Option<Alignment> {
    let told = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)
        .ok()
        .filter(|stat| stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .map(|stat| Alignment { offset: stat.stx_dio_offset_align, memory: stat.stx_dio_mem_align });
    if told.is_some_and(|alignment| !usable(alignment)) {
        return None;
    }
    let buffered = rustix::fs::fcntl_getfl(file).ok()?;
    rustix::fs::fcntl_setfl(file, buffered | OFlags::DIRECT).ok()?;
    // A kernel that does not tell is tried: a file that refuses both sizes is left buffered.
    let found = told.filter(|&alignment| reads(file, alignment)).or_else(|| {
        let sizes = [SECTOR, PAGE as u32].map(|size| Alignment { offset: size, memory: size });
        sizes.into_iter().find(|&alignment| reads(file, alignment))
    });
    if found.is_none() {
        rustix::fs::fcntl_setfl(file, buffered).ok()?;
    }
    found
}

/// Powers of two up to a page: what bounce buffers can serve.
fn usable(alignment: Alignment) -> bool {
    [alignment.offset, alignment.memory].iter().all(|&n| n.is_power_of_two() && n as usize <= PAGE)
}

/// Whether one read aligned just so is answered with data.
fn reads(file: &File, alignment: Alignment) -> bool {
    let (len, skew) = (alignment.offset.max(SECTOR) as usize, alignment.memory as usize);
    let pool = BouncePool::default();
    let mut bounce = pool.take(2 * PAGE);
    let skew = if skew < PAGE { skew } else { 0 };
    rustix::io::pread(file.as_fd(), &mut bounce[skew..skew + len], 0) == Ok(len)
}

/// Discard by punching holes, where the file system under the file can.
fn hole_limits(file: &File, size: u64, block: u64) -> Option<DiscardLimits> {
    // Past the end there is nothing to lose, and support is checked first.
    let past = size.checked_next_multiple_of(PAGE as u64)?.checked_add(PAGE as u64)?;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, past, PAGE as u64).ok()?;
    Some(DiscardLimits { granularity: block.max(u64::from(SECTOR)), alignment: 0, after: AfterDiscard::Zero })
}

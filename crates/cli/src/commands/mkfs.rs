//! `onggi mkfs`.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use onggi_block_device::BlockDevice;
use onggi_ext4_mkfs::{JournalSize, Options, Summary};
use onggi_vfs::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::args::{Format, Mkfs};
use crate::commands::write_json;
use crate::copy::{Copier, Host, How, Tally, Volume};
use crate::engine;
use crate::place::shown;
use crate::progress::Progress;
use crate::quantity::{human_size, now};
use crate::report::{At, Complaints};
use crate::signature;

/// What was made, for programs.
#[derive(Serialize)]
struct Made {
    image: String,
    format: &'static str,
    uuid: String,
    label: String,
    block_size: u32,
    blocks: u64,
    inodes: u32,
    groups: u32,
    journal_blocks: u32,
    reserved_blocks: u64,
    features: Vec<String>,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    copied: Option<Tally>,
}

/// Makes a volume; false where something of the tree could not be copied.
pub(crate) fn run(args: &Mkfs, out: &mut dyn Write, terminal: bool) -> anyhow::Result<bool> {
    let Format::Ext4 = args.format;
    let image = shown(args.image.as_encoded_bytes());
    let is_new = engine::memory_size(&args.image)?.is_none() && !Path::new(&args.image).exists();
    let made = make(args, &image);
    if made.is_err() && is_new {
        let _ = std::fs::remove_file(&args.image);
    }
    let (made, clean) = made?;
    if args.json {
        write_json(out, terminal, &made)?;
    } else if !args.quiet {
        report(&made, out)?;
    }
    Ok(clean)
}

fn make(args: &Mkfs, image: &str) -> anyhow::Result<(Made, bool)> {
    if let Some(dir) = &args.from {
        anyhow::ensure!(dir.is_dir(), "{}: not a directory", dir.display());
    }
    let moment = args.timestamp.unwrap_or_else(now);
    let uuid = args.uuid.unwrap_or_else(Uuid::new_v4);
    let options = options(args, uuid, moment)?;
    let device = engine::create_device(&args.image, args.size)?;
    if !args.force
        && let Some(what) = signature::find(&*device)?
    {
        bail!("{image}: there is {what} on it; -F overwrites it");
    }
    let options = sized(options, args, &*device)?;
    let summary = engine::make_volume(&*device, &options).with_context(|| image.to_owned())?;
    let mut complaints = Complaints::of("mkfs");
    let copied = match &args.from {
        Some(dir) => Some(fill(dir, device, args, moment, image, &mut complaints)?),
        None => None,
    };
    Ok((made(args, image, uuid, summary, copied), !complaints.any()))
}

fn options(args: &Mkfs, uuid: Uuid, moment: Timestamp) -> anyhow::Result<Options> {
    let Ok(seconds) = u64::try_from(moment.sec) else {
        bail!("the time of a volume cannot lie before 1970");
    };
    // From the identity, so that one identity makes one image.
    let hash_seed = Uuid::new_v5(&uuid, b"directory hash seed");
    let mut options = Options::new(*uuid.as_bytes(), *hash_seed.as_bytes(), seconds);
    let narrow = |size: u64| u32::try_from(size).with_context(|| format!("{size} is too large"));
    options.block_size = args.block_size.map(narrow).transpose()?;
    options.inode_ratio = args.bytes_per_inode.map(narrow).transpose()?;
    options.inodes = args.inodes;
    if let Some(size) = args.inode_size {
        options.inode_size = size;
    }
    if let Some(percent) = args.reserved {
        options.reserved_percent = percent;
    }
    if let Some(bytes) = args.journal {
        options.journal = JournalSize::Bytes(bytes);
    }
    options.label = args.label.clone().unwrap_or_default().into_bytes();
    options.parse_features(&args.features.join(","))?;
    Ok(options)
}

/// Of a larger file or device only the size asked for is used.
fn sized(mut options: Options, args: &Mkfs, device: &dyn BlockDevice) -> anyhow::Result<Options> {
    if let Some(size) = args.size {
        let available = device.attributes().size;
        anyhow::ensure!(size <= available, "{size} bytes are asked for, there are {available}");
        options.size_blocks = Some(size / u64::from(options.block_size.unwrap_or(1024)));
    }
    Ok(options)
}

/// Copies the tree into the new volume.
fn fill(
    dir: &Path,
    device: Arc<dyn BlockDevice>,
    args: &Mkfs,
    moment: Timestamp,
    image: &str,
    complaints: &mut Complaints,
) -> anyhow::Result<Tally> {
    let fs = engine::open_new_volume(device, moment)?;
    let volume = Volume::new(&*fs).at_moment(args.timestamp);
    let how =
        How { recursive: true, preserve: true, archive: true, moment: args.timestamp, ..How::default() };
    let progress = Progress::new(!args.quiet);
    let mut ignored = std::io::sink();
    let mut copier = Copier::new(&Host, &volume, how, &progress, complaints, &mut ignored);
    let (from, to) = (dir.as_os_str().as_bytes().to_vec(), format!("{image}:/").into_bytes());
    let copied = copier.merge(&dir.to_path_buf(), &fs.root(), from, to);
    let tally = copier.tally;
    drop(progress);
    let closed = fs.unmount().at(image);
    copied.and(closed).map(|()| tally)
}

fn made(args: &Mkfs, image: &str, uuid: Uuid, summary: Summary, copied: Option<Tally>) -> Made {
    Made {
        image: image.to_owned(),
        format: "ext4",
        uuid: uuid.to_string(),
        label: args.label.clone().unwrap_or_default(),
        block_size: summary.block_size,
        blocks: summary.blocks,
        inodes: summary.inodes,
        groups: summary.groups,
        journal_blocks: summary.journal_blocks,
        reserved_blocks: summary.reserved_blocks,
        features: summary.features,
        notes: summary.notes,
        copied,
    }
}

fn report(made: &Made, out: &mut dyn Write) -> anyhow::Result<()> {
    let bytes = |blocks: u64| human_size(blocks.saturating_mul(u64::from(made.block_size)));
    for note in &made.notes {
        writeln!(out, "note: {note}")?;
    }
    writeln!(
        out,
        "{}: ext4 of {}, {} blocks of {} bytes, {} inodes, journal of {}",
        made.image,
        bytes(made.blocks),
        made.blocks,
        made.block_size,
        made.inodes,
        bytes(made.journal_blocks.into()),
    )?;
    writeln!(out, "UUID {}", made.uuid)?;
    if let Some(tally) = &made.copied {
        writeln!(
            out,
            "copied {} files ({}), {} directories, {} other, {} hard links",
            tally.files,
            human_size(tally.bytes),
            tally.directories,
            tally.others,
            tally.hard_links
        )?;
    }
    Ok(())
}

/// Makes a volume of default shape, for a device in memory that is to be mounted.
pub(crate) fn default_volume(device: &dyn BlockDevice, image: &OsStr) -> anyhow::Result<()> {
    let uuid = Uuid::new_v4();
    let options = Options::new(*uuid.as_bytes(), *Uuid::new_v4().as_bytes(), now().sec.unsigned_abs());
    engine::make_volume(device, &options).with_context(|| image.display().to_string()).map(drop)
}

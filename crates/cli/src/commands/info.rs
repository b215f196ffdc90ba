//! `onggi info`: the superblock in plain words.

use std::io::Write;

use anyhow::Context as _;
use onggi_block_device::BlockDevice;
use onggi_disk_format::ext4::superblock::{
    STATE_ERROR, STATE_VALID, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE, Superblock,
};
use onggi_disk_format::ext4::{Incompat, RawSuperblock};
use onggi_vfs::Timestamp;
use serde::Serialize;
use uuid::Uuid;

use crate::args::Info;
use crate::commands::write_json;
use crate::engine;
use crate::place::shown;
use crate::quantity::{human_size, long_time, machine_time};

/// What a volume is, for programs.
#[derive(Debug, Serialize)]
struct Summary {
    image: String,
    format: &'static str,
    label: String,
    uuid: String,
    /// `clean`, `not cleanly unmounted` or `with errors`.
    state: &'static str,
    needs_recovery: bool,
    errors: u32,
    block_size: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size: u16,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal_bytes: Option<u64>,
    features: Vec<String>,
    last_mounted_on: String,
    created: String,
    mounted: String,
    written: String,
    checked: String,
    mounts: u16,
    kbytes_written: u64,
    #[serde(skip)]
    times: [Timestamp; 4],
}

/// Says what a volume is.
pub(crate) fn run(args: &Info, out: &mut dyn Write, terminal: bool) -> anyhow::Result<()> {
    let image = shown(args.image.as_encoded_bytes());
    let device = engine::open_device(&args.image, true)?;
    let superblock = read(&*device).with_context(|| image.clone())?;
    let summary = summarise(image, &superblock);
    if args.json { write_json(out, terminal, &summary) } else { show(&summary, out) }
}

fn read(device: &dyn BlockDevice) -> anyhow::Result<Superblock> {
    let sector = u64::from(device.attributes().logical_sector);
    let end = (SUPERBLOCK_OFFSET + SUPERBLOCK_SIZE as u64).next_multiple_of(sector);
    anyhow::ensure!(device.attributes().size >= end, "too small for a volume");
    let mut head = vec![0; usize::try_from(end)?];
    device.read_at(0, &mut head)?;
    let start = usize::try_from(SUPERBLOCK_OFFSET)?;
    Ok(Superblock::parse(&head[start..start + SUPERBLOCK_SIZE])?)
}

/// Text up to the first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    shown(&bytes[..end])
}

fn journal_bytes(raw: &RawSuperblock, superblock: &Superblock) -> Option<u64> {
    superblock.journal_inode()?;
    // The superblock keeps a copy of the journal inode's block map and size.
    (raw.s_jnl_backup_type == 1)
        .then(|| u64::from(raw.s_jnl_blocks[15].get()) << 32 | u64::from(raw.s_jnl_blocks[16].get()))
}

fn summarise(image: String, superblock: &Superblock) -> Summary {
    let raw = superblock.raw();
    let time = |low: u32, high: u8| Timestamp { sec: i64::from(low) | i64::from(high) << 32, nsec: 0 };
    let times = [
        time(raw.s_mkfs_time.get(), raw.s_mkfs_time_hi),
        time(raw.s_mtime.get(), raw.s_mtime_hi),
        time(raw.s_wtime.get(), raw.s_wtime_hi),
        time(raw.s_lastcheck.get(), raw.s_lastcheck_hi),
    ];
    let state = superblock.state();
    let mut features = superblock.compat().names();
    features.extend(superblock.incompat().names());
    features.extend(superblock.ro_compat().names());
    Summary {
        image,
        format: "ext4",
        label: text(superblock.label()),
        uuid: Uuid::from_bytes(superblock.uuid()).to_string(),
        state: if state & STATE_ERROR != 0 {
            "with errors"
        } else if state & STATE_VALID != 0 {
            "clean"
        } else {
            "not cleanly unmounted"
        },
        needs_recovery: superblock.incompat().contains(Incompat::RECOVER),
        errors: raw.s_error_count.get(),
        block_size: superblock.block_size(),
        blocks: superblock.blocks_count(),
        free_blocks: superblock.free_blocks(),
        reserved_blocks: superblock.reserved_blocks(),
        inodes: superblock.inodes_count(),
        free_inodes: superblock.free_inodes(),
        inode_size: superblock.inode_size(),
        groups: superblock.groups(),
        blocks_per_group: superblock.blocks_per_group(),
        inodes_per_group: superblock.inodes_per_group(),
        journal_bytes: journal_bytes(raw, superblock),
        features: features.into_iter().collect(),
        last_mounted_on: text(&raw.s_last_mounted),
        created: machine_time(times[0]),
        mounted: machine_time(times[1]),
        written: machine_time(times[2]),
        checked: machine_time(times[3]),
        mounts: raw.s_mnt_count.get(),
        kbytes_written: raw.s_kbytes_written.get(),
        times,
    }
}

fn show(summary: &Summary, out: &mut dyn Write) -> anyhow::Result<()> {
    let bytes = |blocks: u64| human_size(blocks.saturating_mul(summary.block_size.into()));
    let recovery = if summary.needs_recovery { ", its journal holds changes" } else { "" };
    writeln!(out, "{}: {}, {}{recovery}", summary.image, summary.format, summary.state)?;
    let mut line = |name: &str, value: String| -> anyhow::Result<()> {
        if !value.is_empty() {
            writeln!(out, "  {name:<16} {value}")?;
        }
        Ok(())
    };
    line("label", summary.label.clone())?;
    line("UUID", summary.uuid.clone())?;
    line(
        "size",
        format!("{} ({} blocks of {} bytes)", bytes(summary.blocks), summary.blocks, summary.block_size),
    )?;
    line("free", format!("{} ({} blocks)", bytes(summary.free_blocks), summary.free_blocks))?;
    line(
        "kept for root",
        format!("{} ({} blocks)", bytes(summary.reserved_blocks), summary.reserved_blocks),
    )?;
    line(
        "inodes",
        format!("{} of {} bytes, {} free", summary.inodes, summary.inode_size, summary.free_inodes),
    )?;
    line(
        "groups",
        format!(
            "{} of {} blocks and {} inodes",
            summary.groups, summary.blocks_per_group, summary.inodes_per_group
        ),
    )?;
    line("journal", summary.journal_bytes.map_or_else(|| "none".into(), human_size))?;
    line("features", summary.features.join(" "))?;
    line("last mounted on", summary.last_mounted_on.clone())?;
    for (name, time) in ["created", "mounted", "written", "checked"].into_iter().zip(summary.times) {
        line(name, if time.sec == 0 { "never".into() } else { long_time(time) })?;
    }
    line("mounts", summary.mounts.to_string())?;
    if summary.errors > 0 {
        line("errors", format!("{} noted by the kernel", summary.errors))?;
    }
    Ok(())
}

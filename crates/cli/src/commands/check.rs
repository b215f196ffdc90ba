//! `onggi check`.

use std::io::Write;

use anyhow::Context as _;
use onggi_ext4_check::{Mode, Pass, Report};
use serde::Serialize;

use crate::args::Check;
use crate::commands::write_json;
use crate::engine;
use crate::place::shown;
use crate::progress::Passes;

/// A broken rule, for programs.
#[derive(Serialize)]
struct Problem {
    rule: &'static str,
    place: String,
    what: String,
    fixed: bool,
}

/// A check, for programs.
#[derive(Serialize)]
struct Outcome {
    image: String,
    clean: bool,
    /// As of fsck(8).
    exit_code: u8,
    modified: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed_transactions: Option<u64>,
    problems: Vec<Problem>,
    /// Problems past those listed.
    more_problems: u64,
    inodes: u32,
    inodes_used: u32,
    files: u32,
    directories: u32,
    symlinks: u32,
    blocks: u64,
    blocks_used: u64,
}

/// Checks a volume; gives the exit code of fsck(8).
pub(crate) fn run(args: &Check, out: &mut dyn Write, terminal: bool) -> anyhow::Result<u8> {
    let image = shown(args.image.as_encoded_bytes());
    let mode = match (args.preen, args.yes) {
        (true, _) => Mode::Preen,
        (_, true) => Mode::Yes,
        _ => Mode::ReadOnly,
    };
    let device = engine::open_device(&args.image, mode == Mode::ReadOnly)?;
    let passes = Passes::new();
    let report = engine::check_volume(&*device, mode, &|progress| {
        passes.show(pass_name(progress.pass), progress.done, progress.total);
    })
    .with_context(|| image.clone())?;
    drop(passes);
    if args.json {
        write_json(out, terminal, &outcome(image, &report))?;
    } else {
        show(&image, &report, out)?;
    }
    Ok(report.exit_code())
}

fn pass_name(pass: Pass) -> &'static str {
    match pass {
        Pass::Layout => "layout",
        Pass::Inodes => "inodes",
        Pass::Directories => "directories",
        Pass::Links => "links",
        Pass::Bitmaps => "bitmaps",
        Pass::Repair => "repair",
    }
}

fn outcome(image: String, report: &Report) -> Outcome {
    let problem = |problem: &onggi_ext4_check::Problem| Problem {
        rule: problem.code.name(),
        place: problem.place.to_string(),
        what: problem.what.clone(),
        fixed: problem.fixed,
    };
    let stats = &report.stats;
    Outcome {
        image,
        clean: report.is_clean(),
        exit_code: report.exit_code(),
        modified: report.modified,
        replayed_transactions: report.replay.map(|replay| replay.transactions),
        problems: report.problems.iter().map(problem).collect(),
        more_problems: report.more_problems,
        inodes: stats.inodes,
        inodes_used: stats.inodes_used,
        files: stats.files,
        directories: stats.directories,
        symlinks: stats.symlinks,
        blocks: stats.blocks,
        blocks_used: stats.blocks_used,
    }
}

fn show(image: &str, report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    if let Some(replay) = report.replay {
        let place = if replay.in_memory { " in memory" } else { "" };
        let plural = if replay.transactions == 1 { "" } else { "s" };
        writeln!(out, "{image}: replayed {} transaction{plural} of the journal{place}", replay.transactions)?;
    }
    for problem in &report.problems {
        writeln!(out, "{}", shown(problem.to_string().as_bytes()))?;
    }
    if report.more_problems > 0 {
        writeln!(out, "and {} more", report.more_problems)?;
    }
    let verdict = match (report.is_clean(), report.has_unfixed()) {
        (true, _) => "clean",
        (false, false) => "all problems repaired",
        (false, true) => "PROBLEMS LEFT",
    };
    let stats = &report.stats;
    writeln!(
        out,
        "{image}: {verdict}, {}/{} inodes, {}/{} blocks, {} files, {} directories, {} symbolic links",
        stats.inodes_used,
        stats.inodes,
        stats.blocks_used,
        stats.blocks,
        stats.files,
        stats.directories,
        stats.symlinks
    )?;
    Ok(())
}

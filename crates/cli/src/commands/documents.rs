//! Completions and manual pages, from the same source as `--help`.

use std::io::Write;

use clap::CommandFactory;

use crate::args::{Cli, Completions, Man};
use crate::report::At;

/// Writes a shell's completions.
pub(crate) fn completions(args: &Completions, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "onggi", &mut script);
    out.write_all(&script).at("write error")
}

/// Writes `onggi.1` and a page for each command.
pub(crate) fn man(args: &Man) -> anyhow::Result<()> {
    std::fs::create_dir_all(&args.dir).at(args.dir.display())?;
    clap_mangen::generate_to(Cli::command(), &args.dir).at(args.dir.display())
}

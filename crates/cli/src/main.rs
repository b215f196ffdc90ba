//! The command line.
//!
//! **Does:** reads what is typed, opens devices and engines, walks and copies trees, mounts, reports to
//! people and to programs.
//! **Never does:** touch a format or a device but through the engines and the device contract.
//! **Called by:** people and scripts.
//! **Locks:** none.

mod args;
mod commands;
mod copy;
mod engine;
mod entry;
mod images;
mod mount_options;
mod pattern;
mod place;
mod progress;
mod quantity;
mod report;
mod signature;
mod walk;

use std::ffi::{OsStr, OsString};
use std::io::{BufWriter, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use args::{Cli, Command};
use commands::{
    Desk, cat, check, cp, documents, find, info, ln, ls, mkdir, mkfs, mount, mv, rm, stat, transfer, tree,
    umount,
};
use images::Images;
use report::{At, Complaints, sentence};

/// Pages and blocks come and go in many threads, which the C library's allocator answers with a system call
/// for every few pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A shell's code for a program that a broken pipe ended.
const BROKEN_PIPE: u8 = 141;
/// fsck(8): wrong usage, and an operational error.
const FSCK_USAGE: u8 = 16;
const FSCK_FAILED: u8 = 8;
/// Commands walk trees by recursion, bounded by [`walk::DEPTH_MAX`].
const STACK: usize = 256 << 20;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let main = std::thread::Builder::new().name("onggi".into()).stack_size(STACK).spawn(|| run(words));
    match main.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => ExitCode::from(code),
        Ok(Err(_)) => ExitCode::from(101),
        Err(error) => {
            eprintln!("onggi: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: Vec<OsString>) -> u8 {
    let Some(words) = as_typed(words) else { return 0 };
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return match (error.exit_code(), words.get(1).and_then(|word| word.to_str())) {
                (0, _) => 0,
                (_, Some("mount" | "umount")) => mount::USAGE,
                (_, Some("check")) => FSCK_USAGE,
                (code, _) => u8::try_from(code).unwrap_or(2),
            };
        }
    };
    let filter = EnvFilter::try_from_env("ONGGI_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let ansi = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi).init();
    match &cli.command {
        Command::Mount(args) => mount::run(args),
        Command::Umount(args) => umount::run(args),
        command => run_with_output(command),
    }
}

/// Runs a command that writes to standard output.
fn run_with_output(command: &Command) -> u8 {
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::with_capacity(1 << 16, stdout.lock());
    let result = dispatch(command, &mut out, terminal).and_then(|code| {
        out.flush().at("write error")?;
        Ok(code)
    });
    match result {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => {
            // What is buffered has nowhere to go.
            let _ = out.into_parts();
            BROKEN_PIPE
        }
        Err(error) => {
            let _ = out.flush();
            eprintln!("onggi: {}: {}", command.name(), sentence(&error));
            if matches!(command, Command::Check(_)) { FSCK_FAILED } else { 1 }
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind) == Some(ErrorKind::BrokenPipe)
            || cause.downcast_ref::<serde_json::Error>().and_then(serde_json::Error::io_error_kind)
                == Some(ErrorKind::BrokenPipe)
    };
    error.chain().any(io)
}

fn dispatch(command: &Command, out: &mut dyn Write, terminal: bool) -> anyhow::Result<u8> {
    match command {
        Command::Mkfs(args) => return mkfs::run(args, out, terminal).map(|clean| u8::from(!clean)),
        Command::Info(args) => return info::run(args, out, terminal).map(|()| 0),
        Command::Check(args) => return check::run(args, out, terminal),
        Command::Completions(args) => return documents::completions(args, out).map(|()| 0),
        Command::Man(args) => return documents::man(args).map(|()| 0),
        _ => {}
    }
    let mut images = Images::default();
    let mut complaints = Complaints::of(command.name());
    let mut desk = Desk { images: &mut images, out, terminal, complaints: &mut complaints };
    let result = run_file_command(command, &mut desk).expect("every other command is a file command");
    let closed = images.close();
    result.and(closed)?;
    Ok(u8::from(complaints.any()))
}

/// Runs a command that works on files in volumes; `None` for another.
pub(crate) fn run_file_command(command: &Command, desk: &mut Desk<'_>) -> Option<anyhow::Result<()>> {
    Some(match command {
        Command::Ls(args) => ls::run(args, desk),
        Command::Tree(args) => tree::run(args, desk),
        Command::Find(args) => find::run(args, desk),
        Command::Stat(args) => stat::run(args, desk),
        Command::Cat(args) => cat::run(args, desk),
        Command::Get(args) => transfer::get(args, desk),
        Command::Put(args) => transfer::put(args, desk),
        Command::Cp(args) => cp::run(args, desk),
        Command::Mv(args) => mv::run(args, desk),
        Command::Rm(args) => rm::run(args, desk),
        Command::Mkdir(args) => mkdir::run(args, desk),
        Command::Ln(args) => ln::run(args, desk),
        _ => return None,
    })
}

/// What was typed, in the words of `onggi COMMAND`. As a mount helper, by the name it was called by or
/// as mount.fuse calls it (`onggi IMAGE DIR -o OPTIONS`), it is `onggi mount`. `None`: nothing to do.
fn as_typed(words: Vec<OsString>) -> Option<Vec<OsString>> {
    let name = words.first().map(Path::new).and_then(Path::file_name).and_then(OsStr::to_str);
    if matches!(name, Some("mount.fuse.onggi" | "mount.onggi")) {
        return as_helper(words.into_iter().skip(1));
    }
    let word = |at: usize| words.get(at).and_then(|word| word.to_str()).unwrap_or_default();
    let is_command = || {
        use clap::CommandFactory;
        word(1) == "help" || Cli::command().find_subcommand(word(1)).is_some()
    };
    if words.len() >= 3 && !word(1).starts_with('-') && !is_command() && Path::new(&words[2]).is_dir() {
        return as_helper(words.into_iter().skip(1));
    }
    if word(1) == "find" {
        return Some(as_find(words));
    }
    Some(words)
}

/// A mount helper's words: those that only mount(8) itself cares for are left out.
fn as_helper(words: impl Iterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut typed: Vec<OsString> = vec!["onggi".into(), "mount".into()];
    let mut words = words;
    while let Some(word) = words.next() {
        match word.to_str() {
            // A fake mount: everything but the mount itself, which is nothing here.
            Some("-f") => return None,
            Some("-s" | "-n" | "-v" | "-w") => {}
            Some("-t" | "-N") => drop(words.next()),
            _ => typed.push(word),
        }
    }
    Some(typed)
}

/// find(1) writes long options with one dash.
fn as_find(words: Vec<OsString>) -> Vec<OsString> {
    const LONG: [&str; 6] = ["-name", "-iname", "-type", "-maxdepth", "-mindepth", "-print0"];
    let double = |word: OsString| match word.to_str() {
        Some(text) if LONG.contains(&text) => format!("-{text}").into(),
        _ => word,
    };
    words.into_iter().map(double).collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn typed(words: &[&str]) -> Option<Vec<String>> {
        let typed = as_typed(words.iter().map(OsString::from).collect())?;
        Some(typed.into_iter().map(|word| word.into_string().unwrap()).collect())
    }

    #[test]
    fn the_arguments_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn mount_helpers_are_understood() {
        let expected = ["onggi", "mount", "a.img", "/mnt", "-o", "ro"].map(str::to_owned).to_vec();
        for words in [
            &["/sbin/mount.fuse.onggi", "a.img", "/mnt", "-n", "-o", "ro", "-t", "fuse.onggi"][..],
            &["mount.onggi", "-s", "a.img", "/mnt", "-o", "ro"],
        ] {
            assert_eq!(typed(words), Some(expected.clone()));
        }
        assert_eq!(typed(&["mount.onggi", "-f", "a.img", "/mnt"]), None);
        assert_eq!(typed(&["onggi", "a.img", "/", "-o", "ro"]).unwrap()[1], "mount");
        assert_eq!(typed(&["onggi", "ls", "/"]).unwrap()[1], "ls");
        assert_eq!(typed(&["onggi", "lss", "/nope"]).unwrap()[1], "lss");
    }

    #[test]
    fn find_takes_one_dash() {
        let words = typed(&["onggi", "find", "a.img", "-name", "*.so", "-type", "f"]).unwrap();
        assert_eq!(words[3..], ["--name", "*.so", "--type", "f"]);
    }
}

//! What can be typed: the one source of parsing, `--help`, completions and manual pages.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};

use crate::quantity::{parse_moment, parse_size};

/// Work with ext4 volumes in image files and on devices: no root, no kernel driver.
///
/// A place inside a volume is written IMAGE:/path, where IMAGE is an image file or a block device. A
/// host path that looks like one is written with ./ in front and its colon elsewhere.
#[derive(Debug, Parser)]
#[command(name = "onggi", version, max_term_width = 100, subcommand_required = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Mkfs(Mkfs),
    Mount(Mount),
    Umount(Umount),
    Check(Check),
    Info(Info),
    Ls(Ls),
    Tree(Tree),
    Find(Find),
    Stat(Stat),
    Cat(Cat),
    Get(Get),
    Put(Put),
    Cp(Cp),
    Mv(Mv),
    Rm(Rm),
    Mkdir(Mkdir),
    Ln(Ln),
    Completions(Completions),
    Man(Man),
}

impl Command {
    /// The command as it is typed.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Mkfs(_) => "mkfs",
            Self::Mount(_) => "mount",
            Self::Umount(_) => "umount",
            Self::Check(_) => "check",
            Self::Info(_) => "info",
            Self::Ls(_) => "ls",
            Self::Tree(_) => "tree",
            Self::Find(_) => "find",
            Self::Stat(_) => "stat",
            Self::Cat(_) => "cat",
            Self::Get(_) => "get",
            Self::Put(_) => "put",
            Self::Cp(_) => "cp",
            Self::Mv(_) => "mv",
            Self::Rm(_) => "rm",
            Self::Mkdir(_) => "mkdir",
            Self::Ln(_) => "ln",
            Self::Completions(_) => "completions",
            Self::Man(_) => "man",
        }
    }
}

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// ext4 with a journal.
    Ext4,
}

/// Make a volume, empty or filled from a directory
///
/// With --from the tree goes in with its owners, modes, times, extended attributes, hard links, symbolic
/// links, devices and holes. With --timestamp and -U the same tree gives the same image, byte for byte.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  onggi mkfs -s 1G disk.img
  onggi mkfs -s 512M -L root --from rootfs/ --timestamp @0 -U 0f6e6f0c-6d5e-4f0a-9a53-6e1f3a1f0a01 disk.img
  onggi mkfs /dev/sdb1")]
pub(crate) struct Mkfs {
    /// Format
    #[arg(short = 't', long = "type", value_enum, default_value_t = Format::Ext4)]
    pub(crate) format: Format,
    /// Size of the volume (K, M, G, T); without it, that of the file or device
    #[arg(short = 's', long, value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Block size in bytes: 1024, 2048 or 4096
    #[arg(short = 'b', long, value_parser = parse_size)]
    pub(crate) block_size: Option<u64>,
    /// Label, at most 16 bytes
    #[arg(short = 'L', long)]
    pub(crate) label: Option<String>,
    /// UUID; random without it
    #[arg(short = 'U', long)]
    pub(crate) uuid: Option<uuid::Uuid>,
    /// Features to add, or with ^ in front to leave out
    #[arg(short = 'O', long, value_delimiter = ',', value_name = "[^]FEATURE")]
    pub(crate) features: Vec<String>,
    /// Number of inodes
    #[arg(short = 'N', long)]
    pub(crate) inodes: Option<u32>,
    /// Bytes of volume for each inode
    #[arg(short = 'i', long, value_parser = parse_size, conflicts_with = "inodes")]
    pub(crate) bytes_per_inode: Option<u64>,
    /// Bytes in an inode
    #[arg(short = 'I', long)]
    pub(crate) inode_size: Option<u16>,
    /// Blocks kept for root, in percent
    #[arg(short = 'm', long, value_name = "PERCENT")]
    pub(crate) reserved: Option<f64>,
    /// Journal: size=SIZE
    #[arg(short = 'J', long, value_name = "size=SIZE", value_parser = parse_journal)]
    pub(crate) journal: Option<u64>,
    /// Fill it from this directory
    #[arg(long, value_name = "DIR")]
    pub(crate) from: Option<PathBuf>,
    /// Give everything this one time: @SECONDS or 2026-11-21T10:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_moment)]
    pub(crate) timestamp: Option<onggi_vfs::Timestamp>,
    /// Overwrite a volume that is there
    #[arg(short = 'F', long)]
    pub(crate) force: bool,
    /// Say nothing
    #[arg(short = 'q', long)]
    pub(crate) quiet: bool,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The image file or block device
    pub(crate) image: OsString,
}

fn parse_journal(text: &str) -> Result<u64, String> {
    let size = text.strip_prefix("size=").ok_or("expected size=SIZE")?;
    // As mke2fs: a bare number counts MiB.
    match size.parse::<u64>() {
        Ok(mebibytes) => mebibytes.checked_mul(1 << 20).ok_or_else(|| "too large".into()),
        Err(_) => parse_size(size),
    }
}

/// Mount a volume on a directory through FUSE
///
/// Returns when the mount can be used; a process of its own serves it until it is unmounted.
#[derive(Debug, Args)]
#[command(after_help = "Options for -o:
  ro, rw                            read-only or read-write (rw)
  data=ordered|journal|writeback    what a commit does with file data (ordered)
  commit=SECONDS                    longest time a change stays in memory only (5)
  cache=SIZE                        memory for file pages and metadata (256M)
  noatime, relatime, strictatime    when access times change (relatime)
  allow_other                       let other users in (root's mounts always do)
  dev, suid, exec, sync             and their opposites with no in front
  threads=N                         requests served at once (16)
  log=FILE                          where the serving process writes its log
  power-cut=SEED                    hold unflushed writes in memory: kill -9 of the serving process
                                    loses them at random, as a disk that loses power does
The usual words of fstab (defaults, noauto, nofail, user, _netdev, x-...) are accepted and mean nothing.

Exit status: 0 mounted, 1 wrong usage, 32 mount failed.")]
pub(crate) struct Mount {
    /// Mount options
    #[arg(short = 'o', long = "options", value_name = "OPTIONS", value_delimiter = ',')]
    pub(crate) options: Vec<String>,
    /// Stay in the foreground
    #[arg(short = 'f', long)]
    pub(crate) foreground: bool,
    /// Mount read-only
    #[arg(short = 'r', long)]
    pub(crate) read_only: bool,
    /// This is the serving process; tell on standard output when the mount can be used
    #[arg(long, hide = true)]
    pub(crate) serve: bool,
    /// The image file or block device
    pub(crate) image: OsString,
    /// The directory
    pub(crate) dir: PathBuf,
}

/// Unmount a directory, and wait until all is written
#[derive(Debug, Args)]
pub(crate) struct Umount {
    /// Take it out of the tree now, and end when its last file is closed
    #[arg(short = 'l', long)]
    pub(crate) lazy: bool,
    /// The directories
    #[arg(required = true)]
    pub(crate) dirs: Vec<PathBuf>,
}

/// Check a volume's consistency, replaying its journal first
///
/// Without -p or -y nothing is changed: a journal that must be replayed is replayed in memory.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit status, as of fsck(8): 0 no errors, 1 errors corrected, 4 errors left, 8 operational error,
16 wrong usage."
)]
pub(crate) struct Check {
    /// Change nothing (the default)
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    pub(crate) no: bool,
    /// Repair what can be repaired safely
    #[arg(short = 'p', visible_short_alias = 'a', conflicts_with = "yes")]
    pub(crate) preen: bool,
    /// Repair everything
    #[arg(short = 'y')]
    pub(crate) yes: bool,
    /// For the habit of fsck: a volume is always checked, even one that says it is clean
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The image file or block device
    pub(crate) image: OsString,
}

/// Say what a volume is
#[derive(Debug, Args)]
pub(crate) struct Info {
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The image file or block device
    pub(crate) image: OsString,
}

/// List directories
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Ls {
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Mode, links, owner, size and time too
    #[arg(short = 'l')]
    pub(crate) long: bool,
    /// Names that begin with a dot too
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// As -a, without . and ..
    #[arg(short = 'A', long)]
    pub(crate) almost_all: bool,
    /// Directories below too
    #[arg(short = 'R', long)]
    pub(crate) recursive: bool,
    /// Sizes as 4.0K, 1.5G
    #[arg(short = 'h', long)]
    pub(crate) human_readable: bool,
    /// Inode numbers
    #[arg(short = 'i', long)]
    pub(crate) inode: bool,
    /// One name a line
    #[arg(short = '1')]
    pub(crate) one: bool,
    /// Directories themselves, not what is in them
    #[arg(short = 'd', long)]
    pub(crate) directory: bool,
    /// Newest first
    #[arg(short = 't')]
    pub(crate) by_time: bool,
    /// Largest first
    #[arg(short = 'S')]
    pub(crate) by_size: bool,
    /// The other way round
    #[arg(short = 'r', long)]
    pub(crate) reverse: bool,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// What to list: IMAGE or IMAGE:/path
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    pub(crate) places: Vec<OsString>,
}

/// Draw directories as a tree
#[derive(Debug, Args)]
pub(crate) struct Tree {
    /// Names that begin with a dot too
    #[arg(short = 'a', long)]
    pub(crate) all: bool,
    /// Directories only
    #[arg(short = 'd')]
    pub(crate) directories: bool,
    /// At most this many levels
    #[arg(short = 'L', long, value_name = "LEVEL")]
    pub(crate) level: Option<usize>,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// Where to begin: IMAGE or IMAGE:/path
    #[arg(value_name = "IMAGE[:/PATH]")]
    pub(crate) place: OsString,
}

/// Find files by name and kind
#[derive(Debug, Args)]
#[command(after_help = "The options may be written as find(1) does, with one dash: -name '*.so' -type f")]
pub(crate) struct Find {
    /// Where to begin: IMAGE or IMAGE:/path
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    pub(crate) places: Vec<OsString>,
    /// Names that match this pattern: * ? [a-z]
    #[arg(long, value_name = "PATTERN")]
    pub(crate) name: Option<OsString>,
    /// As --name, and upper case is lower case
    #[arg(long, value_name = "PATTERN")]
    pub(crate) iname: Option<OsString>,
    /// f file, d directory, l symbolic link, b c device, p pipe, s socket
    #[arg(long = "type", value_name = "LETTERS", value_delimiter = ',')]
    pub(crate) kinds: Vec<char>,
    /// At most this far below
    #[arg(long, value_name = "LEVELS")]
    pub(crate) maxdepth: Option<usize>,
    /// At least this far below
    #[arg(long, value_name = "LEVELS", default_value_t = 0)]
    pub(crate) mindepth: usize,
    /// End each with a zero byte
    #[arg(long)]
    pub(crate) print0: bool,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Say all about files
#[derive(Debug, Args)]
pub(crate) struct Stat {
    /// Through symbolic links
    #[arg(short = 'L', long)]
    pub(crate) dereference: bool,
    /// Report as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The files: IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub(crate) places: Vec<OsString>,
}

/// Write files to standard output
#[derive(Debug, Args)]
pub(crate) struct Cat {
    /// The files: IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub(crate) places: Vec<OsString>,
}

/// Take one file out
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The file: IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    pub(crate) place: OsString,
    /// Where to put it: a file, a directory, or - for standard output; the same name here without it
    pub(crate) file: Option<PathBuf>,
}

/// Put one file in
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// Its permissions, in octal; without it, those of the file, 644 for standard input
    #[arg(short = 'm', long, value_parser = parse_mode)]
    pub(crate) mode: Option<u16>,
    /// The file, or - for standard input
    pub(crate) file: PathBuf,
    /// Where to put it: IMAGE:/path
    #[arg(value_name = "IMAGE:/PATH")]
    pub(crate) place: OsString,
}

/// Copy into, out of, between and within volumes
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  onggi cp -a rootfs/. disk.img:/
  onggi cp -r disk.img:/etc here/
  onggi cp -a old.img:/home new.img:/")]
pub(crate) struct Cp {
    /// Directories with all that is in them
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    pub(crate) recursive: bool,
    /// As -r and -p, and symbolic links, hard links, devices and extended attributes as they are
    #[arg(short = 'a', long)]
    pub(crate) archive: bool,
    /// Keep modes, owners and times
    #[arg(short = 'p')]
    pub(crate) preserve: bool,
    /// Leave files alone that are there
    #[arg(short = 'n', long)]
    pub(crate) no_clobber: bool,
    /// Say what is copied
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// What to copy, and where to
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... TARGET")]
    pub(crate) places: Vec<OsString>,
}

/// Move and rename
#[derive(Debug, Args)]
pub(crate) struct Mv {
    /// Leave files alone that are there
    #[arg(short = 'n', long)]
    pub(crate) no_clobber: bool,
    /// Say what is moved
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// What to move, and where to
    #[arg(required = true, num_args = 2.., value_name = "SOURCE... TARGET")]
    pub(crate) places: Vec<OsString>,
}

/// Remove files and directories
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Directories with all that is in them
    #[arg(short = 'r', visible_short_alias = 'R', long)]
    pub(crate) recursive: bool,
    /// Empty directories
    #[arg(short = 'd', long)]
    pub(crate) dir: bool,
    /// Names that are not there are no error
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Say what is removed
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// What to remove: IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub(crate) places: Vec<OsString>,
}

/// Make directories
#[derive(Debug, Args)]
pub(crate) struct Mkdir {
    /// Those above it too, and one that is there is no error
    #[arg(short = 'p', long)]
    pub(crate) parents: bool,
    /// Permissions, in octal
    #[arg(short = 'm', long, value_parser = parse_mode)]
    pub(crate) mode: Option<u16>,
    /// Say what is made
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// The directories: IMAGE:/path
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub(crate) places: Vec<OsString>,
}

/// Make links
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  onggi ln disk.img:/bin/busybox disk.img:/bin/sh
  onggi ln -s ../lib/libc.so.6 disk.img:/lib64/libc.so")]
pub(crate) struct Ln {
    /// Symbolic: the target is written as it is
    #[arg(short = 's', long)]
    pub(crate) symbolic: bool,
    /// Replace a name that is there
    #[arg(short = 'f', long)]
    pub(crate) force: bool,
    /// Say what is linked
    #[arg(short = 'v', long)]
    pub(crate) verbose: bool,
    /// IMAGE:/path of the file, or with -s any text
    pub(crate) target: OsString,
    /// The new name, or a directory to put it into
    #[arg(value_name = "IMAGE:/PATH")]
    pub(crate) place: OsString,
}

/// Write a shell's completions to standard output
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages into a directory
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Man {
    /// The directory
    pub(crate) dir: PathBuf,
}

fn parse_mode(text: &str) -> Result<u16, String> {
    match u16::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 => Ok(mode),
        _ => Err("expected up to four octal digits, as 755".into()),
    }
}

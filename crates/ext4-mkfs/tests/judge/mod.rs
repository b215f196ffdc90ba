//! Images in a temporary folder and what e2fsprogs says of them.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use onggi_ext4_mkfs::{MkfsError, Options, Summary, format};
use onggi_file_device::FileDevice;

pub const UUID: [u8; 16] = *b"\x1b\x2c\x3d\x4e\x5f\x60\x47\x18\x89\x9a\xab\xbc\xcd\xde\xef\xf0";
pub const SEED: [u8; 16] = *b"\xa1\xb2\xc3\xd4\xe5\xf6\x47\x08\x99\x1a\x2b\x3c\x4d\x5e\x6f\x70";
pub const NOW: u64 = 1_700_000_000;

pub fn options() -> Options {
    Options::new(UUID, SEED, NOW)
}

pub fn dashed(id: [u8; 16]) -> String {
    let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

/// Whether `program` can be run; says so where it cannot.
pub fn has(program: &str) -> bool {
    let there = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
    let there = there.is_ok_and(|output| output.status.success());
    if !there {
        println!("skipped: there is no {program} here");
    }
    there
}

pub fn make(path: &Path, bytes: u64, options: &Options) -> Result<Summary, MkfsError> {
    let device = FileDevice::create(path, bytes).expect("image");
    format(&device, options)
}

pub fn image(folder: &Path, name: &str) -> PathBuf {
    folder.join(name)
}

pub fn run(program: &str, args: &[&str]) -> Output {
    Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .env("E2FSPROGS_FAKE_TIME", NOW.to_string())
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"))
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// Passes when e2fsck finds nothing at all to say against the image.
pub fn assert_clean(path: &Path, what: &str) {
    let output = run("e2fsck", &["-fn", path.to_str().unwrap()]);
    assert!(output.status.code() == Some(0), "{what}: e2fsck says\n{}", text(&output));
}

/// `dumpe2fs -h`, field by field.
pub fn fields(path: &Path) -> BTreeMap<String, String> {
    let output = run("dumpe2fs", &["-h", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output));
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(field, value)| (field.trim().to_string(), value.trim().to_string()))
        .collect()
}

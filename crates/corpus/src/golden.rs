//! Valid images worth mutating, and the recipe that makes them.
//!
//! The recipe uses `mke2fs -d`, `debugfs` and `e2fsck` of e2fsprogs, so that what is mutated does not come
//! from our own writing code. The images hold: nested directories, an indexed directory of two levels, hard
//! and symbolic links, sparse files with extent trees of depth two, attributes in inodes and in blocks.

use std::path::Path;
use std::process::{Command, Stdio};

use onggi_disk_format::ext4::RawSuperblock;
use onggi_disk_format::ext4::inode::RawInode;

use crate::field::{Order, fields};
use crate::seal;
use crate::survey::Survey;

/// Features over mke2fs's defaults, block size, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// A name for messages.
    pub name: &'static str,
    /// `-O` list.
    pub features: &'static str,
    /// `-b`.
    pub block_size: u32,
    /// Size of the image.
    pub bytes: u64,
}

/// The recipes: small, each for code that the others do not reach.
pub const RECIPES: [Recipe; 5] = [
    Recipe { name: "default", features: "", block_size: 1024, bytes: 8 << 20 },
    Recipe {
        name: "orphan-file",
        features: "orphan_file,metadata_csum_seed",
        block_size: 1024,
        bytes: 8 << 20,
    },
    Recipe { name: "plain", features: "^metadata_csum,^64bit", block_size: 1024, bytes: 8 << 20 },
    Recipe { name: "pointers", features: "^64bit,^extent", block_size: 1024, bytes: 8 << 20 },
    Recipe { name: "large-blocks", features: "orphan_file", block_size: 4096, bytes: 24 << 20 },
];

/// Makes the image of `recipe` in `folder` (for temporary files). `None`, with a line that says why, where
/// e2fsprogs is missing.
///
/// # Panics
/// When e2fsprogs is there but fails.
#[must_use]
pub fn make(recipe: &Recipe, folder: &Path) -> Option<Vec<u8>> {
    let tree = folder.join("tree");
    plant(&tree);
    let path = folder.join(recipe.name);
    std::fs::File::create(&path).and_then(|file| file.set_len(recipe.bytes)).expect("image");
    let image = path.to_str().expect("a path in UTF-8");
    let (size, tree_text) =
        (recipe.block_size.to_string(), tree.to_str().expect("a path in UTF-8").to_string());
    let mut args = vec!["-q", "-F", "-t", "ext4", "-b", &size, "-i", "4096", "-E", HASH_SEED, "-U", UUID];
    args.extend(["-d", &tree_text]);
    if !recipe.features.is_empty() {
        args.extend(["-O", recipe.features]);
    }
    args.push(image);
    run("mke2fs", &args, "", &[0])?;
    let attributes = attribute_script();
    run("debugfs", &["-w", "-f", "-", image], &attributes, &[0])?;
    // Indexes the directories; 1 says that something was changed.
    run("e2fsck", &["-fyD", image], "", &[0, 1])?;
    let mut bytes = std::fs::read(&path).expect("image");
    stop_the_clock(&mut bytes);
    std::fs::write(&path, &bytes).expect("image");
    run("e2fsck", &["-fn", image], "", &[0])?;
    Some(bytes)
}

/// Sets every time stamp to one moment: what the recipe makes is the same each time.
fn stop_the_clock(image: &mut [u8]) {
    let survey = Survey::of(image).expect("e2fsck took it");
    let mut times = fields!(RawInode: i_atime i_ctime i_mtime);
    let mut rest = Vec::new();
    if survey.sb.inode_size() > 128 {
        times.extend(fields!(RawInode: i_crtime));
        rest.extend(fields!(RawInode: i_atime_extra i_ctime_extra i_mtime_extra i_crtime_extra));
    }
    for used in &survey.inodes {
        let bytes = survey.inode_bytes(image, used.nr).expect("it was read");
        times.iter().for_each(|field| field.set(bytes, Order::Little, NOW));
        rest.iter().for_each(|field| field.set(bytes, Order::Little, 0));
        seal::inode(image, &survey, used.nr);
    }
    for field in fields!(RawSuperblock: s_wtime s_lastcheck) {
        field.set(&mut image[1024..2048], Order::Little, NOW);
    }
    seal::superblock(image, &survey);
}

/// The moment of every time stamp.
const NOW: u64 = 1_700_000_000;

const UUID: &str = "6f6e6767-692d-4d6f-8c64-656e20696d67";
const HASH_SEED: &str = "hash_seed=2f6e6767-692d-4d6f-8c64-656e20696d67";

/// Runs a program with `input`. `None` where it is missing.
fn run(program: &str, args: &[&str], input: &str, good: &[i32]) -> Option<()> {
    use std::io::Write;
    let child = Command::new(program)
        .args(args)
        .env("E2FSPROGS_FAKE_TIME", NOW.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        println!("skipped: there is no {program} here");
        return None;
    };
    let mut stdin = child.stdin.take().expect("it was asked for");
    stdin.write_all(input.as_bytes()).expect("input");
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let code = output.status.code().unwrap_or(-1);
    assert!(
        good.contains(&code),
        "{program} {args:?}: {code}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Some(())
}

/// The tree that fills the image.
fn plant(tree: &Path) {
    use std::os::unix::fs::{FileExt, symlink};
    if tree.exists() {
        return;
    }
    let deep = tree.join("a/b/c/d");
    std::fs::create_dir_all(&deep).expect("folders");
    std::fs::write(deep.join("leaf"), vec![b'x'; 5000]).expect("file");
    std::fs::hard_link(deep.join("leaf"), tree.join("a/again")).expect("link");
    symlink("a/b/c/d/leaf", tree.join("short")).expect("link");
    symlink("n/".repeat(80), tree.join("long")).expect("link");
    let many = tree.join("many");
    std::fs::create_dir(&many).expect("folder");
    for number in 0..700 {
        let name = format!("entry-{number:04}-{}", "n".repeat(number % 60 + 20));
        std::fs::write(many.join(name), []).expect("file");
    }
    let holes = std::fs::File::create(tree.join("holes")).expect("file");
    for extent in 0..450 {
        holes.write_all_at(&[(extent % 251) as u8 + 1; 4096], extent * 8192).expect("file");
    }
    std::fs::write(tree.join("solid"), vec![7; 300_000]).expect("file");
}

/// Attributes that fit the inode and others that do not.
fn attribute_script() -> String {
    let mut script = String::new();
    for (file, count, len) in
        [("/solid", 2, 10), ("/short", 1, 8), ("/a/again", 6, 100), ("/a", 1, 20), ("/many", 3, 150)]
    {
        for number in 0..count {
            let value = "v".repeat(len);
            script.push_str(&format!("ea_set {file} user.name{number} {value}\n"));
        }
    }
    script
}

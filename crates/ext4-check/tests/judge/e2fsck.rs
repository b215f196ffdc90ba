//! Against e2fsck: both call the same volumes clean and the same ones broken.

use crate::images::{FILL, Image, RECIPES};
use onggi_ext4_check::Code;

#[test]
fn clean_volumes_are_clean() {
    for recipe in RECIPES {
        let Some(image) = Image::make("64M", recipe) else { return };
        image.assert_clean(recipe);
    }
}

#[test]
fn volumes_that_the_kernel_filled_are_clean() {
    for recipe in RECIPES {
        let Some(image) = Image::make("64M", &[recipe, &["-N", "8192"][..]].concat()) else { return };
        if !image.mounted(FILL) {
            continue;
        }
        let report = image.assert_clean(recipe);
        assert!(report.stats.names > 2000 && report.stats.directories > 10, "{:?}", report.stats);
    }
}

/// What a debugfs script breaks, and the problem that must be named.
const CORRUPTIONS: &[(&str, &str, Code)] = &[
    ("link count too high", "sif /file links_count 7", Code::LinkCount),
    ("link count zero", "sif /file links_count 0", Code::LinkCount),
    ("deleted without a time", "sif /file links_count 0\nsif /file dtime 0\nunlink /file", Code::Unlinked),
    ("in use with a deletion time", "sif /file dtime 12345", Code::DeletionTime),
    ("i_blocks", "sif /file blocks 99", Code::BlockCount),
    ("size too small", "sif /file size 10", Code::Size),
    ("directory size", "sif /many size 1024", Code::Size),
    ("mode", "sif /file mode 0", Code::Inode),
    ("mode names another type", "sif /file mode 0120644", Code::Symlink),
    ("flags", "sif /file flags 0", Code::Mapping),
    ("attribute block off the volume", "sif /file file_acl 99999999", Code::Attributes),
    ("attribute block is no such", "sif /file file_acl 7000", Code::Attributes),
    ("name gone", "unlink /file", Code::Disconnected),
    ("directory's name gone", "unlink /many", Code::Disconnected),
    ("name of a free inode", "link <2000> /ghost", Code::EntryInode),
    ("name of a reserved inode", "link <8> /ghost", Code::EntryInode),
    ("directory names a plain file", "ln /file/x /y\nsif /many mode 0100644", Code::Disconnected),
    ("second name of a directory", "link /many /twin", Code::DirectoryLinkedTwice),
    ("block marked free", "freeb FILEBLOCK 1", Code::BlockBitmap),
    ("block marked used", "setb 7000 3", Code::BlockBitmap),
    ("inode marked free", "freei /file", Code::InodeBitmap),
    ("inode marked used", "seti <3000>", Code::InodeBitmap),
    ("free blocks of the volume", "ssv free_blocks_count 7", Code::SuperblockCount),
    ("free inodes of the volume", "ssv free_inodes_count 7", Code::SuperblockCount),
    ("free blocks of a group", "set_bg 0 free_blocks_count 7\nset_bg 0 checksum calc", Code::GroupCount),
    ("free inodes of a group", "set_bg 0 free_inodes_count 7\nset_bg 0 checksum calc", Code::GroupCount),
    ("directories of a group", "set_bg 0 used_dirs_count 77\nset_bg 0 checksum calc", Code::GroupCount),
    ("inode table elsewhere", "set_bg 0 inode_table 9000\nset_bg 0 checksum calc", Code::Inode),
    ("orphan list of a free inode", "ssv last_orphan 3000", Code::Orphans),
    ("orphan that is linked and unlinked", "ssv last_orphan 12\nsif <12> dtime 12", Code::Orphans),
    ("group checksum", "set_bg 0 checksum 0x1234", Code::GroupChecksum),
    ("inode checksum", "sif /file checksum 0x1234", Code::InodeChecksum),
    ("extent start", "sif /file block[5] 20", Code::DoubleClaim),
    ("extent off the volume", "sif /file block[5] 0xfffffff0", Code::Mapping),
    ("extent magic", "sif /file block[0] 0x1f30b", Code::Mapping),
    ("extent count", "sif /file block[0] 0x9f30a", Code::Mapping),
];

/// Where e2fsck -n is silent: it takes the totals as hints, the orphan list as its own to clear, and turns
/// to the backup descriptors.
const ONLY_OURS: [&str; 4] = [
    "free blocks of the volume",
    "free inodes of the volume",
    "orphan list of a free inode",
    "group checksum",
];

/// Nobody can tell to whom these blocks belong.
const HOPELESS: [&str; 2] = ["extent start", "inode table elsewhere"];

#[test]
fn planted_corruptions_are_found_and_repaired() {
    for recipe in [&["-b", "4096", "-N", "8192"][..], &["-b", "1024", "-N", "8192", "-O", "^metadata_csum"]] {
        let Some(image) = Image::make("32M", recipe) else { return };
        if !image.mounted(FILL_FOR_CORRUPTION) {
            return;
        }
        image.assert_clean(recipe);
        let clean = image.bytes();
        let block = image.first_block("/file");
        let checksums = !recipe.contains(&"^metadata_csum");
        let mut failures = Vec::new();
        for (name, script, code) in CORRUPTIONS {
            if !checksums && name.ends_with("checksum") {
                continue;
            }
            image.restore(&clean);
            let said = image.debugfs(&script.replace("FILEBLOCK", &block));
            assert!(image.bytes() != clean, "{name}: the script changed nothing: {said}");
            if let Err(what) =
                image.found_and_repaired(*code, ONLY_OURS.contains(name), !HOPELESS.contains(name))
            {
                failures.push(format!("{recipe:?} {name}: {what}"));
            }
        }
        assert!(failures.is_empty(), "{}", failures.join("\n"));
    }
}

const FILL_FOR_CORRUPTION: &str = r#"
cd "$1"
head -c 100000 /dev/urandom > file
mkdir -p many/deep
i=0; while [ $i -lt 600 ]; do : > "many/a_rather_long_name_$i"; i=$((i+1)); done
ln -s target link
"#;

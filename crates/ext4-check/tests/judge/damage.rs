//! Damage behind right checksums: e2fsck and this check both see it, and a repair ends clean for both.

use onggi_disk_format::DiskBlock;
use onggi_ext4_check::{Code, Mode};

use crate::images::{FILL, Image};
use crate::patch::Patch;

type Plant = fn(&mut Patch);

/// What is done, the problem that must be named, and whether it can be repaired.
const DAMAGE: &[(&str, Code, bool, Plant)] = &[
    ("rec_len not a multiple of 4", Code::DirectoryBlock, true, |patch| {
        let (dir, block) = (patch.lookup("many/deep"), deep_block(patch));
        patch.edit_dir(dir, block, |bytes| bytes[24 + 4] += 1);
    }),
    ("rec_len past the block", Code::DirectoryBlock, true, |patch| {
        let (dir, block) = (patch.lookup("many/deep"), deep_block(patch));
        patch.edit_dir(dir, block, |bytes| bytes[24 + 5] = 0xff);
    }),
    ("a slash in a name", Code::DirectoryBlock, true, |patch| {
        let dir = patch.lookup("many/deep");
        let (block, offset, _) = patch.find(dir, b"d5");
        patch.edit_dir(dir, block, |bytes| bytes[offset + 9] = b'/');
    }),
    ("'.' names another", Code::DotEntries, true, |patch| {
        let (dir, block) = (patch.lookup("many/deep"), deep_block(patch));
        patch.edit_dir(dir, block, |bytes| bytes[0] = 11);
    }),
    ("'.' is gone", Code::DotEntries, true, |patch| {
        let (dir, block) = (patch.lookup("many/deep"), deep_block(patch));
        patch.edit_dir(dir, block, |bytes| bytes[8] = b'x');
    }),
    ("'..' names another", Code::DotEntries, true, |patch| {
        let (dir, block) = (patch.lookup("many/deep"), deep_block(patch));
        patch.edit_dir(dir, block, |bytes| bytes[12] = 11);
    }),
    ("a name twice", Code::DuplicateName, true, |patch| {
        let dir = patch.lookup("many/deep");
        let (block, offset, _) = patch.find(dir, b"d5");
        patch.edit_dir(dir, block, |bytes| bytes[offset + 9] = b'6');
    }),
    ("another '..'", Code::DotEntries, true, |patch| {
        let dir = patch.lookup("many/deep");
        let (block, offset, _) = patch.find(dir, b"d5");
        patch.edit_dir(dir, block, |bytes| bytes[offset + 8..offset + 10].copy_from_slice(b".."));
    }),
    ("file type of a name", Code::EntryType, true, |patch| {
        let dir = patch.lookup("many/deep");
        let (block, offset, _) = patch.find(dir, b"d5");
        patch.edit_dir(dir, block, |bytes| bytes[offset + 7] = 1);
    }),
    ("a name of an inode past the last", Code::EntryInode, true, |patch| {
        let dir = patch.lookup("many/deep");
        let (block, offset, _) = patch.find(dir, b"d5");
        patch.edit_dir(dir, block, |bytes| bytes[offset + 3] = 0x7f);
    }),
    ("checksum of a directory block", Code::DirectoryChecksum, true, |patch| {
        let block = deep_block(patch);
        *patch.block(block).last_mut().unwrap() ^= 1;
    }),
    ("a directory block without its checksum entry", Code::DirectoryChecksum, true, |patch| {
        let block = deep_block(patch);
        let size = patch.block(block).len();
        patch.block(block)[size - 5] = 0;
    }),
    ("htree root's limit", Code::Htree, true, |patch| {
        let root = many_blocks(patch)[0];
        patch.block(root)[32] -= 1;
    }),
    ("htree hash order", Code::Htree, true, |patch| {
        let (dir, root) = (patch.lookup("many"), many_blocks(patch)[0]);
        patch.edit_dir(dir, root, |bytes| bytes[40..44].copy_from_slice(&[0xfe, 0xff, 0xff, 0xff]));
    }),
    ("htree names in the wrong leaf", Code::Htree, true, |patch| {
        let (dir, root) = (patch.lookup("many"), many_blocks(patch)[0]);
        patch.edit_dir(dir, root, |bytes| {
            let (first, second) = (bytes[44..48].to_vec(), bytes[52..56].to_vec());
            bytes[44..48].copy_from_slice(&second);
            bytes[52..56].copy_from_slice(&first);
        });
    }),
    ("htree names a block past the end", Code::Htree, true, |patch| {
        let (dir, root) = (patch.lookup("many"), many_blocks(patch)[0]);
        patch.edit_dir(dir, root, |bytes| bytes[46] = 0x10);
    }),
    ("htree levels", Code::Htree, true, |patch| {
        let (dir, root) = (patch.lookup("many"), many_blocks(patch)[0]);
        patch.edit_dir(dir, root, |bytes| bytes[30] = 3);
    }),
    ("htree checksum", Code::Htree, true, |patch| {
        let root = many_blocks(patch)[0];
        *patch.block(root).last_mut().unwrap() ^= 1;
    }),
    ("extent order", Code::Mapping, true, |patch| {
        let (nr, node) = sparse_leaf(patch);
        patch.edit_extents(nr, node, |bytes| {
            let (first, second) = (bytes[24..36].to_vec(), bytes[36..48].to_vec());
            bytes[24..36].copy_from_slice(&second);
            bytes[36..48].copy_from_slice(&first);
        });
    }),
    ("extent depth", Code::Mapping, true, |patch| {
        let (nr, node) = sparse_leaf(patch);
        patch.edit_extents(nr, node, |bytes| bytes[6] = 1);
    }),
    ("extent of no length", Code::Mapping, true, |patch| {
        let (nr, node) = sparse_leaf(patch);
        patch.edit_extents(nr, node, |bytes| bytes[28..30].fill(0));
    }),
    ("leaf starts past its parent's key", Code::Mapping, true, |patch| {
        let (nr, node) = sparse_leaf(patch);
        patch.edit_extents(nr, node, |bytes| bytes[12] += 1);
    }),
    ("extent block's checksum", Code::MappingChecksum, true, |patch| {
        let (_, node) = sparse_leaf(patch);
        let size = patch.block(node).len();
        patch.block(node)[size - 4..].iter_mut().for_each(|byte| *byte ^= 0x55);
    }),
    ("two files share a block", Code::DoubleClaim, false, |patch| {
        let (nr, node) = sparse_leaf(patch);
        let other = patch.lookup("many/deep/d3/file");
        let block = patch.blocks(other).0.first().copied().unwrap_or(deep_block(patch));
        patch.edit_extents(nr, node, |bytes| bytes[20..24].copy_from_slice(&(block as u32).to_le_bytes()));
    }),
    ("a file claims the inode table", Code::DoubleClaim, false, |patch| {
        let (nr, node) = sparse_leaf(patch);
        let (descriptors, _) = patch.sb.descriptor_location(onggi_disk_format::GroupNr(0));
        let block = descriptors.0 as u32;
        patch.edit_extents(nr, node, |bytes| bytes[20..24].copy_from_slice(&block.to_le_bytes()));
    }),
    ("a directory that counts one link", Code::LinkCount, true, |patch| {
        let dir = patch.lookup("many/deep");
        patch.edit_inode(dir, |inode| inode.links_count = 1);
    }),
    ("the error that stopped the journal", Code::Journal, true, |patch| {
        edit_journal(patch, |bytes| bytes[0x20..0x24].copy_from_slice(&5_u32.to_be_bytes()));
    }),
    ("a journal longer than its file", Code::Journal, false, |patch| {
        edit_journal(patch, |bytes| bytes[0x10] = 0x40);
    }),
    ("attribute users", Code::AttributeRefcount, true, |patch| {
        let block = shared_attributes(patch);
        patch.edit_attributes(block, |bytes| bytes[4] += 1);
    }),
    ("attribute value out of its block", Code::Attributes, true, |patch| {
        let block = shared_attributes(patch);
        patch.edit_attributes(block, |bytes| bytes[32 + 2..32 + 4].fill(0xf0));
    }),
    ("attribute hash", Code::Attributes, true, |patch| {
        let block = shared_attributes(patch);
        patch.edit_attributes(block, |bytes| bytes[32 + 12] ^= 1);
    }),
    ("attribute block's checksum", Code::Attributes, true, |patch| {
        let block = shared_attributes(patch);
        patch.block(block)[16] ^= 1;
    }),
    ("attribute block's magic", Code::Attributes, true, |patch| {
        let block = shared_attributes(patch);
        patch.edit_attributes(block, |bytes| bytes[0] = 1);
    }),
    ("attribute in the inode", Code::Attributes, true, |patch| {
        let nr = patch.lookup("attrs");
        let extra = usize::from(patch.inode(nr).extra_isize);
        patch.edit_inode_bytes(nr, |bytes| bytes[128 + extra + 4 + 24 + 2..][..2].fill(0xf0));
    }),
    ("short symbolic link", Code::Symlink, true, |patch| {
        let nr = patch.lookup("link");
        patch.edit_inode(nr, |inode| inode.size = 3);
    }),
    ("long symbolic link", Code::Symlink, true, |patch| {
        let nr = patch.lookup("longlink");
        patch.edit_inode(nr, |inode| inode.size = 100);
    }),
    ("a pipe with a size", Code::Inode, false, |patch| {
        let nr = patch.lookup("fifo");
        patch.edit_inode(nr, |inode| inode.size = 3);
    }),
    ("i_extra_isize", Code::Inode, true, |patch| {
        let nr = patch.lookup("many/deep/d3/file");
        patch.edit_inode_bytes(nr, |bytes| bytes[128] = 250);
    }),
    ("unused inodes that are used", Code::InodeBitmap, true, |patch| {
        let inodes = patch.sb.inodes_per_group();
        patch.edit_group(0, |group| group.itable_unused = inodes - 20);
    }),
    ("block bitmap's checksum", Code::BitmapChecksum, true, |patch| {
        patch.edit_group(0, |group| group.block_bitmap_csum ^= 1);
    }),
    ("inode bitmap's checksum", Code::BitmapChecksum, true, |patch| {
        patch.edit_group(0, |group| group.inode_bitmap_csum ^= 1);
    }),
    ("used group marked as never written", Code::BlockBitmap, true, |patch| {
        patch.edit_group(0, |group| group.flags.insert(onggi_disk_format::ext4::GroupFlags::BLOCK_UNINIT));
    }),
    ("inode bitmap on the block bitmap", Code::MetadataOverlap, false, |patch| {
        patch.edit_group(0, |group| group.inode_bitmap = group.block_bitmap);
    }),
    ("resize inode", Code::ResizeInode, false, |patch| {
        let at = patch.inode(onggi_disk_format::InodeNr(7)).i_block;
        let block = u32::from_le_bytes(at[52..56].try_into().unwrap());
        patch.block(u64::from(block))[..64].fill(9);
    }),
    ("a directory in itself", Code::DirectoryLoop, false, |patch| {
        // many/deep/d5 and deep change names with each other's parents: deep hangs below d5.
        let (many, deep) = (patch.lookup("many"), patch.lookup("many/deep"));
        let (block, offset, _) = patch.find(many, b"deep");
        let (in_deep, at, d5) = patch.find(deep, b"d5");
        patch.edit_dir(many, block, |bytes| bytes[offset..offset + 4].copy_from_slice(&d5.0.to_le_bytes()));
        patch.edit_dir(deep, in_deep, |bytes| bytes[at..at + 4].copy_from_slice(&deep.0.to_le_bytes()));
    }),
    ("a directory's hole", Code::DirectoryHole, false, |patch| {
        let nr = patch.lookup("many/deep");
        patch.edit_inode(nr, |inode| inode.i_block[12] = 1);
    }),
    ("an attribute block of two volumes", Code::Attributes, true, |patch| {
        let nr = patch.lookup("many/deep/d3/file");
        let blocks = patch.sb.blocks_count();
        patch.edit_inode_bytes(nr, |bytes| bytes[0x68..0x6c].copy_from_slice(&(blocks as u32).to_le_bytes()));
    }),
    ("orphan list in a circle", Code::Orphans, true, |patch| {
        let (first, second) = (patch.lookup("sparse"), patch.lookup("attrs"));
        patch.edit_inode(first, |inode| inode.dtime = second.0);
        patch.edit_inode(second, |inode| inode.dtime = first.0);
        patch.edit_super(|raw| raw.s_last_orphan.set(first.0));
    }),
];

/// Where e2fsck -n is silent, or takes it as no fault.
const ONLY_OURS: [&str; 1] = ["extent depth"];

fn deep_block(patch: &mut Patch) -> u64 {
    let nr = patch.lookup("many/deep");
    patch.blocks(nr).0[0]
}

fn many_blocks(patch: &mut Patch) -> Vec<u64> {
    let nr = patch.lookup("many");
    patch.blocks(nr).0
}

fn sparse_leaf(patch: &mut Patch) -> (onggi_disk_format::InodeNr, u64) {
    let nr = patch.lookup("sparse");
    (nr, patch.blocks(nr).1[0])
}

fn shared_attributes(patch: &mut Patch) -> u64 {
    let nr = patch.lookup("same3");
    let DiskBlock(block) = patch.inode(nr).file_acl;
    block
}

/// Changes the journal's superblock.
fn edit_journal(patch: &mut Patch, change: impl FnOnce(&mut [u8])) {
    let (blocks, _) = patch.blocks(onggi_disk_format::InodeNr(8));
    let bytes = &mut patch.block(blocks[0])[..1024];
    change(bytes);
    if bytes[0x2b] & 0x18 != 0 {
        bytes[0xfc..0x100].fill(0);
        let sum = onggi_disk_format::checksum::crc32c(!0, bytes);
        bytes[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    }
}

#[test]
fn damage_behind_right_checksums() {
    let Some(image) = Image::make("32M", &["-b", "4096", "-N", "8192"]) else { return };
    if !image.mounted(FILL) {
        return;
    }
    image.assert_clean(&[]);
    let clean = image.bytes();
    let mut failures = Vec::new();
    for (name, code, repairable, plant) in DAMAGE {
        let mut patch = Patch::new(clean.clone());
        plant(&mut patch);
        assert!(patch.bytes != clean, "{name}: nothing changed");
        image.restore(&patch.bytes);
        let silent = ONLY_OURS.contains(name);
        if let Err(what) = image.found_and_repaired(*code, silent, *repairable) {
            failures.push(format!("{name}: {what}"));
        }
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), DAMAGE.len(), failures.join("\n"));
    assert!(image.check(Mode::ReadOnly).is_ok());
}

//! Images that are no volume, or one whose superblock or journal claims the impossible.

use onggi_corpus::Random;
use onggi_disk_format::GroupNr;
use onggi_disk_format::checksum::crc32c;
use onggi_disk_format::ext4::{GroupDescriptor, Superblock, inode};

use crate::watch::{self, Case, Watched};
use crate::{images, whole_way};

/// The image is made when its turn comes.
fn case(label: String, make: impl FnOnce() -> Vec<u8> + Send + 'static) -> Case {
    Case { label, work: Box::new(move |watched: &mut Watched| whole_way(watched, &make(), 0)) }
}

#[test]
fn bytes_that_are_no_volume() {
    let mut cases = Vec::new();
    for len in [0, 1, 511, 512, 1023, 1024, 1025, 2047, 2048, 4096, 65536, 1 << 20] {
        cases.push(case(format!("{len} zeroes"), move || vec![0; len]));
        cases.push(case(format!("{len} x 0xff"), move || vec![0xff; len]));
        cases.push(case(format!("{len} random bytes"), move || {
            let mut random = Random::new(len as u64);
            (0..len).map(|_| random.number() as u8).collect()
        }));
    }
    watch::run(cases);
}

#[test]
fn volumes_cut_at_every_power_of_two() {
    let mut cases = Vec::new();
    for (recipe, image) in images() {
        for power in 0..usize::BITS {
            let len = 1 << power;
            if len < image.len() {
                cases.push(case(format!("{recipe} cut to {len} bytes"), move || image[..len].to_vec()));
                // The device has its size, and the rest was never written.
                cases.push(case(format!("{recipe} zeroed from byte {len}"), move || {
                    let mut image = image.to_vec();
                    image[len..].fill(0);
                    image
                }));
            }
        }
    }
    watch::run(cases);
}

type Change = (&'static str, fn(&mut [u8]));

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// What a superblock claims.
const CLAIMS: [Change; 16] = [
    ("2^48 blocks", |sb| {
        put32(sb, 0x4, 0);
        put32(sb, 0x150, 1 << 16);
    }),
    ("2^64 - 1 blocks", |sb| {
        put32(sb, 0x4, !0);
        put32(sb, 0x150, !0);
    }),
    ("2^32 - 1 blocks", |sb| put32(sb, 0x4, !0)),
    ("no block", |sb| put32(sb, 0x4, 0)),
    ("one block more", |sb| put32(sb, 0x4, get32(sb, 0x4) + 1)),
    ("twice the blocks", |sb| put32(sb, 0x4, get32(sb, 0x4) * 2)),
    ("two blocks", |sb| put32(sb, 0x4, 2)),
    ("2^32 - 1 inodes", |sb| put32(sb, 0x0, !0)),
    ("no inode", |sb| put32(sb, 0x0, 0)),
    ("2^32 - 1 inodes in a group", |sb| put32(sb, 0x28, !0)),
    ("2^32 - 1 blocks in a group", |sb| put32(sb, 0x20, !0)),
    ("one block in a group", |sb| put32(sb, 0x20, 1)),
    ("eight blocks in a group", |sb| put32(sb, 0x20, 8)),
    ("blocks of 2^255 bytes", |sb| put32(sb, 0x18, 255)),
    ("blocks of 64 KiB", |sb| put32(sb, 0x18, 6)),
    ("free blocks past all", |sb| {
        put32(sb, 0xc, !0);
        put32(sb, 0x10, !0);
    }),
];

fn seal_superblock(image: &mut [u8]) {
    let sum = crc32c(!0, &image[1024..2044]);
    put32(image, 2044, sum);
}

#[test]
fn superblocks_that_claim_the_impossible() {
    let mut cases = Vec::new();
    for (recipe, image) in images() {
        for (claim, change) in CLAIMS {
            let claiming = move || {
                let mut image = image.to_vec();
                change(&mut image[1024..2048]);
                seal_superblock(&mut image);
                image
            };
            cases.push(case(format!("{recipe}: {claim}"), claiming));
            cases.push(case(format!("{recipe} in 64 KiB: {claim}"), move || claiming()[..1 << 16].to_vec()));
        }
    }
    watch::run(cases);
}

/// First byte of the journal's inode.
fn journal_inode(image: &[u8]) -> (Superblock, usize) {
    let sb = Superblock::parse(&image[1024..2048]).expect("a valid volume");
    let nr = sb.journal_inode().expect("it has a journal");
    let (block, byte) = sb.descriptor_location(GroupNr(0));
    let size = sb.block_size() as usize;
    let at = block.0 as usize * size + byte;
    let len = usize::from(sb.descriptor_size());
    let group = GroupDescriptor::read(&sb, GroupNr(0), &image[at..at + len]).expect("a valid descriptor");
    let place = sb.inode_location(nr).expect("an inode");
    let table = group.inode_table.0 as usize * size;
    (sb, table + place.table_block as usize * size + place.byte)
}

/// Changes the journal's inode or the journal's superblock: the image, its first byte there, bytes of a block.
type JournalChange = (&'static str, fn(&mut [u8], usize, usize));

const OF_INODE: [JournalChange; 8] = [
    ("lies on its own inode", |image, inode, size| put32(image, inode + 60, (inode / size) as u32)),
    ("lies on the superblock", |image, inode, size| put32(image, inode + 60, (1024 / size) as u32)),
    ("has no block", |image, inode, _| put32(image, inode + 4, 0)),
    ("has 2^31 blocks", |image, inode, size| {
        let bytes = (size as u64) << 31;
        put32(image, inode + 4, bytes as u32);
        put32(image, inode + 108, (bytes >> 32) as u32);
    }),
    ("has 2^63 bytes", |image, inode, _| put32(image, inode + 108, 1 << 31)),
    ("has no extent", |image, inode, _| image[inode + 42..inode + 44].fill(0)),
    ("is a directory", |image, inode, _| image[inode + 1] = 0x41),
    ("has an extent of depth five", |image, inode, _| image[inode + 46] = 5),
];

const OF_LOG: [JournalChange; 9] = [
    ("claims no block", |image, at, _| image[at + 0x10..at + 0x14].fill(0)),
    ("claims 2^31 blocks", |image, at, _| image[at + 0x10] = 0x80),
    ("claims blocks of no bytes", |image, at, _| image[at + 0xc..at + 0x10].fill(0)),
    ("begins past its end", |image, at, _| image[at + 0x1c] = 0x7f),
    ("begins at its last block", |image, at, _| {
        let last = u32::from_be_bytes([image[at + 16], image[at + 17], image[at + 18], image[at + 19]]) - 1;
        image[at + 0x1c..at + 0x20].copy_from_slice(&last.to_be_bytes());
    }),
    ("begins at its superblock's next", |image, at, _| image[at + 0x1f] = 1),
    ("has its first block past its end", |image, at, _| image[at + 0x14] = 0x7f),
    ("has its first block at the superblock", |image, at, _| image[at + 0x14..at + 0x18].fill(0)),
    ("has 2^30 blocks of fast commits", |image, at, _| {
        image[at + 0x2b] |= 0x20;
        image[at + 0x54] = 0x40;
    }),
];

#[test]
fn journals_that_claim_the_impossible() {
    let mut cases = Vec::new();
    for (recipe, image) in images() {
        let (sb, at) = journal_inode(image);
        // Not where the journal has block pointers: the offsets are those of an extent root.
        if get32(image, at + 32) & 0x8_0000 == 0 {
            continue;
        }
        // A flagged superblock makes the engine and the check replay.
        for dirty in [false, true] {
            let replay = if dirty { ", to be replayed" } else { "" };
            for &(what, change) in &OF_INODE {
                let sb = sb.clone();
                cases.push(case(format!("{recipe}: the journal {what}{replay}"), move || {
                    let mut image = image.to_vec();
                    change(&mut image, at, sb.block_size() as usize);
                    let nr = sb.journal_inode().expect("it has a journal");
                    inode::set_checksum(&sb, nr, &mut image[at..at + usize::from(sb.inode_size())]);
                    mark(&mut image, dirty);
                    image
                }));
            }
            let size = sb.block_size() as usize;
            for &(what, change) in &OF_LOG {
                cases.push(case(format!("{recipe}: the log {what}{replay}"), move || {
                    let mut image = image.to_vec();
                    let log = get32(&image, at + 60) as usize * size;
                    change(&mut image, log, size);
                    seal_log(&mut image[log..log + 1024]);
                    mark(&mut image, dirty);
                    image
                }));
            }
        }
    }
    watch::run(cases);
}

/// Makes the log superblock's checksum right where it has one.
fn seal_log(head: &mut [u8]) {
    if head[0x2b] & 0x18 != 0 {
        head[0xfc..0x100].fill(0);
        let sum = crc32c(!0, head);
        head[0xfc..0x100].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Says in the superblock whether the journal is to be replayed.
fn mark(image: &mut [u8], dirty: bool) {
    image[1024 + 0x60] = image[1024 + 0x60] & !4 | if dirty { 4 } else { 0 };
    seal_superblock(image);
}

//! No bytes make a parser panic, and what a parser accepts its writer gives back.

use onggi_disk_format::ext4::superblock::Superblock;
use onggi_disk_format::ext4::{
    GroupDescriptor, Inode, RawSuperblock, RoCompat, dir, dirhash, extent, htree, inode, orphan, xattr,
};
use onggi_disk_format::jbd2::{self, JournalSuperblock, Layout};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr, Tid};
use proptest::prelude::*;
use zerocopy::FromZeros;

/// A volume of 64 MiB in 4 KiB blocks with or without checksums.
fn volume(checksums: bool, inode_size: u16) -> Superblock {
    let mut raw = RawSuperblock::new_zeroed();
    raw.s_magic.set(0xef53);
    raw.s_rev_level.set(1);
    raw.s_log_block_size.set(2);
    raw.s_log_cluster_size.set(2);
    raw.s_blocks_count_lo.set(16384);
    raw.s_inodes_count.set(8192);
    raw.s_blocks_per_group.set(32768);
    raw.s_clusters_per_group.set(32768);
    raw.s_inodes_per_group.set(8192);
    raw.s_first_ino.set(11);
    raw.s_inode_size.set(inode_size);
    raw.s_desc_size.set(64);
    raw.s_feature_incompat.set(0x2c2);
    raw.s_checksum_type = 1;
    raw.s_feature_ro_compat.set(if checksums { RoCompat::METADATA_CSUM.bits() | 0x6b } else { 0x6b });
    Superblock::from_raw(raw).unwrap()
}

/// A block of bytes that are mostly small numbers, so that lengths and counts are often plausible.
fn block() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => Just(0u8), 2 => 0u8..16, 1 => any::<u8>()];
    prop::collection::vec(byte, 4096)
}

/// A block that starts with `magic`.
fn block_with(magic: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    block().prop_map(move |mut block| {
        block[..magic.len()].copy_from_slice(&magic);
        block
    })
}

fn layout() -> impl Strategy<Value = Layout> {
    (0u32..2, prop::sample::select(vec![0u32, 1, 2, 8, 10, 16, 18])).prop_map(|(compat, incompat)| Layout {
        compat: jbd2::Compat::from_bits(compat),
        incompat: jbd2::Incompat::from_bits(incompat),
        seed: 7,
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn superblocks(mut bytes in prop::collection::vec(any::<u8>(), 0..1100), patch in any::<[u8; 96]>()) {
        let _ = Superblock::parse(&bytes);
        let _ = JournalSuperblock::parse(&bytes);
        // A valid superblock with its first fields patched.
        bytes = volume(false, 256).encode().to_vec();
        for (at, byte) in patch.iter().enumerate().filter(|(_, byte)| **byte < 40) {
            bytes[at] = *byte;
        }
        bytes[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
        if let Ok(sb) = Superblock::parse(&bytes) {
            for group in [0, 1, sb.groups() - 1, u32::MAX] {
                let _ = (sb.head_blocks(GroupNr(group)), sb.blocks_in_group(GroupNr(group)));
                let _ = (sb.descriptor_location(GroupNr(group)), sb.inode_at(GroupNr(group), 3));
                let _ = GroupDescriptor::parse(&sb, GroupNr(group), &bytes);
            }
            for nr in [0, 1, sb.inodes_count(), u32::MAX] {
                let _ = sb.inode_location(InodeNr(nr));
            }
            let _ = (sb.reserved_blocks(), sb.want_extra_isize(), sb.groups_per_flex());
            prop_assert_eq!(&sb.encode()[..], &bytes[..1024]);
        }
    }

    #[test]
    fn descriptors_and_inodes(bytes in block(), size in prop::sample::select(vec![128u16, 256, 1024])) {
        for checksums in [false, true] {
            let sb = volume(checksums, size);
            let _ = GroupDescriptor::parse(&sb, GroupNr(0), &bytes);
            let _ = Inode::parse(&sb, InodeNr(12), &bytes);
            if let Ok(inode) = Inode::read(&sb, InodeNr(12), &bytes) {
                let _ = (inode.device(), inode::xattr_area(&sb, inode.extra_isize));
                let mut again = bytes.clone();
                if inode.encode(&sb, InodeNr(12), &mut again).is_ok() {
                    inode::verify_checksum(&sb, InodeNr(12), &again).unwrap();
                    let once_more = Inode::read(&sb, InodeNr(12), &again).unwrap();
                    prop_assert_eq!(once_more.size, inode.size);
                    prop_assert_eq!(once_more.blocks, inode.blocks);
                    prop_assert_eq!(once_more.mtime, inode.mtime);
                }
            }
        }
    }

    #[test]
    fn extent_nodes(bytes in block_with(vec![0x0a, 0xf3]), depth in prop::option::of(0u16..6)) {
        let sb = volume(true, 256);
        let _ = extent::ExtentNode::parse(&sb, &bytes, depth);
        let _ = extent::ExtentNode::parse(&sb, &bytes[..60], depth);
        let _ = extent::verify_checksum(&bytes, 1);
        let _ = extent::set_checksum(&mut bytes.clone(), 1);
    }

    #[test]
    fn directories(mut bytes in block(), name in prop::collection::vec(any::<u8>(), 0..300), at in 0usize..4100) {
        for tail in [false, true] {
            prop_assert!(dir::entries(&bytes, 8192, tail).count() <= 4096 / 12 + 1);
            let _ = dir::insert(&mut bytes.clone(), tail, &name, InodeNr(5), 1);
            let _ = dir::remove(&mut bytes.clone(), tail, at);
            let _ = dir::replace(&mut bytes.clone(), tail, at, InodeNr(3), 2);
        }
        let _ = dir::verify_checksum(&bytes, 1);
        for checksum in [None, Some(1)] {
            let _ = htree::DxNode::parse_root(&bytes, checksum);
            let _ = htree::DxNode::parse_node(&bytes, checksum);
        }
        bytes[..8].copy_from_slice(&[0, 0, 0, 0, 0, 16, 0, 0]);
        let _ = htree::DxNode::parse_node(&bytes, None);
        let _ = htree::set_checksum(&mut bytes, 1);
        for short in [0, 1, 5, 11, 100] {
            let _ = dir::entries(&bytes[..short], 1, true).count();
            let _ = htree::shape(&bytes[..short]);
        }
    }

    #[test]
    fn names(name in prop::collection::vec(any::<u8>(), 0..256), seed in prop::option::of(any::<[u32; 4]>())) {
        for version in 0..6 {
            let version = dirhash::HashVersion::from_stored(version, false).unwrap();
            let (hash, _) = version.hash(&name, seed);
            prop_assert!(hash & 1 == 0 && hash < dirhash::END);
        }
    }

    #[test]
    fn attributes(bytes in block_with(vec![0, 0, 2, 0xea, 1, 0, 0, 0, 1, 0, 0, 0]), cut in 0usize..4096) {
        for checksums in [false, true] {
            let sb = volume(checksums, 256);
            let _ = xattr::parse_area(&sb, &bytes[..cut]);
            let _ = xattr::parse_block(&sb, &bytes, DiskBlock(9));
            let _ = xattr::parse_block(&sb, &bytes[..cut], DiskBlock(9));
            let _ = orphan::parse(&bytes[..cut], 8192, None);
            let _ = orphan::seal(&mut bytes.clone()[..cut], Some((1, DiskBlock(2))));
        }
    }

    #[test]
    fn attributes_come_back(
        list in prop::collection::vec(
            (prop::sample::select(vec![1u8, 4, 6]), any::<[u8; 7]>(), prop::collection::vec(any::<u8>(), 0..90)),
            0..20,
        ),
    ) {
        let sb = volume(true, 256);
        let xattrs: Vec<_> = list
            .into_iter()
            .map(|(index, name, value)| xattr::Xattr { index, name: name.to_vec(), value, value_inode: None })
            .collect();
        let mut block = vec![0xaa; 4096];
        xattr::encode_block(&sb, &mut block, DiskBlock(77), 3, &xattrs).unwrap();
        let back = xattr::parse_block(&sb, &block, DiskBlock(77)).unwrap();
        let mut sorted = xattrs.clone();
        sorted.sort_by_key(|xattr| (xattr.index, xattr.name.len(), xattr.name.clone()));
        prop_assert_eq!(back.xattrs, sorted);
        prop_assert_eq!(back.refcount, 3);
        xattr::set_refcount(&sb, &mut block, DiskBlock(77), 9);
        prop_assert_eq!(xattr::parse_block(&sb, &block, DiskBlock(77)).unwrap().refcount, 9);
        prop_assert!(xattr::parse_block(&sb, &block, DiskBlock(78)).is_err());
        let mut area = vec![0xaa; 4096 - 160];
        xattr::encode_area(&mut area, &xattrs).unwrap();
        prop_assert_eq!(xattr::parse_area(&sb, &area).unwrap(), xattrs);
        let mut small = [0u8; 96];
        if let Ok(()) = xattr::encode_area(&mut small, &back_in_order(&area, &sb)) {
            prop_assert_eq!(xattr::parse_area(&sb, &small).unwrap(), xattr::parse_area(&sb, &area).unwrap());
        }
    }

    #[test]
    fn journal_blocks(kind in 1u8..6, layout in layout(), bytes in block(), cut in 0usize..4096) {
        let mut bytes = bytes;
        bytes[..8].copy_from_slice(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, kind]);
        // With its checksum right, what lies behind it is reached.
        if layout.has_checksums() {
            let at = 4092;
            let mut zeroed = bytes.clone();
            zeroed[at..].fill(0);
            let sum = onggi_disk_format::checksum::crc32c(layout.seed, &zeroed);
            bytes[at..].copy_from_slice(&sum.to_be_bytes());
        }
        for bytes in [&bytes[..], &bytes[..cut]] {
            let _ = jbd2::Header::parse(bytes);
            let _ = jbd2::parse_descriptor(&layout, bytes);
            let _ = jbd2::parse_revoke(&layout, bytes);
            let _ = jbd2::parse_commit(&layout, bytes);
            let _ = JournalSuperblock::parse(bytes);
        }
    }

    #[test]
    fn descriptors_come_back(layout in layout(), places in prop::collection::vec(any::<u32>(), 1..600), sum in any::<u32>()) {
        let mut block = vec![0xaa; 4096];
        let mut builder = jbd2::DescriptorBuilder::new(layout, Tid(9), [3; 16], &mut block).unwrap();
        let fit = places.iter().take_while(|place| builder.push(DiskBlock(u64::from(**place)), **place % 3 == 0, sum)).count();
        prop_assert_eq!(fit, places.len().min(jbd2::DescriptorBuilder::capacity(&layout, 4096)));
        builder.finish();
        let (tid, tags) = jbd2::parse_descriptor(&layout, &block).unwrap();
        prop_assert_eq!(tid, Tid(9));
        prop_assert_eq!(tags.len(), fit);
        for (tag, place) in tags.iter().zip(&places) {
            prop_assert_eq!(tag.block, DiskBlock(u64::from(*place)));
            prop_assert_eq!(tag.escaped, place % 3 == 0);
            prop_assert!(tag.checksum.matches(sum));
        }
    }
}

fn back_in_order(area: &[u8], sb: &Superblock) -> Vec<xattr::Xattr> {
    xattr::parse_area(sb, area).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn directories_keep_what_is_put_in(
        tail in any::<bool>(),
        steps in prop::collection::vec((any::<bool>(), prop::collection::vec(97u8..110, 1..40)), 1..200),
    ) {
        let mut block = vec![0u8; 1024];
        dir::init_first_block(&mut block, tail, InodeNr(12), InodeNr(2), 2).unwrap();
        let mut kept: Vec<(Vec<u8>, u32)> = Vec::new();
        for (nr, (put, name)) in (13..).zip(steps) {
            let there = kept.iter().position(|(known, _)| *known == name);
            if put && there.is_none() {
                if dir::insert(&mut block, tail, &name, InodeNr(nr), 1).unwrap().is_some() {
                    kept.push((name, nr));
                }
            } else if let (false, Some(index)) = (put, there) {
                let offset = dir::entries(&block, 9999, tail)
                    .map(Result::unwrap)
                    .find(|entry| entry.name == name)
                    .unwrap()
                    .offset;
                prop_assert!(dir::remove(&mut block, tail, offset).unwrap());
                kept.swap_remove(index);
            }
            let mut found: Vec<(Vec<u8>, u32)> = dir::entries(&block, 9999, tail)
                .map(Result::unwrap)
                .filter(|entry| entry.inode.0 != 0)
                .skip(2)
                .map(|entry| (entry.name.to_vec(), entry.inode.0))
                .collect();
            found.sort();
            kept.sort();
            prop_assert_eq!(&found, &kept);
        }
        if tail {
            dir::set_checksum(&mut block, 5).unwrap();
            dir::verify_checksum(&block, 5).unwrap();
        }
    }
}

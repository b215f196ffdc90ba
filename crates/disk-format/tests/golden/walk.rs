//! A walk over a whole image that re-encodes everything it reads.

use std::collections::BTreeMap;
use std::path::Path;

use onggi_disk_format::ext4::dirhash::HashVersion;
use onggi_disk_format::ext4::htree::{self, DxNode, Shape};
use onggi_disk_format::ext4::superblock::JOURNAL_INODE;
use onggi_disk_format::ext4::{
    FileType, GroupDescriptor, GroupFlags, Incompat, Inode, InodeFlags, Superblock, dir, extent, group,
    inode, inode_seed, orphan, xattr,
};
use onggi_disk_format::jbd2::JournalSuperblock;
use onggi_disk_format::{DiskBlock, FileBlock, GroupNr, InodeNr};

/// What a walk saw, so that a test can insist on having seen it.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) inodes: usize,
    pub(crate) directory_blocks: usize,
    pub(crate) index_blocks: usize,
    pub(crate) hashed_names: usize,
    pub(crate) extent_blocks: usize,
    pub(crate) unwritten: usize,
    pub(crate) inode_xattrs: usize,
    pub(crate) block_xattrs: usize,
    pub(crate) orphan_blocks: usize,
    pub(crate) bitmaps: usize,
    pub(crate) kinds: BTreeMap<u8, usize>,
}

pub(crate) struct Image {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sb: Superblock,
}

impl Image {
    pub(crate) fn open(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let sb = Superblock::parse(&bytes[1024..]).unwrap();
        Self { bytes, sb }
    }

    fn block(&self, block: DiskBlock) -> &[u8] {
        let size = self.sb.block_size() as usize;
        let at = block.0 as usize * size;
        &self.bytes[at..at + size]
    }

    fn seed_of(&self, nr: InodeNr, inode: &Inode) -> Option<u32> {
        let seed = inode_seed(self.sb.csum_seed(), nr, inode.generation);
        self.sb.has_metadata_csum().then_some(seed)
    }

    /// Reads and re-encodes everything.
    pub(crate) fn walk(&self) -> Seen {
        let mut seen = Seen::default();
        let sb = &self.sb;
        assert_eq!(sb.encode(), self.bytes[1024..2048], "superblock");
        for group in (0..sb.groups()).map(GroupNr) {
            self.walk_group(group, &mut seen);
        }
        seen
    }

    fn walk_group(&self, group: GroupNr, seen: &mut Seen) {
        let sb = &self.sb;
        if group.0 != 0 && sb.has_super_backup(group) {
            let copy = Superblock::parse(self.block(sb.first_block_of_group(group))).unwrap();
            let place = copy.encode_backup(group);
            assert_eq!(place, self.block(sb.first_block_of_group(group))[..1024], "backup in {group}");
        }
        let (block, at) = sb.descriptor_location(group);
        let bytes = &self.block(block)[at..];
        let descriptor = GroupDescriptor::parse(sb, group, bytes).unwrap();
        let mut again = bytes.to_vec();
        if sb.has_group_checksums() {
            again[0x1e] ^= 0xff;
        }
        descriptor.encode(sb, group, &mut again).unwrap();
        assert_eq!(again, bytes, "descriptor of group {group}");
        if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let bitmap = self.block(descriptor.block_bitmap);
            assert!(descriptor.block_bitmap_matches(sb, bitmap), "block bitmap of {group}");
            seen.bitmaps += usize::from(group::block_bitmap_checksum(sb, bitmap).is_some());
            let free = (0..sb.blocks_in_group(group)).filter(|&bit| !bit_of(bitmap, bit)).count();
            assert_eq!(free as u32, descriptor.free_blocks, "free blocks of {group}");
        }
        if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            return;
        }
        let bitmap = self.block(descriptor.inode_bitmap);
        assert!(descriptor.inode_bitmap_matches(sb, bitmap), "inode bitmap of {group}");
        for index in (0..sb.inodes_per_group()).filter(|&index| bit_of(bitmap, index)) {
            self.walk_inode(sb.inode_at(group, index).unwrap(), &descriptor, seen);
        }
    }

    fn walk_inode(&self, nr: InodeNr, descriptor: &GroupDescriptor, seen: &mut Seen) {
        let sb = &self.sb;
        let place = sb.inode_location(nr).unwrap();
        let table = DiskBlock(descriptor.inode_table.0 + u64::from(place.table_block));
        let bytes = &self.block(table)[place.byte..place.byte + usize::from(sb.inode_size())];
        if bytes.iter().all(|&byte| byte == 0) {
            assert!(nr < sb.first_inode(), "inode {nr} is in use and zero");
            return;
        }
        let inode = Inode::parse(sb, nr, bytes).unwrap();
        let mut again = bytes.to_vec();
        inode.encode(sb, nr, &mut again).unwrap();
        assert_eq!(again, bytes, "inode {nr}: {inode:?}");
        seen.inodes += 1;
        *seen.kinds.entry(inode.kind() as u8).or_default() += 1;
        if let Some(area) = inode::xattr_area(sb, inode.extra_isize) {
            self.walk_area(nr, &bytes[area], seen);
        }
        if inode.file_acl.0 != 0 {
            self.walk_xattr_block(inode.file_acl, seen);
        }
        if !inode.flags.contains(InodeFlags::EXTENTS) {
            return;
        }
        let mut map = BTreeMap::new();
        self.walk_extents(nr, &inode, &inode.i_block, None, &mut map, seen);
        match inode.kind() {
            FileType::Directory => self.walk_directory(nr, &inode, &map, seen),
            _ if nr == JOURNAL_INODE => {
                let bytes = &self.block(map[&FileBlock(0)])[..1024];
                let journal = JournalSuperblock::parse(bytes).unwrap();
                assert_eq!(journal.encode(), bytes, "journal superblock");
            }
            _ if Some(nr) == sb.orphan_file() => {
                for &place in map.values() {
                    let checksum = self.seed_of(nr, &inode).map(|seed| (seed, place));
                    orphan::parse(self.block(place), sb.inodes_count(), checksum).unwrap();
                    let mut again = self.block(place).to_vec();
                    orphan::seal(&mut again, checksum).unwrap();
                    assert_eq!(again, self.block(place), "orphan block {place}");
                    seen.orphan_blocks += 1;
                }
            }
            _ => {}
        }
    }

    fn walk_area(&self, nr: InodeNr, area: &[u8], seen: &mut Seen) {
        let xattrs = xattr::parse_area(&self.sb, area).unwrap();
        let mut again = area.to_vec();
        xattr::encode_area(&mut again, &xattrs).unwrap();
        assert_eq!(xattr::parse_area(&self.sb, &again).unwrap(), xattrs, "attributes of inode {nr}");
        seen.inode_xattrs += xattrs.len();
    }

    fn walk_xattr_block(&self, place: DiskBlock, seen: &mut Seen) {
        let block = xattr::parse_block(&self.sb, self.block(place), place).unwrap();
        let mut again = vec![0; self.sb.block_size() as usize];
        let hash = xattr::encode_block(&self.sb, &mut again, place, block.refcount, &block.xattrs).unwrap();
        assert_eq!(hash, block.hash, "hash of attribute block {place}");
        let once_more = xattr::parse_block(&self.sb, &again, place).unwrap();
        assert_eq!(once_more.xattrs, block.xattrs);
        seen.block_xattrs += block.xattrs.len();
    }

    fn walk_extents(
        &self,
        nr: InodeNr,
        inode: &Inode,
        bytes: &[u8],
        depth: Option<u16>,
        map: &mut BTreeMap<FileBlock, DiskBlock>,
        seen: &mut Seen,
    ) {
        let node = onggi_disk_format::ext4::ExtentNode::parse(&self.sb, bytes, depth).unwrap();
        let mut again = bytes.to_vec();
        match node.depth {
            0 => extent::encode_leaf(&mut again, node.extents()).unwrap(),
            depth => extent::encode_index(&mut again, depth, node.children()).unwrap(),
        }
        if depth.is_some() {
            seen.extent_blocks += 1;
            if let Some(seed) = self.seed_of(nr, inode) {
                extent::verify_checksum(bytes, seed).unwrap();
                extent::set_checksum(&mut again, seed).unwrap();
                extent::verify_checksum(&again, seed).unwrap();
            }
        }
        // Entries that went away leave their bytes behind; the used part must be the same.
        let used = 12 + 12 * (node.extents().len() + node.children().len());
        assert_eq!(again[..used], bytes[..used], "extent node of inode {nr}");
        for run in node.extents() {
            seen.unwritten += usize::from(run.unwritten);
            for ahead in 0..u32::from(run.len) {
                let at = FileBlock(run.block.0 + ahead);
                map.insert(at, run.disk_block(at).unwrap());
            }
        }
        for child in node.children() {
            self.walk_extents(nr, inode, self.block(child.child), Some(node.depth - 1), map, seen);
        }
    }

    fn walk_directory(
        &self,
        nr: InodeNr,
        inode: &Inode,
        map: &BTreeMap<FileBlock, DiskBlock>,
        seen: &mut Seen,
    ) {
        let checksum = self.seed_of(nr, inode);
        let hashed = inode.flags.contains(InodeFlags::INDEX);
        for (&at, &place) in map {
            let block = self.block(place);
            let mut again = block.to_vec();
            match (hashed, htree::shape(block)) {
                (true, Shape::Root | Shape::Node) => {
                    if let Some(seed) = checksum {
                        assert!(htree::set_checksum(&mut again, seed));
                    }
                    seen.index_blocks += 1;
                }
                _ => {
                    let names = self.names(block, checksum);
                    if at.0 == 0 {
                        assert_eq!(names[0].0, b".");
                        assert_eq!(names[1].0, b"..");
                    }
                    if let Some(seed) = checksum {
                        dir::set_checksum(&mut again, seed).unwrap();
                    }
                    seen.directory_blocks += 1;
                }
            }
            assert_eq!(again, block, "directory {nr}, block {at}");
        }
        if hashed {
            let root = DxNode::parse_root(self.block(map[&FileBlock(0)]), checksum).unwrap();
            let info = root.root.unwrap();
            assert_eq!(info.dot, nr);
            let version = HashVersion::from_stored(info.hash_version, self.sb.hash_unsigned()).unwrap();
            self.walk_index(&root, info.levels, (0, u32::MAX), version, map, checksum, seen);
        }
    }

    fn names<'a>(&self, block: &'a [u8], checksum: Option<u32>) -> Vec<(&'a [u8], InodeNr)> {
        if let Some(seed) = checksum {
            dir::verify_checksum(block, seed).unwrap();
        }
        let entries = dir::entries(block, self.sb.inodes_count(), checksum.is_some());
        let all: Vec<_> = entries.map(Result::unwrap).filter(|entry| entry.inode.0 != 0).collect();
        let filetype = self.sb.incompat().contains(Incompat::FILETYPE);
        assert!(all.iter().all(|entry| (entry.kind != 0) == filetype));
        all.into_iter().map(|entry| (entry.name, entry.inode)).collect()
    }

    #[allow(clippy::too_many_arguments)]
    fn walk_index(
        &self,
        node: &DxNode,
        levels: u8,
        range: (u32, u32),
        version: HashVersion,
        map: &BTreeMap<FileBlock, DiskBlock>,
        checksum: Option<u32>,
        seen: &mut Seen,
    ) {
        for (index, entry) in node.entries.iter().enumerate() {
            let low = if index == 0 { range.0 } else { entry.hash };
            let high = node.entries.get(index + 1).map_or(range.1, |next| next.hash);
            let block = self.block(map[&entry.block]);
            if levels > 0 {
                let child = DxNode::parse_node(block, checksum).unwrap();
                self.walk_index(&child, levels - 1, (low, high), version, map, checksum, seen);
                continue;
            }
            for (name, _) in self.names(block, checksum) {
                let (hash, _) = version.hash(name, self.sb.hash_seed());
                // A set low bit says that the hash itself began in the block before.
                assert!(hash >= low & !1 && (hash < high || high & 1 == 1 && hash == high & !1), "{name:?}");
                seen.hashed_names += 1;
            }
        }
    }
}

fn bit_of(bitmap: &[u8], bit: u32) -> bool {
    bitmap[bit as usize / 8] >> (bit % 8) & 1 == 1
}

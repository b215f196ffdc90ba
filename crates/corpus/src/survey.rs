//! What a valid image holds and where.

use std::collections::BTreeSet;

use onggi_disk_format::ext4::extent::Entries;
use onggi_disk_format::ext4::htree::Shape;
use onggi_disk_format::ext4::{
    ExtentNode, FileType, GroupDescriptor, GroupFlags, Inode, InodeFlags, Superblock, htree, inode_seed,
};
use onggi_disk_format::jbd2::{BlockType, Header, JournalSuperblock};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

use crate::Random;

/// Most blocks of one file that are looked at.
const MAX_FILE_BLOCKS: usize = 1 << 16;

/// An inode in use.
pub(crate) struct Used {
    pub(crate) nr: InodeNr,
    pub(crate) inode: Inode,
    /// Seed of checksums made for it.
    pub(crate) seed: u32,
}

/// A metadata block that belongs to an inode.
#[derive(Clone, Copy)]
pub(crate) struct Owned {
    pub(crate) owner: InodeNr,
    pub(crate) place: DiskBlock,
    pub(crate) seed: u32,
}

/// The journal.
pub(crate) struct Journal {
    /// Its blocks in order.
    pub(crate) blocks: Vec<DiskBlock>,
    pub(crate) superblock: JournalSuperblock,
    /// Blocks of the log that look like the log's own.
    pub(crate) log: Vec<(DiskBlock, BlockType)>,
}

/// Everything of interest on an image.
pub(crate) struct Survey {
    pub(crate) sb: Superblock,
    pub(crate) groups: Vec<(GroupNr, GroupDescriptor)>,
    pub(crate) inodes: Vec<Used>,
    pub(crate) extent_nodes: Vec<Owned>,
    pub(crate) pointer_blocks: Vec<Owned>,
    pub(crate) leaves: Vec<Owned>,
    pub(crate) indexes: Vec<Owned>,
    pub(crate) xattr_blocks: Vec<Owned>,
    pub(crate) orphan_blocks: Vec<Owned>,
    pub(crate) journal: Option<Journal>,
}

/// A block of the image.
pub(crate) fn block<'a>(image: &'a [u8], survey: &Survey, place: DiskBlock) -> Option<&'a [u8]> {
    read(image, &survey.sb, place)
}

/// A block of the image, to be changed.
pub(crate) fn block_mut<'a>(image: &'a mut [u8], survey: &Survey, place: DiskBlock) -> Option<&'a mut [u8]> {
    let size = survey.sb.block_size() as usize;
    let at = usize::try_from(place.byte_offset(survey.sb.block_size())?).ok()?;
    image.get_mut(at..at.checked_add(size)?)
}

fn read<'a>(image: &'a [u8], sb: &Superblock, place: DiskBlock) -> Option<&'a [u8]> {
    let at = usize::try_from(place.byte_offset(sb.block_size())?).ok()?;
    image.get(at..at.checked_add(sb.block_size() as usize)?)
}

impl Survey {
    /// Looks around; `None` when the image is no ext4 volume.
    pub(crate) fn of(image: &[u8]) -> Option<Self> {
        let sb = Superblock::parse(image.get(1024..)?).ok()?;
        let mut survey = Self {
            groups: Vec::new(),
            inodes: Vec::new(),
            extent_nodes: Vec::new(),
            pointer_blocks: Vec::new(),
            leaves: Vec::new(),
            indexes: Vec::new(),
            xattr_blocks: Vec::new(),
            orphan_blocks: Vec::new(),
            journal: None,
            sb,
        };
        survey.find_groups(image);
        survey.find_inodes(image);
        survey.find_blocks(image);
        Some(survey)
    }

    fn find_groups(&mut self, image: &[u8]) {
        for group in (0..self.sb.groups()).map(GroupNr) {
            let (place, at) = self.sb.descriptor_location(group);
            if let Some(bytes) = read(image, &self.sb, place)
                && let Ok(descriptor) = GroupDescriptor::parse(&self.sb, group, &bytes[at..])
            {
                self.groups.push((group, descriptor));
            }
        }
    }

    fn find_inodes(&mut self, image: &[u8]) {
        for (group, descriptor) in &self.groups {
            if descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
                continue;
            }
            let Some(bitmap) = read(image, &self.sb, descriptor.inode_bitmap) else { continue };
            for index in 0..self.sb.inodes_per_group() {
                let used = bitmap[index as usize / 8] >> (index % 8) & 1 == 1;
                let Some(nr) = self.sb.inode_at(*group, index).filter(|_| used) else { continue };
                let Some(range) = self.inode_range(nr) else { continue };
                if let Some(bytes) = image.get(range)
                    && let Ok(inode) = Inode::parse(&self.sb, nr, bytes)
                    && inode.links_count > 0
                {
                    let seed = inode_seed(self.sb.csum_seed(), nr, inode.generation);
                    self.inodes.push(Used { nr, inode, seed });
                }
            }
        }
    }

    /// Bytes of the image that hold inode `nr`.
    fn inode_range(&self, nr: InodeNr) -> Option<std::ops::Range<usize>> {
        let at = self.sb.inode_location(nr)?;
        let (_, descriptor) = self.groups.iter().find(|(group, _)| *group == at.group)?;
        let place = DiskBlock(descriptor.inode_table.0 + u64::from(at.table_block));
        let start = usize::try_from(place.byte_offset(self.sb.block_size())?).ok()? + at.byte;
        Some(start..start + usize::from(self.sb.inode_size()))
    }

    /// The bytes of inode `nr`, to be changed.
    pub(crate) fn inode_bytes<'a>(&self, image: &'a mut [u8], nr: InodeNr) -> Option<&'a mut [u8]> {
        image.get_mut(self.inode_range(nr)?)
    }

    fn find_blocks(&mut self, image: &[u8]) {
        for used in std::mem::take(&mut self.inodes) {
            let own = |place| Owned { owner: used.nr, place, seed: used.seed };
            if used.inode.file_acl.0 != 0 {
                self.xattr_blocks.push(own(used.inode.file_acl));
            }
            let data = self.data_blocks(image, &used);
            if Some(used.nr) == self.sb.journal_inode() {
                self.journal = self.find_journal(image, &data);
            } else if Some(used.nr) == self.sb.orphan_file() {
                self.orphan_blocks.extend(data.into_iter().map(own));
            } else if used.inode.kind() == FileType::Directory {
                for place in data {
                    let indexed = used.inode.flags.contains(InodeFlags::INDEX);
                    let Some(bytes) = read(image, &self.sb, place) else { continue };
                    if indexed && htree::shape(bytes) != Shape::Leaf {
                        self.indexes.push(own(place));
                    } else {
                        self.leaves.push(own(place));
                    }
                }
            }
            self.inodes.push(used);
        }
    }

    /// The file's blocks in order, holes left out; notes the blocks of its map.
    fn data_blocks(&mut self, image: &[u8], used: &Used) -> Vec<DiskBlock> {
        let mut data = Vec::new();
        let kind = used.inode.kind();
        if used.inode.flags.contains(InodeFlags::EXTENTS) {
            if let Ok(root) = ExtentNode::parse(&self.sb, &used.inode.i_block, None) {
                self.walk_extents(image, used, &root, &mut data);
            }
        } else if matches!(kind, FileType::Regular | FileType::Directory)
            && !used.inode.flags.contains(InodeFlags::INLINE_DATA)
        {
            let slots: Vec<u32> = words(&used.inode.i_block).collect();
            data.extend(
                slots[..12].iter().filter(|&&slot| slot != 0).map(|&slot| DiskBlock(u64::from(slot))),
            );
            for (levels, &slot) in (1..).zip(&slots[12..]) {
                self.walk_pointers(image, used, slot, levels, &mut data);
            }
        }
        data
    }

    fn walk_extents(&mut self, image: &[u8], used: &Used, node: &ExtentNode, data: &mut Vec<DiskBlock>) {
        match &node.entries {
            Entries::Leaf(extents) => {
                for extent in extents {
                    let run = extent.start.0..extent.start.0 + u64::from(extent.len);
                    data.extend(run.map(DiskBlock).take(MAX_FILE_BLOCKS.saturating_sub(data.len())));
                }
            }
            Entries::Index(children) => {
                for child in children {
                    self.extent_nodes.push(Owned { owner: used.nr, place: child.child, seed: used.seed });
                    if let Some(bytes) = read(image, &self.sb, child.child)
                        && let Ok(below) = ExtentNode::parse(&self.sb, bytes, node.depth.checked_sub(1))
                    {
                        self.walk_extents(image, used, &below, data);
                    }
                }
            }
        }
    }

    fn walk_pointers(&mut self, image: &[u8], used: &Used, at: u32, levels: u32, data: &mut Vec<DiskBlock>) {
        let place = DiskBlock(u64::from(at));
        if at == 0 || data.len() >= MAX_FILE_BLOCKS {
            return;
        }
        self.pointer_blocks.push(Owned { owner: used.nr, place, seed: used.seed });
        let Some(bytes) = read(image, &self.sb, place) else { return };
        for slot in words(bytes).filter(|&slot| slot != 0) {
            if levels == 1 {
                data.push(DiskBlock(u64::from(slot)));
            } else {
                self.walk_pointers(image, used, slot, levels - 1, data);
            }
        }
    }

    fn find_journal(&self, image: &[u8], blocks: &[DiskBlock]) -> Option<Journal> {
        let superblock = JournalSuperblock::parse(read(image, &self.sb, *blocks.first()?)?).ok()?;
        let log = blocks[1..]
            .iter()
            .filter_map(|&place| Some((place, Header::parse(read(image, &self.sb, place)?)?.block_type)))
            .collect();
        Some(Journal { blocks: blocks.to_vec(), superblock, log })
    }

    /// An inode in use.
    pub(crate) fn inode(&self, random: &mut Random) -> Option<&Used> {
        random.pick(&self.inodes)
    }

    /// A directory.
    pub(crate) fn directory(&self, random: &mut Random) -> Option<&Used> {
        let all: Vec<&Used> =
            self.inodes.iter().filter(|used| used.inode.kind() == FileType::Directory).collect();
        random.pick(&all).copied()
    }

    /// A block that holds metadata of some kind.
    pub(crate) fn metadata_block(&self, random: &mut Random) -> u64 {
        let mut places =
            BTreeSet::from([u64::from(self.sb.block_size() == 1024), self.sb.descriptor_block(0).0]);
        if let Some((_, descriptor)) = random.pick(&self.groups) {
            places.extend([descriptor.block_bitmap.0, descriptor.inode_bitmap.0, descriptor.inode_table.0]);
        }
        for owned in [&self.extent_nodes, &self.leaves, &self.indexes, &self.xattr_blocks] {
            places.extend(random.pick(owned).map(|owned| owned.place.0));
        }
        places.extend(self.journal.as_ref().and_then(|journal| journal.blocks.first()).map(|place| place.0));
        let places: Vec<u64> = places.into_iter().collect();
        random.pick(&places).copied().unwrap_or(0)
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
}

//! Patches a volume's bytes with every checksum around them made right again.

use onggi_disk_format::ext4::{
    ExtentNode, GroupDescriptor, Inode, Superblock, dir, extent, htree, inode_seed, xattr,
};
use onggi_disk_format::{DiskBlock, GroupNr, InodeNr};

/// An image in memory that keeps its checksums right.
pub(crate) struct Patch {
    pub(crate) bytes: Vec<u8>,
    pub(crate) sb: Superblock,
}

impl Patch {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let sb = Superblock::parse(&bytes[1024..]).unwrap();
        Self { bytes, sb }
    }

    pub(crate) fn block(&mut self, nr: u64) -> &mut [u8] {
        let size = self.sb.block_size() as usize;
        &mut self.bytes[nr as usize * size..(nr as usize + 1) * size]
    }

    fn inode_at(&self, nr: InodeNr) -> usize {
        let location = self.sb.inode_location(nr).unwrap();
        let (block, at) = self.sb.descriptor_location(location.group);
        let size = self.sb.block_size() as usize;
        let bytes = &self.bytes[block.0 as usize * size + at..];
        let group = GroupDescriptor::parse(&self.sb, location.group, bytes).unwrap();
        (group.inode_table.0 as usize + location.table_block as usize) * size + location.byte
    }

    pub(crate) fn inode(&self, nr: InodeNr) -> Inode {
        Inode::parse(&self.sb, nr, &self.bytes[self.inode_at(nr)..]).unwrap()
    }

    pub(crate) fn edit_inode(&mut self, nr: InodeNr, change: impl FnOnce(&mut Inode)) {
        let at = self.inode_at(nr);
        let mut inode = self.inode(nr);
        change(&mut inode);
        inode.encode(&self.sb, nr, &mut self.bytes[at..]).unwrap();
    }

    /// The inode's raw bytes; the checksum follows.
    pub(crate) fn edit_inode_bytes(&mut self, nr: InodeNr, change: impl FnOnce(&mut [u8])) {
        let at = self.inode_at(nr);
        let end = at + usize::from(self.sb.inode_size());
        change(&mut self.bytes[at..end]);
        onggi_disk_format::ext4::inode::set_checksum(&self.sb, nr, &mut self.bytes[at..end]);
    }

    pub(crate) fn edit_group(&mut self, nr: u32, change: impl FnOnce(&mut GroupDescriptor)) {
        let (block, at) = self.sb.descriptor_location(GroupNr(nr));
        let sb = self.sb.clone();
        let bytes = &mut self.block(block.0)[at..];
        let mut group = GroupDescriptor::parse(&sb, GroupNr(nr), bytes).unwrap();
        change(&mut group);
        group.encode(&sb, GroupNr(nr), bytes).unwrap();
    }

    pub(crate) fn edit_super(&mut self, change: impl FnOnce(&mut onggi_disk_format::ext4::RawSuperblock)) {
        self.sb.update(change).unwrap();
        self.bytes[1024..2048].copy_from_slice(&self.sb.encode());
    }

    pub(crate) fn seed(&self, nr: InodeNr) -> u32 {
        inode_seed(self.sb.csum_seed(), nr, self.inode(nr).generation)
    }

    /// Every data block of an inode with extents, in order, and its tree blocks.
    pub(crate) fn blocks(&mut self, nr: InodeNr) -> (Vec<u64>, Vec<u64>) {
        let (mut data, mut nodes) = (Vec::new(), Vec::new());
        let sb = self.sb.clone();
        let mut todo = vec![self.inode(nr).i_block.to_vec()];
        while let Some(bytes) = todo.pop() {
            let node = ExtentNode::parse(&sb, &bytes, None).unwrap();
            for run in node.extents() {
                data.extend(run.start.0..run.start.0 + u64::from(run.len));
            }
            for child in node.children().iter().rev() {
                nodes.push(child.child.0);
                todo.push(self.block(child.child.0).to_vec());
            }
        }
        (data, nodes)
    }

    /// Finds a name in a directory: its block and the byte of its entry.
    pub(crate) fn find(&mut self, dir_nr: InodeNr, name: &[u8]) -> (u64, usize, InodeNr) {
        for block in self.blocks(dir_nr).0 {
            let found = dir::entries(self.block(block), u32::MAX, false)
                .map_while(Result::ok)
                .find(|entry| entry.name == name && entry.inode.0 != 0)
                .map(|entry| (entry.offset, entry.inode));
            if let Some((offset, nr)) = found {
                return (block, offset, nr);
            }
        }
        panic!("no {}", name.escape_ascii());
    }

    pub(crate) fn lookup(&mut self, path: &str) -> InodeNr {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.fold(InodeNr(2), |dir, name| self.find(dir, name.as_bytes()).2)
    }

    /// Changes a block of directory `nr` and makes its checksum right.
    pub(crate) fn edit_dir(&mut self, nr: InodeNr, block: u64, change: impl FnOnce(&mut [u8])) {
        let seed = self.seed(nr);
        let bytes = self.block(block);
        change(bytes);
        if dir::set_checksum(bytes, seed).is_err() {
            htree::set_checksum(bytes, seed);
        }
    }

    /// Changes an extent block of `nr` and makes its checksum right.
    pub(crate) fn edit_extents(&mut self, nr: InodeNr, block: u64, change: impl FnOnce(&mut [u8])) {
        let seed = self.seed(nr);
        let bytes = self.block(block);
        change(bytes);
        extent::set_checksum(bytes, seed).unwrap();
    }

    /// Changes an attribute block and makes its checksum right.
    pub(crate) fn edit_attributes(&mut self, block: u64, change: impl FnOnce(&mut [u8])) {
        let sb = self.sb.clone();
        let bytes = self.block(block);
        change(bytes);
        let users = u32::from_le_bytes(bytes[4..8].try_into().unwrap());
        xattr::set_refcount(&sb, bytes, DiskBlock(block), users);
    }
}

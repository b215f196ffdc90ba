//! Reading nodes of a tree: checked once per life in the cache, then searched where they lie.

use std::sync::Arc;

use onggi_disk_format::ext4::extent::{
    ENTRY_SIZE, Entries, Extent, ExtentNode, MAX_LEN, RawExtent, RawExtentIndex, verify_checksum,
};
use onggi_disk_format::ext4::inode::{Inode, InodeFlags};
use onggi_disk_format::ext4::inode_seed;
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};
use onggi_jbd2::Buffer;
use zerocopy::FromBytes;

use crate::{Place, Volume, VolumeError};

/// The seed of an inode's tree blocks.
pub(super) fn seed(volume: &Volume, nr: InodeNr, inode: &Inode) -> u32 {
    inode_seed(volume.sb.csum_seed(), nr, inode.generation)
}

/// Parses the root in the inode.
///
/// # Errors
/// An inode without an extent tree; the rule that the root breaks.
pub(super) fn root(volume: &Volume, nr: InodeNr, inode: &Inode) -> Result<ExtentNode, VolumeError> {
    require_tree(inode)?;
    let node = ExtentNode::parse(&volume.sb, &inode.i_block, None)
        .map_err(|error| VolumeError::corrupt("extent tree root", Place::Inode(nr), error))?;
    check_places(volume, &node, Place::Inode(nr))?;
    Ok(node)
}

pub(super) fn require_tree(inode: &Inode) -> Result<(), VolumeError> {
    if inode.flags.contains(InodeFlags::INLINE_DATA) {
        return Err(VolumeError::Unsupported { feature: "inline_data" });
    }
    if !inode.flags.contains(InodeFlags::EXTENTS) {
        return Err(VolumeError::Unsupported { feature: "block maps (a file without extents)" });
    }
    Ok(())
}

/// Reads a block node and checks it unless it has been checked before.
///
/// # Errors
/// The rule it breaks; the device's.
pub(super) fn read(
    volume: &Volume,
    seed: u32,
    child: DiskBlock,
    depth: u16,
) -> Result<Arc<Buffer>, VolumeError> {
    if volume.alloc.is_system(child, 1) {
        let rule = "an extent node lies in the volume's own blocks";
        return Err(VolumeError::corrupt("extent node", Place::Block(child), rule));
    }
    let buffer = volume.buffers.read(child)?;
    buffer.verify_once(|bytes| verify(volume, seed, child, bytes, depth))?;
    Ok(buffer)
}

fn verify(volume: &Volume, seed: u32, nr: DiskBlock, bytes: &[u8], depth: u16) -> Result<(), VolumeError> {
    if volume.sb.has_metadata_csum() {
        verify_checksum(bytes, seed)
            .map_err(|error| VolumeError::corrupt("extent node", Place::Block(nr), error))?;
    }
    check_places(volume, &parse(volume, nr, bytes, depth)?, Place::Block(nr))
}

/// The entries of a block node that [`read`] has checked.
///
/// # Errors
/// The rule it breaks.
pub(super) fn parse(
    volume: &Volume,
    nr: DiskBlock,
    bytes: &[u8],
    depth: u16,
) -> Result<ExtentNode, VolumeError> {
    ExtentNode::parse(&volume.sb, bytes, Some(depth))
        .map_err(|error| VolumeError::corrupt("extent node", Place::Block(nr), error))
}

fn check_places(volume: &Volume, node: &ExtentNode, place: Place) -> Result<(), VolumeError> {
    let own = match &node.entries {
        Entries::Leaf(extents) => {
            extents.iter().any(|extent| volume.alloc.is_system(extent.start, u64::from(extent.len)))
        }
        Entries::Index(children) => children.iter().any(|index| volume.alloc.is_system(index.child, 1)),
    };
    if own {
        return Err(VolumeError::corrupt(
            "extent node",
            place,
            "an entry points into the volume's own blocks",
        ));
    }
    Ok(())
}

/// A node's bytes, searched without a copy. Reads nothing past them whatever they hold.
pub(super) struct View<'a>(pub(super) &'a [u8]);

impl View<'_> {
    fn field(&self, at: usize) -> u16 {
        self.0.get(at..at + 2).map_or(0, |raw| u16::from_le_bytes([raw[0], raw[1]]))
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.field(2)).min((self.0.len() / ENTRY_SIZE).saturating_sub(1))
    }

    pub(super) fn depth(&self) -> u16 {
        self.field(6)
    }

    fn entry(&self, at: usize) -> &[u8] {
        let from = (at + 1) * ENTRY_SIZE;
        self.0.get(from..from + ENTRY_SIZE).unwrap_or(&[0; ENTRY_SIZE])
    }

    /// First logical block of an entry; extents and children keep it in the same place.
    pub(super) fn key(&self, at: usize) -> u32 {
        let raw = self.entry(at);
        u32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]])
    }

    /// Number of entries whose key is not past `block`.
    pub(super) fn reaching(&self, block: u32) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.key(middle) <= block { low = middle + 1 } else { high = middle }
        }
        low
    }

    pub(super) fn child(&self, at: usize) -> DiskBlock {
        RawExtentIndex::ref_from_bytes(self.entry(at)).map_or(DiskBlock(0), |raw| {
            DiskBlock(u64::from(raw.ei_leaf_hi.get()) << 32 | u64::from(raw.ei_leaf_lo.get()))
        })
    }

    pub(super) fn extent(&self, at: usize) -> Option<Extent> {
        let raw = RawExtent::ref_from_bytes(self.entry(at)).ok()?;
        let stored = raw.ee_len.get();
        let unwritten = stored > MAX_LEN;
        Some(Extent {
            block: FileBlock(raw.ee_block.get()),
            len: if unwritten { stored - MAX_LEN } else { stored },
            start: DiskBlock(u64::from(raw.ee_start_hi.get()) << 32 | u64::from(raw.ee_start_lo.get())),
            unwritten,
        })
    }
}

//! Finding mappings.

use std::sync::Arc;

use onggi_block_device::AlignedBuf;
use onggi_disk_format::ext4::extent::{self, Entries, Extent, ExtentNode};
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::ext4::inode_seed;
use onggi_disk_format::ext4::superblock::Superblock;
use onggi_disk_format::{DiskBlock, FileBlock, InodeNr};

use super::node::{self, View};
use super::{Mapping, part};
use crate::{Place, Volume, VolumeError};

/// Nodes that [`list`] reads before it gives up: a journal's tree never has as many.
const MOST_LISTED_NODES: u32 = 1 << 16;

/// What lies around a logical block.
struct Around {
    /// The last extent that starts at or before the block, within the leaf that covers it.
    before: Option<Extent>,
    /// First block of what comes after, if anything does; not past the next extent's first block.
    after: Option<u32>,
}

/// How `block` of the file is mapped.
///
/// # Errors
/// An inode without an extent tree; the rule that a node breaks; a block number past the last; the device's.
pub fn lookup(volume: &Volume, nr: InodeNr, inode: &Inode, block: FileBlock) -> Result<Mapping, VolumeError> {
    if block.0 == u32::MAX {
        return Err(VolumeError::Limit("a file has no block 2^32 - 1"));
    }
    let around = around(volume, nr, inode, block)?;
    if let Some(rest) = around.before.and_then(|found| part(&found, u64::from(block.0), found.end())) {
        return Ok(Mapping::Mapped {
            start: rest.start,
            len: u32::from(rest.len),
            unwritten: rest.unwritten,
        });
    }
    Ok(Mapping::Hole { len: around.after.unwrap_or(u32::MAX) - block.0 })
}

/// The extent that holds `from`, else the first one after it.
///
/// # Errors
/// As [`lookup`].
pub fn next_extent(
    volume: &Volume,
    nr: InodeNr,
    inode: &Inode,
    from: FileBlock,
) -> Result<Option<Extent>, VolumeError> {
    let mut block = from;
    loop {
        let around = around(volume, nr, inode, block)?;
        if let Some(found) = around.before
            && found.end() > u64::from(block.0)
        {
            return Ok(Some(found));
        }
        // `after` is past `block`, so this ends.
        match around.after {
            Some(after) => block = FileBlock(after),
            None => return Ok(None),
        }
    }
}

fn around(volume: &Volume, nr: InodeNr, inode: &Inode, block: FileBlock) -> Result<Around, VolumeError> {
    let corrupt = |rule: &str| VolumeError::corrupt("extent tree", Place::FileBlock(nr, block.0), rule);
    let root = node::root(volume, nr, inode)?;
    let mut depth = root.depth;
    let mut after = None;
    let mut held: Option<Arc<AlignedBuf>> = None;
    let mut seed = None;
    loop {
        let view = View(held.as_ref().map_or(&inode.i_block[..], |bytes| &bytes[..]));
        if view.depth() != depth {
            return Err(corrupt("a node's depth does not match its parent's"));
        }
        let reaching = view.reaching(block.0);
        if reaching < view.len() {
            let key = view.key(reaching);
            if key <= block.0 {
                return Err(corrupt("the entries of a node are out of order"));
            }
            after = Some(after.map_or(key, |after: u32| after.min(key)));
        }
        let Some(at) = reaching.checked_sub(1) else {
            return Ok(Around { before: None, after });
        };
        if depth == 0 {
            let before = view.extent(at);
            if let Some(found) = &before {
                let (start, len) = (found.start, u64::from(found.len));
                if found.len == 0
                    || !volume.sb.contains_blocks(start, len)
                    || volume.alloc.is_system(start, len)
                {
                    return Err(corrupt("an extent points outside the volume's data"));
                }
                if after.is_some_and(|after| found.end() > u64::from(after))
                    || found.end() > u64::from(u32::MAX)
                {
                    return Err(corrupt("an extent runs into what follows it"));
                }
            }
            return Ok(Around { before, after });
        }
        depth -= 1;
        let seed = *seed.get_or_insert_with(|| node::seed(volume, nr, inode));
        held = Some(node::read(volume, seed, view.child(at), depth)?.snapshot());
    }
}

/// All extents of a tree, read through `read`, with no volume open: for the journal's inode, whose blocks
/// must be known before the journal is replayed.
///
/// # Errors
/// As [`lookup`]; more nodes than a journal ever needs; `read`'s own.
pub fn list<B: AsRef<[u8]>>(
    sb: &Superblock,
    nr: InodeNr,
    inode: &Inode,
    mut read: impl FnMut(DiskBlock) -> Result<B, VolumeError>,
) -> Result<Vec<Extent>, VolumeError> {
    node::require_tree(inode)?;
    let seed = inode_seed(sb.csum_seed(), nr, inode.generation);
    let corrupt = |block, error| VolumeError::corrupt("extent node", Place::Block(block), error);
    let root = ExtentNode::parse(sb, &inode.i_block, None)
        .map_err(|error| VolumeError::corrupt("extent tree root", Place::Inode(nr), error))?;
    let mut extents: Vec<Extent> = Vec::new();
    let mut nodes = 0;
    let mut waiting = vec![root];
    while let Some(node) = waiting.pop() {
        match node.entries {
            Entries::Leaf(leaf) => {
                let end = extents.last().map_or(0, Extent::end);
                if leaf.first().is_some_and(|first| u64::from(first.block.0) < end) {
                    let rule = "two leaves overlap";
                    return Err(VolumeError::corrupt("extent tree", Place::Inode(nr), rule));
                }
                extents.extend(leaf);
            }
            Entries::Index(children) => {
                nodes += children.len() as u32;
                if nodes > MOST_LISTED_NODES {
                    return Err(VolumeError::Limit("the extent tree has too many nodes"));
                }
                let mut below = Vec::with_capacity(children.len());
                for index in children {
                    let block = read(index.child)?;
                    if sb.has_metadata_csum() {
                        extent::verify_checksum(block.as_ref(), seed)
                            .map_err(|error| corrupt(index.child, error))?;
                    }
                    let child = ExtentNode::parse(sb, block.as_ref(), Some(node.depth - 1))
                        .map_err(|error| corrupt(index.child, error))?;
                    below.push(child);
                }
                waiting.extend(below.into_iter().rev());
            }
        }
    }
    Ok(extents)
}

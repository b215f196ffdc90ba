//! Changing one leaf and whatever follows from it up to the root.
//!
//! A change replaces a leaf's entries. A node that overflows splits in two, an emptied one is freed, the keys
//! above follow the first entries below (Linux demands that they are equal), a root that overflows moves
//! into a block of its own. New blocks are found before anything changes, so that a full volume leaves the
//! tree as it was.

use std::sync::Arc;

use onggi_disk_format::ext4::extent::{
    Entries, Extent, ExtentError, ExtentIndex, MAX_DEPTH, capacity, encode_index, encode_leaf, set_checksum,
};
use onggi_disk_format::ext4::inode::Inode;
use onggi_disk_format::{DiskBlock, InodeNr};
use onggi_jbd2::Buffer;

use super::node;
use crate::{BlockRun, Handle, Place, Volume, VolumeError};

/// What a node holds, with the number of levels below it.
#[derive(Clone, Debug)]
struct Content {
    depth: u16,
    entries: Entries,
}

impl Content {
    fn len(&self) -> usize {
        match &self.entries {
            Entries::Leaf(extents) => extents.len(),
            Entries::Index(children) => children.len(),
        }
    }

    fn first_key(&self) -> Option<u32> {
        match &self.entries {
            Entries::Leaf(extents) => extents.first().map(|extent| extent.block.0),
            Entries::Index(children) => children.first().map(|index| index.block.0),
        }
    }

    /// Leaves the first `at` entries and returns the others.
    fn split_off(&mut self, at: usize) -> Self {
        let entries = match &mut self.entries {
            Entries::Leaf(extents) => Entries::Leaf(extents.split_off(at)),
            Entries::Index(children) => Entries::Index(children.split_off(at)),
        };
        Self { depth: self.depth, entries }
    }

    fn encode(&self, bytes: &mut [u8]) -> Result<(), ExtentError> {
        match &self.entries {
            Entries::Leaf(extents) => encode_leaf(bytes, extents),
            Entries::Index(children) => encode_index(bytes, self.depth, children),
        }
    }
}

/// A block node on the way to a leaf.
struct Step {
    buffer: Arc<Buffer>,
    /// Of the parent's children.
    at: usize,
}

/// The way from the root to a leaf.
pub(super) struct Path {
    /// Contents from the root to the leaf.
    contents: Vec<Content>,
    /// The block nodes: one fewer, for the root has none.
    steps: Vec<Step>,
    /// First logical block the leaf may hold by its parents' keys.
    pub(super) low: u32,
    /// First logical block past what the leaf may hold, `None` for the last leaf.
    pub(super) high: Option<u32>,
    seed: u32,
}

impl Path {
    /// Walks to the leaf that holds `block` or would.
    ///
    /// # Errors
    /// The rule that a node breaks; the device's.
    pub(super) fn to(volume: &Volume, nr: InodeNr, inode: &Inode, block: u32) -> Result<Self, VolumeError> {
        let root = node::root(volume, nr, inode)?;
        let seed = node::seed(volume, nr, inode);
        let mut path = Self { contents: Vec::new(), steps: Vec::new(), low: 0, high: None, seed };
        let mut content = Content { depth: root.depth, entries: root.entries };
        loop {
            path.check_bounds(nr, &content)?;
            let Entries::Index(children) = &content.entries else { break };
            let at = children.partition_point(|index| index.block.0 <= block).saturating_sub(1);
            let Some(index) = children.get(at) else { break };
            if at > 0 {
                path.low = index.block.0;
            }
            path.high = children.get(at + 1).map(|next| next.block.0).or(path.high);
            let depth = content.depth - 1;
            let buffer = node::read(volume, seed, index.child, depth)?;
            let below = node::parse(volume, index.child, &buffer.snapshot(), depth)?;
            path.steps.push(Step { buffer, at });
            path.contents.push(content);
            content = Content { depth, entries: below.entries };
        }
        path.contents.push(content);
        Ok(path)
    }

    fn check_bounds(&self, nr: InodeNr, content: &Content) -> Result<(), VolumeError> {
        let first = content.first_key();
        let end = match &content.entries {
            Entries::Leaf(extents) => extents.last().map(Extent::end),
            Entries::Index(children) => children.last().map(|index| u64::from(index.block.0) + 1),
        };
        let inside = first.is_none_or(|first| first >= self.low)
            && end.is_none_or(|end| self.high.is_none_or(|high| end <= u64::from(high)));
        if inside {
            return Ok(());
        }
        let rule = "a node holds blocks that its parent gives to another one";
        Err(VolumeError::corrupt("extent tree", Place::FileBlock(nr, self.low), rule))
    }

    /// The leaf's extents.
    pub(super) fn leaf(&self) -> &[Extent] {
        match self.contents.last().map(|content| &content.entries) {
            Some(Entries::Leaf(extents)) => extents,
            _ => &[],
        }
    }

    /// Levels below the root.
    pub(super) fn depth(&self) -> u16 {
        self.steps.len() as u16
    }

    /// Blocks that must be found for the leaf to hold `len` entries.
    fn blocks_needed(&self, volume: &Volume, mut len: usize) -> Result<u32, VolumeError> {
        let room = capacity(volume.block_size() as usize);
        let mut needed = 0;
        for above in self.contents.iter().rev().skip(1) {
            if len <= room {
                return Ok(needed);
            }
            needed += 1;
            len = above.len() + 1;
        }
        if len > capacity(ROOT_BYTES) {
            if self.depth() >= MAX_DEPTH {
                return Err(VolumeError::Limit("the file's extent tree is as deep as can be"));
            }
            needed += 1;
        }
        Ok(needed)
    }

    /// Replaces the leaf's extents; `appended` says that only its end has grown.
    ///
    /// # Errors
    /// [`VolumeError::NoSpace`] or a tree that cannot grow, with nothing changed; the device's, the
    /// journal's.
    pub(super) fn replace_leaf(
        mut self,
        volume: &Volume,
        h: &mut Handle<'_>,
        nr: InodeNr,
        inode: &mut Inode,
        extents: Vec<Extent>,
        appended: bool,
    ) -> Result<(), VolumeError> {
        let shrunk = extents.len() < self.leaf().len();
        let needed = self.blocks_needed(volume, extents.len())?;
        let mut edit = Edit { volume, nr, seed: self.seed, new_blocks: Vec::new(), appended };
        edit.find_blocks(h, inode, self.steps.last().map(|step| step.buffer.nr()), needed)?;
        self.contents.pop();
        let mut content = Content { depth: 0, entries: Entries::Leaf(extents) };
        while let Some(step) = self.steps.pop() {
            let Some(Content { depth, entries: Entries::Index(mut children) }) = self.contents.pop() else {
                return Err(edit.corrupt("a path without a parent"));
            };
            if !edit.store(h, inode, &step, content, &mut children)? {
                return if shrunk { edit.shrink(h, inode) } else { Ok(()) };
            }
            content = Content { depth, entries: Entries::Index(children) };
        }
        edit.store_root(h, inode, content)?;
        if shrunk { edit.shrink(h, inode) } else { Ok(()) }
    }
}

const ROOT_BYTES: usize = 60;

/// One change under way.
struct Edit<'v> {
    volume: &'v Volume,
    nr: InodeNr,
    seed: u32,
    /// Found and marked used, not linked yet.
    new_blocks: Vec<DiskBlock>,
    appended: bool,
}

impl Edit<'_> {
    fn corrupt(&self, rule: impl std::fmt::Display) -> VolumeError {
        VolumeError::corrupt("extent tree", Place::Inode(self.nr), rule)
    }

    /// Finds all new blocks or none.
    fn find_blocks(
        &mut self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        near: Option<DiskBlock>,
        needed: u32,
    ) -> Result<(), VolumeError> {
        if needed == 0 {
            return Ok(());
        }
        let alloc = &self.volume.alloc;
        let goal = near.map_or_else(|| alloc.inode_goal(self.nr), |block| DiskBlock(block.0 + 1));
        let mut runs: Vec<BlockRun> = Vec::new();
        let mut left = needed;
        while left > 0 {
            match alloc.take(self.volume, runs.last().map_or(goal, |run| run.end()), left) {
                Ok(run) => {
                    left -= run.len;
                    runs.push(run);
                }
                Err(error) => {
                    runs.into_iter().for_each(|run| alloc.give_back(run));
                    return Err(error);
                }
            }
        }
        for run in runs {
            alloc.mark_used(self.volume, h, run)?;
            self.new_blocks.extend((run.start.0..run.end().0).map(DiskBlock));
        }
        self.new_blocks.reverse();
        inode.blocks += u64::from(needed) * self.sectors();
        Ok(())
    }

    fn sectors(&self) -> u64 {
        u64::from(self.volume.block_size() / 512)
    }

    /// Writes a block node's new content, in two nodes where one does not hold it, in none where it is
    /// empty. Whether the parent's children changed.
    fn store(
        &mut self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        step: &Step,
        mut content: Content,
        children: &mut Vec<ExtentIndex>,
    ) -> Result<bool, VolumeError> {
        let Some(key) = content.first_key() else {
            children.remove(step.at);
            self.free_node(h, inode, step.buffer.nr())?;
            return Ok(true);
        };
        let len = content.len();
        let mut changed = false;
        if len > capacity(self.volume.block_size() as usize) {
            let last = self.appended && step.at + 1 == children.len();
            let right = content.split_off(if last { len - 1 } else { len / 2 });
            let index = self.write_new(h, &right)?;
            children.insert(step.at + 1, index);
            changed = true;
        }
        self.write(h, &step.buffer, &content)?;
        let slot = &mut children[step.at].block.0;
        changed |= *slot != key;
        *slot = key;
        Ok(changed)
    }

    fn store_root(
        &mut self,
        h: &mut Handle<'_>,
        inode: &mut Inode,
        content: Content,
    ) -> Result<(), VolumeError> {
        let mut content = content;
        if content.len() == 0 {
            content = Content { depth: 0, entries: Entries::Leaf(Vec::new()) };
        } else if content.len() > capacity(ROOT_BYTES) {
            let depth = content.depth + 1;
            let index = self.write_new(h, &content)?;
            content = Content { depth, entries: Entries::Index(vec![index]) };
        }
        content.encode(&mut inode.i_block).map_err(|error| self.corrupt(error))
    }

    fn write_new(&mut self, h: &mut Handle<'_>, content: &Content) -> Result<ExtentIndex, VolumeError> {
        let child = self.new_blocks.pop().ok_or_else(|| self.corrupt("a split that was not foreseen"))?;
        let key = content.first_key().ok_or_else(|| self.corrupt("a new node without entries"))?;
        let buffer = self.volume.buffers.fresh(child);
        self.write(h, &buffer, content)?;
        Ok(ExtentIndex { block: onggi_disk_format::FileBlock(key), child })
    }

    fn write(&self, h: &mut Handle<'_>, buffer: &Arc<Buffer>, content: &Content) -> Result<(), VolumeError> {
        let checksummed = self.volume.sb.has_metadata_csum();
        h.modify(buffer, |bytes| {
            content.encode(bytes)?;
            if checksummed { set_checksum(bytes, self.seed) } else { Ok(()) }
        })?
        .map_err(|error| VolumeError::corrupt("extent node", Place::Block(buffer.nr()), error))
    }

    fn free_node(&self, h: &mut Handle<'_>, inode: &mut Inode, block: DiskBlock) -> Result<(), VolumeError> {
        self.volume.alloc.mark_free(self.volume, h, BlockRun { start: block, len: 1 })?;
        h.revoke(block);
        inode.blocks = inode.blocks.saturating_sub(self.sectors());
        Ok(())
    }

    /// Pulls an only child that the root can hold into the root.
    fn shrink(&self, h: &mut Handle<'_>, inode: &mut Inode) -> Result<(), VolumeError> {
        loop {
            let root = node::root(self.volume, self.nr, inode)?;
            let &[only] = root.children() else { return Ok(()) };
            let depth = root.depth - 1;
            let bytes = node::read(self.volume, self.seed, only.child, depth)?.snapshot();
            if node::View(&bytes).len() > capacity(ROOT_BYTES) {
                return Ok(());
            }
            let below = node::parse(self.volume, only.child, &bytes, depth)?;
            let content = Content { depth, entries: below.entries };
            content.encode(&mut inode.i_block).map_err(|error| self.corrupt(error))?;
            self.free_node(h, inode, only.child)?;
        }
    }
}
